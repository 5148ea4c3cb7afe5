//! Restarts the pods of a workload and changes nothing else in it.
//!
//! A server-side apply must contain every field that its manager owns: the API server removes the fields that
//! are missing. A restart must not change the release, even if VDO cannot render it at the moment or would
//! render it differently. So this module reads the fields that VDO applied last from the object itself. It
//! applies them again with one more annotation.

mod adopted;

use std::collections::BTreeMap;

use kube::{
    Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use plan::{ObjectId, PassedPods, facts::Facts, names};
use serde_json::{Map, Value, json};
use snafu::ResultExt;

use crate::cluster::is_labelled;

use super::{ApplySnafu, Error, NeverAppliedSnafu, NotRestartedSnafu, api_of};

/// Restarts the pods, and does not wait for those in `passed`. If the pods already restart with this change, it only
/// raises the limit of pods that restart at a time, or returns false if that is high enough.
///
/// VDO does not note the restart as an apply: other fields of the workload may have drifted, and the next
/// full apply must correct them.
pub(super) async fn restart(
    client: &Client,
    facts: &Facts,
    id: &ObjectId,
    changed: &str,
    passed: PassedPods,
) -> Result<bool, Error> {
    let api = api_of(client, id)?;
    let live = api.get(&id.name).await.context(ApplySnafu { object: id.clone() })?;
    let Some(mut ours) = last_applied(&live) else {
        if is_labelled(live.metadata.labels.as_ref().unwrap_or(&BTreeMap::new())) {
            return NeverAppliedSnafu { object: id.clone() }.fail();
        }
        return adopted::restart(client, facts, id, &live, changed).await;
    };
    let template = &mut ours["spec"]["template"]["metadata"]["annotations"];
    let began = template[names::CREDENTIALS_CHANGED] == changed;
    template[names::CREDENTIALS_CHANGED] = json!(changed);
    ours["apiVersion"] = json!(id.api_version);
    ours["kind"] = json!(id.kind);
    ours["metadata"]["name"] = json!(id.name);
    ours["metadata"]["namespace"] = json!(id.namespace);
    let raised = pass_pods(&mut ours, passed);
    if began && !raised {
        return Ok(false);
    }
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    let written = api.patch(&id.name, &parameters, &Patch::Apply(&ours)).await;
    let written = written.context(ApplySnafu { object: id.clone() })?;
    // A policy that changes the note would make VDO write it again and again.
    let noted = ours["metadata"]["annotations"][names::DIGEST].as_str();
    let kept = written.annotations().get(names::DIGEST).map(String::as_str) == noted;
    let restarts = kept && restarts(&written.data, changed);
    snafu::ensure!(restarts, NotRestartedSnafu { object: id.clone() });
    tracing::info!(object = %id, ?passed, "restarts with the new password");
    Ok(true)
}

/// Whether the API server kept the annotation that restarts the pods.
fn restarts(written: &Value, changed: &str) -> bool {
    written["spec"]["template"]["metadata"]["annotations"][names::CREDENTIALS_CHANGED] == changed
}

/// Raises `maxUnavailable` of a DaemonSet by the number of pods that do not run. The DaemonSet controller counts
/// these pods as unavailable and would otherwise leave running pods with the old password.
///
/// The digest gets the note that `decide::rollout` writes for the same reason: the full apply after the restart
/// lowers the limit again. Returns whether the limit is higher now.
fn pass_pods(ours: &mut Value, passed: PassedPods) -> bool {
    let Some(digest) = ours["metadata"]["annotations"][names::DIGEST].as_str() else {
        return false;
    };
    let (digest, noted) = PassedPods::split(digest);
    let digest = digest.to_owned();
    let most = ours.pointer_mut("/spec/updateStrategy/rollingUpdate/maxUnavailable");
    let Some(most) = most.filter(|_| passed.total() > noted.total()) else { return false };
    let Some(at_a_time) = most.as_i64() else { return false };
    *most = json!((at_a_time - i64::from(noted.total())).max(1) + i64::from(passed.total()));
    ours["metadata"]["annotations"][names::DIGEST] = json!(passed.noted(&digest));
    true
}

/// The fields that VDO applied last, with their current values. `None` if VDO never applied the object.
fn last_applied(live: &DynamicObject) -> Option<Value> {
    let entries = live.metadata.managed_fields.as_ref()?;
    let ours = entries.iter().find(|entry| {
        entry.manager.as_deref() == Some(names::FIELD_MANAGER)
            && entry.operation.as_deref() == Some("Apply")
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    })?;
    let fields = ours.fields_v1.as_ref()?.0.as_object()?;
    let mut whole = live.data.clone();
    whole["metadata"] = serde_json::to_value(&live.metadata).ok()?;
    Some(owned(&whole, fields))
}

/// The part of a value that a field set names: `f:` is a field, `k:` a list item by its keys, `v:` an item of
/// a set. A manager owns a field without subfields as a whole.
fn owned(value: &Value, fields: &Map<String, Value>) -> Value {
    let named: Vec<(&String, &Value)> = fields.iter().filter(|(name, _)| *name != ".").collect();
    if named.is_empty() {
        return value.clone();
    }
    let part = |value: &Value, fields: &Value| match fields.as_object() {
        Some(fields) => owned(value, fields),
        None => value.clone(),
    };
    match value {
        Value::Object(all) => {
            let own = named.into_iter().filter_map(|(name, fields)| {
                let name = name.strip_prefix("f:")?;
                Some((name.to_owned(), part(all.get(name)?, fields)))
            });
            Value::Object(own.collect())
        }
        Value::Array(items) => {
            let own = items.iter().filter_map(|item| {
                let (_, fields) = named.iter().find(|(name, _)| is_item(item, name))?;
                Some(part(item, fields))
            });
            Value::Array(own.collect())
        }
        scalar => scalar.clone(),
    }
}

/// Whether an entry of a field set refers to this list item.
fn is_item(item: &Value, name: &str) -> bool {
    if let Some(value) = name.strip_prefix("v:") {
        return serde_json::from_str::<Value>(value).is_ok_and(|value| value == *item);
    }
    let keys = name.strip_prefix("k:").and_then(|keys| serde_json::from_str::<Value>(keys).ok());
    let keys = keys.as_ref().and_then(Value::as_object);
    keys.is_some_and(|keys| keys.iter().all(|(key, value)| item[key] == *value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_passes_the_pods_that_do_not_run() {
        let workload = |digest: &str, most: Value| {
            json!({
                "metadata": {"annotations": {names::DIGEST: digest}},
                "spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": most}}},
            })
        };
        let passing = |digest: &str, most: i64, unreachable: i32, unready: i32| {
            let mut ours = workload(digest, json!(most));
            let before = ours.clone();
            let raised = pass_pods(&mut ours, PassedPods { unreachable, unready });
            assert_eq!(raised, ours != before);
            ours
        };
        assert_eq!(passing("d", 1, 0, 0), workload("d", json!(1)));
        assert_eq!(passing("d", 1, 1, 0), workload("d+1", json!(2)));
        assert_eq!(passing("d+1", 2, 2, 0), workload("d+2", json!(3)), "nothing is counted twice");
        assert_eq!(passing("d+2", 3, 1, 0), workload("d+2", json!(3)), "the limit is high enough");
        assert_eq!(passing("d", 1, 0, 1), workload("d+0+1", json!(2)));
        assert_eq!(passing("d+0+1", 2, 1, 0), workload("d+0+1", json!(2)), "its node goes down");
        assert_eq!(passing("d+0+1", 2, 1, 1), workload("d+1+1", json!(3)), "another one does");
        // Without a limit that VDO applied, there is nothing to raise.
        let bare = json!({"metadata": {"annotations": {names::DIGEST: "d"}}, "spec": {}});
        let mut ours = bare.clone();
        assert!(!pass_pods(&mut ours, PassedPods { unreachable: 1, unready: 1 }));
        assert_eq!(ours, bare);
    }

    #[test]
    fn a_restart_counts_only_if_the_api_server_kept_the_annotation() {
        let written = |annotations: Value| json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        assert!(restarts(&written(json!({names::CREDENTIALS_CHANGED: "now"})), "now"));
        assert!(!restarts(&written(json!({names::CREDENTIALS_CHANGED: "before"})), "now"));
        assert!(!restarts(&written(json!({})), "now"));
        assert!(!restarts(&json!({"spec": {}}), "now"));
    }

    #[test]
    fn only_the_fields_vdo_applied_are_applied_again() {
        let live: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {
                "name": "driver", "uid": "u", "generation": 3,
                "labels": {"ours": "1", "theirs": "2"},
                "finalizers": ["a", "b"],
                "managedFields": [
                    {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:spec": {"f:x": {}}}},
                    {"manager": names::FIELD_MANAGER, "operation": "Update", "fieldsV1": {"f:spec": {}}},
                    {"manager": names::FIELD_MANAGER, "operation": "Apply", "fieldsV1": {
                        "f:metadata": {
                            "f:labels": {"f:ours": {}},
                            "f:finalizers": {"v:\"a\"": {}},
                        },
                        "f:spec": {
                            "f:selector": {},
                            "f:gone": {},
                            "f:template": {"f:spec": {"f:containers": {
                                "k:{\"name\":\"driver\"}": {
                                    ".": {}, "f:name": {}, "f:image": {}, "f:args": {},
                                    "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                                        ".": {}, "f:containerPort": {},
                                    }},
                                },
                            }}},
                        },
                    }},
                ],
            },
            "spec": {
                "x": 1, "selector": {"matchLabels": {"app": "driver"}}, "updateStrategy": {"type": "OnDelete"},
                "template": {"spec": {
                    "dnsPolicy": "ClusterFirst",
                    "containers": [
                        {"name": "injected", "image": "proxy"},
                        {
                            "name": "driver", "image": "one", "args": ["--v=2", "--x"],
                            "terminationMessagePath": "/dev/log",
                            "ports": [{"containerPort": 80, "protocol": "TCP", "hostPort": 80}],
                        },
                    ],
                }},
            },
            "status": {"numberReady": 1},
        }))
        .unwrap();
        assert_eq!(
            last_applied(&live).unwrap(),
            json!({
                "metadata": {"labels": {"ours": "1"}, "finalizers": ["a"]},
                "spec": {
                    "selector": {"matchLabels": {"app": "driver"}},
                    "template": {"spec": {"containers": [{
                        "name": "driver", "image": "one", "args": ["--v=2", "--x"],
                        "ports": [{"containerPort": 80}],
                    }]}},
                },
            })
        );
        let mut never = live;
        never.metadata.managed_fields.as_mut().unwrap().pop();
        assert_eq!(last_applied(&never), None);
    }
}
