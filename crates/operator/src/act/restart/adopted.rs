//! Restarts the pods of a workload that VDO adopted and has not applied yet.
//!
//! VDO writes merge patches: after an apply, VDO would count as the author of the workload, and its first rollout
//! would leave the fields of the former author in place.
//!
//! The DaemonSet controller counts pods on nodes that are down towards the limit of pods that restart at a time.
//! With the usual limit of one, a single dead node would leave the old password in all other pods. So VDO raises the
//! limit by the number of these pods, notes the former one in an annotation, and restores it after the restart.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};
use plan::{ObjectId, facts::Facts, names};
use serde_json::{Value, json};
use snafu::ResultExt;

use super::{
    super::{ApplySnafu, Error, NotRestartedSnafu, api_of},
    restarts,
};

/// Restarts the pods, or restores the limit once all of them have restarted. Returns false if there is nothing to
/// do, or not yet.
pub(super) async fn restart(
    client: &Client,
    facts: &Facts,
    id: &ObjectId,
    live: &DynamicObject,
    changed: &str,
) -> Result<bool, Error> {
    let former = live.annotations().get(names::FORMER_LIMIT);
    let former = former.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let began = restarts(&live.data, changed);
    if began && former.is_none() {
        return Ok(false);
    }
    let pods = PodsOfSet::read(client, facts, id, live).await;
    let pods = pods.context(ApplySnafu { object: id.clone() })?;
    let patch = match former {
        Some(former) if began => {
            if !pods.have_restarted(changed) {
                return Ok(false);
            }
            tracing::info!(object = %id, "all pods that can run have the new password");
            json!({
                "metadata": {"annotations": {names::FORMER_LIMIT: null}},
                "spec": {"updateStrategy": {"rollingUpdate": former}},
            })
        }
        former => {
            let annotations = json!({names::CREDENTIALS_CHANGED: changed});
            let mut patch =
                json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
            let limit = former.or_else(|| limit(&live.data));
            if let Some(former) = limit.filter(|_| pods.unreachable > 0) {
                let wanted = live.data["status"]["desiredNumberScheduled"].as_i64().unwrap_or(0);
                let raised = raised(&former, wanted, pods.unreachable);
                patch["spec"]["updateStrategy"] = json!({"rollingUpdate": raised});
                patch["metadata"]["annotations"][names::FORMER_LIMIT] = json!(former.to_string());
            }
            tracing::info!(object = %id, "restarts with the new password");
            patch
        }
    };
    let parameters =
        PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() };
    let written = api_of(client, id)?.patch(&id.name, &parameters, &Patch::Merge(&patch)).await;
    let written = written.context(ApplySnafu { object: id.clone() })?;
    snafu::ensure!(restarts(&written.data, changed), NotRestartedSnafu { object: id.clone() });
    Ok(true)
}

/// The limit of pods that restart at a time, as in the spec: `{"maxUnavailable": 1}`. None for a workload that
/// Kubernetes does not restart node by node.
fn limit(set: &Value) -> Option<Value> {
    let rolling = set.pointer("/spec/updateStrategy/rollingUpdate")?;
    // A DaemonSet that starts the new pod before it ends the old one has no other limit.
    let surge = rolling["maxSurge"].as_i64() != Some(0) && !rolling["maxSurge"].is_null();
    let field = if surge && rolling["maxSurge"] != "0%" { "maxSurge" } else { "maxUnavailable" };
    rolling.get(field).map(|most| json!({field: most}))
}

/// The same limit, higher by the number of pods that cannot restart.
fn raised(limit: &Value, wanted: i64, unreachable: i64) -> Value {
    let raised = limit.as_object().into_iter().flatten().map(|(field, most)| {
        let at_a_time = match most.as_str().and_then(|text| text.strip_suffix('%')) {
            Some(percent) => (wanted * percent.parse().unwrap_or(0) + 99) / 100,
            None => most.as_i64().unwrap_or(1),
        };
        (field.clone(), json!(at_a_time.max(1) + unreachable))
    });
    Value::Object(raised.collect())
}

/// The pods of a workload, by the state of their nodes.
struct PodsOfSet {
    /// When the pods on nodes that are up were created.
    reachable: Vec<Timestamp>,
    /// The number of the others.
    unreachable: i64,
}

impl PodsOfSet {
    /// No watch has the pods of an adopted workload, and a restart is rare.
    async fn read(
        client: &Client,
        facts: &Facts,
        id: &ObjectId,
        live: &DynamicObject,
    ) -> Result<Self, kube::Error> {
        let mut pods = Self { reachable: Vec::new(), unreachable: 0 };
        let labels = live.data["spec"]["selector"]["matchLabels"].as_object();
        let labels = labels
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
        let selector = labels.collect::<Vec<_>>().join(",");
        if selector.is_empty() || id.kind != "DaemonSet" {
            return Ok(pods);
        }
        let down: BTreeSet<&str> = facts
            .cluster
            .nodes()
            .filter(|node| !node.ready)
            .map(|node| node.name.as_str())
            .collect();
        let api = Api::<Pod>::namespaced(client.clone(), &id.namespace);
        for pod in api.list(&ListParams::default().labels(&selector)).await? {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            if node.is_some_and(|node| down.contains(node)) {
                pods.unreachable += 1;
            } else if let Some(created) = &pod.metadata.creation_timestamp {
                pods.reachable.push(created.0);
            }
        }
        Ok(pods)
    }

    /// Whether no pod that can run is from before the change. A creation time has no fractions of a second.
    fn have_restarted(&self, changed: &str) -> bool {
        let Ok(changed) = changed.parse::<Timestamp>() else { return true };
        self.reachable.iter().all(|created| created.as_second() >= changed.as_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_by_the_pods_that_cannot_restart() {
        let set = |rolling: Value| json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}});
        let raised =
            |rolling: Value| limit(&set(rolling)).map(|limit| super::raised(&limit, 30, 2));
        assert_eq!(raised(json!({"maxUnavailable": 1})), Some(json!({"maxUnavailable": 3})));
        assert_eq!(raised(json!({"maxUnavailable": "10%"})), Some(json!({"maxUnavailable": 5})));
        let none = json!({"maxSurge": 0, "maxUnavailable": 1});
        assert_eq!(raised(none), Some(json!({"maxUnavailable": 3})));
        let surge = json!({"maxSurge": 1, "maxUnavailable": 0});
        assert_eq!(raised(surge), Some(json!({"maxSurge": 3})));
        assert_eq!(limit(&json!({"spec": {"updateStrategy": {"type": "OnDelete"}}})), None);
        assert_eq!(limit(&json!({"spec": {"strategy": {"type": "Recreate"}}})), None);
    }

    #[test]
    fn pods_from_the_second_of_the_change_count_as_new() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let restarted = |created: &[&str]| {
            let reachable = created.iter().map(|text| at(text)).collect();
            PodsOfSet { reachable, unreachable: 1 }.have_restarted("2026-11-18T10:00:05.7Z")
        };
        assert!(restarted(&["2026-11-18T10:00:05Z", "2026-11-18T10:00:09Z"]));
        assert!(!restarted(&["2026-11-18T10:00:04Z", "2026-11-18T10:00:09Z"]));
    }
}
