//! Each vCenter answers.

use crate::{checks::prelude::*, facts::Reach};

pub(super) const CHECK: Check = Check {
    name: "vcenter/reachable",
    gives: &[codes::VCENTER_UNREACHABLE],
    run: CheckScope::Cluster(&[], check),
};

/// Seconds of unreachability before the severity becomes Error.
const GRACE_PERIOD: i64 = 120;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let question = format!("whether {} answers", vcenter.address);
        let reason = match sink.need_from_vcenter(&vcenter.reach, vcenter, question) {
            None | Some(Reach::Answers) => continue,
            Some(Reach::NoSuchName { reason }) => format!("DNS cannot resolve its name: {reason}"),
            Some(Reach::NoAnswer { reason }) => format!("it does not answer: {reason}"),
            Some(Reach::NotAVcenter { reason }) => {
                format!("it answers, but not as a vCenter: {reason}")
            }
        };
        let hit = super::hit(codes::VCENTER_UNREACHABLE, vcenter).with("reason", reason);
        // A restarting vCenter is unreachable for minutes, and the drivers wait for it.
        sink.recheck(view, vcenter.since, GRACE_PERIOD);
        let young = view.seconds_since(vcenter.since) < GRACE_PERIOD;
        sink.raise(if young { hit.severity(Severity::Warning) } else { hit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_vcenter_is_reported_with_the_error() {
        for reach in [
            Reach::NoSuchName { reason: "no such host".into() },
            Reach::NoAnswer { reason: "timed out".into() },
            Reach::NotAVcenter { reason: "HTTP 404".into() },
        ] {
            shows(
                &CHECK,
                &["VDO-1301"],
                |facts| facts.vcenter().reach = reach.into(),
                |facts| facts.vcenter().reach = Known::unknown("it has not been tried yet"),
            );
        }
    }
}
