//! Volumes of our storage driver, as pods on real nodes use them.
//!
//! All of this happens on one cluster at once, because its installation takes longer than all of this.

mod access;
mod block;
pub(crate) mod copies;
mod moving;
mod restarts;
mod rotation;
mod stateful_set;
mod volume_test;
mod workload;

use std::{panic::AssertUnwindSafe, pin::Pin};

use futures::{FutureExt as _, future::join_all};
use k8s_openapi::api::{core::v1::PersistentVolume, storage::v1::VolumeAttachment};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;
use testkit::eventually;
use tokio::time::Instant;

use crate::cluster::{Cluster, cloud_provider};

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn pods_on_real_nodes_use_volumes_of_our_driver() {
    let cluster = Cluster::with_nodes(2).await;
    cluster.registry.push_own("vdo-csi");
    let storage = json!({"vsphereCloudConfig": "vcenter", "implementation": "Rust"});
    let drivers = json!({"cloudProvider": cloud_provider(), "storageProvider": storage});
    cluster.install_with(drivers).await;
    cluster.create_classes().await;
    let snapshot_controller = copies::start_snapshot_controller(&cluster).await;

    all([
        (
            "a pod finds its data on another node",
            moving::data_moves_with_the_pod(&cluster).boxed_local(),
        ),
        (
            "a pod sees its volume grow",
            moving::a_volume_grows_while_a_pod_uses_it(&cluster).boxed_local(),
        ),
        (
            "raw block volumes",
            block::a_pod_uses_and_grows_a_raw_block_volume(&cluster).boxed_local(),
        ),
        ("a StatefulSet", stateful_set::each_replica_keeps_its_volume(&cluster).boxed_local()),
        ("fsGroup", access::a_group_owns_the_files_of_a_volume(&cluster).boxed_local()),
        ("ReadWriteOncePod", access::a_second_pod_waits_for_the_first(&cluster).boxed_local()),
        (
            "snapshots and clones",
            copies::snapshots_and_clones_have_the_data(&cluster).boxed_local(),
        ),
        ("vdoctl test", volume_test::tests_pass_and_fail_as_they_should(&cluster).boxed_local()),
    ])
    .await;
    for (node, program) in [(0, "vsphere-csi"), (1, "vsphere-csi")] {
        for (arguments, used) in cluster.nodes[node].working_sets(program) {
            println!("{arguments}: working set {:.1} MiB", used as f64 / 1_048_576.0);
        }
    }
    rotation::both_drivers_use_a_new_password_without_a_restart(&cluster).await;
    restarts::volumes_stay_mounted_while_plugin_and_kubelet_restart(&cluster).await;
    drop(snapshot_controller);

    // Everything was deleted again.
    let volumes = Api::<PersistentVolume>::all(cluster.plane.client());
    let attachments = Api::<VolumeAttachment>::all(cluster.plane.client());
    eventually("no volume is left", 60, async || {
        let volumes = volumes.list(&ListParams::default()).await.unwrap().items;
        let attachments = attachments.list(&ListParams::default()).await.unwrap().items;
        let left: Vec<String> =
            volumes.iter().map(|volume| format!("{:?}", volume.status)).collect();
        let attached: Vec<String> = attachments.iter().map(ResourceExt::name_any).collect();
        let mounted: Vec<String> = cluster.nodes.iter().flat_map(volume_mounts).collect();
        if left.is_empty() && attached.is_empty() && mounted.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?} {attached:?} {mounted:?}"))
        }
    })
    .await;
}

/// The mounts of volumes on a node.
fn volume_mounts(node: &testkit::RealNode) -> Vec<String> {
    let mounts = node.mounts();
    mounts.lines().filter(|line| line.starts_with("/dev/sd")).map(str::to_owned).collect()
}

type Scenario<'a> = (&'static str, Pin<Box<dyn Future<Output = ()> + 'a>>);

/// Runs all at once. A failure does not hide another one.
async fn all<const N: usize>(scenarios: [Scenario<'_>; N]) {
    let began = Instant::now();
    let runs = scenarios.map(|(name, run)| async move {
        let outcome = AssertUnwindSafe(run).catch_unwind().await;
        println!(
            "{name}: {} after {:.1?}",
            if outcome.is_ok() { "ok" } else { "FAILED" },
            began.elapsed()
        );
        outcome.err().map(|_| name)
    });
    let failed: Vec<&str> = join_all(runs).await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "failed: {failed:?}; see the panics above");
}
