//! Writes the status, the events and the metrics, all from the same plan and findings.

mod compatibility;
mod deletion_outcome;
mod list;
mod metrics;
mod olm;
mod other_namespaces;
mod rivals;
mod vcenter;
mod written;

use std::sync::Arc;

use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder},
};
use plan::{
    Plan,
    facts::{Facts, Paged},
    names,
};
use runtime::error_chain::error_chain;
use serde_json::json;

use self::written::{Written, is_same};
pub use self::{
    compatibility::report as catalog,
    deletion_outcome::{Followed, deletion_outcome},
    metrics::OperatorMetrics,
    olm::Olm,
    other_namespaces::report as other_namespaces,
    rivals::{report as rivals, unconfirmed},
    vcenter::report as vcenters,
};

/// The statuses that VDO wrote, by kind.
#[derive(Debug, Default)]
pub struct Statuses {
    config: Written<api::VDOConfigStatus>,
    /// The status of the VDOConfig in the cache.
    observed: api::VDOConfigStatus,
    /// VDOConfigs that VDO does not follow.
    rivals: Written<api::VDOConfigStatus>,
    vcenters: Written<api::VsphereCloudConfigStatus>,
    catalog: Written<api::CompatibilityConfigStatus>,
}

impl Statuses {
    /// Gives the facts the status that VDO wrote last, unless somebody has changed it since.
    pub fn complete(&mut self, facts: &mut Facts) {
        self.observed = facts.config.status.clone().unwrap_or_default();
        let uid = facts.config.uid().unwrap_or_default();
        let status = self.config.complete(&uid, &self.observed);
        if facts.config.status.as_ref().is_some_and(|observed| *observed != status) {
            Arc::make_mut(&mut facts.config).status = Some(status);
        }
    }
}

/// Writes the changes since the last report. Returns whether there were any. The facts have the status of
/// [`Statuses::complete`].
pub async fn report(
    client: &Client,
    recorder: &Recorder,
    metrics: &OperatorMetrics,
    facts: &Facts,
    plan: &Plan,
    listed: &mut Option<Paged>,
    statuses: &mut Statuses,
) -> Result<bool, kube::Error> {
    metrics.show(facts, plan);
    list::write(client, facts, listed).await?;
    let before = facts.config.status.clone().unwrap_or_default();
    let after = plan::status(facts, plan);
    if is_same(&before, &after) {
        return Ok(false);
    }
    let metadata = &facts.config.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let configs = Api::<api::VDOConfig>::namespaced(
        client.clone(),
        metadata.namespace.as_deref().unwrap_or_default(),
    );
    let body =
        json!({"apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig", "status": after});
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    let stored = configs.patch_status(name, &parameters, &Patch::Apply(body)).await?;
    let (uid, stored) = (facts.config.uid().unwrap_or_default(), stored.status.unwrap_or_default());
    statuses.config.note(&uid, &statuses.observed, stored, after.clone());
    for event in events(&before, &after).into_iter().chain(findings(&before, &after)) {
        recorder.publish(&event, &facts.config.object_ref(&())).await?;
    }
    Ok(true)
}

/// Whether the API server refused the content of a request. It can accept others.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if (400..500).contains(&status.code) && ![401, 429].contains(&status.code))
}

/// Ignores that the API server refused the status of one object: the others have theirs, and the drivers do
/// not wait for it. Returns the object if its status was written, and other errors, for example of an API server that does not answer.
fn unless_refused<K>(
    written: Result<K, kube::Error>,
    namespace: &str,
    name: &str,
) -> Result<Option<K>, kube::Error> {
    match written {
        Err(error) if is_refusal(&error) => {
            tracing::warn!(namespace, name, error = error_chain(&error), "its status was refused");
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// One event for each condition whose status changed.
fn events(before: &api::VDOConfigStatus, after: &api::VDOConfigStatus) -> Vec<Event> {
    let answer = |status: &api::VDOConfigStatus, kind: &str| {
        api::condition::get(&status.conditions, kind).map(|c| c.status.clone())
    };
    after
        .conditions
        .iter()
        .filter(|now| answer(before, &now.type_).as_ref() != Some(&now.status))
        .map(|now| {
            let was = answer(before, &now.type_);
            let bad = match now.type_.as_str() {
                api::condition::DEGRADED => now.status == "True",
                // Work in progress is no trouble, and neither is its end.
                api::condition::PROGRESSING | api::condition::UPGRADEABLE => false,
                // A condition that was never true is a start, not a loss.
                _ => now.status == "False" && was.as_deref() == Some("True"),
            };
            Event {
                type_: if bad { EventType::Warning } else { EventType::Normal },
                reason: now.reason.clone(),
                note: Some(format!("{} is {}: {}", now.type_, now.status, now.message)),
                // Kubernetes merges events that differ only in their text.
                action: now.type_.clone(),
                secondary: None,
            }
        })
        .collect()
}

/// One event for each finding code that appeared or was cleared. None while a finding persists.
fn findings(before: &api::VDOConfigStatus, after: &api::VDOConfigStatus) -> Vec<Event> {
    let known = |status: &api::VDOConfigStatus, code: &str| {
        status.findings.iter().any(|finding| finding.code == code)
    };
    let mut reported = std::collections::BTreeSet::new();
    let mut events = Vec::new();
    let quiet = |finding: &api::Finding| finding.severity == api::Severity::Info;
    for finding in after.findings.iter().filter(|finding| !quiet(finding)) {
        if known(before, &finding.code) || !reported.insert(finding.code.as_str()) {
            continue;
        }
        let seen = finding.seen.as_deref().unwrap_or_default();
        events.push(Event {
            type_: EventType::Warning,
            reason: "FindingAppeared".into(),
            note: Some(shortened(format!("{}: {}. {seen}", finding.code, finding.title))),
            action: finding.code.clone(),
            secondary: None,
        });
    }
    for finding in before.findings.iter().filter(|finding| !quiet(finding)) {
        if known(after, &finding.code) || !reported.insert(finding.code.as_str()) {
            continue;
        }
        events.push(Event {
            type_: EventType::Normal,
            reason: "FindingCleared".into(),
            note: Some(format!("{}: resolved: {}", finding.code, finding.title)),
            action: finding.code.clone(),
            secondary: None,
        });
    }
    events
}

/// Shortens a text to the limit of the API server for events.
pub(crate) fn shortened(mut text: String) -> String {
    const MOST: usize = 1000;
    if text.len() > MOST {
        text.truncate(text.floor_char_boundary(MOST));
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use api::condition::{self, Answer};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn status(answers: &[(&str, Answer)]) -> api::VDOConfigStatus {
        let mut status = api::VDOConfigStatus::default();
        let now = Time(Timestamp::UNIX_EPOCH);
        for (kind, answer) in answers {
            let message = String::new();
            condition::set(&mut status.conditions, kind, *answer, "Any", message, Some(1), &now);
        }
        status
    }

    fn warnings(before: &api::VDOConfigStatus, after: &api::VDOConfigStatus) -> Vec<String> {
        let all = events(before, after).into_iter();
        all.filter(|event| event.type_ == EventType::Warning).map(|event| event.action).collect()
    }

    #[test]
    fn a_flawless_installation_gives_no_warning() {
        let nothing = api::VDOConfigStatus::default();
        let kinds = [
            condition::READY,
            condition::UPGRADEABLE,
            condition::CLOUD_PROVIDER_READY,
            condition::STORAGE_READY,
            condition::VCENTER_READY,
            condition::NETWORK_READY,
        ];
        let begun: Vec<_> = kinds.iter().map(|kind| (*kind, Answer::False)).collect();
        let working =
            [(condition::DEGRADED, Answer::False), (condition::PROGRESSING, Answer::True)];
        let begun = status(&[&begun[..], &working].concat());
        let done: Vec<_> = kinds.iter().map(|kind| (*kind, Answer::True)).collect();
        let rests = [(condition::DEGRADED, Answer::False), (condition::PROGRESSING, Answer::False)];
        let done = status(&[&done[..], &rests].concat());
        assert_eq!(warnings(&nothing, &begun), [""; 0]);
        assert_eq!(warnings(&begun, &done), [""; 0]);
        let lost =
            status(&[(condition::READY, Answer::False), (condition::DEGRADED, Answer::True)]);
        assert_eq!(warnings(&done, &lost), [condition::DEGRADED, condition::READY]);
    }
}
