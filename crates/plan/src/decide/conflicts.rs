//! Somebody else who keeps changing what VDO applies. Putting it back at once, every time, would
//! restart the driver every time: after a while it is put back with growing pauses, and said.

use api::finding::{Subject, codes};
use jiff::{SignedDuration, Timestamp};

use super::Notes;
use crate::{
    facts::{Conflict, Facts},
    object_id::ObjectId,
};

/// So often within the hour somebody may change an object before it is a fight.
const TIMEOUT: u32 = 5;
/// The first pause, which doubles with every time.
const PAUSE: SignedDuration = SignedDuration::from_secs(30);
/// The longest pause.
const LONGEST: SignedDuration = SignedDuration::from_mins(30);

/// Until when an object is left as somebody else made it; none if it is put right at once.
fn until(conflict: &Conflict) -> Option<Timestamp> {
    let times = conflict.times.checked_sub(TIMEOUT)?;
    let pause = PAUSE.checked_mul(1 << times.min(10)).unwrap_or(LONGEST).min(LONGEST);
    Some(conflict.last + pause)
}

/// Whether an object is left alone for now.
pub(super) fn is_left(facts: &Facts, id: &ObjectId) -> bool {
    facts.conflicts.get(id).and_then(until).is_some_and(|until| facts.now < until)
}

/// Names those who fight.
pub(super) fn report(facts: &Facts, notes: &mut Notes) {
    for (id, conflict) in &facts.conflicts {
        let Some(until) = until(conflict) else { continue };
        if facts.now < until {
            notes.wake_at(until);
        }
        let home = id.namespace.as_str();
        let place = if home.is_empty() { String::new() } else { format!("--namespace {home} ") };
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
                    Some(home).filter(|h| !h.is_empty()),
                    &id.name,
                ))
                .build(),
        );
    }
}
