//! Follows the rollout of a Deployment, and finds out why a pod of its new version does not start.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{ContainerStatus, Event, Pod},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use tokio::time::Instant;

use crate::failure::{Doing as _, Outcome};

/// How long a pod may be in trouble before the rollout counts as stuck. The first attempt to pull an image
/// often fails, and a node may be about to join.
const TROUBLE: Duration = Duration::from_secs(30);

/// The annotation by which a Deployment and the ReplicaSet of its present template belong together.
const REVISION: &str = "deployment.kubernetes.io/revision";

/// A rollout under way.
pub(crate) struct Rollout {
    deployments: Api<Deployment>,
    sets: Api<ReplicaSet>,
    pods: Api<Pod>,
    events: Api<Event>,
    name: String,
    /// Since when the pods have been in trouble.
    troubled: Option<Instant>,
}

/// How far a rollout is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Progress {
    /// Pods of the new version that are ready, and those there should be.
    pub(crate) ready: i32,
    pub(crate) wanted: i32,
    /// Whether nothing is left to do.
    pub(crate) complete: bool,
    /// Whether pods of the version before it are ready.
    pub(crate) old_runs: bool,
    /// Why it does not proceed.
    pub(crate) trouble: Option<Trouble>,
}

/// Why a pod does not start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    pub(crate) text: String,
    /// Whether waiting is unlikely to help.
    pub(crate) firm: bool,
}

impl Rollout {
    pub(crate) fn for_deployment(client: &Client, namespace: &str, name: &str) -> Self {
        Self {
            deployments: Api::namespaced(client.clone(), namespace),
            sets: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            events: Api::namespaced(client.clone(), namespace),
            name: name.into(),
            troubled: None,
        }
    }

    /// How far it is now.
    pub(crate) async fn progress(&mut self) -> Outcome<Progress> {
        let deployment = self.deployments.get(&self.name).await.doing("reading the operator")?;
        let (all, doing) = (ListParams::default(), "reading the operator's pods");
        let sets = self.sets.list(&all).await.doing(doing)?.items;
        let Some(set) = present(&deployment, &sets) else { return Ok(progress(&deployment, &[])) };
        let hash = set.labels().get("pod-template-hash").map_or("", String::as_str);
        let of_set = ListParams::default().labels(&format!("pod-template-hash={hash}"));
        let pods = self.pods.list(&of_set).await.doing(doing)?.items;
        let mut progress = progress(&deployment, &pods);
        if let Some(unready) = pods.iter().find(|pod| is_unready(pod))
            && progress.trouble.is_none()
        {
            progress.trouble = self.failed_probe(unready).await;
        }
        let firm = progress.trouble.as_ref().is_some_and(|trouble| trouble.firm);
        self.troubled = firm.then(|| self.troubled.unwrap_or_else(Instant::now));
        Ok(progress)
    }

    /// Whether the pods have been in trouble for so long that waiting is unlikely to help.
    pub(crate) fn is_stuck(&self) -> bool {
        self.troubled.is_some_and(|since| since.elapsed() >= TROUBLE)
    }

    /// The output of the last readiness probe of a running pod. Its kubelet writes it into an event.
    async fn failed_probe(&self, pod: &Pod) -> Option<Trouble> {
        let name = pod.name_any();
        let about = format!("involvedObject.name={name},reason=Unhealthy");
        // Somebody who lacks the permission to read events waits without a reason.
        let events = self.events.list(&ListParams::default().fields(&about)).await.ok()?.items;
        let last = events.into_iter().max_by_key(|event| event.last_timestamp.clone());
        let output = last.and_then(|event| event.message);
        let output = output.map(|output| format!(": {}", one_line(&output))).unwrap_or_default();
        Some(Trouble { text: format!("pod {name} runs and is not ready{output}"), firm: false })
    }
}

/// The ReplicaSet of the present template.
fn present<'a>(deployment: &Deployment, sets: &'a [ReplicaSet]) -> Option<&'a ReplicaSet> {
    let revision = deployment.annotations().get(REVISION)?;
    sets.iter().find(|set| {
        let owners = set.owner_references();
        owners.iter().any(|owner| Some(&owner.uid) == deployment.metadata.uid.as_ref())
            && set.annotations().get(REVISION) == Some(revision)
    })
}

/// How far a rollout is, by its Deployment and the pods of the new version.
fn progress(deployment: &Deployment, pods: &[Pod]) -> Progress {
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let current = status.observed_generation >= deployment.metadata.generation;
    let (all, updated, available) = (
        status.replicas.unwrap_or(0),
        status.updated_replicas.unwrap_or(0),
        status.available_replicas.unwrap_or(0),
    );
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let ready = i32::try_from(ready).unwrap_or(i32::MAX);
    let complete = current && updated >= wanted && all == updated && available >= updated;
    let refused = || {
        let conditions = status.conditions.iter().flatten();
        let mut failing = conditions.filter(|c| c.type_ == "ReplicaFailure" && c.status == "True");
        let why = failing.next()?.message.clone().unwrap_or_default();
        Some(Trouble { text: format!("no pod could be created: {}", one_line(&why)), firm: true })
    };
    let trouble = match () {
        () if complete || !current => None,
        () => pods.iter().find_map(trouble_of).or_else(refused),
    };
    Progress { ready, wanted, complete, old_runs: available > ready, trouble }
}

/// The reason why a pod does not run.
fn trouble_of(pod: &Pod) -> Option<Trouble> {
    if pod.metadata.deletion_timestamp.is_some() || is_ready(pod) {
        return None;
    }
    let (name, status) = (pod.name_any(), pod.status.as_ref()?);
    let firm = |text: String| Some(Trouble { text: format!("pod {name} {text}"), firm: true });
    if status.phase.as_deref() == Some("Failed") {
        let reason = status.reason.as_deref().unwrap_or("it failed");
        let message = status.message.as_deref().unwrap_or_default();
        return firm(format!("ended: {}", joined(reason, message)));
    }
    let containers = status.init_container_statuses.iter().flatten();
    let mut containers = containers.chain(status.container_statuses.iter().flatten());
    if let Some(text) = containers.find_map(waiting) {
        return firm(text);
    }
    let conditions = status.conditions.iter().flatten();
    let mut unscheduled = conditions.filter(|c| {
        c.type_ == "PodScheduled"
            && c.status == "False"
            && c.reason.as_deref() == Some("Unschedulable")
    });
    let message = unscheduled.next()?.message.as_deref().unwrap_or_default();
    firm(format!("fits on no node: {}", one_line(message)))
}

/// Why a container waits, unless it is about to start.
fn waiting(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let message = waiting.message.as_deref().unwrap_or_default();
    if reason == "CrashLoopBackOff" {
        let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        let ended = last.map(|last| {
            let reason = last.reason.as_deref().unwrap_or("Error");
            let output = last.message.as_deref().and_then(|output| output.trim().lines().last());
            joined(&format!("{reason}, exit code {}", last.exit_code), output.unwrap_or_default())
        });
        return Some(format!("crashes again and again: {}", ended.unwrap_or_default()));
    }
    let expected = ["", "ContainerCreating", "PodInitializing"];
    (!expected.contains(&reason)).then(|| format!("does not start: {}", joined(reason, message)))
}

fn joined(reason: &str, message: &str) -> String {
    if message.is_empty() { reason.to_owned() } else { format!("{reason}: {}", one_line(message)) }
}

/// As it fits into a sentence.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// Whether it runs and does not pass its readiness probe.
fn is_unready(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none() && !is_ready(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(observed: i64, status: Value) -> Deployment {
        let mut status = status;
        status["observedGeneration"] = json!(observed);
        serde_json::from_value(json!({
            "metadata": {"name": "vdo", "generation": 2},
            "spec": {"replicas": 2, "selector": {}, "template": {}},
            "status": status,
        }))
        .unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "vdo-x"}, "status": status})).unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
    fn container(state: Value, last: Value) -> Value {
        json!({"phase": "Pending", "containerStatuses": [{
            "name": "vdo", "image": "i", "imageID": "", "ready": false, "restartCount": 4,
            "state": state, "lastState": last,
        }]})
    }

    fn ready() -> Pod {
        pod(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}))
    }

    fn text(pod: &Pod) -> String {
        trouble_of(pod).map(|trouble| trouble.text).unwrap_or_default()
    }

    #[test]
    fn a_rollout_is_complete_when_only_new_pods_are_left_and_all_are_available() {
        let status = json!({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        let done = progress(&deployment(2, status.clone()), &[ready(), ready()]);
        assert!(done.complete && done.ready == 2 && !done.old_runs, "{done:?}");
        let not_seen = progress(&deployment(1, status), &[]);
        assert!(!not_seen.complete, "the status is that of the version before it");
        let status = json!({"replicas": 3, "updatedReplicas": 1, "availableReplicas": 2});
        let half = progress(&deployment(2, status), &[pod(json!({"phase": "Pending"}))]);
        assert!(!half.complete && half.old_runs && half.ready == 0, "{half:?}");
        let status = json!({"replicas": 3, "updatedReplicas": 2, "availableReplicas": 3});
        assert!(
            !progress(&deployment(2, status), &[ready(), ready()]).complete,
            "an old one is left"
        );
    }

    #[test]
    fn every_reason_why_a_pod_does_not_start_is_named() {
        let pull = json!({"waiting": {"reason": "ErrImagePull", "message": "not\n found"}});
        assert_eq!(
            text(&pod(container(pull, json!({})))),
            "pod vdo-x does not start: ErrImagePull: not found"
        );
        let back_off = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let ended = json!({"terminated": {
            "exitCode": 101, "reason": "Error", "message": "line one\npanic: out of range\n",
        }});
        assert_eq!(
            text(&pod(container(back_off, ended))),
            "pod vdo-x crashes again and again: Error, exit code 101: panic: out of range"
        );
        let creating = json!({"waiting": {"reason": "ContainerCreating"}});
        assert_eq!(text(&pod(container(creating, json!({})))), "", "it is about to start");
        let unscheduled = pod(json!({"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient memory.",
        }]}));
        assert_eq!(
            text(&unscheduled),
            "pod vdo-x fits on no node: 0/1 nodes are available: 1 Insufficient memory."
        );
        let evicted = pod(json!({"phase": "Failed", "reason": "Evicted", "message": "no disk"}));
        assert_eq!(text(&evicted), "pod vdo-x ended: Evicted: no disk");
        assert_eq!(text(&ready()), "");
    }

    #[test]
    fn a_pod_that_is_refused_is_reported_with_the_reason() {
        let status = json!({"replicas": 2, "availableReplicas": 2, "conditions": [{
            "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
            "message": "pods \"vdo-1\" is forbidden: exceeded quota: few",
        }]});
        let refused = progress(&deployment(2, status), &[]);
        let trouble = refused.trouble.unwrap();
        assert!(trouble.text.ends_with("exceeded quota: few") && trouble.firm, "{trouble:?}");
        assert!(refused.old_runs);
    }
}
