//! VMware Tools is running.

use crate::{
    checks::prelude::*,
    facts::{Power, Tools},
};

pub(super) const CHECK: Check = Check {
    name: "nodes/tools",
    gives: &[codes::TOOLS_NOT_RUNNING],
    run: CheckScope::NodeVm(check),
};

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    if view.facts.wanted.cloud.is_none() || found.vm.power != Power::On {
        return;
    }
    let state = match found.vm.tools {
        Tools::Running => return,
        Tools::NotRunning => "installed but not running",
        Tools::NotInstalled => "not installed",
    };
    sink.raise(Hit::for_vm(codes::TOOLS_NOT_RUNNING, node, found).with("state", state));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_without_running_tools_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1208"], |facts| facts.vm("worker-1").tools = Tools::NotRunning);
    }

    #[test]
    fn tools_of_a_vm_that_is_off_are_not_missed() {
        let mut facts = healthy();
        facts.vm("worker-1").power = Power::Off;
        facts.vm("worker-1").tools = Tools::NotRunning;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
