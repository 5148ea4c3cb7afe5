//! Each vCenter accepts the login, and the password does not expire soon.

use crate::{checks::prelude::*, facts::Login};

pub(super) const CHECK: Check = Check {
    name: "vcenter/account",
    gives: &[
        codes::LOGIN_REFUSED,
        codes::ACCOUNT_LOCKED,
        codes::ACCOUNT_UNQUALIFIED,
        codes::PASSWORD_EXPIRING,
    ],
    run: CheckScope::Cluster(&[], check),
};

/// Seconds before the expiry of a password.
const WARNING: i64 = 14 * 86_400;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    for vcenter in view.facts.vcenters.values() {
        let hit = |definition| {
            let (namespace, name) = vcenter.secret.split_once('/').unwrap_or(("", &vcenter.secret));
            super::hit(definition, vcenter)
                .with("user", vcenter.account())
                .with("secret", &vcenter.secret)
                .with("secretnamespace", namespace)
                .with("secretname", name)
        };
        let certificate = vcenter.user.starts_with("-----BEGIN");
        if !vcenter.user.is_empty() && !certificate && !is_qualified(&vcenter.user) {
            // Only the storage driver exits with such a name.
            let storage = view.facts.wanted.storage.is_some();
            let severity = if storage { Severity::Blocker } else { Severity::Warning };
            sink.raise(hit(codes::ACCOUNT_UNQUALIFIED).severity(severity));
        }
        let question =
            format!("whether {} accepts the login of {}", vcenter.address, vcenter.account());
        match sink.need_from_vcenter(&vcenter.login, vcenter, &question) {
            Some(Login::Refused { reason }) => {
                sink.raise(hit(codes::LOGIN_REFUSED).with("reason", reason));
            }
            Some(Login::Locked { reason }) => {
                sink.raise(hit(codes::ACCOUNT_LOCKED).with("reason", reason));
            }
            Some(Login::Accepted) | None => {}
        }
        let question = format!("when the password of {} expires", vcenter.account());
        let end = sink
            .prefer_from_vcenter(&vcenter.password_expires, vcenter, question)
            .copied()
            .flatten();
        for seconds in [-WARNING, 0] {
            end.inspect(|end| sink.recheck(view, *end, seconds));
        }
        let left = |end| -view.seconds_since(end);
        if let Some(end) = end.filter(|end| left(*end) < WARNING) {
            let verb = if left(end) <= 0 { "expired" } else { "expires" };
            let when = format!("{verb} on {}", moment(end));
            sink.raise(hit(codes::PASSWORD_EXPIRING).with("when", when));
        }
    }
}

/// Whether a user name includes its domain, as `user@domain` or `domain\user`.
fn is_qualified(user: &str) -> bool {
    let both = |(a, b): (&str, &str)| !a.is_empty() && !b.is_empty();
    user.split_once('@').or_else(|| user.split_once('\\')).is_some_and(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_password_is_reported() {
        shows(
            &CHECK,
            &["VDO-1305"],
            |facts| {
                facts.vcenter().login = Login::Refused { reason: "InvalidLogin".into() }.into();
            },
            |facts| facts.vcenter().login = Known::unknown("no connection was made"),
        );
    }

    #[test]
    fn a_locked_account_differs_from_a_wrong_password() {
        let mut facts = healthy();
        facts.vcenter().login = Login::Locked { reason: "too many attempts".into() }.into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1306"]);
    }

    #[test]
    fn a_sentence_about_an_unknown_user_has_no_hole() {
        let mut facts = healthy();
        let vcenter = facts.vcenter();
        vcenter.user.clear();
        vcenter.login = Known::unknown("the Secret does not exist");
        vcenter.grants = Known::unknown("no session");
        vcenter.password_expires = Known::unknown("no session");
        let findings = crate::Examination::run(facts).report().all();
        let texts = findings.iter().flat_map(|f| f.seen.iter().chain(&f.remedy));
        let holes: Vec<&String> = texts
            .filter(|text| {
                let alone = text.split("   ").any(|part| part.trim().contains("  "));
                alone || text.contains("of :") || text.contains("of  ")
            })
            .collect();
        assert_eq!(holes, [&""; 0]);
        assert!(findings.iter().any(|f| f.seen.as_ref().is_some_and(|s| s.contains("Secret "))));
    }

    #[test]
    fn names_need_their_domain() {
        let mut facts = healthy();
        for (user, expected) in [
            ("k8s", &["VDO-1307"][..]),
            ("k8s@", &["VDO-1307"]),
            ("k8s@vsphere.local", &[]),
            (r"VSPHERE.LOCAL\k8s", &[]),
            ("-----BEGIN CERTIFICATE-----", &[]),
        ] {
            facts.vcenter().user = user.into();
            assert_eq!(codes_of(&CHECK, &facts), expected, "{user}");
        }
    }

    #[test]
    fn a_name_without_its_domain_blocks_nothing_where_there_is_no_storage_driver() {
        let mut facts = healthy();
        facts.vcenter().user = "k8s".into();
        assert_eq!(crate::Examination::run(facts.clone()).report().blockers().len(), 1);
        facts.wanted.storage = None;
        assert!(crate::Examination::run(facts).report().blockers().is_empty());
    }

    #[test]
    fn an_expiring_password_is_reported_two_weeks_before() {
        shows(
            &CHECK,
            &["VDO-1308"],
            |facts| {
                let soon = jiff::Timestamp::from_second(facts.now.as_second() + 86_400).unwrap();
                facts.vcenter().password_expires = Known::Known(Some(soon));
            },
            |facts| facts.vcenter().password_expires = Known::unknown("the Secret is not readable"),
        );
    }
}
