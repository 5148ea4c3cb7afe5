//! Volumes that follow their pods, and that grow.

use serde_json::json;
use testkit::eventually;

use super::workload::pod;
use crate::cluster::Cluster;

const GIB: u64 = 1 << 30;

pub(super) async fn data_moves_with_the_pod(cluster: &Cluster) {
    cluster.claim("moving", "ext4", json!({})).await;
    let write = "echo kept >/data/file; report written";
    assert_eq!(cluster.run(pod("moving-1", "moving", "node-1", write)).await, "written");
    cluster.delete_pod("moving-1").await;
    let read = "read line </data/file; report $line";
    assert_eq!(cluster.run(pod("moving-2", "moving", "node-2", read)).await, "kept");
    cluster.delete_pod("moving-2").await;
    cluster.delete_claims(&["moving"]).await;
}

/// XFS: the kernel of a container host grows ext4 only for a process with `CAP_SYS_RESOURCE`.
pub(super) async fn a_volume_grows_while_a_pod_uses_it(cluster: &Cluster) {
    cluster.claim("growing", "xfs", json!({})).await;
    cluster.run(pod("growing", "growing", "node-2", "echo kept >/data/file; report written")).await;
    let before = cluster.size_in_pod("growing").await;
    assert!(before < GIB, "{before}");
    cluster.grow("growing", "2Gi").await;
    eventually("the pod sees the larger file system", 60, async || {
        let size = cluster.size_in_pod("growing").await;
        if size > 2 * GIB - GIB / 10 { Ok(()) } else { Err(size) }
    })
    .await;
    let file = cluster.in_pod("growing", "/data/file").await;
    assert_eq!(std::fs::read_to_string(file).unwrap(), "kept\n");
    let status = cluster.pods_api().get("growing").await.unwrap().status.unwrap();
    let restarts = status.container_statuses.unwrap()[0].restart_count;
    assert_eq!(restarts, 0, "the pod used it all the time");
    cluster.delete_pod("growing").await;
    cluster.delete_claims(&["growing"]).await;
}
