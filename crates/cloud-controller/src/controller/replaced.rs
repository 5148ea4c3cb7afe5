//! Nodes whose kubelet runs on another VM than the one in the provider id.
//!
//! This happens after a VM was rebuilt under the old name or its uuid was changed. Kubernetes does
//! not allow a provider id to change, and the storage driver attaches volumes by it. The controller
//! keeps such a Node because its kubelet runs. Only the owner can decide to drain it, so an event
//! contains the fix.

use super::Shared;
use crate::{
    events::EventType,
    identity::{self, VmLookup, provider_uuid},
    model::{Node, VirtualMachine},
};

const FIX: &str = "Kubernetes does not let a provider id change: drain the node, delete the Node and restart its \
                      kubelet, which registers the Node again";

impl Shared {
    /// `vm` is the VM that identifies the node.
    pub(super) fn report_replaced(&self, node: &Node, vm: &VirtualMachine) {
        if let Some(text) = replacement_message(node, vm, &self.pool) {
            self.report(node, EventType::Warning, "VMReplaced", text);
        }
    }
}

/// Text of the event, if both uuids prove that there are two VMs.
fn replacement_message(node: &Node, vm: &VirtualMachine, lookup: &dyn VmLookup) -> Option<String> {
    let id = provider_uuid(&node.provider_id)?;
    let own = vm.bios_uuid.filter(|uuid| !uuid.is_nil())?;
    if id != own && id.swapped() != own {
        return Some(format!(
            "the provider id {} does not belong to {}, on which the kubelet runs (vsphere://{own}): volumes are \
             attached by the provider id of the Node. {FIX}",
            node.provider_id,
            vm.title()
        ));
    }
    if !identity::reports_other_computer(node, vm) {
        return None;
    }
    // A kubelet that cannot read the firmware reports a uuid of no VM.
    let shown = node.system_uuid.trim().parse().ok()?;
    let others = lookup.with_bios_uuid(shown);
    let other = others.iter().find(|other| !other.template && other.vm_ref != vm.vm_ref)?;
    Some(format!(
        "the provider id belongs to {}, but the kubelet runs on {}: volumes are attached to the first. {FIX}",
        vm.title(),
        other.title()
    ))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use vsphere::{BiosUuid, InstanceUuid};

    use super::*;
    use crate::{
        model::VmRef,
        testing::{node, vm},
    };

    const OLD: &str = "422e4956-ad22-1139-6d72-59cc8f26bc90";
    const NEW: &str = "42000000-0000-0000-0000-000000000001";

    struct Inventory(Vec<VirtualMachine>);

    impl VmLookup for Inventory {
        fn at(&self, _: &VmRef) -> Option<VirtualMachine> {
            None
        }
        fn with_bios_uuid(&self, uuid: BiosUuid) -> Vec<VirtualMachine> {
            self.0.iter().filter(|m| m.bios_uuid == Some(uuid)).cloned().collect()
        }
        fn with_instance_uuid(&self, _: InstanceUuid) -> Vec<VirtualMachine> {
            Vec::new()
        }
        fn with_dns_name(&self, _: &str) -> Vec<VirtualMachine> {
            Vec::new()
        }
        fn with_short_name(&self, _: &str) -> Vec<VirtualMachine> {
            Vec::new()
        }
        fn with_address(&self, _: IpAddr) -> Vec<VirtualMachine> {
            Vec::new()
        }
    }

    #[test]
    fn a_replaced_vm_is_reported_only_if_two_uuids_prove_it() {
        let old = vm("old");
        let new = VirtualMachine { bios_uuid: NEW.parse().ok(), ..vm("new") };
        let unknown = VirtualMachine { bios_uuid: None, ..vm("unknown") };
        let template = VirtualMachine { template: true, ..new.clone() };
        let swapped = "56492e42-22ad-3911-6d72-59cc8f26bc90";
        let nowhere = "11111111-2222-3333-4444-555555555555";
        let both = [old.clone(), new.clone()];
        let by_new = Some("/DC0/vm/new");
        for (what, id, shown, found, in_view, expected) in [
            ("one VM", OLD, OLD, &old, &both[..], None),
            ("in the other byte order", swapped, swapped, &old, &both, None),
            ("the old VM is gone", OLD, NEW, &new, &both[1..], by_new),
            ("the old VM still exists", OLD, NEW, &old, &both, by_new),
            ("the reported uuid belongs to no VM", OLD, nowhere, &old, &both, None),
            ("the reported uuid belongs to a template", OLD, NEW, &old, &[template], None),
            ("the kubelet reports no uuid", OLD, "", &old, &both, None),
            ("no provider id", "", NEW, &new, &both, None),
            ("vCenter does not know the uuid", OLD, OLD, &unknown, &both, None),
        ] {
            let provider_id = if id.is_empty() { String::new() } else { format!("vsphere://{id}") };
            let node =
                Node { provider_id: provider_id.into(), system_uuid: shown.into(), ..node("n") };
            let replacement_message =
                replacement_message(&node, found, &Inventory(in_view.to_vec()));
            match (replacement_message, expected) {
                (None, None) => {}
                (Some(text), Some(path)) => {
                    assert!(
                        text.contains(path) && text.contains("delete the Node"),
                        "{what}: {text}"
                    );
                }
                (replacement_message, _) => panic!("{what}: {replacement_message:?}"),
            }
        }
    }
}
