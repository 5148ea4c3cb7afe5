//! Another field manager that keeps changing VDO's objects. If VDO restored them at once every time, it would
//! restart the driver every time. So after a while VDO restores them with growing pauses, and reports it.

use api::finding::{Subject, codes};
use health::facts::Conflict;
use jiff::{SignedDuration, Timestamp};

use super::Notes;
use crate::{facts::Facts, object_id::ObjectId};

/// The number of changes to an object within an hour that VDO restores at once. Then it pauses.
const RESTORED_AT_ONCE: u32 = 5;
/// The first pause. Each further change doubles it.
const PAUSE: SignedDuration = SignedDuration::from_secs(30);
const LONGEST: SignedDuration = SignedDuration::from_mins(30);

/// The time until which VDO leaves a changed object as it is; none if VDO restores it at once.
fn until(conflict: &Conflict) -> Option<Timestamp> {
    let times = conflict.times.checked_sub(RESTORED_AT_ONCE)?;
    let pause = PAUSE.checked_mul(1 << times.min(10)).unwrap_or(LONGEST).min(LONGEST);
    Some(conflict.last + pause)
}

/// Whether VDO leaves an object as it is for now.
pub(super) fn is_left(facts: &Facts, id: &ObjectId) -> bool {
    facts.conflicts.get(id).and_then(until).is_some_and(|until| facts.now < until)
}

/// Reports the other field managers.
pub(super) fn report(facts: &Facts, notes: &mut Notes) {
    for (id, conflict) in &facts.conflicts {
        let Some(until) = until(conflict) else { continue };
        if facts.now < until {
            notes.wake_at(until);
        }
        let namespace = id.namespace.as_str();
        let place =
            if namespace.is_empty() { String::new() } else { format!("--namespace {namespace} ") };
        notes.findings.push(
            codes::FOUGHT_OVER
                .found()
                .with("kind", &id.kind)
                .with("object", id.to_string())
                .with("manager", &conflict.manager)
                .with("field", "it")
                .with("times", conflict.times.to_string())
                .with("where", place)
                .with("name", &id.name)
                .about(Subject::kubernetes(
                    &id.kind,
                    Some(namespace).filter(|name| !name.is_empty()),
                    &id.name,
                ))
                .build(),
        );
    }
}
