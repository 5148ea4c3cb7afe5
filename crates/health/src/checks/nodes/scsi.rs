//! The VM's SCSI controllers have free slots for volumes.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/scsi",
    gives: &[codes::SCSI_SLOTS, codes::SCSI_KIND],
    run: CheckScope::NodeVm(check),
};

/// Slots of one controller: 64 for paravirtual ones on new hosts, otherwise 15.
fn places(paravirtual: bool, many: bool) -> u32 {
    if paravirtual && many { 64 } else { 15 }
}

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    if view.facts.wanted.storage.is_none() {
        return;
    }
    let vm = found.vm;
    // vCenter adds paravirtual controllers automatically, up to four controllers in all.
    let version = found.host.map(|host| host.version).filter(|v| *v != Version::default());
    // Assume a new host if its version is unknown, to avoid a false alarm.
    if version.is_none() {
        sink.leave_open();
    }
    let many = version.is_none_or(|version| version >= Version::new(8, 0, 0));
    let usable = vm.scsi.iter().filter(|controller| controller.paravirtual);
    let free: u32 = usable.map(|c| places(true, many).saturating_sub(c.disks)).sum();
    if free == 0 && vm.scsi.len() >= 4 {
        let slots: u32 = vm.scsi.iter().map(|c| places(c.paravirtual, many)).sum();
        sink.raise(Hit::for_vm(codes::SCSI_SLOTS, node, found).with("slots", slots));
    }
    let others = vm.scsi.iter().filter(|controller| !controller.paravirtual).count();
    if others > 0 {
        let hit = Hit::for_vm(codes::SCSI_KIND, node, found).with("others", others);
        let empty = vm.scsi.iter().filter(|c| !c.paravirtual && c.disks == 0).count();
        sink.raise(hit.with("count", vm.scsi.len()).with("empty", empty));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ScsiController;

    #[test]
    fn a_vm_whose_controllers_are_full_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1205"], |facts| {
            facts.inventory().hosts.values_mut().for_each(|h| h.version = Version::new(7, 0, 3));
            facts.vm("worker-1").scsi = vec![ScsiController { paravirtual: true, disks: 15 }; 4];
        });
    }

    #[test]
    fn controllers_volumes_cannot_use_are_reported() {
        shows_of_vms(&CHECK, &["VDO-1206"], |facts| {
            facts.vm("worker-1").scsi[1].paravirtual = false;
        });
    }

    #[test]
    fn a_full_controller_is_no_fault_while_another_can_be_added() {
        let mut facts = healthy();
        facts.vm("worker-1").scsi = vec![ScsiController { paravirtual: true, disks: 64 }];
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
