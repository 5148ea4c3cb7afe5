//! vCenter knows every volume of Kubernetes, and can reach it.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "storage/registered",
    gives: &[codes::VOLUME_NOT_IN_CNS, codes::VOLUME_UNREACHABLE, codes::METADATA_DOUBLE],
    run: CheckScope::Volume(check),
};

fn check(view: &FactsView<'_>, volume: &Volume, sink: &mut Sink) {
    // `volume_counts` reports once whether the CNS query failed.
    let Some(cns) = view.facts.storage.cns.get() else { return };
    match cns.get(&volume.handle) {
        None if !view.facts.storage.was_asked_for(volume) => {}
        None => {
            let hit = super::hit(codes::VOLUME_NOT_IN_CNS, volume);
            let vms = view.index.vms_with_volume(&volume.handle).iter();
            let node = volume.node.as_deref().and_then(|node| view.node(node));
            let vcenter = vms.map(|at| at.vcenter.as_str()).next();
            let vcenter = vcenter.or_else(|| Some(view.only_vm(node?)?.vcenter.name.as_str()));
            sink.raise(vcenter.into_iter().fold(hit, Hit::vcenter));
        }
        Some(known) if known.unreachable => {
            let name = view.datastores().find(|(_, _, d)| d.url == known.datastore);
            let name = name.map_or(known.datastore.as_str(), |(_, _, d)| d.path.as_str());
            sink.raise(
                super::hit(codes::VOLUME_UNREACHABLE, volume)
                    .shared("datastore", name)
                    .at(Anchor::Datastore, &known.datastore),
            );
        }
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
    fn a_volume_vcenter_has_forgotten_is_reported() {
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
    fn a_volume_younger_than_what_vcenter_was_asked_is_not_judged() {
        let mut facts = healthy();
        facts.storage.cns.get_mut().unwrap().remove(&handle(1));
        let asked = facts.storage.cns_asked;
        let volume = facts.storage.volumes.get_mut().unwrap().get_mut(&handle(1)).unwrap();
        volume.created = asked;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn volumes_of_an_unreachable_datastore_are_consequences() {
        let mut facts = healthy();
        let volumes = facts.storage.cns.get_mut().unwrap();
        for volume in volumes.values_mut() {
            volume.unreachable = true;
        }
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1528"]);
        facts.inventory().datastores.get_mut("datastore-1").unwrap().accessible = false;
        let findings = crate::Examination::run(facts).report().findings();
        let volumes = findings.iter().find(|finding| finding.code == "VDO-1528").unwrap();
        assert_eq!(volumes.consequence_of.as_deref(), Some("VDO-1508"));
        assert!(!findings.iter().any(|finding| finding.code == "VDO-1517"), "no disk is lost");
    }

    #[test]
    fn doubled_metadata_is_reported_as_info() {
        let mut facts = healthy();
        let volumes = facts.storage.cns.get_mut().unwrap();
        volumes.get_mut(&handle(1)).unwrap().duplicate_metadata = true;
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1526"]);
    }
}
