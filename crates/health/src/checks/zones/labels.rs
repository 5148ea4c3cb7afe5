//! The node's zone labels match its host and each other.

use crate::{checks::prelude::*, topology};

pub(super) const CHECK: Check = Check {
    name: "zones/labels",
    gives: &[codes::ZONE_MOVED, codes::ZONE_LABELS_DISAGREE, codes::NODE_WITHOUT_ZONE],
    run: CheckScope::NodeVm(check),
};

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    for (old, new) in [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ] {
        let (Some(before), Some(now)) = (node.labels.get(old), node.labels.get(new)) else {
            continue;
        };
        if before != now {
            let hit = Hit::for_node(codes::ZONE_LABELS_DISAGREE, node);
            sink.raise(
                hit.with("first", format!("{old}={before}"))
                    .with("second", format!("{new}={now}"))
                    .with("remove", format!("{old}-")),
            );
        }
    }
    without_zone(view, node, sink);
    let (Some(tags), Some(host)) = (found.inventory.tags.get(), found.host) else { return };
    for (label, category) in labels(view) {
        let Some(labelled) = node.labels.get(&label) else { continue };
        let actual = topology::above(tags, &found.vm.host, host, category);
        if !actual.is_empty() && !actual.contains(&labelled.as_str()) {
            sink.raise(
                Hit::for_vm(codes::ZONE_MOVED, node, found)
                    .with("label", &label)
                    .with("labelled", labelled)
                    .with("host", &host.name)
                    .with("place", place(found, tags, category, labelled))
                    .with("actual", actual[0]),
            );
        }
    }
}

/// Zone and region labels of both drivers, with their tag categories.
fn labels<'a>(view: &FactsView<'a>) -> Vec<(String, &'a str)> {
    let wanted = &view.facts.wanted;
    let cloud = wanted.cloud.iter();
    let zone = cloud.clone().filter_map(|cloud| cloud.zone.as_deref());
    let region = cloud.filter_map(|cloud| cloud.region.as_deref());
    let zone = zone.map(|category| ("topology.kubernetes.io/zone".to_owned(), category));
    let region = region.map(|category| ("topology.kubernetes.io/region".to_owned(), category));
    let storage = wanted.storage.iter().flat_map(|storage| &storage.categories);
    let storage = storage.map(|category| (format!("{CSI_LABEL}{category}"), category.as_str()));
    zone.chain(region).chain(storage).collect()
}

/// Prefix of the storage driver's labels and topology keys.
const CSI_LABEL: &str = "topology.csi.vmware.com/";

/// A host in the labelled zone, to move the VM back to it; HOST if VDO knows none.
fn place(found: &FoundVm<'_>, tags: &crate::facts::Tags, category: &str, zone: &str) -> String {
    let in_zone = |(id, host): &(&String, &crate::facts::Host)| {
        topology::above(tags, id, host, category) == [zone]
    };
    let mut hosts = found.inventory.hosts.iter();
    hosts.find(in_zone).map_or_else(|| "HOST".to_owned(), |(_, host)| host.path.clone())
}

/// Reports a node that the storage driver registered before zones were configured.
fn without_zone(view: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    let (Some(storage), Some(driver)) = (&view.facts.wanted.storage, view.storage_driver()) else {
        return;
    };
    let Some(Some(entry)) = node.csi.get() else { return };
    if !storage.categories.is_empty() && entry.topology_keys.is_empty() {
        let categories = storage.categories.join(", ");
        let hit = Hit::for_node(codes::NODE_WITHOUT_ZONE, node).driver(&driver.name);
        sink.raise(hit.with("categories", categories).shared("namespace", &driver.namespace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_has_left_its_zone_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1705"], |facts| {
            let vm = facts.vm("worker-1");
            vm.host = if vm.host == "host-1" { "host-3".into() } else { "host-1".into() };
        });
    }

    #[test]
    fn the_vm_moves_back_to_a_host_of_its_zone_if_one_is_known() {
        let mut facts = healthy();
        let zone = facts.node("worker-1").labels["topology.kubernetes.io/zone"].clone();
        let vm = facts.vm("worker-1");
        vm.host = if vm.host == "host-1" { "host-3".into() } else { "host-1".into() };
        for host in facts.inventory().hosts.values_mut() {
            host.path = format!("/DC 0/host/{}", host.name);
        }
        let step = |facts: &Facts| {
            let all = crate::Examination::run(facts.clone()).report().all();
            let finding = all.into_iter().find(|finding| finding.code == "VDO-1705").unwrap();
            finding.remedy[0].clone()
        };
        let known = step(&facts);
        assert!(known.starts_with("govc vm.migrate -host '/DC 0/host/"), "{known}");
        facts.node("worker-1").labels.insert("topology.kubernetes.io/zone".into(), "gone".into());
        let unknown = step(&facts);
        assert!(unknown.starts_with("# govc vm.migrate -host HOST /DC0/vm"), "{zone}: {unknown}");
    }

    #[test]
    fn the_storage_drivers_own_labels_count_without_a_cloud_provider_too() {
        let mut facts = healthy();
        facts.wanted.cloud = None;
        let label = "topology.csi.vmware.com/k8s-zone".to_owned();
        facts.node("worker-1").labels.insert(label.clone(), "zone-x".into());
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1705"]);
        let zone = facts.node("worker-1").labels["topology.kubernetes.io/zone"].clone();
        facts.node("worker-1").labels.insert(label, zone);
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn a_node_registered_without_its_zone_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1709"], |facts| {
            let entry = facts.node("worker-1").csi.get_mut().unwrap().as_mut().unwrap();
            entry.topology_keys.clear();
        });
        let mut facts = healthy();
        facts.wanted.storage.as_mut().unwrap().categories.clear();
        let entry = facts.node("worker-1").csi.get_mut().unwrap().as_mut().unwrap();
        entry.topology_keys.clear();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "without zones it needs none");
    }

    #[test]
    fn a_move_within_the_zone_is_nothing() {
        let mut facts = healthy();
        let vm = facts.vm("worker-2");
        vm.host = if vm.host == "host-1" { "host-2".into() } else { "host-1".into() };
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn old_and_new_labels_that_contradict_each_other_are_reported() {
        shows_of_vms(&CHECK, &["VDO-1706"], |facts| {
            let labels = &mut facts.node("worker-1").labels;
            labels.insert("failure-domain.beta.kubernetes.io/zone".into(), "zone-x".into());
        });
    }
}
