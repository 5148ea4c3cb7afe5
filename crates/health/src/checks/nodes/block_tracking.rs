//! Changed block tracking is the same on all node VMs.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/block_tracking",
    gives: &[codes::CBT_MIXED],
    run: Run::Cluster(&[Part::Nodes, Part::Vms], check),
};

fn check(view: &View<'_>, sink: &mut Sink) {
    if view.facts.wanted.storage.is_none() {
        return;
    }
    let mut on = Vec::new();
    let mut off = Vec::new();
    for node in view.nodes() {
        let Some(found) = view.only_machine(node) else { continue };
        match found.vm.cbt {
            Some(true) => on.push(found.vm),
            Some(false) => off.push(found.vm),
            None => {}
        }
    }
    let (fewer, value) = if on.len() <= off.len() { (&on, "FALSE") } else { (&off, "TRUE") };
    let Some(first) = fewer.first() else { return };
    sink.raise(
        Hit::new(codes::CBT_MIXED, cluster_subject())
            .with("on", on.len())
            .with("off", off.len())
            .with("names", first_names(fewer.iter().map(|vm| vm.name.as_str())))
            .with("vm", &first.path)
            .with("value", value),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_vm_that_differs_is_named() {
        shows_of_vms(&CHECK, &["VDO-1229"], |facts| facts.vm("worker-1").cbt = Some(true));
    }

    #[test]
    fn all_alike_is_fine_either_way() {
        let mut facts = healthy();
        facts.inventory().vms.values_mut().for_each(|vm| vm.cbt = Some(true));
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
