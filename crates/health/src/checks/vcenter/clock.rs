//! Each vCenter's clock agrees with the cluster's.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "vcenter/clock",
    gives: &[codes::CLOCK_SKEW],
    run: CheckScope::Cluster(&[], check),
};

/// Tolerated difference in seconds.
const TOLERANCE: i64 = 60;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let question = format!("whether the clock of {} is correct", vcenter.address);
        let Some(ahead) = sink.need_from_vcenter(&vcenter.clock_ahead, vcenter, &question) else {
            continue;
        };
        if ahead.abs() > TOLERANCE {
            let direction = if *ahead > 0 { "ahead" } else { "behind" };
            let skew = format!("{} {direction}", span(*ahead));
            sink.raise(super::hit(codes::CLOCK_SKEW, vcenter).with("skew", skew));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_five_minutes_behind_is_reported() {
        shows(
            &CHECK,
            &["VDO-1309"],
            |facts| facts.vcenter().clock_ahead = (-300).into(),
            |facts| facts.vcenter().clock_ahead = Known::unknown("no connection was made"),
        );
    }
}
