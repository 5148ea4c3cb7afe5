//! The node's provider id names its VM.

use crate::{checks::prelude::*, index};

pub(super) const CHECK: Check = Check {
    name: "nodes/provider_id",
    gives: &[codes::PROVIDER_ID_FOREIGN, codes::PROVIDER_ID_WRONG],
    run: CheckScope::Node(check),
};

fn check(view: &FactsView<'_>, node: &Node, sink: &mut Sink) {
    let (Some(id), Some(_)) = (&node.provider_id, &view.facts.wanted.cloud) else { return };
    let Some(uuid) = id.strip_prefix("vsphere://") else {
        // A node outside vSphere may have a foreign id; a node whose VM is in vCenter must not.
        if is_in_vcenter(view, node) {
            sink.raise(Hit::for_node(codes::PROVIDER_ID_FOREIGN, node).with("id", id));
        }
        return;
    };
    if uuid.trim().eq_ignore_ascii_case(&node.system_uuid) {
        return;
    }
    // Look up the VM by the firmware's uuid: a look-up by provider id would only confirm the id.
    let system = node.system_uuid.to_ascii_lowercase();
    let other = index::swapped(&system);
    let uuids = std::iter::once(system).chain(other);
    let vms: Vec<_> = uuids.flat_map(|uuid| view.index.vms_with_uuid(&uuid).to_vec()).collect();
    let [only] = vms.as_slice() else { return };
    let Some(found) = view.vm(only) else { return };
    if !found.vm.bios_uuid.eq_ignore_ascii_case(uuid.trim()) {
        let hit = Hit::for_vm(codes::PROVIDER_ID_WRONG, node, &found).with("id", id);
        sink.raise(hit.with("uuid", &found.vm.bios_uuid));
    }
}

fn is_in_vcenter(view: &FactsView<'_>, node: &Node) -> bool {
    index::uuids(node).iter().any(|uuid| !view.index.vms_with_uuid(uuid).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_another_provider_on_a_vsphere_vm_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1214"], |facts| {
            facts.node("worker-1").provider_id = Some("k3s://worker-1".into());
        });
    }

    #[test]
    fn a_node_outside_vsphere_keeps_its_provider_id() {
        let mut facts = healthy();
        facts.node("worker-1").provider_id = Some("aws:///i-1".into());
        facts.node("worker-1").system_uuid = "ec2".into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }

    #[test]
    fn an_id_in_the_other_byte_order_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1215"], |facts| {
            let node = facts.node("worker-1");
            let swapped = index::swapped(&node.system_uuid).unwrap();
            node.provider_id = Some(format!("vsphere://{swapped}"));
        });
    }
}
