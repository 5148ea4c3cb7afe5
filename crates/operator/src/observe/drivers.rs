//! The drivers' workloads and volumes.

use std::collections::{BTreeMap, BTreeSet};

use health::facts::Known;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{Client, ResourceExt};
use plan::{
    ObjectId,
    facts::{DriverWorkload, RestartStrategy, WorkloadOrigin},
    names,
};

use crate::{
    applied,
    cluster::{
        Stores, implementation, is_ours_by_label, part,
        pods::{self, Pods, trouble_of},
        provenance::Provenance,
        version,
    },
};

/// The workloads that look like a driver's.
#[derive(Debug, Default)]
pub(super) struct FoundWorkloads {
    /// The workloads that belong to a driver: see [`crate::cluster::provenance`].
    pub(super) workloads: BTreeMap<ObjectId, DriverWorkload>,
    /// The workloads that do not.
    pub(super) lookalikes: Vec<ObjectId>,
}

/// Finds the workloads of both drivers, and counts the pods of adopted ones too while they restart with a new password.
pub(super) async fn find_with_adopted_pods(client: &Client, stores: &Stores) -> FoundWorkloads {
    let found = find(stores, &Pods::new());
    let mut adopted = Pods::new();
    for (id, workload) in found.workloads.iter().filter(|(id, own)| restarts_unwatched(id, own)) {
        let labels = workload.selector.iter().map(|(key, value)| format!("{key}={value}"));
        let selector = labels.collect::<Vec<_>>().join(",");
        match pods::list(client, &id.namespace, &selector).await {
            Ok(pods) => adopted.extend(pods),
            // The rules then use the numbers in the status of the workload.
            Err(error) => tracing::debug!(%id, %error, "cannot list the pods"),
        }
    }
    if adopted.is_empty() { found } else { find(stores, &adopted) }
}

/// Whether VDO has to list the pods of a workload: it adopted the workload, so no watch has its pods, and restarted them
/// with a new password, and not all of them are new.
fn restarts_unwatched(id: &ObjectId, workload: &DriverWorkload) -> bool {
    id.kind == "DaemonSet"
        && crate::allowed_namespaces::has(&id.namespace)
        && !workload.labelled
        && !workload.selector.is_empty()
        && workload.origin.credentials_changed.is_some()
        && workload.updated < workload.wanted
}

/// Finds the workloads of both drivers. `more` are pods that no watch has.
pub(super) fn find(stores: &Stores, more: &Pods) -> FoundWorkloads {
    let sets = stores.daemon_sets.state();
    let deployments = stores.deployments.state();
    let all = (sets.iter().map(AsRef::as_ref), deployments.iter().map(AsRef::as_ref));
    let provenance = Provenance::judge(&stores.accounts(), all.0, all.1);
    let (down, known): (Down, BTreeSet<String>) = stores.nodes(|nodes| {
        let down = nodes.iter().filter(|(_, node)| !node.ready);
        let down = down.map(|(name, node)| {
            (name.clone(), DownNode { since: node.since, taints: node.taints.clone() })
        });
        (down.collect(), nodes.keys().cloned().collect())
    });
    stores.pods(|watched| {
        let all: Pods;
        let pods = if more.is_empty() {
            watched
        } else {
            all =
                watched.iter().chain(more).map(|(name, pod)| (name.clone(), pod.clone())).collect();
            &all
        };
        let sets = sets.iter().filter_map(|set| {
            let workload = from_daemon_set(pods, &down, set)?;
            let orphaned = workload.orphaned + without_node(pods, &known, set);
            let counted = PodsOnLiveNodes::count(pods, &down, &known, set);
            let PodsOnLiveNodes { unready, failing, logins } =
                counted.capped(set, workload.unreachable);
            let workload = DriverWorkload { orphaned, unready, failing, logins, ..workload };
            Some((id("DaemonSet", &**set), workload))
        });
        let deployments = deployments
            .iter()
            .filter_map(|one| Some((id("Deployment", &**one), from_deployment(pods, one)?)));
        let mut found = FoundWorkloads::default();
        for (id, workload) in sets.chain(deployments) {
            if provenance.counts(workload.driver, &id.namespace) {
                found.workloads.insert(id, workload);
            } else {
                found.lookalikes.push(id);
            }
        }
        found
    })
}

fn id(kind: &str, object: &impl ResourceExt) -> ObjectId {
    ObjectId {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

/// Nodes that are down, by name.
type Down = BTreeMap<String, DownNode>;

struct DownNode {
    since: Option<Timestamp>,
    /// Key and effect of each taint.
    taints: Box<[(String, String)]>,
}

/// The taints that every pod of a DaemonSet tolerates. A pod on the host network also tolerates [`NO_NETWORK`].
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

const NO_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// Whether a DaemonSet wants a pod on a node in spite of its taints. If not, a pod that is there already stays, and counts
/// neither as desired nor as updated. A toleration of one value counts as a toleration of all, because the cache has no
/// values of taints.
fn tolerates(set: &DaemonSet, taints: &[(String, String)]) -> bool {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let own = pod.and_then(|pod| pod.tolerations.as_deref()).unwrap_or_default();
    let on_host_network = pod.is_some_and(|pod| pod.host_network == Some(true));
    let matches = |filter: Option<&str>, text: &str| {
        filter.is_none_or(|filter| filter.is_empty() || filter == text)
    };
    let repels = |effect: &str| effect == "NoSchedule" || effect == "NoExecute";
    taints.iter().filter(|(_, effect)| repels(effect)).all(|(key, effect)| {
        TOLERATED.contains(&(key, effect))
            || on_host_network && (key.as_str(), effect.as_str()) == NO_NETWORK
            || own.iter().any(|toleration| {
                matches(toleration.key.as_deref(), key)
                    && matches(toleration.effect.as_deref(), effect)
            })
    })
}

/// If a node goes down within this time after a new pod started on it, the pod may be the cause.
const SUSPICION: SignedDuration = SignedDuration::from_mins(10);

/// The pods of a DaemonSet on nodes that are down.
#[derive(Debug, Default, PartialEq, Eq)]
struct Unreachable {
    /// The desired pods.
    all: i32,
    /// Pods that are not desired, because they do not tolerate the taints of the node.
    repelled: i32,
    /// Pods of the newest revision whose node went down soon after they were created.
    suspect: i32,
    /// Desired pods of the newest revision.
    updated: i32,
}

impl Unreachable {
    fn count(pods: &Pods, down: &Down, set: &DaemonSet) -> Self {
        let (name, namespace) = (set.name_any(), set.metadata.namespace.as_deref());
        let own = pods.values().filter(|pod| pod.belongs_to(namespace, "DaemonSet", &name));
        // Only a pod created after a change has the newest revision.
        let newest = own.clone().max_by_key(|pod| pod.created);
        let newest = newest.and_then(|pod| pod.revision.as_ref());
        // A node can have two pods: the one being deleted and its replacement.
        let (mut lost, mut suspect) = (BTreeMap::<&str, bool>::new(), BTreeSet::new());
        for pod in own.filter(|pod| pod.unready.is_some()) {
            let node = pod.node.as_deref().and_then(|node| down.get_key_value(node));
            let Some((node, DownNode { since, .. })) = node else { continue };
            let updated = !pod.terminating && pod.revision.as_ref() == newest;
            *lost.entry(node).or_default() |= updated;
            let soon = |since: Timestamp| {
                (SignedDuration::ZERO..SUSPICION).contains(&since.duration_since(pod.created))
            };
            if updated && since.is_some_and(soon) {
                suspect.insert(node);
            }
        }
        let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        let before = lost.len();
        lost.retain(|node, _| tolerates(set, &down[*node].taints));
        let updated = lost.values().filter(|updated| **updated).count();
        Self {
            all: count(lost.len()),
            repelled: count(before - lost.len()),
            suspect: count(suspect.len()),
            updated: count(updated),
        }
    }
}

/// The pods of a DaemonSet on nodes that are up.
#[derive(Debug, Default, PartialEq, Eq)]
struct PodsOnLiveNodes {
    /// See [`DriverWorkload::unready`].
    unready: i32,
    /// See [`DriverWorkload::failing`].
    failing: i32,
    /// See [`DriverWorkload::logins`].
    logins: BTreeMap<Option<String>, i32>,
}

impl PodsOnLiveNodes {
    fn count(pods: &Pods, down: &Down, known: &BTreeSet<String>, set: &DaemonSet) -> Self {
        let (name, namespace) = (set.name_any(), set.metadata.namespace.as_deref());
        let own = pods.values().filter(|pod| pod.belongs_to(namespace, "DaemonSet", &name));
        let mut counted = Self::default();
        // A node can have two pods: the one being deleted and its replacement.
        let mut available = BTreeMap::<&str, bool>::new();
        let mut failing = BTreeSet::<&str>::new();
        for pod in own {
            let runs = pod.unready.is_none() && !pod.terminating;
            let fails = !pod.terminating && pod.unready.as_deref().and_then(trouble_of).is_some();
            let Some(node) = pod.node.as_deref() else {
                counted.unready += i32::from(!pod.terminating);
                counted.failing += i32::from(fails);
                continue;
            };
            // Without the permission to read nodes, VDO knows none.
            if down.contains_key(node) || !known.is_empty() && !known.contains(node) {
                continue;
            }
            *available.entry(node).or_default() |= runs;
            if fails {
                failing.insert(node);
            }
            if runs {
                *counted.logins.entry(pod.login.as_deref().map(str::to_owned)).or_default() += 1;
            }
        }
        let unready = available.iter().filter(|(_, available)| !**available);
        let failing = unready.clone().filter(|(node, _)| failing.contains(*node));
        counted.failing += i32::try_from(failing.count()).unwrap_or(i32::MAX);
        counted.unready += i32::try_from(unready.count()).unwrap_or(i32::MAX);
        counted
    }

    /// The same, at most as many as Kubernetes counts towards the limit of pods that restart at a time. It does not count
    /// the rest of a pod on a node where the DaemonSet wants none any more.
    fn capped(self, set: &DaemonSet, unreachable: i32) -> Self {
        let status = set.status.as_ref();
        let (wanted, available) = status.map_or((0, 0), |status| {
            (status.desired_number_scheduled, status.number_available.unwrap_or(0))
        });
        let unready = self.unready.min(wanted - available - unreachable).max(0);
        Self { unready, failing: self.failing.min(unready), ..self }
    }
}

/// The number of pods of a DaemonSet whose Node does not exist any more. A pod that is still ready counts as available for
/// Kubernetes, so it does not count here.
fn without_node(pods: &Pods, known: &BTreeSet<String>, set: &DaemonSet) -> i32 {
    let (name, namespace) = (set.name_any(), set.metadata.namespace.as_deref());
    let own = pods.values().filter(|pod| pod.belongs_to(namespace, "DaemonSet", &name));
    let lost = own.filter(|pod| pod.terminating || pod.unready.is_some());
    let nodes: BTreeSet<&str> = lost.filter_map(|pod| pod.node.as_deref()).collect();
    // Without the permission to read nodes, VDO knows none.
    let gone = nodes.into_iter().filter(|node| !known.is_empty() && !known.contains(*node)).count();
    i32::try_from(gone).unwrap_or(i32::MAX)
}

fn from_daemon_set(pods: &Pods, down: &Down, set: &DaemonSet) -> Option<DriverWorkload> {
    let spec = set.spec.as_ref();
    let status = set.status.clone().unwrap_or_default();
    let unreachable = Unreachable::count(pods, down, set);
    let updated = status.updated_number_scheduled.unwrap_or(0);
    let reached = updated - unreachable.updated;
    Some(DriverWorkload {
        restart: restart_strategy(set),
        wanted: status.desired_number_scheduled,
        unreachable: unreachable.all,
        orphaned: unreachable.repelled,
        suspect: unreachable.suspect,
        available: status.number_available.unwrap_or(0).min(reached),
        ready: status.number_ready,
        updated,
        rolled_out: reached >= status.desired_number_scheduled - unreachable.all,
        current: is_current(status.observed_generation, set),
        ..described(pods, "DaemonSet", set, spec.map(|s| &s.template), spec.map(|s| &s.selector))?
    })
}

fn restart_strategy(set: &DaemonSet) -> RestartStrategy {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    match strategy.and_then(|strategy| strategy.type_.as_deref()) {
        Some("OnDelete") => RestartStrategy::OnDelete,
        _ if set.annotations().contains_key(names::FORMER_LIMIT) => {
            RestartStrategy::RollingWithRaisedLimit
        }
        _ => RestartStrategy::Rolling,
    }
}

fn from_deployment(pods: &Pods, deployment: &Deployment) -> Option<DriverWorkload> {
    let spec = deployment.spec.as_ref();
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = spec.and_then(|spec| spec.replicas).unwrap_or(1);
    let updated = status.updated_replicas.unwrap_or(0);
    let (template, selector) = (spec.map(|spec| &spec.template), spec.map(|spec| &spec.selector));
    Some(DriverWorkload {
        wanted,
        available: status.available_replicas.unwrap_or(0).min(updated),
        ready: status.ready_replicas.unwrap_or(0),
        updated,
        rolled_out: updated >= wanted,
        current: is_current(status.observed_generation, deployment),
        ..described(pods, "Deployment", deployment, template, selector)?
    })
}

/// A workload without the counts of its pods.
fn described(
    pods: &Pods,
    kind: &str,
    object: &impl ResourceExt,
    template: Option<&PodTemplateSpec>,
    selector: Option<&LabelSelector>,
) -> Option<DriverWorkload> {
    let (driver, role) = part(kind, object, template)?;
    Some(DriverWorkload {
        driver,
        role,
        labelled: is_ours_by_label(object),
        selector: selector.and_then(|s| s.match_labels.clone()).unwrap_or_default(),
        version: version(object.labels(), template),
        implementation: implementation(template),
        mark: applied::mark(object.meta()),
        wanted: 0,
        unreachable: 0,
        orphaned: 0,
        suspect: 0,
        unready: 0,
        failing: 0,
        logins: BTreeMap::new(),
        available: 0,
        ready: 0,
        updated: 0,
        current: false,
        rolled_out: false,
        trouble: trouble(pods, kind, object),
        restart: RestartStrategy::Rolling,
        origin: WorkloadOrigin::read(object.meta(), template),
    })
}

/// Whether a controller has observed the latest generation of its workload.
fn is_current(observed: Option<i64>, workload: &impl ResourceExt) -> bool {
    observed >= workload.meta().generation && observed > Some(0)
}

/// The reason why a pod of a workload does not run.
fn trouble(pods: &Pods, kind: &str, workload: &impl ResourceExt) -> Option<String> {
    let (name, namespace) = (workload.name_any(), workload.namespace());
    let own = pods.values().filter(|pod| pod.belongs_to(namespace.as_deref(), kind, &name));
    let unready = own.filter_map(|pod| pod.unready.as_deref());
    let troubles =
        unready.filter_map(|pod| trouble_of(pod).map(|what| format!("{}: {what}", pod.name_any())));
    troubles.min()
}

/// Volumes that the CSI driver has attached. If VDO cannot list them, the result contains the reason as an
/// entry: an empty list would allow the driver's removal.
pub(super) fn attached(stores: &Stores) -> Vec<(String, String)> {
    let attached = stores.attachments.read(|all| {
        let all = all.values().map(|attachment| {
            let volume = attachment.volume.as_deref().unwrap_or("(an inline volume)");
            (volume.to_owned(), attachment.node.to_string())
        });
        let mut all: Vec<(String, String)> = all.collect();
        all.sort();
        all
    });
    match attached {
        Known::Known(attached) => attached,
        Known::Unknown { reason } => vec![("(volumes cannot be listed)".into(), reason)],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::cluster::pods::{CachedPod, REVISION};

    /// A pod of the DaemonSet `vsphere-csi-node`, created at that minute.
    fn pod(node: &str, revision: &str, minute: u8, ready: bool) -> CachedPod {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": format!("{node}-{minute}"),
                "namespace": names::CSI_NAMESPACE,
                "creationTimestamp": format!("2026-11-14T12:{minute:02}:00Z"),
                "labels": {REVISION: revision, "app": "vsphere-csi-node"},
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "vsphere-csi-node", "uid": "u",
                }],
            },
            "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": [
                {"type": "Ready", "status": if ready { "True" } else { "False" }},
            ]},
        }))
        .unwrap();
        CachedPod::new(&pod)
    }

    fn all(pods: &[CachedPod]) -> Pods {
        pods.iter().enumerate().map(|(n, pod)| (n.to_string(), pod.clone())).collect()
    }

    #[test]
    fn the_reason_why_a_pod_does_not_run_is_that_of_kubernetes() {
        let trouble = |status: serde_json::Value| {
            let pod = json!({"metadata": {"name": "p"}, "status": status});
            trouble_of(&serde_json::from_value(pod).unwrap())
        };
        let waits = |reason: &str| {
            let waiting = json!({"reason": reason, "message": "no such host"});
            json!([{
                "name": "driver", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": waiting},
            }])
        };
        let pulled = trouble(json!({"containerStatuses": waits("ImagePullBackOff")})).unwrap();
        assert_eq!(pulled, "ImagePullBackOff (driver: no such host)");
        let initial = trouble(json!({
            "initContainerStatuses": waits("CrashLoopBackOff"),
            "containerStatuses": waits("PodInitializing"),
        }));
        assert_eq!(initial.unwrap(), "CrashLoopBackOff (driver: no such host)");
        assert_eq!(trouble(json!({"containerStatuses": waits("ContainerCreating")})), None);
        let evicted = trouble(json!({
            "phase": "Failed", "reason": "Evicted", "nominatedNodeName": "node-1",
            "message": "The node had condition: [DiskPressure].",
        }));
        let reason = "Evicted on node-1 (The node had condition: [DiskPressure].)";
        assert_eq!(evicted.as_deref(), Some(reason));
        let message = "0/3 nodes are available: 3 Insufficient memory.";
        let unscheduled = trouble(json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message},
        ]}));
        assert_eq!(unscheduled.unwrap(), format!("cannot be scheduled ({message})"));
    }

    fn node_driver(updated: i32, available: i32) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {
                "name": "vsphere-csi-node", "namespace": names::CSI_NAMESPACE, "generation": 2,
            },
            "spec": {"selector": {}, "template": {"spec": {"containers": []}}},
            "status": {
                "currentNumberScheduled": 3, "desiredNumberScheduled": 3, "numberMisscheduled": 0,
                "numberReady": available, "numberAvailable": available,
                "updatedNumberScheduled": updated, "observedGeneration": 2,
            },
        }))
        .unwrap()
    }

    fn down_since(since: Option<Timestamp>) -> DownNode {
        DownNode { since, taints: Box::default() }
    }

    /// Kubernetes does not count the pod of a dead node that repels it: neither as desired, nor as updated.
    #[test]
    fn a_pod_that_its_dead_node_repels_replaces_no_pod_of_a_node_that_is_up() {
        let pods = [pod("a", "new", 5, true), pod("b", "old", 1, true), pod("c", "old", 1, false)];
        let unreachable = ("node.kubernetes.io/unreachable".to_owned(), "NoSchedule".to_owned());
        let evicts = ("node.kubernetes.io/unreachable".to_owned(), "NoExecute".to_owned());
        let taints: Box<[_]> = [unreachable, evicts].into();
        let down = BTreeMap::from([("c".to_owned(), DownNode { taints, ..down_since(None) })]);
        let mut set = node_driver(1, 2);
        let desired = |set: &mut DaemonSet, desired| {
            set.status.as_mut().unwrap().desired_number_scheduled = desired;
        };
        desired(&mut set, 2);
        let seen = from_daemon_set(&all(&pods), &down, &set).unwrap();
        assert!(!seen.rolled_out && !seen.is_healthy(), "b still has the old pod");
        assert_eq!((seen.unreachable, seen.orphaned), (0, 1), "the limit must rise by one");

        let template = set.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        let all_taints = json!([{"operator": "Exists", "effect": "NoSchedule"}]);
        template.tolerations = serde_json::from_value(all_taints).unwrap();
        desired(&mut set, 3);
        let seen = from_daemon_set(&all(&pods), &down, &set).unwrap();
        assert_eq!((seen.unreachable, seen.orphaned), (1, 0));
        assert!(!seen.rolled_out, "b still has the old pod");
    }

    #[test]
    fn pods_that_do_not_run_are_counted_by_node_and_running_pods_by_their_logins() {
        let with = |node: &str, minute: u8, ready: bool, login: Option<&str>| {
            let mut pod = pod(node, "r", minute, ready);
            pod.login = login.map(Into::into);
            pod
        };
        let ends = |mut pod: CachedPod| {
            pod.terminating = true;
            pod
        };
        let mut pending = with("", 4, false, Some("now"));
        pending.node = None;
        let mut crashing = with("crashes", 3, false, Some("now"));
        let status = json!({"status": {"phase": "Failed"}});
        crashing.unready = Some(Arc::new(serde_json::from_value(status).unwrap()));
        let pods = [
            with("a", 1, true, Some("before")),
            with("b", 2, true, Some("now")),
            ends(with("b", 1, true, Some("before"))),
            ends(with("stuck", 1, false, None)),
            crashing,
            ends(with("crashes", 1, false, Some("before"))),
            with("down", 1, false, Some("before")),
            with("deleted", 1, false, Some("before")),
            pending,
        ];
        let down = BTreeMap::from([("down".to_owned(), down_since(None))]);
        let known = ["a", "b", "stuck", "crashes", "down"].map(str::to_owned).into();
        let counted = PodsOnLiveNodes::count(&all(&pods), &down, &known, &node_driver(1, 2));
        assert_eq!(counted.unready, 3, "stuck, crashes, and the pod without a node");
        assert_eq!(counted.failing, 1, "of the others, Kubernetes reports no error");
        let logins = [(Some("before".to_owned()), 1), (Some("now".to_owned()), 1)];
        assert_eq!(counted.logins, BTreeMap::from(logins));

        let one = counted.capped(&node_driver(1, 1), 1);
        assert_eq!((one.unready, one.failing), (1, 1), "Kubernetes waits for one more pod");
        let none = one.capped(&node_driver(1, 3), 0);
        assert_eq!((none.unready, none.failing), (0, 0), "stuck is not wanted any more");
    }

    #[test]
    fn the_pods_of_an_adopted_workload_are_listed_until_all_have_the_new_password() {
        let set: DaemonSet = serde_json::from_value(json!({
            "metadata": {"name": "vsphere-cpi", "namespace": names::KUBE_SYSTEM, "generation": 1},
            "spec": {
                "selector": {"matchLabels": {"app": "vsphere-cpi"}},
                "template": {
                    "metadata": {"annotations": {names::CREDENTIALS_CHANGED: "now"}},
                    "spec": {"containers": [{
                        "name": "cpi", "image": "registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:v1.36.0",
                    }]},
                },
            },
            "status": {
                "currentNumberScheduled": 4, "desiredNumberScheduled": 4, "numberMisscheduled": 0,
                "numberReady": 3, "updatedNumberScheduled": 3, "observedGeneration": 1,
            },
        }))
        .unwrap();
        let workload = from_daemon_set(&Pods::new(), &Down::new(), &set).unwrap();
        let lists =
            |workload: &DriverWorkload| restarts_unwatched(&id("DaemonSet", &set), workload);
        assert!(lists(&workload), "{workload:?}");
        assert!(!lists(&DriverWorkload { updated: 4, ..workload.clone() }), "all are new");
        assert!(!lists(&DriverWorkload { labelled: true, ..workload.clone() }), "a watch has them");
        let mut untouched = workload;
        untouched.origin.credentials_changed = None;
        assert!(!lists(&untouched), "VDO restarted nothing");
    }

    #[test]
    fn pods_on_nodes_that_are_down_are_not_waited_for_and_all_others_are() {
        let at = |minute: u8| format!("2026-11-14T12:{minute:02}:30Z").parse().ok();
        let down = BTreeMap::from([("c".to_owned(), down_since(at(3)))]);
        let healthy = |pods: &[CachedPod], updated, available| {
            from_daemon_set(&all(pods), &down, &node_driver(updated, available))
                .unwrap()
                .is_healthy()
        };
        let lost = pod("c", "old", 1, false);
        let all_new = [pod("a", "new", 5, true), pod("b", "new", 6, true), lost.clone()];
        assert!(healthy(&all_new, 2, 2), "the pod of the dead node is the old one");
        let all_new = [all_new[0].clone(), all_new[1].clone(), pod("c", "new", 7, false)];
        assert!(healthy(&all_new, 3, 2), "it was replaced and cannot start");
        let one_old =
            [pod("a", "new", 5, true), pod("b", "old", 1, true), pod("c", "new", 4, false)];
        assert!(!healthy(&one_old, 2, 2), "b still has the old one");
        let one_broken = [pod("a", "new", 5, true), pod("b", "new", 6, false), lost];
        assert!(!healthy(&one_broken, 2, 1), "b is up, and its pod is not");
        let workload = from_daemon_set(&all(&all_new), &Down::new(), &node_driver(3, 2)).unwrap();
        assert!(!workload.is_healthy(), "no node is down, and one pod does not run");
        let known = ["a", "b"].map(str::to_owned).into();
        assert_eq!(without_node(&all(&all_new), &known, &node_driver(3, 2)), 1, "c was deleted");
        assert_eq!(without_node(&all(&all_new), &BTreeSet::new(), &node_driver(3, 2)), 0);
        let known = ["a", "c"].map(str::to_owned).into();
        let b_runs = without_node(&all(&all_new), &known, &node_driver(3, 2));
        assert_eq!(b_runs, 0, "Kubernetes counts a ready pod as available");
        let suspects = |minute| {
            let down = BTreeMap::from([("c".to_owned(), down_since(at(minute)))]);
            from_daemon_set(&all(&all_new), &down, &node_driver(3, 2)).unwrap().suspect
        };
        assert_eq!(suspects(6), 0, "it was down before the new pod came");
        assert_eq!(suspects(8), 1, "it went down under it");
        assert_eq!(suspects(40), 0, "it ran with it for long");
    }
}
