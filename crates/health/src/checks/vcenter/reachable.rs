//! Each vCenter answers.

use crate::{checks::prelude::*, facts::Reach};

pub(super) const CHECK: Check = Check {
    name: "vcenter/reachable",
    gives: &[codes::VCENTER_UNREACHABLE],
    run: Run::Cluster(&[], check),
};

fn check(view: &View<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let reason = match &vcenter.reach {
            Reach::Answers => continue,
            Reach::NoSuchName { reason } => format!("its name cannot be resolved: {reason}"),
            Reach::NoAnswer { reason } => format!("it does not answer: {reason}"),
            Reach::NotAVcenter { reason } => format!("it answers, but not as a vCenter: {reason}"),
        };
        sink.raise(super::hit(codes::VCENTER_UNREACHABLE, vcenter).with("reason", reason));
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
