//! The CustomResourceDefinitions and the CSIDriver of the storage driver exist.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/definitions",
    gives: &[codes::CRD_MISSING, codes::CSIDRIVER_MISSING],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let drivers = &view.facts.cluster.drivers;
    let question = "whether the storage driver's CustomResourceDefinitions exist";
    let Some(Some(driver)) = sink.need(&drivers.storage, cluster_subject, question) else { return };
    let crds = sink.need(&driver.crds, cluster_subject, question).into_iter().flatten();
    for crd in crds.filter(|(_, exists)| !**exists).map(|(name, _)| name) {
        let subject = Subject::kubernetes("CustomResourceDefinition", None, crd);
        let hit = Hit::new(codes::CRD_MISSING, subject).with("crd", crd).driver(&driver.name);
        sink.raise(hit.shared("namespace", &driver.namespace));
    }
    if let Some(false) = sink.need(&driver.registered, cluster_subject, question) {
        let subject = Subject::kubernetes("CSIDriver", None, "csi.vsphere.vmware.com");
        sink.raise(Hit::new(codes::CSIDRIVER_MISSING, subject).driver(&driver.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_definition_is_reported() {
        shows(&CHECK, &["VDO-1605"], Shortcuts::no_crds, |facts| {
            facts.cluster.drivers.storage = Known::unknown("VDO cannot list them");
        });
    }

    #[test]
    fn a_driver_without_its_csidriver_object_is_reported() {
        let mut facts = healthy();
        facts.storage_driver().registered = false.into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1622"]);
    }
}
