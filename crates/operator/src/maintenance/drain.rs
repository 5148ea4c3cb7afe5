//! Drains a node, like `kubectl drain`: evicts its pods as PodDisruptionBudgets allow, and waits until they and their
//! volumes are gone.

use std::{fmt, time::Duration};

use k8s_openapi::api::{core::v1::Pod, storage::v1::VolumeAttachment};
use kube::{
    Api, Client, ResourceExt,
    api::{EvictParams, ListParams},
};
use plan::names;
use snafu::ResultExt;
use tokio::time::{Instant, sleep};

use super::{Error, KubernetesSnafu, NotDrainedSnafu, PACE};

/// How to treat pods that a drain can harm.
#[derive(Clone, Copy, Debug)]
pub struct DrainOptions {
    /// Evict pods that lose the data in their emptyDir volumes.
    pub delete_empty_dirs: bool,
    /// Evict pods that no controller creates again.
    pub force: bool,
    pub timeout: Duration,
}

/// A pod that keeps a node from being drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub node: String,
    /// `namespace/name`.
    pub pod: String,
    pub reason: ObstacleReason,
}

/// Why a drain can harm a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObstacleReason {
    EmptyDir,
    NoController,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, pod, reason } = self;
        match reason {
            ObstacleReason::EmptyDir => {
                write!(f, "pod {pod} on {node} loses the data in its emptyDir volume")
            }
            ObstacleReason::NoController => {
                write!(f, "pod {pod} on {node} has no controller, so nothing creates it again")
            }
        }
    }
}

/// The pods that a drain of this node can harm, without those that the options allow.
///
/// # Errors
/// Fails if the pods cannot be listed.
pub async fn obstacles(
    client: &Client,
    node: &str,
    options: DrainOptions,
) -> Result<Vec<Obstacle>, kube::Error> {
    let pods = pods_on(client, node).await?;
    let obstacle = |pod: &Pod| {
        let reason = obstacle(pod, options)?;
        Some(Obstacle { node: node.to_owned(), pod: full_name(pod), reason })
    };
    Ok(pods.iter().filter_map(obstacle).collect())
}

fn obstacle(pod: &Pod, options: DrainOptions) -> Option<ObstacleReason> {
    if !options.force && !pod.owner_references().iter().any(|o| o.controller == Some(true)) {
        return Some(ObstacleReason::NoController);
    }
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let empty_dir = volumes.into_iter().any(|volume| volume.empty_dir.is_some());
    (empty_dir && !options.delete_empty_dirs).then_some(ObstacleReason::EmptyDir)
}

/// The pods on a node that a drain evicts.
async fn pods_on(client: &Client, node: &str) -> Result<Vec<Pod>, kube::Error> {
    let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let mut pods = Api::<Pod>::all(client.clone()).list(&here).await?.items;
    pods.retain(is_evicted);
    Ok(pods)
}

/// Not the pods of DaemonSets and the static pods, which stay, and not those that have ended.
fn is_evicted(pod: &Pod) -> bool {
    let of_daemon_set = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    let is_static = pod.annotations().contains_key("kubernetes.io/config.mirror");
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !of_daemon_set && !is_static && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// Evicts the pods of a node, and waits until they and the volumes of the driver are gone.
pub(super) async fn drain(
    client: &Client,
    node: &str,
    options: DrainOptions,
    mut waits: impl FnMut(&str),
) -> Result<(), Error> {
    let end = Instant::now() + options.timeout;
    loop {
        let left = evict(client, node).await?;
        let left = match left {
            None => volumes_on(client, node).await?,
            left => left,
        };
        let Some(left) = left else { return Ok(()) };
        if Instant::now() >= end {
            return NotDrainedSnafu { node, within: options.timeout, left }.fail();
        }
        waits(&left);
        sleep(PACE).await;
    }
}

/// Asks for the eviction of every pod. Returns what the drain waits for.
async fn evict(client: &Client, node: &str) -> Result<Option<String>, Error> {
    let object = || format!("the pods on {node}");
    let pods = pods_on(client, node).await.context(KubernetesSnafu { object: object() })?;
    let mut waits = None;
    for pod in &pods {
        let name = full_name(pod);
        if pod.metadata.deletion_timestamp.is_some() {
            waits.get_or_insert(format!("pod {name} ends"));
            continue;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let api = Api::<Pod>::namespaced(client.clone(), &namespace);
        match api.evict(&pod.name_any(), &EvictParams::default()).await {
            Ok(_) => {
                waits.get_or_insert(format!("pod {name} ends"));
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            // A PodDisruptionBudget does not allow it now.
            Err(kube::Error::Api(status)) if status.code == 429 => {
                waits = Some(format!("the disruption budget of pod {name}"));
            }
            Err(error) => {
                return Err(error).context(KubernetesSnafu { object: format!("pod {name}") });
            }
        }
    }
    Ok(waits)
}

/// A volume of the driver that is attached to the node and that no pod on it uses.
async fn volumes_on(client: &Client, node: &str) -> Result<Option<String>, Error> {
    let object = "VolumeAttachments";
    let attachments = Api::<VolumeAttachment>::all(client.clone());
    let all = attachments.list(&ListParams::default()).await.context(KubernetesSnafu { object })?;
    // Pods of DaemonSets stay, and keep their volumes.
    let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let object = format!("the pods on {node}");
    let pods =
        Api::<Pod>::all(client.clone()).list(&here).await.context(KubernetesSnafu { object })?;
    let claims = |pod: &Pod| {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        volumes.into_iter().any(|volume| volume.persistent_volume_claim.is_some())
    };
    if pods.iter().any(|pod| !is_evicted(pod) && claims(pod)) {
        return Ok(None);
    }
    let spec = |attachment: &VolumeAttachment| {
        let spec = &attachment.spec;
        let ours = spec.node_name == node && spec.attacher == names::CSI_DRIVER;
        ours.then(|| spec.source.persistent_volume_name.clone().unwrap_or_default())
    };
    let attached = all.iter().find_map(spec);
    Ok(attached.map(|volume| format!("volume {volume} is still attached")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "a test passes literals")]
    fn pod(metadata: serde_json::Value, spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn owned(kind: &str) -> serde_json::Value {
        json!({"name": "a", "namespace": "shop", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "1", "controller": true}
        ]})
    }

    const CAREFUL: DrainOptions =
        DrainOptions { delete_empty_dirs: false, force: false, timeout: Duration::ZERO };

    #[test]
    fn pods_that_a_drain_can_harm_are_obstacles() {
        let plain = json!({"containers": []});
        let empty_dir = json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]});
        let lone = pod(json!({"name": "a", "namespace": "shop"}), plain.clone());
        assert_eq!(obstacle(&lone, CAREFUL), Some(ObstacleReason::NoController));
        assert_eq!(obstacle(&lone, DrainOptions { force: true, ..CAREFUL }), None);
        let cache = pod(owned("ReplicaSet"), empty_dir);
        assert_eq!(obstacle(&cache, CAREFUL), Some(ObstacleReason::EmptyDir));
        assert_eq!(obstacle(&cache, DrainOptions { delete_empty_dirs: true, ..CAREFUL }), None);
        assert_eq!(obstacle(&pod(owned("ReplicaSet"), plain), CAREFUL), None);
    }

    #[test]
    fn daemons_static_pods_and_ended_pods_stay() {
        let plain = || json!({"containers": []});
        assert!(is_evicted(&pod(owned("ReplicaSet"), plain())));
        assert!(!is_evicted(&pod(owned("DaemonSet"), plain())));
        let mirror = json!({"name": "a", "annotations": {"kubernetes.io/config.mirror": "x"}});
        assert!(!is_evicted(&pod(mirror, plain())));
        let mut ended = pod(owned("Job"), plain());
        ended.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
        assert!(!is_evicted(&ended));
    }
}
