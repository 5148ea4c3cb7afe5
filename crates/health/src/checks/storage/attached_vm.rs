//! A volume's disk is attached to the VM that Kubernetes expects.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "storage/attached_vm",
    gives: &[codes::DISK_HELD_ELSEWHERE],
    run: CheckScope::Volume(check),
};

fn check(view: &FactsView<'_>, volume: &Volume, sink: &mut Sink) {
    let node = volume.node.as_deref().and_then(|name| view.node(name));
    if let Some(node) = node {
        compare(view, volume, node, sink);
    }
}

/// Reports other VMs that hold the disk of a volume attached to `node`.
pub(super) fn compare(view: &FactsView<'_>, volume: &Volume, node: &Node, sink: &mut Sink) {
    let holders = view.index.vms_with_volume(&volume.handle);
    if holders.is_empty() || view.index.vms_of(&node.name) == holders {
        return;
    }
    // The comparison needs exactly one known VM of the node.
    let Some(own) = view.only_vm(node) else { return };
    for holder in holders.iter().filter_map(|at| view.vm(at)) {
        if holder.id != own.id || holder.vcenter.name != own.vcenter.name {
            let hit = super::hit(codes::DISK_HELD_ELSEWHERE, volume).with("node", &node.name);
            sink.raise(hit.with("vm", &holder.vm.path).vcenter(&holder.vcenter.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts::Vm, sample::handle};

    #[test]
    fn a_vm_that_still_holds_the_disk_is_reported() {
        let mut facts = healthy();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        let zombie = Vm {
            name: "old-worker".into(),
            path: "/DC0/vm/k8s/old-worker".into(),
            bios_uuid: "zombie".into(),
            volumes: vec![handle(5)],
            ..Vm::default()
        };
        facts.inventory().vms.insert("vm-zombie".into(), zombie);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1518"]);
        facts.vcenter().inventory = Known::unknown("vcenter-a does not answer");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "nobody can be accused unseen");
    }
}
