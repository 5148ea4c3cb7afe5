//! Follows the rollout of a Deployment, and finds out why a pod of its new version does not start.

use std::time::Duration;

use ::api::finding::codes;
use health::messages;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{ContainerStatus, Event, Node, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
};
use tokio::time::Instant;

use crate::failure::{Doing as _, Outcome};

/// How long a pod may be in trouble before the rollout counts as stuck. The first attempt to pull an image
/// often fails, and a node may be about to join.
const TROUBLE: Duration = Duration::from_secs(30);

/// How long a node may pull an image before the rollout mentions it.
const PULL: Duration = Duration::from_secs(20);

/// The annotation by which a Deployment and the ReplicaSet of its present template belong together.
const REVISION: &str = "deployment.kubernetes.io/revision";

/// A rollout under way.
pub(crate) struct Rollout {
    deployments: Api<Deployment>,
    sets: Api<ReplicaSet>,
    pods: Api<Pod>,
    events: Api<Event>,
    nodes: Api<Node>,
    name: String,
    /// Since when the pods have been in trouble.
    troubled: Option<Instant>,
    /// A pod whose node pulls the image, and since when.
    pulling: Option<(String, Instant)>,
    /// Whether the pods of an earlier attempt have been deleted: see [`Self::retry_pulls`].
    pulls_retried: bool,
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
    /// A pod that runs another image than the Deployment names by digest, for example because a webhook replaced it.
    pub(crate) other_image: Option<String>,
}

/// Why a pod does not start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    pub(crate) text: String,
    /// Whether waiting is unlikely to help.
    pub(crate) firm: bool,
}

impl Trouble {
    /// Waiting is unlikely to help.
    fn firm(text: String) -> Self {
        Self { text, firm: true }
    }

    /// Whether the scheduler wrote that nodes have taints: since Kubernetes 1.36 it does not name them.
    fn is_about_taints(&self) -> bool {
        self.text.contains("had untolerated taint(s)")
    }

    /// Whether the registry wants credentials.
    pub(crate) fn needs_pull_secret(&self) -> bool {
        self.text.contains("the registry requires credentials")
    }
}

impl Rollout {
    pub(crate) fn for_deployment(client: &Client, namespace: &str, name: &str) -> Self {
        Self {
            deployments: Api::namespaced(client.clone(), namespace),
            sets: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            events: Api::namespaced(client.clone(), namespace),
            nodes: Api::all(client.clone()),
            name: name.into(),
            troubled: None,
            pulling: None,
            pulls_retried: false,
        }
    }

    /// How far it is now. The first call also lets the pods of an earlier attempt pull their image again.
    pub(crate) async fn progress(&mut self) -> Outcome<Progress> {
        let deployment = self.deployments.get(&self.name).await.doing("reading the operator")?;
        let (all, doing) = (ListParams::default(), "reading the operator's pods");
        let sets = self.sets.list(&all).await.doing(doing)?.items;
        let Some(set) = present(&deployment, &sets) else { return Ok(progress(&deployment, &[])) };
        let hash = set.labels().get("pod-template-hash").map_or("", String::as_str);
        let of_set = ListParams::default().labels(&format!("pod-template-hash={hash}"));
        let mut pods = self.pods.list(&of_set).await.doing(doing)?.items;
        if is_observed(&deployment) && !std::mem::replace(&mut self.pulls_retried, true) {
            self.retry_pulls(&mut pods).await;
        }
        let mut progress = progress(&deployment, &pods);
        if progress.trouble.is_none() && !progress.complete {
            progress.trouble = match pods.iter().find(|pod| is_unready(pod) || is_creating(pod)) {
                Some(pod) if is_unready(pod) => self.failed_probe(pod).await,
                Some(pod) => self.failed_start(pod).await,
                None => None,
            };
        }
        if let Some(trouble) = progress.trouble.as_mut().filter(|trouble| trouble.is_about_taints())
        {
            // Without the permission to read nodes, the message stays as the scheduler wrote it.
            let nodes = self.nodes.list(&ListParams::default()).await;
            trouble.text += &taints_of(&nodes.map(|list| list.items).unwrap_or_default());
        }
        let firm = progress.trouble.as_ref().is_some_and(|trouble| trouble.firm);
        self.troubled = firm.then(|| self.troubled.unwrap_or_else(Instant::now));
        Ok(progress)
    }

    /// Deletes pods that wait minutes for the next attempt to pull their image: a user who deploys again has probably
    /// fixed the cause. Their successors try at once.
    async fn retry_pulls(&self, pods: &mut Vec<Pod>) {
        for pod in pods.extract_if(.., |pod| waits_for_pull(pod)) {
            // Without the permission to delete pods, the rollout only takes longer.
            let _ = self.pods.delete(&pod.name_any(), &DeleteParams::default()).await;
        }
    }

    /// Whether the pods have been in trouble for so long that waiting is unlikely to help.
    pub(crate) fn is_stuck(&self) -> bool {
        self.troubled.is_some_and(|since| since.elapsed() >= TROUBLE)
    }

    /// The output of the last readiness probe of a running pod. Its kubelet writes it into an event.
    async fn failed_probe(&self, pod: &Pod) -> Option<Trouble> {
        let name = pod.name_any();
        let output = self.last_event(&name, "reason=Unhealthy").await;
        let output = output.and_then(|event| event.message);
        let output = output.map(|output| format!(": {}", one_line(&output))).unwrap_or_default();
        Some(Trouble { text: format!("pod {name} runs and is not ready{output}"), firm: false })
    }

    /// Why the kubelet does not get as far as to start a container, for example because a volume is missing. It writes
    /// that into an event. A later event of another kind means that it has gone on.
    async fn failed_start(&mut self, pod: &Pod) -> Option<Trouble> {
        let name = pod.name_any();
        let last = self.last_event(&name, "reason!=FailedScheduling").await?;
        let pulls = last.reason.as_deref() == Some("Pulling");
        let before = self.pulling.take().filter(|(pod, _)| *pod == name);
        self.pulling = pulls.then(|| before.unwrap_or_else(|| (name.clone(), Instant::now())));
        if self.pulling.as_ref().is_some_and(|(_, since)| since.elapsed() >= PULL) {
            return Some(slow_pull(pod, &last));
        }
        let why = last.message.filter(|_| last.type_.as_deref() == Some("Warning"))?;
        Some(Trouble::firm(format!("pod {name} does not start: {}", explained(one_line(&why)))))
    }

    /// The newest of the events about a pod.
    async fn last_event(&self, pod: &str, which: &str) -> Option<Event> {
        let about = format!("involvedObject.name={pod},{which}");
        // Somebody who lacks the permission to read events waits without a reason.
        let events = self.events.list(&ListParams::default().fields(&about)).await.ok()?.items;
        events.into_iter().max_by_key(|event| event.last_timestamp.clone())
    }
}

/// A registry that accepts connections and never answers causes no other event for minutes. The cause can also be a slow
/// network, so the rollout goes on.
fn slow_pull(pod: &Pod, event: &Event) -> Trouble {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("its node");
    let image = event.message.as_deref().unwrap_or_default();
    let text = format!(
        "pod {} waits for its image: the registry has not delivered it to {node} yet ({})",
        pod.name_any(),
        one_line(image)
    );
    Trouble { text, firm: false }
}

/// The taints that keep pods away from nodes: `; node-1: node.kubernetes.io/disk-pressure`.
fn taints_of(nodes: &[Node]) -> String {
    let of_node = |node: &Node| {
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let keys = taints.filter(|taint| taint.effect != "PreferNoSchedule");
        let keys: Vec<&str> = keys.map(|taint| taint.key.as_str()).collect();
        (!keys.is_empty()).then(|| format!("; {}: {}", node.name_any(), keys.join(", ")))
    };
    nodes.iter().filter_map(of_node).collect()
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
    let current = is_observed(deployment);
    let (all, updated, available) = (
        status.replicas.unwrap_or(0),
        status.updated_replicas.unwrap_or(0),
        status.available_replicas.unwrap_or(0),
    );
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let ready = i32::try_from(ready).unwrap_or(i32::MAX);
    // The status of the Deployment says nothing about what the pods run.
    let running = pods.iter().filter(|pod| is_ready(pod) && image_id(pod).is_some()).count();
    let complete = current
        && updated >= wanted
        && all == updated
        && available >= updated
        && i32::try_from(running).is_ok_and(|running| running >= wanted);
    let refused = || {
        let conditions = status.conditions.iter().flatten();
        let mut failing = conditions.filter(|c| c.type_ == "ReplicaFailure" && c.status == "True");
        let why = failing.next()?.message.clone().unwrap_or_default();
        Some(Trouble::firm(format!("no pod could be created: {}", one_line(&why))))
    };
    // A pod that ended, for example because its node evicted it, has a successor.
    let all_ended = pods.iter().all(has_ended);
    let mut present = pods.iter().filter(|pod| all_ended || !has_ended(pod));
    let trouble = match () {
        () if complete || !current => None,
        () => present.find_map(trouble_of).or_else(refused),
    };
    let other_image = pods.iter().find_map(|pod| other_image(deployment, pod));
    Progress { ready, wanted, complete, old_runs: available > ready, trouble, other_image }
}

/// The image that the pod runs, if it is not the one that the Deployment names by digest. A runtime may report the
/// digest of the image for its architecture instead of that of the index, so this is no failure.
fn other_image(deployment: &Deployment, pod: &Pod) -> Option<String> {
    let containers = &deployment.spec.as_ref()?.template.spec.as_ref()?.containers;
    let (_, digest) = containers.first()?.image.as_deref()?.split_once('@')?;
    let running = image_id(pod).filter(|_| is_ready(pod))?;
    (!running.ends_with(digest)).then(|| format!("pod {} runs {running}", pod.name_any()))
}

/// The image of the pod's container, as its kubelet reports it.
fn image_id(pod: &Pod) -> Option<&str> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some(container.image_id.as_str()).filter(|id| !id.is_empty())
}

/// Whether its status is that of the present template.
fn is_observed(deployment: &Deployment) -> bool {
    let observed = deployment.status.as_ref().and_then(|status| status.observed_generation);
    observed >= deployment.metadata.generation
}

/// Whether the kubelet waits before it pulls an image of the pod again.
fn waits_for_pull(pod: &Pod) -> bool {
    let containers =
        pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    containers.into_iter().any(|container| {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        matches!(reason, Some("ImagePullBackOff" | "ErrImagePull"))
    })
}

/// The reason why a pod does not run.
pub(crate) fn trouble_of(pod: &Pod) -> Option<Trouble> {
    if pod.metadata.deletion_timestamp.is_some() || is_ready(pod) {
        return None;
    }
    let (name, status) = (pod.name_any(), pod.status.as_ref()?);
    let firm = |text: String| Some(Trouble::firm(format!("pod {name} {text}")));
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
        return Some(format!("crashes again and again: {}", explained(ended.unwrap_or_default())));
    }
    let expected = ["", "ContainerCreating", "PodInitializing"];
    (!expected.contains(&reason))
        .then(|| format!("does not start: {}", explained(joined(reason, message))))
}

/// Puts the meaning of a message about an image in front of it.
fn explained(message: String) -> String {
    let about_images = [codes::IMAGE_NOT_PULLED.code, codes::POD_CRASHES.code];
    match messages::explain(&message) {
        Some(known) if about_images.contains(&known.findings[0].code) => {
            format!("{} ({message})", known.meaning)
        }
        _ => message,
    }
}

fn joined(reason: &str, message: &str) -> String {
    if message.is_empty() { reason.to_owned() } else { format!("{reason}: {}", one_line(message)) }
}

/// As it fits into a sentence.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// Whether its containers have ended and will not start again.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// Whether it is on a node, and no container of it has been started.
fn is_creating(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    phase == Some("Pending") && is_placed && pod.metadata.deletion_timestamp.is_none()
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

    #[test]
    fn the_taints_of_nodes_are_named() {
        let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
        let pressure = taint("node.kubernetes.io/disk-pressure", "NoSchedule");
        let nodes = json!([
            {"metadata": {"name": "node-1"}, "spec": {"taints": [pressure, taint("soft", "PreferNoSchedule")]}},
            {"metadata": {"name": "node-2"}, "spec": {}},
        ]);
        let nodes: Vec<Node> = serde_json::from_value(nodes).unwrap();
        assert_eq!(taints_of(&nodes), "; node-1: node.kubernetes.io/disk-pressure");
    }

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

    fn running(image_id: &str) -> Pod {
        pod(json!({
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{
                "name": "vdo", "image": "i", "imageID": image_id, "ready": true, "restartCount": 0,
            }],
        }))
    }

    fn ready() -> Pod {
        running("r.example.com/vdo@sha256:aaaa")
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
    fn pods_must_run_an_image_and_another_one_than_the_digest_names_is_reported() {
        let status = json!({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        let mut by_digest = deployment(2, status);
        let image = json!({"spec": {"containers": [
            {"name": "vdo", "image": "r.example.com/vdo@sha256:aaaa"},
        ]}});
        by_digest.spec.as_mut().unwrap().template = serde_json::from_value(image).unwrap();
        let same = progress(&by_digest, &[ready(), ready()]);
        assert!(same.complete && same.other_image.is_none(), "{same:?}");
        let unknown = progress(&by_digest, &[ready(), running("")]);
        assert!(!unknown.complete, "nothing is known to run in one of them");
        let other = progress(&by_digest, &[ready(), running("r.example.com/vdo@sha256:bbbb")]);
        let expected = "pod vdo-x runs r.example.com/vdo@sha256:bbbb";
        assert_eq!(other.other_image.as_deref(), Some(expected));
    }

    #[test]
    fn every_reason_why_a_pod_does_not_start_is_named() {
        let pull = json!({"waiting": {"reason": "ErrImagePull", "message": "not\n found"}});
        assert_eq!(
            text(&pod(container(pull, json!({})))),
            "pod vdo-x does not start: the registry does not serve the image (ErrImagePull: not found)"
        );
        let unauthorized = json!({"waiting": {"reason": "ImagePullBackOff", "message":
            "Back-off pulling image \"r.example.com/vdo:1\": ErrImagePull: failed to pull and unpack image \
             \"r.example.com/vdo:1\": unexpected status from HEAD request: 401 Unauthorized"}});
        let unauthorized = trouble_of(&pod(container(unauthorized, json!({})))).unwrap();
        assert!(unauthorized.needs_pull_secret(), "{unauthorized:?}");
        let architecture = json!({"terminated": {"exitCode": 128, "reason": "StartError", "message":
            "failed to create containerd task: exec /usr/bin/vdo: exec format error"}});
        let back_off = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let crashed = text(&pod(container(back_off, architecture)));
        assert!(
            crashed.starts_with(
                "pod vdo-x crashes again and again: the program in the image is built for another \
                 architecture than that of the node (StartError, exit code 128: failed to create"
            ),
            "{crashed}"
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
    fn a_pod_that_ended_matters_only_if_no_other_pod_is_left() {
        let status = json!({"replicas": 3, "updatedReplicas": 1, "availableReplicas": 2});
        let trouble = |pods: &[Pod]| {
            let trouble = progress(&deployment(2, status.clone()), pods).trouble;
            trouble.map(|trouble| trouble.text).unwrap_or_default()
        };
        let evicted = || pod(json!({"phase": "Failed", "reason": "Evicted", "message": "no disk"}));
        let waiting = |reason: &str| {
            let waits = json!({"waiting": {"reason": reason, "message": "not found"}});
            pod(container(waits, json!({})))
        };
        assert_eq!(trouble(&[evicted(), waiting("ContainerCreating")]), "", "its successor starts");
        let pull = trouble(&[evicted(), waiting("ErrImagePull")]);
        assert!(pull.contains("ErrImagePull"), "{pull}");
        assert_eq!(trouble(&[evicted(), evicted()]), "pod vdo-x ended: Evicted: no disk");
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
