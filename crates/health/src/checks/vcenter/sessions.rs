//! Each vCenter has sessions to spare.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "vcenter/sessions",
    gives: &[codes::SESSIONS_MANY],
    run: Run::Cluster(&[], check),
};

/// More than this of the 2000 vCenter has.
const MANY: u32 = 1000;

fn check(view: &View<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        // Counting other users' sessions needs a privilege the drivers do not: without it there is
        // nothing to say, and the account shall not be given it for this.
        let Some(sessions) = vcenter.sessions.get() else { continue };
        if sessions.total > MANY {
            let mut agents: Vec<(&String, &u32)> = sessions.by_agent.iter().collect();
            agents.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let first: Vec<String> =
                agents.iter().take(3).map(|(agent, count)| format!("{agent} ({count})")).collect();
            let agents =
                if first.is_empty() { "clients unknown".to_owned() } else { first.join(", ") };
            let hit = super::hit(codes::SESSIONS_MANY, vcenter).with("count", sessions.total);
            sink.raise(hit.with("agents", agents));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_never_logs_out_is_named() {
        let mut facts = healthy();
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
        let sessions = facts.vcenter().sessions.get_mut().unwrap();
        sessions.total = 1800;
        sessions.by_agent.insert("velero-plugin".into(), 1700);
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1312"]);
    }

    #[test]
    fn an_account_that_may_not_count_sessions_is_no_fault() {
        let mut facts = healthy();
        facts.vcenter().sessions = Known::unknown("Sessions.TerminateSession is missing");
        assert_eq!(codes_of(&CHECK, &facts), [""; 0]);
    }
}
