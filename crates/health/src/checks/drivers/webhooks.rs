//! The drivers' webhooks answer with a valid certificate.

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    name: "drivers/webhooks",
    gives: &[codes::WEBHOOK_CERTIFICATE, codes::WEBHOOK_UNANSWERED],
    run: CheckScope::Cluster(&[Part::Pods], check),
};

/// Seconds before the expiry of the certificate.
const WARNING: i64 = 21 * 86_400;

/// Seconds that the replacement of its pod may take.
const GRACE_PERIOD: i64 = 60;

fn check(view: &FactsView<'_>, sink: &mut Sink) {
    let question = "whether the drivers' webhooks work";
    let Some(webhooks) = sink.need(&view.facts.cluster.webhooks, cluster_subject, question) else {
        return;
    };
    for webhook in webhooks {
        let name = &webhook.configuration;
        let subject = || Subject::kubernetes("ValidatingWebhookConfiguration", None, name);
        let hit = |definition| {
            let hit = Hit::new(definition, subject()).with("webhook", name).driver("CSI");
            hit.with("namespace", &webhook.namespace).with("secret", &webhook.secret)
        };
        let question = format!("whether the certificate of {name} is valid");
        if let Some(certificate) = sink.need(&webhook.certificate, subject, &question) {
            sink.recheck(view, certificate.expires, -WARNING);
            sink.recheck(view, certificate.expires, 0);
            let left = -view.seconds_since(certificate.expires);
            let when = match (certificate.trusted, left) {
                (false, _) => {
                    Some(("the API server does not trust it".to_owned(), Severity::Error))
                }
                (_, ..=0) => Some((
                    format!("it expired on {}", moment(certificate.expires)),
                    Severity::Error,
                )),
                (_, ..WARNING) => Some((
                    format!("it expires on {}", moment(certificate.expires)),
                    Severity::Warning,
                )),
                _ => None,
            };
            if let Some((when, severity)) = when {
                sink.raise(hit(codes::WEBHOOK_CERTIFICATE).with("when", when).severity(severity));
            }
        }
        let question = format!("whether a pod serves {name}");
        sink.recheck(view, webhook.since, view.grace_period(GRACE_PERIOD));
        if let Some(0) = sink.need(&webhook.endpoints, subject, &question)
            && webhook.fails_closed
            && view.seconds_since(webhook.since) > view.grace_period(GRACE_PERIOD)
        {
            sink.raise(hit(codes::WEBHOOK_UNANSWERED));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiring_webhook_certificate_is_reported_three_weeks_before() {
        shows(
            &CHECK,
            &["VDO-1610"],
            |facts| {
                let soon = jiff::Timestamp::from_second(facts.now.as_second() + 86_400).unwrap();
                let webhook = &mut facts.cluster.webhooks.get_mut().unwrap()[0];
                webhook.certificate.get_mut().unwrap().expires = soon;
            },
            |facts| facts.cluster.webhooks = Known::unknown("VDO cannot list webhooks"),
        );
    }

    #[test]
    fn a_webhook_nobody_answers_for_blocks_the_cluster() {
        let mut facts = healthy();
        facts.cluster.webhooks.get_mut().unwrap()[0].endpoints = 0.into();
        assert_eq!(codes_of(&CHECK, &facts), ["VDO-1611"]);
        facts.cluster.webhooks.get_mut().unwrap()[0].fails_closed = false;
        assert_eq!(codes_of(&CHECK, &facts), [""; 0], "one that lets pass does not");
    }
}
