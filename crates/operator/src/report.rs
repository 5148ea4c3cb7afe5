//! Says what is: status, events and metrics, all from the same plan and findings.

mod compatibility;
mod metrics;
mod olm;
mod rivals;
mod status;
mod vcenter;

use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder},
};
use serde_json::json;

pub use self::{
    compatibility::report as catalog, metrics::OperatorMetrics, olm::Olm, status::of as status,
    vcenter::report as vcenters,
};
use crate::{facts::Facts, names, plan::Plan};

/// Writes what changed since the last report. Returns whether anything did.
pub async fn report(
    client: &Client,
    recorder: &Recorder,
    metrics: &OperatorMetrics,
    facts: &Facts,
    plan: &Plan,
) -> Result<bool, kube::Error> {
    metrics.show(facts, plan);
    rivals::report(client, facts).await?;
    let before = facts.config.status.clone().unwrap_or_default();
    let after = status::of(facts, plan);
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
    for event in events(&before, &after) {
        recorder.publish(&event, &facts.config.object_ref(&())).await?;
    }
    Ok(true)
}

/// One event for each condition that changed its answer.
fn events(before: &api::VDOConfigStatus, after: &api::VDOConfigStatus) -> Vec<Event> {
    let answer = |status: &api::VDOConfigStatus, kind: &str| {
        api::condition::get(&status.conditions, kind).map(|c| c.status.clone())
    };
    after
        .conditions
        .iter()
        .filter(|now| answer(before, &now.type_).as_ref() != Some(&now.status))
        .map(|now| {
            let bad = (now.type_ == api::condition::DEGRADED) == (now.status == "True");
            Event {
                type_: if bad { EventType::Warning } else { EventType::Normal },
                reason: now.reason.clone(),
                note: Some(format!("{} is {}: {}", now.type_, now.status, now.message)),
                action: "Report".into(),
                secondary: None,
            }
        })
        .collect()
}
