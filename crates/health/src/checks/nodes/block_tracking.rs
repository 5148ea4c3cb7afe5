//! Changed block tracking is the same on all node VMs.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/block_tracking",
    gives: &[codes::CBT_MIXED],
    run: CheckScope::Cluster(&[Part::Nodes, Part::Vms], check),
};

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    if view.facts.wanted.storage.is_none() {
        return;
    }
    let question = "whether changed block tracking is the same on all node VMs";
    for vcenter in view.facts.vcenters.values() {
        sink.need_from_vcenter(&vcenter.inventory, vcenter, question);
    }
    let census = view.index.census();
    let (on, off) = (&census.tracked, &census.untracked);
    let (fewer, value) = if on.len() <= off.len() { (on, "FALSE") } else { (off, "TRUE") };
    let first = fewer.first().and_then(|name| view.only_vm(view.node(name)?));
    let Some(first) = first else { return };
    sink.raise(
        Hit::new(codes::CBT_MIXED, cluster_subject())
            .with("on", on.len())
            .with("off", off.len())
            .with("names", first_names(fewer.iter().map(String::as_str)))
            .with("vm", &first.vm.path)
            .with("value", value),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_vm_that_differs_is_reported() {
        shows_of_vms(&CHECK, &["VDO-1229"], |facts| facts.vm("worker-1").cbt = Some(true));
    }

    #[test]
    fn the_same_setting_on_all_vms_is_fine() {
        let mut facts = healthy();
        facts.inventory().vms.values_mut().for_each(|vm| vm.cbt = Some(true));
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
