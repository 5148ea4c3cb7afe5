//! Acknowledged findings of the rules. The checks mark their own findings in the same way.

use api::finding::{Acknowledgement, Finding};

use super::Notes;
use crate::facts::Facts;

/// The acknowledgement of a finding, if there is one and it has not expired.
pub(super) fn by(facts: &Facts, finding: &Finding) -> Option<Acknowledgement> {
    let mut all = facts.config.spec.acknowledgements.iter();
    let accepted = all.find(|accepted| {
        let object = accepted.object.as_ref();
        accepted.code == finding.code
            && object.is_none_or(|name| finding.objects.iter().all(|one| one.name == *name))
            && accepted.until.as_ref().is_none_or(|until| facts.now < until.0)
    })?;
    Some(Acknowledgement { reason: accepted.reason.clone(), until: accepted.until.clone() })
}

/// Marks acknowledged findings, and decides again when an acknowledgement expires.
pub(super) fn mark(facts: &Facts, notes: &mut Notes) {
    let mut ends = Vec::new();
    for finding in &mut notes.findings {
        finding.acknowledged = by(facts, finding);
        ends.extend(finding.acknowledged.as_ref().and_then(|accepted| accepted.until.clone()));
    }
    for end in ends {
        notes.wake_at(end.0);
    }
}
