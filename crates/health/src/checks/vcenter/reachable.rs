//! Each vCenter answers.

use crate::{checks::prelude::*, facts::Reach};

pub(super) const CHECK: Check = Check {
    name: "vcenter/reachable",
    gives: &[codes::VCENTER_UNREACHABLE],
    run: Run::Cluster(&[], check),
};

/// How long a vCenter may be away before that is a fault.
const PATIENCE: i64 = 120;

fn check(view: &View<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let reason = match &vcenter.reach {
            Reach::Answers => continue,
            Reach::NoSuchName { reason } => format!("its name cannot be resolved: {reason}"),
            Reach::NoAnswer { reason } => format!("it does not answer: {reason}"),
            Reach::NotAVcenter { reason } => format!("it answers, but not as a vCenter: {reason}"),
        };
        let hit = super::hit(codes::VCENTER_UNREACHABLE, vcenter).with("reason", reason);
        // A vCenter that restarts is away for minutes, and the drivers wait for it.
        let young = view.seconds_since(vcenter.since) < PATIENCE;
        sink.raise(if young { hit.severity(Severity::Warning) } else { hit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcenter_that_is_away_is_named_with_the_networks_words() {
        let mut facts = healthy();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        for reach in [
            Reach::NoSuchName { reason: "no such host".into() },
            Reach::NoAnswer { reason: "timed out".into() },
            Reach::NotAVcenter { reason: "HTTP 404".into() },
        ] {
            facts.vcenter().reach = reach;
            assert_eq!(codes_of(&CHECK, &facts), ["VDO-1301"]);
        }
    }
}
