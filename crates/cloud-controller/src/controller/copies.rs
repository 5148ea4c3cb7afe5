//! VMs with a node's uuid that are not the recorded VM: copies, or VMs restored from a backup.
//!
//! The controller accepts such a VM only after the recorded one is gone. Until then it ignores the
//! power state and the addresses of the copy.

use super::{NextSync, Shared, WorkerPermit};
use crate::{
    absence,
    events::EventType,
    identity::{self, Match},
    model::{Node, VirtualMachine},
    record::Record,
};

impl Shared {
    pub(super) async fn sync_matched(
        &self,
        node: &Node,
        vm: &VirtualMachine,
        permit: Option<WorkerPermit>,
    ) -> NextSync {
        let record =
            identity::record_of(node).or_else(|| self.state().unrecorded.get(&node.uid).cloned());
        match record.filter(|record| is_different_vm(node, record, vm)) {
            None => self.sync_with_vm(node, vm).await,
            Some(record) => self.sync_with_copy(node, vm, &record, permit).await,
        }
    }

    async fn sync_with_copy(
        &self,
        node: &Node,
        copy: &VirtualMachine,
        record: &Record,
        permit: Option<WorkerPermit>,
    ) -> NextSync {
        if self.pool.is_starting() {
            // A signal comes when every vCenter is either watched or unavailable.
            self.state().deletions.forget(&node.uid);
            return NextSync::OnChange;
        }
        let query = async {
            let last_seen = self.summary().last_seen;
            absence::is_gone(&self.pool, node, record, &last_seen).await
        };
        let is_copy = |now: &Node| {
            let found = identity::identify(now, &self.pool).outcome;
            matches!(found, Match::Found(found, _) if found.vm_ref == copy.vm_ref)
        };
        let Some(answer) = self.query_vcenters(node, permit, query, is_copy).await else {
            return NextSync::OnChange;
        };
        let Err(why) = answer else { return self.sync_with_vm(node, copy).await };
        let text = format!(
            "{} has the node's uuid, but another VM is recorded: {why}; if it is a copy, give it its own uuid; if it \
             replaces the recorded VM, delete the Node and restart its kubelet",
            copy.title()
        );
        self.report(node, EventType::Warning, "AmbiguousVM", text);
        let mut state = self.state();
        state.without_vm.insert(node.name.clone());
        state.unassign(&node.name);
        state.deletions.forget(&node.uid);
        NextSync::Uncertain
    }
}

/// Whether a VM is certainly not the recorded one. A VM keeps its instance uuid when it moves or is
/// registered again. A VM with a new instance uuid under the recorded reference is still the same.
pub(super) fn is_different_vm(node: &Node, record: &Record, vm: &VirtualMachine) -> bool {
    let has_recorded_reference = record.vm_ref() == vm.vm_ref
        && !record.vcenter_uuid.is_empty()
        && record.vcenter_uuid == *vm.vcenter_uuid;
    let is_own =
        |uuid| identity::node_uuids(node).iter().any(|u| *u == uuid || u.swapped() == uuid);
    if has_recorded_reference && vm.bios_uuid.is_some_and(is_own) {
        return false;
    }
    match (record.instance_uuid(), vm.instance_uuid) {
        (Some(recorded), Some(seen)) => recorded != seen,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{node, vm};

    #[test]
    fn a_vm_is_different_only_if_both_instance_uuids_are_known_and_differ() {
        let own = vm("a");
        let record = Record::for_vm(&own);
        let mut copy = vm("b");
        copy.instance_uuid = "502e4956-ad22-1139-6d72-000000000000".parse().ok();
        let is_different_vm =
            |record: &Record, m: &VirtualMachine| is_different_vm(&node("a"), record, m);
        assert!(!is_different_vm(&record, &own));
        assert!(is_different_vm(&record, &copy));
        assert!(!is_different_vm(&record, &VirtualMachine { instance_uuid: None, ..own }));
        assert!(!is_different_vm(&Record { instance_uuid: String::new(), ..record }, &copy));
    }

    #[test]
    fn a_vm_with_a_new_instance_uuid_under_the_same_reference_is_the_same() {
        let record = Record::for_vm(&vm("a"));
        let id = "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90";
        let own = Node { provider_id: id.into(), ..node("a") };
        let swapped = "vsphere://56492e42-22ad-3911-6d72-59cc8f26bc90";
        let swapped = Node { provider_id: swapped.into(), ..node("a") };
        let instance_uuid = "502e4956-ad22-1139-6d72-000000000000".parse().ok();
        let renewed = VirtualMachine { instance_uuid, ..vm("a") };
        let elsewhere = VirtualMachine { vm_ref: vm("b").vm_ref, ..renewed.clone() };
        let restored = VirtualMachine { vcenter_uuid: "another".into(), ..renewed.clone() };
        let bios_uuid = "42000000-0000-0000-0000-000000000001".parse().ok();
        let reused = VirtualMachine { bios_uuid, ..renewed.clone() };
        for (what, node, vm, expected) in [
            ("only the instance uuid is new", &own, &renewed, false),
            ("in the other byte order", &swapped, &renewed, false),
            ("with another reference", &own, &elsewhere, true),
            ("in another vCenter", &own, &restored, true),
            ("with another BIOS uuid", &own, &reused, true),
            ("of a node without a uuid", &node("a"), &renewed, true),
        ] {
            assert_eq!(is_different_vm(node, &record, vm), expected, "{what}");
        }
        assert!(super::super::sync::record_differs(
            &Node { record: Some(record.to_text().into()), ..own },
            &renewed
        ));
    }
}
