//! The node plugin and the kubelet end and start again under mounted volumes.

use k8s_openapi::api::{core::v1::Pod, storage::v1::VolumeAttachment};
use kube::{Api, api::ListParams};
use serde_json::json;
use testkit::eventually;

use super::workload::pod;
use crate::cluster::Cluster;

pub(super) async fn volumes_stay_mounted_while_plugin_and_kubelet_restart(cluster: &Cluster) {
    let node = &cluster.nodes[1];
    cluster.claim("steady", "xfs", json!({})).await;
    cluster.claim("late", "ext4", json!({})).await;
    cluster.run(pod("steady", "steady", "node-2", "echo kept >/data/file; report written")).await;
    let (container, _) = container(cluster, "steady").await;

    let restarts = plugin_restarts(cluster).await;
    node.kill("vsphere-csi");
    eventually("the node plugin runs again", 90, async || {
        let now = plugin_restarts(cluster).await;
        if now > restarts { Ok(()) } else { Err(now) }
    })
    .await;
    uses_its_volume(cluster).await;
    assert_eq!(cluster.run(pod("late", "late", "node-2", "report late")).await, "late");

    let kubelet = node.folder().join("kubelet.pid");
    let before = std::fs::read_to_string(&kubelet).unwrap();
    node.kill_kubelet();
    eventually("the kubelet runs again", 60, async || {
        let now = std::fs::read_to_string(&kubelet).unwrap();
        if now == before || now.is_empty() { Err(now) } else { Ok(()) }
    })
    .await;
    uses_its_volume(cluster).await;
    // The new kubelet knows the volumes that the old one mounted: it unmounts them, and they are detached.
    for name in ["steady", "late"] {
        let (id, restarts) = self::container(cluster, name).await;
        assert!(restarts == 0 && (name == "late" || id == container), "{name} goes on");
        cluster.delete_pod(name).await;
    }
    let attachments = Api::<VolumeAttachment>::all(cluster.plane.client());
    eventually("the volumes are detached", 60, async || {
        let left = attachments.list(&ListParams::default()).await.unwrap().items;
        if left.is_empty() { Ok(()) } else { Err(format!("{:?}", left[0].status)) }
    })
    .await;
    cluster.delete_claims(&["steady", "late"]).await;
}

/// The pod reads what it wrote, and can write.
async fn uses_its_volume(cluster: &Cluster) {
    let file = cluster.in_pod("steady", "/data/file").await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept\n");
    std::fs::write(file.with_file_name("another"), "written").unwrap();
}

/// The id and the restarts of the container of a pod.
async fn container(cluster: &Cluster, pod: &str) -> (Option<String>, i32) {
    let status = cluster.pods_api().get(pod).await.unwrap().status.unwrap();
    let container = status.container_statuses.unwrap().remove(0);
    (container.container_id, container.restart_count)
}

/// How often the node plugin of the second node was restarted, if it is ready now; else 0.
async fn plugin_restarts(cluster: &Cluster) -> i32 {
    let plugins = Api::<Pod>::all(cluster.plane.client());
    let of_node =
        ListParams::default().labels("app=vsphere-csi-node").fields("spec.nodeName=node-2");
    let plugins = plugins.list(&of_node).await.unwrap().items;
    let statuses = plugins.into_iter().filter_map(|pod| pod.status?.container_statuses).flatten();
    statuses.filter(|status| status.ready).map(|status| status.restart_count).sum()
}
