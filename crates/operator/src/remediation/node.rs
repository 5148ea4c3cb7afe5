//! Remediates nodes and their CSI registration.

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    storage::v1::{CSINode, VolumeAttachment},
};
use kube::{
    Api, Client, ResourceExt,
    api::{EvictParams, ListParams},
};
use plan::names;
use serde_json::{Value, json};
use snafu::{OptionExt, ResultExt};

use super::{AttachedSnafu, ChangedSnafu, Error, KubernetesSnafu, patch};
use crate::cluster;

/// Whether a node waits for the cloud provider.
pub(super) async fn is_tainted(client: &Client, name: &str) -> Result<bool, Error> {
    let node = Api::<Node>::all(client.clone()).get(name).await.context(KubernetesSnafu)?;
    Ok(has_taint(&node))
}

fn has_taint(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == names::UNINITIALIZED)
}

/// Taints a node that the cloud provider has not initialized. Fails if somebody else did it.
pub(super) async fn taint(client: &Client, name: &str) -> Result<(), Error> {
    let nodes = Api::<Node>::all(client.clone());
    patch::change(&nodes, name, |node| {
        let spec = node.spec.clone().unwrap_or_default();
        if spec.provider_id.is_some_and(|id| !id.is_empty()) {
            let what = "the cloud provider has seen it";
            return ChangedSnafu { object: format!("node {name}"), what }.fail();
        }
        if has_taint(node) {
            let what = "somebody else tainted it";
            return ChangedSnafu { object: format!("node {name}"), what }.fail();
        }
        let taints = spec.taints.unwrap_or_default();
        let own = json!({"key": names::UNINITIALIZED, "value": "true", "effect": "NoSchedule"});
        Ok(vec![if taints.is_empty() {
            json!({"op": "add", "path": "/spec/taints", "value": [own]})
        } else {
            json!({"op": "add", "path": "/spec/taints/-", "value": own})
        }])
    })
    .await
}

/// Removes the taint, if it is still there.
pub(super) async fn untaint(client: &Client, name: &str) -> Result<(), Error> {
    let nodes = Api::<Node>::all(client.clone());
    patch::change(&nodes, name, |node| {
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let mut own = taints.enumerate().filter(|(_, taint)| taint.key == names::UNINITIALIZED);
        let path = own.next().map(|(at, _)| format!("/spec/taints/{at}"));
        Ok(path.into_iter().map(|path| json!({"op": "remove", "path": path})).collect())
    })
    .await
}

/// The driver's CSINode entry for a node, if it is the stale one and no volume is attached under it.
pub(super) async fn stale_entry(client: &Client, name: &str, id: &str) -> Result<Value, Error> {
    let object = || format!("CSINode {name}");
    let seen = Api::<CSINode>::all(client.clone()).get(name).await.context(KubernetesSnafu)?;
    let own = seen.spec.drivers.iter().find(|driver| driver.name == names::CSI_DRIVER);
    let what = "it has no entry of the driver";
    let own = own.context(ChangedSnafu { object: object(), what })?;
    if own.node_id != id {
        let what = format!("its entry names {}", own.node_id);
        return ChangedSnafu { object: object(), what }.fail();
    }
    nothing_is_attached(client, name).await?;
    serde_json::to_value(own).map_err(kube::Error::SerdeError).context(KubernetesSnafu)
}

/// Succeeds if neither a VolumeAttachment nor the kubelet reports a volume of the driver on the node.
async fn nothing_is_attached(client: &Client, node: &str) -> Result<(), Error> {
    let attachments = Api::<VolumeAttachment>::all(client.clone());
    let mut parameters = ListParams::default().limit(500);
    loop {
        let page = attachments.list(&parameters).await.context(KubernetesSnafu)?;
        let own = page.items.iter().find(|attachment| {
            attachment.spec.node_name == node && attachment.spec.attacher == names::CSI_DRIVER
        });
        if let Some(own) = own {
            let volume = own.spec.source.persistent_volume_name.clone();
            let volume = volume.unwrap_or_else(|| own.name_any());
            return AttachedSnafu { node, volume }.fail();
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => break,
        }
    }
    let seen = Api::<Node>::all(client.clone()).get_opt(node).await.context(KubernetesSnafu)?;
    let status = seen.and_then(|node| node.status).unwrap_or_default();
    let attached = status.volumes_attached.into_iter().flatten().map(|volume| volume.name);
    let mut used = attached.chain(status.volumes_in_use.into_iter().flatten());
    let own = format!("kubernetes.io/csi/{}^", names::CSI_DRIVER);
    match used.find(|volume| volume.starts_with(&own)) {
        Some(volume) => AttachedSnafu { node, volume }.fail(),
        None => Ok(()),
    }
}

/// Removes the driver's CSINode entry for a node, if it has this id.
pub(super) async fn remove_entry(client: &Client, name: &str, id: &str) -> Result<(), Error> {
    let nodes = Api::<CSINode>::all(client.clone());
    patch::change(&nodes, name, |node| {
        let mut entries = node.spec.drivers.iter().enumerate();
        let own = entries.find(|(_, one)| one.name == names::CSI_DRIVER && one.node_id == id);
        let path = own.map(|(at, _)| format!("/spec/drivers/{at}"));
        Ok(path.into_iter().map(|path| json!({"op": "remove", "path": path})).collect())
    })
    .await
}

/// Evicts the driver's pod from a node, so that its successor registers. If the API server refuses the
/// eviction for now, the driver registers at the next restart of the pod, whatever its cause.
pub(super) async fn restart_driver(
    client: &Client,
    node: &str,
    namespace: &str,
) -> Result<(), Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    for pod in pods.list(&on_node).await.context(KubernetesSnafu)? {
        if is_node_driver(&pod) {
            pods.evict(&pod.name_any(), &EvictParams::default()).await.context(KubernetesSnafu)?;
        }
    }
    Ok(())
}

/// Whether a pod registers the driver with the kubelet.
fn is_node_driver(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let registers = containers.into_iter().any(|container| container.name.contains("registrar"));
    let owned = pod.metadata.owner_references.iter().flatten();
    registers
        && owned.into_iter().any(|owner| {
            owner.kind == "DaemonSet" && cluster::belongs_to(pod, "DaemonSet", &owner.name)
        })
}
