//! Node VMs have no snapshots.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/vm_snapshots",
    gives: &[codes::VM_SNAPSHOTS],
    run: CheckScope::NodeVm(check),
};

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    let snapshots = &found.vm.snapshots;
    if view.facts.wanted.storage.is_some() && !snapshots.is_empty() {
        let word = if snapshots.len() == 1 { "the snapshot" } else { "the snapshots" };
        let names = first_names(snapshots.iter().map(String::as_str));
        let hit = Hit::for_vm(codes::VM_SNAPSHOTS, node, found);
        sink.raise(hit.with("snapshots", format!("{word} {names}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_left_its_snapshot_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1207"], |facts| {
            facts.vm("worker-1").snapshots = vec!["nightly".into()];
        });
    }
}
