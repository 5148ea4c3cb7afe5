//! Each vCenter has free sessions.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "vcenter/sessions",
    gives: &[codes::SESSIONS_MANY],
    run: CheckScope::Cluster(&[], check),
};

/// Warn above this number; vCenter has 2000.
const MANY: u32 = 1000;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        // Counting other users' sessions needs a privilege that the drivers do not need, so a missing
        // answer is only Info.
        let question = format!("how many sessions {} has", vcenter.address);
        let Some(sessions) = sink.prefer_from_vcenter(&vcenter.sessions, vcenter, question) else {
            continue;
        };
        if sessions.total > MANY {
            let mut agents: Vec<(&String, &u32)> = sessions.by_agent.iter().collect();
            agents.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let first: Vec<String> =
                agents.iter().take(3).map(|(agent, count)| format!("{agent} ({count})")).collect();
            let agents =
                if first.is_empty() { "unknown clients".to_owned() } else { first.join(", ") };
            let hit = super::hit(codes::SESSIONS_MANY, vcenter).with("count", sessions.total);
            sink.raise(hit.with("agents", agents));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_never_logs_out_is_reported() {
        shows(
            &CHECK,
            &["VDO-1312"],
            |facts| {
                let sessions = facts.vcenter().sessions.get_mut().unwrap();
                sessions.total = 1800;
                sessions.by_agent.insert("velero-plugin".into(), 1700);
            },
            |facts| {
                facts.vcenter().sessions = Known::unknown("Sessions.TerminateSession is missing");
            },
        );
    }

    #[test]
    fn sessions_the_account_cannot_count_are_only_info() {
        let mut facts = healthy();
        facts.vcenter().sessions = Known::unknown("Sessions.TerminateSession is missing");
        let findings = crate::Examination::run(facts).report().all();
        let severities: Vec<Severity> = findings.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Info], "{findings:#?}");
    }
}
