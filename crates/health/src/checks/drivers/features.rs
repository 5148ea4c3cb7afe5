//! The storage driver's feature switches match its release.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/features",
    gives: &[codes::FEATURES_STALE],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let Some(driver) = view.storage_driver().filter(|driver| driver.upstream) else { return };
    let question = "whether the storage driver's feature switches match its release";
    let Some(features) = sink.need(&driver.features, cluster_subject, question) else { return };
    let differences: Vec<String> = driver
        .release_features
        .iter()
        .filter_map(|(name, value)| match features.get(name) {
            None => Some(format!("{name} is missing")),
            // An admin may turn a switch on, but must not turn off one that the release needs.
            Some(actual) if value == "true" && actual != "true" => {
                Some(format!("{name} is {actual}, but true in the release"))
            }
            Some(_) => None,
        })
        .collect();
    if !differences.is_empty() {
        let name = "internal-feature-states.csi.vsphere.vmware.com";
        let subject = Subject::kubernetes("ConfigMap", Some(&driver.namespace), name);
        let version = driver.version.map_or_else(String::new, |version| version.to_string());
        sink.raise(
            Hit::new(codes::FEATURES_STALE, subject)
                .with("configmap", name)
                .with("differences", differences.join(", "))
                .with("version", version)
                .with("namespace", &driver.namespace)
                .driver(&driver.name),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_the_release_needs_is_missed() {
        shows(
            &CHECK,
            &["VDO-1609"],
            |facts| facts.storage_driver().features.get_mut().unwrap().clear(),
            |facts| facts.storage_driver().features = Known::unknown("VDO cannot read ConfigMaps"),
        );
    }

    #[test]
    fn a_switch_somebody_turned_on_is_a_choice() {
        let mut facts = healthy();
        let features = facts.storage_driver().features.get_mut().unwrap();
        features.insert("high-pv-node-density".into(), "true".into());
        features.insert("of-my-own".into(), "true".into());
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
