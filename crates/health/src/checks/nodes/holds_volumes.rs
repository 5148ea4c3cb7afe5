//! A node that is down does not keep volumes from others.

use std::collections::BTreeMap;

use crate::{checks::prelude::*, facts::Power};

pub(super) const CHECK: Check = Check {
    name: "nodes/holds_volumes",
    gives: &[codes::NODE_HOLDS_VOLUMES],
    run: Run::Cluster(&[Part::Nodes, Part::Vms, Part::Volumes], check),
};

/// How long a node may be away before somebody should act.
const PATIENCE: i64 = 120;

fn check(view: &View<'_>, sink: &mut Sink) {
    let storage = &view.facts.storage;
    let question = "whether volumes hang on nodes that are down";
    let Some(attachments) = sink.need(&storage.attachments, cluster_subject, question) else {
        return;
    };
    let Some(volumes) = sink.need(&storage.volumes, cluster_subject, question) else { return };
    let mut held: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for attachment in attachments.iter().filter(|attachment| !attachment.detaching) {
        let Some(volume) = volumes.get(&attachment.volume) else { continue };
        let Some(holder) = volume.node.as_deref().filter(|holder| *holder != attachment.node)
        else {
            continue;
        };
        held.entry(holder).or_default().push(&volume.handle);
    }
    for (name, handles) in held {
        let Some(node) = view.node(name) else { continue };
        let away = view.seconds_since(node.ready_since);
        if node.ready || away < PATIENCE || node.has_taint(Node::OUT_OF_SERVICE) {
            continue;
        }
        let names =
            handles.iter().filter_map(|handle| volumes.get(*handle)).map(|v| v.name.as_str());
        let power = match view.only_machine(node) {
            Some(found) if found.vm.power == Power::Off => "vCenter says its VM is off".to_owned(),
            Some(found) => format!("govc vm.power -off {}", found.vm.path),
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
    use crate::facts::Attachment;

    fn power_cut(facts: &mut Facts) {
        facts.node("worker-1").ready = false;
        let volume = facts.storage.volumes.get().unwrap().values();
        let volume = volume.into_iter().find(|v| v.node.as_deref() == Some("worker-1")).unwrap();
        let attachment = Attachment {
            name: "csi-1".into(),
            volume: volume.handle.clone(),
            node: "worker-2".into(),
            ..Attachment::default()
        };
        facts.storage.attachments = vec![attachment].into();
    }

    #[test]
    fn a_dead_node_whose_volumes_are_wanted_elsewhere_is_named() {
        shows(&CHECK, &["VDO-1225"], power_cut, |facts| {
            facts.storage.attachments = Known::unknown("VDO may not list VolumeAttachments");
        });
    }

    #[test]
    fn the_out_of_service_taint_is_the_cure() {
        let mut facts = healthy();
        power_cut(&mut facts);
        facts.node("worker-1").taints = vec![Node::OUT_OF_SERVICE.into()];
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
