//! vCenter knows every volume of Kubernetes, and its disk.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "storage/registered",
    gives: &[codes::VOLUME_NOT_IN_CNS, codes::VOLUME_DISK_LOST, codes::METADATA_DOUBLE],
    run: Run::Volume(check),
};

fn check(view: &View<'_>, volume: &Volume, sink: &mut Sink) {
    // Whether CNS could be asked is said once, where the numbers are compared.
    let Some(cns) = view.facts.storage.cns.get() else { return };
    match cns.get(&volume.handle) {
        // It may have been registered since.
        None if volume.created >= view.facts.storage.cns_asked => {}
        None => sink.raise(super::hit(codes::VOLUME_NOT_IN_CNS, volume)),
        Some(known) if !known.backed => sink.raise(super::hit(codes::VOLUME_DISK_LOST, volume)),
        Some(known) if known.duplicate_metadata => {
            sink.raise(super::hit(codes::METADATA_DOUBLE, volume));
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::handle;

    #[test]
    fn a_volume_vcenter_has_forgotten_is_named() {
        let mut facts = healthy();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        facts.storage.cns.get_mut().unwrap().remove(&handle(1));
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1515"]);
        let volumes = facts.storage.volumes.get_mut().unwrap();
        volumes.get_mut(&handle(1)).unwrap().created = facts.now;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "it is younger than the answer");
        facts.storage.cns = Known::unknown("CNS does not answer");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "absence is not proven");
    }

    #[test]
    fn a_volume_without_its_disk_is_named() {
        let mut facts = healthy();
        facts.storage.cns.get_mut().unwrap().get_mut(&handle(1)).unwrap().backed = false;
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1517"]);
    }

    #[test]
    fn doubled_metadata_is_mentioned() {
        let mut facts = healthy();
        let volumes = facts.storage.cns.get_mut().unwrap();
        volumes.get_mut(&handle(1)).unwrap().duplicate_metadata = true;
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1526"]);
    }
}
