//! The controller service end to end on the vCenter simulator.
#![allow(clippy::unwrap_used)]

mod common;

use common::{GIB, Stage, create_request, node};
use futures::future::join_all;
use testkit::Inventory;
use tonic::Code;

/// Calls of all methods since the counters were reset, except the long polls that were already waiting.
async fn calls(stage: &Stage) -> u64 {
    let calls = stage.vcenter.calls().await;
    eprintln!("{:?}", calls.total);
    calls.sum()
}

async fn measure(vms: usize) -> Vec<(&'static str, f64)> {
    const VOLUMES: usize = 20;
    let stage = Stage::with(Inventory::with_vms(vms)).await;
    let per_volume = |calls: u64| calls as f64 / VOLUMES as f64;
    let mut measured = Vec::new();
    stage.vcenter.forget_calls().await;
    let names: Vec<String> = (0..VOLUMES).map(|n| format!("pvc-{n}")).collect();
    let created = join_all(names.iter().map(|name| stage.create(name))).await;
    let ids: Vec<String> = created.into_iter().map(|volume| volume.unwrap().volume_id).collect();
    measured.push(("create", per_volume(calls(&stage).await)));
    stage.vcenter.forget_calls().await;
    let nodes: Vec<String> = (0..VOLUMES).map(|n| node(n % vms.min(10) + 1)).collect();
    let published =
        join_all(ids.iter().zip(&nodes).map(|(id, node)| stage.publish(id, node))).await;
    assert!(published.iter().all(Result::is_ok), "{published:?}");
    measured.push(("attach", per_volume(calls(&stage).await)));
    stage.vcenter.forget_calls().await;
    let detached =
        join_all(ids.iter().zip(&nodes).map(|(id, node)| stage.unpublish(id, node))).await;
    assert!(detached.iter().all(Result::is_ok), "{detached:?}");
    measured.push(("detach", per_volume(calls(&stage).await)));
    stage.vcenter.forget_calls().await;
    let deleted = join_all(ids.iter().map(|id| stage.delete(id))).await;
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    measured.push(("delete", per_volume(calls(&stage).await)));
    assert!(stage.volumes().await.is_empty(), "nothing is left");
    measured
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_operation_costs_at_most_two_vcenter_calls_with_3_and_with_100_vms() {
    for vms in [3, 100] {
        for (operation, calls) in measure(vms).await {
            eprintln!("{vms} VMs: {operation} {calls:.2} calls");
            assert!(calls <= 2.0, "{operation} with {vms} VMs costs {calls} calls");
        }
    }
}

#[tokio::test]
async fn a_volume_is_created_once_attached_moved_and_deleted() {
    let stage = Stage::with(Inventory::with_vms(3)).await;
    let volume = stage.create("pvc-1").await.unwrap();
    assert_eq!(volume.capacity_bytes, GIB);
    assert_eq!(stage.create("pvc-1").await.unwrap().volume_id, volume.volume_id, "idempotent");
    let larger = stage.create_with(create_request("pvc-1", 2 * GIB)).await.unwrap_err();
    assert_eq!(larger.code(), Code::AlreadyExists, "{larger}");
    let id = &volume.volume_id;
    let uuid = stage.publish(id, &node(1)).await.unwrap();
    assert_eq!(stage.publish(id, &node(1)).await.unwrap(), uuid, "idempotent");
    let elsewhere = stage.publish(id, &node(2)).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::FailedPrecondition);
    assert!(elsewhere.message().contains("node-1"), "{elsewhere}");
    let attached = stage.delete(id).await.unwrap_err();
    assert_eq!(attached.code(), Code::FailedPrecondition);
    assert!(attached.message().contains("node-1"), "{attached}");
    for _ in 0..2 {
        stage.unpublish(id, &node(1)).await.unwrap();
    }
    assert_eq!(stage.publish(id, &node(2)).await.unwrap(), uuid, "the disk keeps its uuid");
    stage.unpublish(id, "").await.unwrap();
    for _ in 0..2 {
        stage.delete(id).await.unwrap();
    }
    assert!(stage.volumes().await.is_empty());
}
