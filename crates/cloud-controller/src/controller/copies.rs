//! A machine that has a node's uuid and is not the one on record: a copy, or what was restored in its
//! place. It is taken for the node's only once the one on record is gone: until then nothing of a copy, not
//! its power and not its addresses, says anything about the node.

use super::{Next, Shared, Slot};
use crate::{
    absence,
    events::Weight,
    identity::{self, Match},
    model::{Machine, Node},
    record::Record,
};

impl Shared {
    /// A node that was found to be this machine by a uuid.
    pub(super) async fn with_found(
        &self,
        node: &Node,
        machine: &Machine,
        slot: Option<Slot>,
    ) -> Next {
        match identity::record_of(node).filter(|record| is_another(record, machine)) {
            None => self.with_machine(node, machine).await,
            Some(record) => self.with_copy(node, machine, &record, slot).await,
        }
    }

    async fn with_copy(
        &self,
        node: &Node,
        copy: &Machine,
        record: &Record,
        slot: Option<Slot>,
    ) -> Next {
        if self.fleet.is_starting() {
            // Told as soon as it is followed, or cannot be.
            self.memory().deletions.forget(&node.uid);
            return Next::OnChange;
        }
        let question = async {
            let last_seen = self.census().last_seen;
            absence::is_gone(&self.fleet, node, record, &last_seen).await
        };
        let is_copy = |now: &Node| {
            let found = identity::identify(now, &self.fleet).outcome;
            matches!(found, Match::Found(found, _) if found.place == copy.place)
        };
        let Some(answer) = self.ask_about(node, slot, question, is_copy).await else {
            return Next::OnChange;
        };
        let Err(why) = answer else { return self.with_machine(node, copy).await };
        let text = format!(
            "{} has its uuid, but another machine is on record: {why}; give the copy a uuid of its own",
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
/// moves or is registered anew.
fn is_another(record: &Record, machine: &Machine) -> bool {
    match (record.instance_uuid(), machine.instance_uuid) {
        (Some(recorded), Some(seen)) => recorded != seen,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;

    #[test]
    fn a_machine_is_another_only_if_both_instance_uuids_are_known_and_differ() {
        let own = machine("a");
        let record = Record::of(&own);
        let mut copy = machine("a");
        copy.instance_uuid = "502e4956-ad22-1139-6d72-000000000000".parse().ok();
        assert!(!is_another(&record, &own));
        assert!(is_another(&record, &copy));
        assert!(!is_another(&record, &Machine { instance_uuid: None, ..own }));
        assert!(!is_another(&Record { instance_uuid: String::new(), ..record }, &copy));
    }
}
