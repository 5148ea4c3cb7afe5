//! The VM's hardware is new enough for container volumes.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/hardware",
    gives: &[codes::HARDWARE_TOO_OLD],
    run: CheckScope::NodeVm(check),
};

/// The oldest hardware version the storage driver supports.
const NEEDED: u32 = 15;

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    if view.facts.wanted.storage.is_some() && found.vm.hardware < NEEDED {
        let hit = Hit::for_vm(codes::HARDWARE_TOO_OLD, node, found);
        sink.raise(hit.with("version", found.vm.hardware).shared("needed", NEEDED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_older_than_15_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1204"], |facts| facts.vm("worker-1").hardware = 13);
    }

    #[test]
    fn hardware_15_will_do() {
        let mut facts = healthy();
        facts.vm("worker-1").hardware = 15;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
