//! A machine that has a node's uuid and is not the one on record: a copy, or what was restored in its
//! place. It is taken for the node's only once the one on record is gone: until then nothing of a copy, not
//! its power and not its addresses, says anything about the node.

use super::{Next, Shared, Slot};
use crate::{
    absence,
    events::Weight,
    identity::{self, Match},
    model::{Node, VirtualMachine},
    record::Record,
};

impl Shared {
    /// A node that was found to be this machine by a uuid.
    pub(super) async fn with_found(
        &self,
        node: &Node,
        vm: &VirtualMachine,
        slot: Option<Slot>,
    ) -> Next {
        let known = identity::record_of(node).or_else(|| self.memory().met.get(&node.uid).cloned());
        match known.filter(|record| is_another(node, record, vm)) {
            None => self.with_vm(node, vm).await,
            Some(record) => self.with_copy(node, vm, &record, slot).await,
        }
    }

    async fn with_copy(
        &self,
        node: &Node,
        copy: &VirtualMachine,
        record: &Record,
        slot: Option<Slot>,
    ) -> Next {
        if self.pool.is_starting() {
            // Told as soon as it is followed, or cannot be.
            self.memory().deletions.forget(&node.uid);
            return Next::OnChange;
        }
        let question = async {
            let last_seen = self.census().last_seen;
            absence::is_gone(&self.pool, node, record, &last_seen).await
        };
        let is_copy = |now: &Node| {
            let found = identity::identify(now, &self.pool).outcome;
            matches!(found, Match::Found(found, _) if found.place == copy.place)
        };
        let Some(answer) = self.ask_about(node, slot, question, is_copy).await else {
            return Next::OnChange;
        };
        let Err(why) = answer else { return self.with_vm(node, copy).await };
        let text = format!(
            "{} has its uuid, but another machine is on record: {why}; if it is a copy, give it a uuid of its own; if it \
             took the other's place, delete the Node and restart its kubelet",
            copy.title()
        );
        self.say(node, Weight::Warning, "AmbiguousMachine", text);
        let mut memory = self.memory();
        memory.lost.insert(node.name.clone());
        memory.unplace(&node.name);
        memory.deletions.forget(&node.uid);
        Next::InDoubt
    }
}

/// Whether a machine is certainly not the one on record. Its instance uuid stays with a machine that
/// moves or is registered anew; one that got a new one where it stands is still the same.
pub(super) fn is_another(node: &Node, record: &Record, vm: &VirtualMachine) -> bool {
    let is_where_it_was = record.place() == vm.place
        && !record.vcenter_uuid.is_empty()
        && record.vcenter_uuid == *vm.vcenter_uuid;
    let is_own = |uuid| identity::uuids(node).iter().any(|u| *u == uuid || u.swapped() == uuid);
    if is_where_it_was && vm.bios_uuid.is_some_and(is_own) {
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
    fn a_machine_is_another_only_if_both_instance_uuids_are_known_and_differ() {
        let own = vm("a");
        let record = Record::of(&own);
        let mut copy = vm("b");
        copy.instance_uuid = "502e4956-ad22-1139-6d72-000000000000".parse().ok();
        let is_another = |record: &Record, m: &VirtualMachine| is_another(&node("a"), record, m);
        assert!(!is_another(&record, &own));
        assert!(is_another(&record, &copy));
        assert!(!is_another(&record, &VirtualMachine { instance_uuid: None, ..own }));
        assert!(!is_another(&Record { instance_uuid: String::new(), ..record }, &copy));
    }

    #[test]
    fn a_machine_that_got_a_new_instance_uuid_where_it_stands_is_the_same() {
        let record = Record::of(&vm("a"));
        let id = "vsphere://422e4956-ad22-1139-6d72-59cc8f26bc90";
        let own = Node { provider_id: id.into(), ..node("a") };
        let swapped = "vsphere://56492e42-22ad-3911-6d72-59cc8f26bc90";
        let swapped = Node { provider_id: swapped.into(), ..node("a") };
        let instance_uuid = "502e4956-ad22-1139-6d72-000000000000".parse().ok();
        let renewed = VirtualMachine { instance_uuid, ..vm("a") };
        let elsewhere = VirtualMachine { place: vm("b").place, ..renewed.clone() };
        let restored = VirtualMachine { vcenter_uuid: "another".into(), ..renewed.clone() };
        let bios_uuid = "42000000-0000-0000-0000-000000000001".parse().ok();
        let reused = VirtualMachine { bios_uuid, ..renewed.clone() };
        for (what, node, vm, expected) in [
            ("all else is as it was", &own, &renewed, false),
            ("in the other byte order", &swapped, &renewed, false),
            ("at another place", &own, &elsewhere, true),
            ("in another vCenter", &own, &restored, true),
            ("with another BIOS uuid", &own, &reused, true),
            ("of a node without a uuid", &node("a"), &renewed, true),
        ] {
            assert_eq!(is_another(node, &record, vm), expected, "{what}");
        }
        assert!(super::super::look::is_other_vm(
            &Node { record: Some(record.to_text().into()), ..own },
            &renewed
        ));
    }
}
