//! StorageClasses name existing, usable datastores and policies.

use std::collections::BTreeSet;

use crate::{checks::prelude::*, facts::StorageClass};

pub(super) const CHECK: Check = Check {
    name: "storage/classes",
    gives: &[
        codes::CLASS_DATASTORE_UNKNOWN,
        codes::CLASS_DATASTORE_UNREACHABLE,
        codes::CLASS_POLICY_UNKNOWN,
        codes::CLASS_POLICY_FITS_NOTHING,
        codes::CLASS_PARAMETER_UNKNOWN,
    ],
    run: CheckScope::Cluster(&[Part::Nodes, Part::Vms], check),
};

/// The driver's parameters, in lower case. Sidecars consume their prefixed parameters.
const KNOWN: &[&str] = &[
    "storagepolicyname",
    "datastoreurl",
    "fstype",
    "csimigration",
    "datastore-migrationparam",
    "diskformat-migrationparam",
];

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "whether the StorageClasses are usable";
    let Some(classes) = sink.need(&view.facts.storage.classes, cluster_subject, question) else {
        return;
    };
    for class in classes.iter().filter(|class| class.provisioner == "csi.vsphere.vmware.com") {
        parameters(class, sink);
        if let Some(url) = class.parameter("datastoreurl") {
            datastore(view, class, url, sink);
        }
        if let Some(policy) = class.parameter("storagepolicyname") {
            storage_policy(view, class, policy, sink);
        }
    }
}

fn hit(definition: &'static api::finding::Definition, class: &StorageClass) -> Hit {
    let subject = Subject::kubernetes("StorageClass", None, &class.name);
    Hit::new(definition, subject).with("class", &class.name)
}

fn parameters(class: &StorageClass, sink: &mut Sink) {
    let foreign = |key: &&String| {
        let key = key.to_ascii_lowercase();
        !key.starts_with("csi.storage.k8s.io/") && !KNOWN.contains(&key.as_str())
    };
    let unknown: Vec<&str> = class.parameters.keys().filter(foreign).map(String::as_str).collect();
    if !unknown.is_empty() {
        sink.raise(
            hit(codes::CLASS_PARAMETER_UNKNOWN, class).with("parameters", unknown.join(", ")),
        );
    }
}

fn datastore(view: &FactsView<'_>, class: &StorageClass, url: &str, sink: &mut Sink) {
    let found = view.datastores().find(|(_, _, datastore)| datastore.url == url);
    let Some((vcenter, id, datastore)) = found else {
        let blind = view.facts.vcenters.values().find(|vcenter| vcenter.inventory.get().is_none());
        if let Some(vcenter) = blind {
            let question = format!("whether the datastore of StorageClass {} exists", class.name);
            sink.need_from_vcenter(&vcenter.inventory, vcenter, &question);
            return;
        }
        let bare = url.trim_end_matches('/');
        let near = view.datastores().find(|(_, _, d)| d.url.trim_end_matches('/') == bare);
        let hint =
            near.map_or(String::new(), |(_, _, d)| format!("; the URL of {} is {}", d.name, d.url));
        sink.raise(hit(codes::CLASS_DATASTORE_UNKNOWN, class).with("url", url).with("hint", hint));
        return;
    };
    let zones = |s: &crate::facts::WantedStorage| s.assumed || !s.categories.is_empty();
    let zones = view.facts.wanted.storage.as_ref().is_some_and(zones);
    if zones {
        return;
    }
    let hosts = view.hosts_of_nodes(vcenter);
    let without = hosts.iter().filter(|(_, host)| !host.datastores.contains(id));
    let without: Vec<&str> = without.map(|(_, host)| host.name.as_str()).collect();
    if !without.is_empty() {
        let hit = hit(codes::CLASS_DATASTORE_UNREACHABLE, class).with("datastore", &datastore.name);
        let hit = hit.with("hosts", first_names(without)).at(Anchor::Datastore, url);
        sink.raise(hit.vcenter(&vcenter.name));
    }
}

fn storage_policy(view: &FactsView<'_>, class: &StorageClass, name: &str, sink: &mut Sink) {
    for vcenter in view.storage_vcenters() {
        let question = format!("whether the policy of StorageClass {} exists", class.name);
        let Some(inventory) = sink.need_from_vcenter(&vcenter.inventory, vcenter, &question) else {
            continue;
        };
        let Some(policies) = sink.need_from_vcenter(&inventory.policies, vcenter, &question) else {
            continue;
        };
        let Some(policy) = policies.iter().find(|policy| policy.name == name) else {
            let near = policies.iter().find(|policy| policy.name.eq_ignore_ascii_case(name));
            let hint = near.map_or(String::new(), |policy| format!(", but {}", policy.name));
            sink.raise(
                hit(codes::CLASS_POLICY_UNKNOWN, class)
                    .with("address", &vcenter.address)
                    .with("policy", name)
                    .with("hint", hint)
                    .vcenter(&vcenter.name),
            );
            continue;
        };
        let question = format!("which datastores satisfy the storage policy {name}");
        let Some(fitting) = sink.need_from_vcenter(&policy.datastores, vcenter, &question) else {
            continue;
        };
        let hosts = view.hosts_of_nodes(vcenter);
        let reachable: BTreeSet<&String> =
            hosts.iter().flat_map(|(_, host)| &host.datastores).collect();
        if !hosts.is_empty() && !fitting.iter().any(|id| reachable.contains(id)) {
            let names = fitting.iter().filter_map(|id| inventory.datastores.get(id));
            let names = first_names(names.map(|datastore| datastore.name.as_str()));
            let names = if names.is_empty() { "none".to_owned() } else { names };
            let hit = hit(codes::CLASS_POLICY_FITS_NOTHING, class).with("policy", name);
            sink.raise(hit.with("datastores", names).vcenter(&vcenter.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(facts: &mut Facts, key: &str, value: &str) {
        let classes = facts.storage.classes.get_mut().unwrap();
        let class = classes.iter_mut().find(|class| class.parameter(key).is_some()).unwrap();
        class.parameters.insert(key.into(), value.into());
    }

    #[test]
    fn an_unknown_datastore_is_reported_with_the_nearest_name() {
        let missing_slash = "ds:///vmfs/volumes/65f0c0de-00000001";
        shows(
            &CHECK,
            &["VDO-1503"],
            |facts| set(facts, "datastoreurl", missing_slash),
            |facts| facts.storage.classes = Known::unknown("VDO cannot list StorageClasses"),
        );
        let mut facts = healthy();
        set(&mut facts, "datastoreurl", missing_slash);
        let examination = crate::Examination::run(facts);
        let seen = &examination.report().page("VDO-1503", 0, 1).entries[0].seen;
        assert!(seen.contains("the URL of shared is"), "{seen}");
    }

    #[test]
    fn without_zones_the_datastore_must_be_everywhere() {
        let mut facts = healthy();
        set(&mut facts, "datastoreurl", "ds:///vmfs/volumes/65f0c0de-00000002/");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "with zones it need not");
        facts.wanted.storage.as_mut().unwrap().categories.clear();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1504"]);
    }

    #[test]
    fn a_policy_nobody_has_is_reported() {
        shows(
            &CHECK,
            &["VDO-1505"],
            |facts| set(facts, "storagepolicyname", "gold"),
            |facts| facts.inventory().policies = Known::unknown("the service does not answer"),
        );
    }

    #[test]
    fn a_policy_that_fits_nothing_is_reported() {
        shows(
            &CHECK,
            &["VDO-1506"],
            |facts| {
                let policies = facts.inventory().policies.get_mut().unwrap();
                policies[0].datastores = BTreeSet::new().into();
            },
            |facts| {
                let policies = facts.inventory().policies.get_mut().unwrap();
                policies[0].datastores = Known::unknown("the service does not answer");
            },
        );
    }

    #[test]
    fn parameters_of_the_old_driver_are_reported_and_those_of_sidecars_are_not() {
        let mut facts = healthy();
        let class = &mut facts.storage.classes.get_mut().unwrap()[0];
        class.parameters.insert("csi.storage.k8s.io/fstype".into(), "xfs".into());
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        let class = &mut facts.storage.classes.get_mut().unwrap()[0];
        class.parameters.insert("diskformat".into(), "thin".into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1507"]);
    }
}
