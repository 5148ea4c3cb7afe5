//! Writes the status, the events and the metrics, all from the same plan and findings.

mod compatibility;
mod deletion_outcome;
mod list;
mod metrics;
mod olm;
mod other_namespaces;
mod rivals;
mod vcenter;

use kube::{
    Api, Client, Resource,
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

pub use self::{
    compatibility::report as catalog,
    deletion_outcome::{Followed, deletion_outcome},
    metrics::OperatorMetrics,
    olm::Olm,
    other_namespaces::report as other_namespaces,
    rivals::{report as rivals, unconfirmed},
    vcenter::report as vcenters,
};

/// Writes the changes since the last report. Returns whether there were any.
pub async fn report(
    client: &Client,
    recorder: &Recorder,
    metrics: &OperatorMetrics,
    facts: &Facts,
    plan: &Plan,
    listed: &mut Option<Paged>,
) -> Result<bool, kube::Error> {
    metrics.show(facts, plan);
    list::write(client, facts, listed).await?;
    let before = facts.config.status.clone().unwrap_or_default();
    let after = plan::status(facts, plan);
    if before == after {
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
    configs.patch_status(name, &parameters, &Patch::Apply(body)).await?;
    for event in events(&before, &after).into_iter().chain(findings(&before, &after)) {
        recorder.publish(&event, &facts.config.object_ref(&())).await?;
    }
    Ok(true)
}

/// Ignores that the API server refused the status of one object: the others have theirs, and the drivers do
/// not wait for it. Returns other errors, for example of an API server that does not answer.
fn unless_refused<K>(
    written: Result<K, kube::Error>,
    namespace: &str,
    name: &str,
) -> Result<(), kube::Error> {
    match written {
        Err(kube::Error::Api(status))
            if (400..500).contains(&status.code) && ![401, 429].contains(&status.code) =>
        {
            let error = kube::Error::Api(status);
            tracing::warn!(namespace, name, error = error_chain(&error), "its status was refused");
            Ok(())
        }
        other => other.map(drop),
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
            let unknown = now.status == "Unknown";
            let bad = !unknown && (now.type_ == api::condition::DEGRADED) == (now.status == "True");
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
fn shortened(mut text: String) -> String {
    const MOST: usize = 1000;
    if text.len() > MOST {
        let mut end = MOST;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}
