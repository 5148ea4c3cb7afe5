//! Who can use a volume: the group of its files, and one pod at a time.

use std::os::unix::fs::MetadataExt as _;

use serde_json::json;
use testkit::eventually;

use super::workload::{DATA, pod};
use crate::cluster::Cluster;

pub(super) async fn a_group_owns_the_files_of_a_volume(cluster: &Cluster) {
    cluster.claim("shared", "xfs", json!({})).await;
    let mut writer = pod("shared", "shared", "node-1", "echo mine >/data/file; report written");
    writer["spec"]["securityContext"] =
        json!({"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000});
    assert_eq!(cluster.run(writer).await, "written", "a user who is not root can write");
    let folder = std::fs::metadata(cluster.in_pod("shared", DATA).await).unwrap();
    assert_eq!(
        (folder.gid(), folder.mode() & 0o2070),
        (2000, 0o2070),
        "of the group, for the group"
    );
    let file = std::fs::metadata(cluster.in_pod("shared", "/data/file").await).unwrap();
    assert_eq!((file.uid(), file.gid()), (1000, 2000));
    cluster.delete_pod("shared").await;
    cluster.delete_claims(&["shared"]).await;
}

pub(super) async fn a_second_pod_waits_for_the_first(cluster: &Cluster) {
    cluster.claim("single", "ext4", json!({"accessModes": ["ReadWriteOncePod"]})).await;
    assert_eq!(cluster.run(pod("single-1", "single", "node-2", "report first")).await, "first");

    // The scheduler refuses it, and the kubelet refuses it if nobody asks the scheduler.
    cluster.create_pod(pod("single-2", "single", "node-2", "report second")).await;
    until_event(cluster, "single-2", "ReadWriteOncePod").await;
    let mut unscheduled = pod("single-3", "single", "node-2", "report third");
    unscheduled["spec"]["nodeName"] = json!("node-2");
    cluster.create_pod(unscheduled).await;
    until_event(cluster, "single-3", "ReadWriteOncePod").await;
    cluster.delete_pod("single-3").await;
    let waiting = cluster.pods_api().get("single-2").await.unwrap();
    assert_eq!(waiting.status.unwrap().phase.as_deref(), Some("Pending"));

    cluster.delete_pod("single-1").await;
    assert_eq!(cluster.answer("single-2").await, "second");
    cluster.delete_pod("single-2").await;
    cluster.delete_claims(&["single"]).await;
}

async fn until_event(cluster: &Cluster, pod: &str, text: &str) {
    eventually("an event has the reason why the pod waits", 60, async || {
        let events = cluster.events(&[pod]).await;
        if events.contains(text) { Ok(()) } else { Err(events) }
    })
    .await;
}
