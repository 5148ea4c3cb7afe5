//! A node whose kubelet runs on another machine than its provider id names: the machine was built anew under
//! the old name, or its uuid was changed. Kubernetes lets nobody change a provider id, and whoever goes by it,
//! as the storage driver does, still means the machine before. Such a Node is kept, for its kubelet is there;
//! only its owner can say that it may be drained, so what to do is told and not done.

use super::Shared;
use crate::{
    events::Weight,
    identity::{self, Directory, provider_uuid},
    model::{Node, VirtualMachine},
};

/// What to do about it.
const REMEDY: &str = "Kubernetes does not let a provider id change: drain the node, delete the Node and restart its \
                      kubelet, which registers it anew";

impl Shared {
    /// Tells whether the node's kubelet and its provider id are of two machines; `vm` is the one found.
    pub(super) fn note_replaced(&self, node: &Node, vm: &VirtualMachine) {
        if let Some(text) = told(node, vm, &self.pool) {
            self.say(node, Weight::Warning, "MachineReplaced", text);
        }
    }
}

/// What is to be said, if anything: only what both uuids prove.
fn told(node: &Node, vm: &VirtualMachine, directory: &dyn Directory) -> Option<String> {
    let id = provider_uuid(&node.provider_id)?;
    let own = vm.bios_uuid.filter(|uuid| !uuid.is_nil())?;
    if id != own && id.swapped() != own {
        return Some(format!(
            "the provider id {} is not that of {}, on which its kubelet runs (vsphere://{own}): volumes are attached \
             by the one on the Node. {REMEDY}",
            node.provider_id,
            vm.title()
        ));
    }
    if !identity::is_other_computer(node, vm) {
        return None;
    }
    // A kubelet that cannot read its firmware shows the uuid of no machine at all.
    let shown = node.system_uuid.trim().parse().ok()?;
    let others = directory.with_bios_uuid(shown);
    let other = others.iter().find(|other| !other.template && other.place != vm.place)?;
    Some(format!(
        "the provider id is that of {}, but its kubelet runs on {}: volumes are attached to the first. {REMEDY}",
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
        model::Place,
        testing::{node, vm},
    };

    const OLD: &str = "422e4956-ad22-1139-6d72-59cc8f26bc90";
    const NEW: &str = "42000000-0000-0000-0000-000000000001";

    /// All there is.
    struct Inventory(Vec<VirtualMachine>);

    impl Directory for Inventory {
        fn at(&self, _: &Place) -> Option<VirtualMachine> {
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
    fn a_node_is_told_that_its_machine_was_replaced_only_where_two_uuids_prove_it() {
        let old = vm("old");
        let new = VirtualMachine { bios_uuid: NEW.parse().ok(), ..vm("new") };
        let unknown = VirtualMachine { bios_uuid: None, ..vm("unknown") };
        let template = VirtualMachine { template: true, ..new.clone() };
        let swapped = "56492e42-22ad-3911-6d72-59cc8f26bc90";
        let nowhere = "11111111-2222-3333-4444-555555555555";
        let both = [old.clone(), new.clone()];
        let by_new = Some("/DC0/vm/new");
        for (what, id, shown, found, in_view, expected) in [
            ("as it should be", OLD, OLD, &old, &both[..], None),
            ("in the other byte order", swapped, swapped, &old, &both, None),
            ("the old one is gone", OLD, NEW, &new, &both[1..], by_new),
            ("the old one is still there", OLD, NEW, &old, &both, by_new),
            ("what it shows is no machine's", OLD, nowhere, &old, &both, None),
            ("what it shows is a template's", OLD, NEW, &old, &[template], None),
            ("it shows nothing", OLD, "", &old, &both, None),
            ("it has no provider id", "", NEW, &new, &both, None),
            ("vCenter does not know the uuid", OLD, OLD, &unknown, &both, None),
        ] {
            let provider_id = if id.is_empty() { String::new() } else { format!("vsphere://{id}") };
            let node =
                Node { provider_id: provider_id.into(), system_uuid: shown.into(), ..node("n") };
            let told = told(&node, found, &Inventory(in_view.to_vec()));
            match (told, expected) {
                (None, None) => {}
                (Some(text), Some(path)) => {
                    assert!(
                        text.contains(path) && text.contains("delete the Node"),
                        "{what}: {text}"
                    );
                }
                (told, _) => panic!("{what}: {told:?}"),
            }
        }
    }
}
