//! The node's VM runs, and vCenter can reach its files.

use crate::{checks::prelude::*, facts::Power};

pub(super) const CHECK: Check = Check {
    name: "nodes/power",
    gives: &[codes::VM_OFF, codes::VM_INACCESSIBLE],
    run: CheckScope::NodeVm(check),
};

fn check(_: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    if !found.vm.accessible {
        sink.raise(Hit::for_vm(codes::VM_INACCESSIBLE, node, found));
    }
    let state = match found.vm.power {
        Power::On => return,
        Power::Off => "off",
        Power::Suspended => "suspended",
    };
    if !node.ready {
        sink.raise(Hit::for_vm(codes::VM_OFF, node, found).with("state", state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_is_off_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1230"], |facts| {
            facts.vm("worker-1").power = Power::Off;
            facts.node("worker-1").ready = false;
        });
    }

    #[test]
    fn a_vm_without_its_files_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1232"], |facts| facts.vm("worker-1").accessible = false);
    }

    #[test]
    fn a_node_that_answers_contradicts_an_old_view_of_its_power() {
        let mut facts = healthy();
        facts.vm("worker-1").power = Power::Off;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
