//! The node's labels say where it is, and agree with each other.

use crate::{checks::prelude::*, topology};

pub(super) const CHECK: Check = Check {
    name: "zones/labels",
    gives: &[codes::ZONE_MOVED, codes::ZONE_LABELS_DISAGREE],
    run: Run::Machine(check),
};

fn check(view: &View<'_>, node: &Node, found: &Found<'_>, sink: &mut Sink) {
    for (old, new) in [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ] {
        let (Some(before), Some(now)) = (node.labels.get(old), node.labels.get(new)) else {
            continue;
        };
        if before != now {
            let hit = Hit::of_node(codes::ZONE_LABELS_DISAGREE, node);
            sink.raise(
                hit.with("first", format!("{old}={before}"))
                    .with("second", format!("{new}={now}"))
                    .with("remove", format!("{old}-")),
            );
        }
    }
    let Some(cloud) = &view.facts.wanted.cloud else { return };
    let (Some(tags), Some(host)) = (found.inventory.tags.get(), found.host) else { return };
    for (label, category) in [
        ("topology.kubernetes.io/zone", &cloud.zone),
        ("topology.kubernetes.io/region", &cloud.region),
    ] {
        let (Some(labelled), Some(category)) = (node.labels.get(label), category) else { continue };
        let actual = topology::above(tags, &found.vm.host, host, category);
        if !actual.is_empty() && !actual.contains(&labelled.as_str()) {
            sink.raise(
                Hit::of_vm(codes::ZONE_MOVED, node, found)
                    .with("label", label)
                    .with("labelled", labelled)
                    .with("host", &host.name)
                    .with("actual", actual[0]),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_has_left_its_zone_is_named() {
        shows_of_vms(&CHECK, &["VDO-1705"], |facts| {
            let vm = facts.vm("worker-1");
            vm.host = if vm.host == "host-1" { "host-3".into() } else { "host-1".into() };
        });
    }

    #[test]
    fn a_move_within_the_zone_is_nothing() {
        let mut facts = healthy();
        let vm = facts.vm("worker-2");
        vm.host = if vm.host == "host-1" { "host-2".into() } else { "host-1".into() };
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn old_and_new_labels_that_contradict_each_other_are_named() {
        shows_of_vms(&CHECK, &["VDO-1706"], |facts| {
            let labels = &mut facts.node("worker-1").labels;
            labels.insert("failure-domain.beta.kubernetes.io/zone".into(), "zone-x".into());
        });
    }
}
