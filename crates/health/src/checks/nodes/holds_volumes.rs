//! A node that is down does not keep volumes from others.

use api::finding::quoted;

use crate::{checks::prelude::*, facts::Power};

pub(super) const CHECK: Check = Check {
    name: "nodes/holds_volumes",
    gives: &[codes::NODE_HOLDS_VOLUMES],
    run: Run::Cluster(&[Part::Nodes, Part::Vms, Part::Volumes], check),
};

/// How long a node may be away before its volumes should be elsewhere: its pods are sent away after five
/// minutes, and after six Kubernetes detaches what it may.
const PATIENCE: i64 = 360;

fn check(view: &View<'_>, sink: &mut Sink) {
    let question = "whether volumes hang on nodes that are down";
    let Some(volumes) = sink.need(&view.facts.storage.volumes, cluster_subject, question) else {
        return;
    };
    for node in view.nodes() {
        let away = view.seconds_since(node.ready_since);
        if node.ready || away < view.patience(PATIENCE) || node.has_taint(Node::OUT_OF_SERVICE) {
            continue;
        }
        let handles = view.index.volumes_on_node(&node.name);
        if handles.is_empty() {
            continue;
        }
        let names =
            handles.iter().filter_map(|handle| volumes.get(handle)).map(|v| v.name.as_str());
        let power = match view.only_machine(node) {
            Some(found) if found.vm.power == Power::Off => "vCenter says its VM is off".to_owned(),
            Some(found) => format!("govc vm.power -off {}", quoted(&found.vm.path)),
            None => "look at the machine".to_owned(),
        };
        let count = handles.len();
        let mut hit = Hit::of_node(codes::NODE_HOLDS_VOLUMES, node)
            .with("age", span(away))
            .with("count", format!("{count} volume{}", if count == 1 { "" } else { "s" }))
            .with("volumes", first_names(names))
            .with("power", power);
        for handle in handles {
            hit = hit.at(Anchor::Volume, handle);
        }
        sink.raise(hit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power_cut(facts: &mut Facts) {
        facts.node("worker-1").ready = false;
    }

    #[test]
    fn a_dead_node_with_volumes_is_named() {
        shows(&CHECK, &["VDO-1225"], power_cut, |facts| {
            facts.storage.volumes = Known::unknown("VDO may not list PersistentVolumes");
        });
    }

    #[test]
    fn a_node_that_has_just_gone_gets_its_time() {
        let mut facts = healthy();
        power_cut(&mut facts);
        facts.node("worker-1").ready_since =
            jiff::Timestamp::from_second(facts.now.as_second() - 300).unwrap();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn a_dead_node_without_volumes_holds_none() {
        let mut facts = healthy();
        power_cut(&mut facts);
        for volume in facts.storage.volumes.get_mut().unwrap().values_mut() {
            volume.node = None;
        }
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn the_out_of_service_taint_is_the_cure() {
        let mut facts = healthy();
        power_cut(&mut facts);
        facts.node("worker-1").taints = vec![Node::OUT_OF_SERVICE.into()];
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
