//! The guest sees the ids of its disks.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "nodes/disk_uuid",
    gives: &[codes::DISK_UUID_OFF, codes::DISK_UUID_WAITS],
    run: CheckScope::NodeVm(check),
};

fn check(view: &FactsView<'_>, node: &Node, found: &FoundVm<'_>, sink: &mut Sink) {
    if view.facts.wanted.storage.is_none() {
        return;
    }
    match &found.vm.disk_uuid {
        Known::Known(true) => {}
        Known::Known(false) => {
            let definition =
                if found.vm.disk_uuid_set { codes::DISK_UUID_WAITS } else { codes::DISK_UUID_OFF };
            sink.raise(Hit::for_vm(definition, node, found));
        }
        Known::Unknown { reason } => {
            let question = format!("whether {} sees the ids of its disks", node.name);
            let hit = sink.cannot_tell(node_subject(node), &question, reason);
            hit.anchors.push((Anchor::Vcenter, found.vcenter.name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_without_the_setting_is_reported() {
        shows(
            &CHECK,
            &["VDO-1203"],
            |facts| {
                facts.vm("worker-1").disk_uuid = false.into();
                facts.vm("worker-1").disk_uuid_set = false;
            },
            |facts| facts.vm("worker-1").disk_uuid = Known::unknown("its settings are unreadable"),
        );
    }

    #[test]
    fn a_vm_that_only_needs_a_power_cycle_has_its_own_finding() {
        let mut facts = healthy();
        facts.vm("worker-1").disk_uuid = false.into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1231"]);
    }

    #[test]
    fn it_does_not_matter_without_the_storage_driver() {
        let mut facts = healthy();
        facts.wanted.storage = None;
        facts.vm("worker-1").disk_uuid = false.into();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
