//! Provisioner and driver agree on zones.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/provisioner",
    gives: &[codes::TOPOLOGY_UNCONFIGURED],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

/// Since this release the provisioner passes topology by default.
const BY_DEFAULT: Version = Version::new(5, 0, 0);

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let drivers = &view.facts.cluster.drivers;
    let question = "whether provisioner and storage driver agree on zones";
    let Some(Some(driver)) = sink.need(&drivers.storage, cluster_subject, question) else { return };
    let Some(storage) = &view.facts.wanted.storage else { return };
    let newer = driver.provisioner.is_some_and(|version| version >= BY_DEFAULT);
    let passes_on = driver.provisioner_topology.unwrap_or(newer);
    if storage.categories.is_empty() && storage.assumed {
        return;
    }
    if passes_on && storage.categories.is_empty() && driver.upstream {
        let subject =
            Subject::kubernetes("Deployment", Some(&driver.namespace), "vsphere-csi-controller");
        let version = driver.provisioner.map_or_else(String::new, |version| version.to_string());
        let hit = Hit::new(codes::TOPOLOGY_UNCONFIGURED, subject).driver(&driver.name);
        sink.raise(hit.with("version", version));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_the_driver_does_not_know_of_are_reported() {
        shows(
            &CHECK,
            &["VDO-1615"],
            |facts| facts.wanted.storage.as_mut().unwrap().categories.clear(),
            |facts| facts.cluster.drivers.storage = Known::unknown("VDO cannot list Deployments"),
        );
    }

    #[test]
    fn a_new_provisioner_passes_topology_by_default() {
        let mut facts = healthy();
        facts.wanted.storage.as_mut().unwrap().categories.clear();
        facts.storage_driver().provisioner_topology = None;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "an old one does not");
        facts.storage_driver().provisioner = Some(Version::new(5, 1, 0));
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1615"]);
    }
}
