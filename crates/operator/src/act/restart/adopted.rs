//! Restarts the pods of a workload that VDO adopted and has not applied yet.
//!
//! VDO writes merge patches: after an apply, VDO would count as the author of the workload, and its first rollout
//! would leave the fields of the former author in place.
//!
//! The DaemonSet controller counts pods that do not run towards the limit of pods that restart at a time. With the usual
//! limit of one, a single dead node or broken pod would leave the old password in all other pods. So VDO raises the
//! limit by the number of these pods, notes the former one in an annotation, and restores it after the restart.

use std::collections::{BTreeMap, BTreeSet};

use kube::{
    Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use plan::{ObjectId, PassedPods, facts::Facts, names};
use serde_json::{Value, json};
use snafu::ResultExt;

use super::{
    super::{ApplySnafu, Error, NotRestartedSnafu, api_of},
    restarts,
};
use crate::cluster::pods::{self, CachedPod, trouble_of};

/// Restarts the pods, raises the limit if a node goes down meanwhile, and restores it once all pods that can run have
/// restarted. Returns false if there is nothing to do, or not yet.
pub(super) async fn restart(
    client: &Client,
    facts: &Facts,
    id: &ObjectId,
    live: &DynamicObject,
    changed: &str,
) -> Result<bool, Error> {
    let pods = PodsOfSet::read(client, facts, id, live, changed).await;
    let pods = pods.context(ApplySnafu { object: id.clone() })?;
    let Some(patch) = next_patch(live, &pods, changed) else { return Ok(false) };
    let parameters =
        PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PatchParams::default() };
    let written = api_of(client, id)?.patch(&id.name, &parameters, &Patch::Merge(&patch)).await;
    let written = written.context(ApplySnafu { object: id.clone() })?;
    snafu::ensure!(restarts(&written.data, changed), NotRestartedSnafu { object: id.clone() });
    tracing::info!(object = %id, %patch, "restarts with the new password");
    Ok(true)
}

/// The next change of the workload, if there is one.
fn next_patch(live: &DynamicObject, pods: &PodsOfSet, changed: &str) -> Option<Value> {
    let began = restarts(&live.data, changed);
    let current = limit(&live.data);
    let noted = live.annotations().get(names::FORMER_LIMIT);
    // A limit that somebody else set since is not ours to restore.
    let raised = noted.and_then(|text| RaisedLimit::read(text));
    let raised = raised.filter(|raised| current.as_ref() == Some(&raised.raised));
    if began && pods.old == 0 {
        noted?;
        let mut patch = json!({"metadata": {"annotations": {names::FORMER_LIMIT: null}}});
        if let Some(raised) = raised {
            patch["spec"]["updateStrategy"] = json!({"rollingUpdate": raised.former});
        }
        return Some(patch);
    }
    let mut patch = json!({});
    if !began {
        let annotations = json!({names::CREDENTIALS_CHANGED: changed});
        patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
    }
    // During the restart, also one with an earlier password, the pods that restart are unready too.
    let passed = if began || pods.outdated > 0 {
        let noted = raised.as_ref().map(|raised| raised.passed).unwrap_or_default();
        noted.during_rollout(pods.unreachable, pods.failing)
    } else {
        PassedPods { unreachable: pods.unreachable, unready: pods.unready }
    };
    let former = raised.as_ref().map(|raised| raised.former.clone()).or_else(|| current.clone());
    if let Some(former) = former.filter(|_| passed.total() > 0) {
        let wanted = live.data["status"]["desiredNumberScheduled"].as_i64().unwrap_or(0);
        let higher = raise(&former, wanted, passed.total().into());
        if Some(&higher) != current.as_ref() {
            patch["spec"]["updateStrategy"] = json!({"rollingUpdate": higher});
            let noted = RaisedLimit { former, raised: higher, passed }.write();
            patch["metadata"]["annotations"][names::FORMER_LIMIT] = json!(noted);
        }
    }
    (patch != json!({})).then_some(patch)
}

/// The limit before and after VDO raised it, as the annotation of the workload notes it.
struct RaisedLimit {
    former: Value,
    raised: Value,
    /// The pods by whose number VDO raised it.
    passed: PassedPods,
}

impl RaisedLimit {
    fn read(text: &str) -> Option<Self> {
        let mut noted = serde_json::from_str::<Value>(text).ok()?;
        let number = |key: &str| noted[key].as_i64().and_then(|n| n.try_into().ok()).unwrap_or(0);
        let passed = PassedPods { unreachable: number("unreachable"), unready: number("unready") };
        let mut take = |key: &str| Some(noted.get_mut(key)?.take());
        Some(Self { former: take("former")?, raised: take("raised")?, passed })
    }

    fn write(&self) -> String {
        let Self { former, raised, passed: PassedPods { unreachable, unready } } = self;
        json!({"former": former, "raised": raised, "unreachable": unreachable, "unready": unready})
            .to_string()
    }
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

/// The same limit, higher by the number of pods that the restart does not wait for.
fn raise(limit: &Value, wanted: i64, passed: i64) -> Value {
    let raised = limit.as_object().into_iter().flatten().map(|(field, most)| {
        let at_a_time = match most.as_str().and_then(|text| text.strip_suffix('%')) {
            Some(percent) => (wanted * percent.parse().unwrap_or(0) + 99) / 100,
            None => most.as_i64().unwrap_or(1),
        };
        (field.clone(), json!(at_a_time.max(1) + passed))
    });
    Value::Object(raised.collect())
}

/// The pods of a DaemonSet, by the state of their nodes.
#[derive(Default)]
struct PodsOfSet {
    /// Pods on nodes that are up, from before the change.
    old: usize,
    /// The part of these that an earlier restart with a new password has not reached yet.
    outdated: usize,
    /// Pods on nodes that are down, and those whose Node was deleted.
    unreachable: i32,
    /// Nodes that are up and whose pods are all unready or terminating.
    unready: i32,
    /// The part of these for which Kubernetes reports an error.
    failing: i32,
}

impl PodsOfSet {
    /// No watch has the pods of an adopted workload, and a restart is rare.
    async fn read(
        client: &Client,
        facts: &Facts,
        id: &ObjectId,
        live: &DynamicObject,
        changed: &str,
    ) -> Result<Self, kube::Error> {
        let labels = live.data["spec"]["selector"]["matchLabels"].as_object();
        let labels = labels
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
        let selector = labels.collect::<Vec<_>>().join(",");
        if selector.is_empty() || id.kind != "DaemonSet" {
            return Ok(Self::default());
        }
        let nodes = facts.cluster.nodes();
        let ready: BTreeMap<&str, bool> =
            nodes.map(|node| (node.name.as_str(), node.ready)).collect();
        let pods = pods::list(client, &id.namespace, &selector).await?;
        let own = |pod: &&CachedPod| pod.belongs_to(Some(&id.namespace), &id.kind, &id.name);
        Ok(Self::count(pods.values().filter(own), &ready, &live.data, changed))
    }

    /// The new pods have the annotation from the pod template. `ready` tells whether each known node is ready.
    fn count<'p>(
        pods: impl Iterator<Item = &'p CachedPod>,
        ready: &BTreeMap<&str, bool>,
        set: &Value,
        changed: &str,
    ) -> Self {
        let template = set["spec"]["template"]["metadata"]["annotations"].as_object();
        let before = template.and_then(|all| all.get(names::CREDENTIALS_CHANGED)?.as_str());
        let (mut counted, mut down) = (Self::default(), 0);
        // A node can have two pods: the one being deleted and its replacement.
        let mut available = BTreeMap::<Option<&str>, bool>::new();
        let mut failing = BTreeSet::new();
        for pod in pods {
            let (node, login) = (pod.node.as_deref(), pod.login.as_deref());
            let unreachable = node.is_some_and(|node| match ready.get(node) {
                Some(ready) => !ready,
                // Without the permission to read nodes, VDO knows none.
                None if ready.is_empty() => false,
                // The Node was deleted, or it joined a moment ago. Kubernetes counts a ready pod as available.
                None => pod.terminating || pod.unready.is_some(),
            });
            if unreachable {
                counted.unreachable += 1;
                down += i64::from(node.is_some_and(|node| ready.contains_key(node)));
                continue;
            }
            *available.entry(node).or_default() |= !pod.terminating && pod.unready.is_none();
            if !pod.terminating && pod.unready.as_deref().and_then(trouble_of).is_some() {
                failing.insert(node);
            }
            counted.old += usize::from(login != Some(changed));
            counted.outdated += usize::from(login != before);
        }
        // Kubernetes does not count the rest of a pod on a node where the DaemonSet wants none any more.
        let status = |field: &str| set["status"][field].as_i64().unwrap_or(0);
        let most = status("desiredNumberScheduled") - status("numberAvailable") - down;
        let most = usize::try_from(most).unwrap_or(0);
        let unready = available.iter().filter(|(_, available)| !**available);
        let failing = unready.clone().filter(|(node, _)| failing.contains(*node)).count();
        let capped = |count: usize| i32::try_from(count.min(most)).unwrap_or(i32::MAX);
        (counted.unready, counted.failing) = (capped(unready.count()), capped(failing));
        counted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const NOW: &str = "2026-11-18T10:00:05Z";

    fn set(rolling: &Value, changed: &str, noted: Option<&str>) -> DynamicObject {
        let annotations = noted.map(|text| json!({names::FORMER_LIMIT: text}));
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "cpi", "annotations": annotations},
            "spec": {
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
                "template": {"metadata": {"annotations": {names::CREDENTIALS_CHANGED: changed}}},
            },
            "status": {"desiredNumberScheduled": 30},
        }))
        .unwrap()
    }

    /// A DaemonSet with the pods of an earlier change, of which `available` of six are available.
    fn with_available(available: i32) -> Value {
        let status = json!({"desiredNumberScheduled": 6, "numberAvailable": available});
        let annotations = json!({names::CREDENTIALS_CHANGED: "before"});
        json!({"status": status, "spec": {"template": {"metadata": {"annotations": annotations}}}})
    }

    fn limit_in(patch: Option<&Value>) -> Option<Value> {
        patch?.pointer("/spec/updateStrategy/rollingUpdate").cloned()
    }

    #[test]
    fn the_limit_is_raised_by_the_pods_that_cannot_restart() {
        let raised = |rolling: &Value| {
            let pods = PodsOfSet { old: 3, unreachable: 1, unready: 1, ..PodsOfSet::default() };
            limit_in(next_patch(&set(rolling, "before", None), &pods, NOW).as_ref())
        };
        assert_eq!(raised(&json!({"maxUnavailable": 1})), Some(json!({"maxUnavailable": 3})));
        assert_eq!(raised(&json!({"maxUnavailable": "10%"})), Some(json!({"maxUnavailable": 5})));
        let none = json!({"maxSurge": 0, "maxUnavailable": 1});
        assert_eq!(raised(&none), Some(json!({"maxUnavailable": 3})));
        let surge = json!({"maxSurge": 1, "maxUnavailable": 0});
        assert_eq!(raised(&surge), Some(json!({"maxSurge": 3})));
        assert_eq!(limit(&json!({"spec": {"updateStrategy": {"type": "OnDelete"}}})), None);
        assert_eq!(limit(&json!({"spec": {"strategy": {"type": "Recreate"}}})), None);
    }

    #[test]
    fn a_node_that_goes_down_during_the_restart_raises_the_limit_too() {
        let one = json!({"maxUnavailable": 1});
        let next = |set: &DynamicObject, old, unreachable| {
            next_patch(set, &PodsOfSet { old, unreachable, ..PodsOfSet::default() }, NOW)
        };
        let began = set(&one, NOW, None);
        assert_eq!(next(&began, 3, 0), None, "the restart goes on");
        let patch = next(&began, 3, 1).unwrap();
        assert_eq!(limit_in(Some(&patch)), Some(json!({"maxUnavailable": 2})));
        let noted = patch["metadata"]["annotations"][names::FORMER_LIMIT].as_str().unwrap();
        let higher = set(&json!({"maxUnavailable": 2}), NOW, Some(noted));
        assert_eq!(next(&higher, 3, 1), None);
        let second = next(&higher, 2, 2);
        assert_eq!(limit_in(second.as_ref()), Some(json!({"maxUnavailable": 3})), "not 4");
        let restored = next(&higher, 0, 1).unwrap();
        assert_eq!(limit_in(Some(&restored)), Some(one));
        assert!(restored["metadata"]["annotations"][names::FORMER_LIMIT].is_null());
        assert_eq!(next(&began, 0, 1), None, "there is nothing to restore");
    }

    #[test]
    fn a_pod_that_does_not_run_is_passed_and_a_pod_that_restarts_is_not() {
        let one = json!({"maxUnavailable": 1});
        let before = set(&one, "before", None);
        let pods = |old, unreachable, unready, failing| PodsOfSet {
            old,
            outdated: 0,
            unreachable,
            unready,
            failing,
        };
        let patch = next_patch(&before, &pods(3, 0, 1, 1), NOW).unwrap();
        assert_eq!(limit_in(Some(&patch)), Some(json!({"maxUnavailable": 2})));
        let noted = patch["metadata"]["annotations"][names::FORMER_LIMIT].as_str().unwrap();
        let higher = set(&json!({"maxUnavailable": 2}), NOW, Some(noted));
        assert_eq!(next_patch(&higher, &pods(1, 0, 2, 1), NOW), None, "one of them restarts");
        assert_eq!(next_patch(&higher, &pods(1, 1, 1, 0), NOW), None, "its node goes down");
        let second = next_patch(&higher, &pods(1, 1, 1, 1), NOW);
        assert_eq!(limit_in(second.as_ref()), Some(json!({"maxUnavailable": 3})), "another does");
        let began = set(&one, NOW, None);
        assert_eq!(next_patch(&began, &pods(2, 0, 1, 0), NOW), None);
        let done = pods(0, 0, 1, 1);
        assert_eq!(limit_in(next_patch(&higher, &done, NOW).as_ref()), Some(one.clone()));

        let again = "2026-11-18T10:01:00Z";
        let restarting = PodsOfSet { outdated: 1, ..pods(3, 0, 1, 0) };
        let patch = next_patch(&began, &restarting, again);
        assert!(restarts(patch.as_ref().unwrap(), again));
        assert_eq!(limit_in(patch.as_ref()), None, "the first restart goes on");
        let patch = next_patch(&higher, &restarting, again);
        assert_eq!(limit_in(patch.as_ref()), None, "the limit is high enough");
    }

    #[test]
    fn a_limit_that_somebody_else_set_stays() {
        let noted = RaisedLimit {
            former: json!({"maxUnavailable": 1}),
            raised: json!({"maxUnavailable": 2}),
            passed: PassedPods { unreachable: 1, unready: 0 },
        };
        for noted in [noted.write(), "damaged".to_owned()] {
            let theirs = set(&json!({"maxUnavailable": 5}), NOW, Some(&noted));
            let done = PodsOfSet { unreachable: 1, ..PodsOfSet::default() };
            let patch = next_patch(&theirs, &done, NOW).unwrap();
            assert_eq!(limit_in(Some(&patch)), None, "{patch}");
            assert_eq!(patch["metadata"]["annotations"], json!({names::FORMER_LIMIT: null}));
        }
    }

    #[test]
    fn pods_without_the_time_of_the_change_are_old() {
        let mut pods = [pod("a", NOW), pod("b", "before"), pod("c", "before"), pod("d", NOW)];
        let failed = json!({"status": {"phase": "Failed"}});
        pods[0].unready = Some(Arc::new(serde_json::from_value(failed).unwrap()));
        let ready = BTreeMap::from([("a", true), ("b", true), ("c", false), ("d", false)]);
        let counted = PodsOfSet::count(pods.iter(), &ready, &with_available(2), NOW);
        assert_eq!((counted.old, counted.unreachable), (1, 2));
        assert_eq!((counted.unready, counted.failing), (2, 1), "a and b are up");
        assert_eq!(counted.outdated, 1, "an earlier restart has not reached a");
        let most = PodsOfSet::count(pods.iter(), &ready, &with_available(3), NOW);
        assert_eq!((most.unready, most.failing), (1, 1), "the DaemonSet wants no pod on a or b");
        let mut runs = pod("b", NOW);
        runs.unready = None;
        let counted =
            PodsOfSet::count([&pods[1], &runs].into_iter(), &ready, &with_available(2), NOW);
        assert_eq!((counted.old, counted.unready), (1, 0), "the other pod of b replaces it");
    }

    /// Kubernetes counts the ready pod as available: with a higher limit, two more pods would restart at a time.
    #[test]
    fn a_ready_pod_of_a_deleted_node_does_not_raise_the_limit() {
        let mut runs = pod("deleted", "before");
        runs.unready = None;
        let mut ends = runs.clone();
        ends.terminating = true;
        let nodes = BTreeMap::from([("a", true)]);
        let count = |pod: &CachedPod, nodes| {
            let counted = PodsOfSet::count([pod].into_iter(), nodes, &with_available(1), NOW);
            (counted.old, counted.unreachable)
        };
        assert_eq!(count(&runs, &nodes), (1, 0));
        assert_eq!(count(&ends, &nodes), (0, 1));
        assert_eq!(count(&pod("deleted", "before"), &nodes), (0, 1));
        assert_eq!(count(&ends, &BTreeMap::new()), (1, 0), "VDO has no permission to read nodes");
    }

    /// An unready pod.
    fn pod(node: &str, changed: &str) -> CachedPod {
        let pod = json!({
            "metadata": {"annotations": {names::CREDENTIALS_CHANGED: changed}},
            "spec": {"nodeName": node, "containers": []},
        });
        CachedPod::new(&serde_json::from_value(pod).unwrap())
    }
}
