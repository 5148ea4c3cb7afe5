//! Volumes and snapshots of earlier calls, and the place of copies.

use std::sync::Arc;

use csi::records::{MemoryRecords, Operation, OperationRecords as _};
use vsphere::{
    MoRef,
    cns::{BackingDetails, CreateSpec, SnapshotCreateSpec, VolumeId, VolumeMetadata},
};

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

/// A record of a call long ago.
fn record(name: &str, vcenter: &str, task: MoRef) -> Operation {
    let started = "2026-01-02T03:04:05Z".parse().unwrap();
    Operation { task: Some(task), started, ..Operation::begin(name, vcenter) }
}

/// As after a replacement of vCenter: it has a task with the recorded number, for another volume.
#[tokio::test]
async fn the_task_of_another_volume_does_not_make_this_one() {
    let records = Arc::new(MemoryRecords::default());
    let stage = Stage::with_records(Inventory::with_vms(1), &[], records.clone()).await;
    let client = stage.observer().await;
    let spec = CreateSpec {
        name: "of-another-cluster".into(),
        id: None,
        datastores: Vec::new(),
        metadata: VolumeMetadata { cluster: None, entities: Vec::new(), clusters: Vec::new() },
        backing: BackingDetails::block(1024),
        policy: None,
        permissions: Vec::new(),
        source: None,
    };
    let task = client.create_volumes(vec![spec]).await.unwrap();
    let reference = task.reference().clone();
    let other = task.wait(MINUTE).await.unwrap().remove(0).volume.unwrap().id;
    let own = stage.vcenter.address().to_string();
    for (name, vcenter) in [("pvc-1", own.as_str()), ("pvc-2", "replaced.example.com")] {
        records.store(&record(name, vcenter, reference.clone())).await.unwrap();
        let volume = stage.create(name).await.unwrap().volume_id;
        assert_ne!(volume, other, "{name}");
    }
    assert_eq!(stage.volumes().await.len(), 3);

    let source = stage.create("pvc-1").await.unwrap().volume_id;
    let volume = VolumeId::from(other.as_str());
    let specs = [SnapshotCreateSpec { volume, description: "of another cluster".into() }];
    let task = client.create_volume_snapshots(&specs).await.unwrap();
    let reference = task.reference().clone();
    task.wait(MINUTE).await.unwrap();
    let name = format!("snapshot-1-{source}");
    records.store(&record(&name, &own, reference)).await.unwrap();
    let id = eventually("the snapshot is made", 30, async || {
        snapshot(&stage, "snapshot-1", &source).await
    })
    .await;
    assert!(id.starts_with(&source), "{id}");
    assert_eq!(snapshots(&stage, &source).await, 1);
    client.shut_down().await;
}

/// vCenter has the call, but neither a task nor a result yet.
#[tokio::test]
async fn a_snapshot_call_that_was_just_lost_is_not_repeated_at_once() {
    let records = Arc::new(MemoryRecords::default());
    let stage = Stage::with_records(Inventory::with_vms(1), &[], records.clone()).await;
    let source = stage.create("pvc-1").await.unwrap().volume_id;
    let own = stage.vcenter.address().to_string();
    let lost = Operation::begin(&format!("snapshot-1-{source}"), &own);
    records.store(&lost).await.unwrap();
    let undecided = snapshot(&stage, "snapshot-1", &source).await.unwrap_err();
    assert_eq!(undecided.code(), Code::Unavailable, "{undecided}");
    assert_eq!(stage.vcenter.calls().await.count("CnsCreateSnapshots"), 0);
}

/// The client gives up a call after a minute, and the call can reach vCenter even later.
#[tokio::test]
async fn a_call_without_an_answer_is_not_repeated_at_once_however_long_it_took() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let source = stage.create("pvc-1").await.unwrap().volume_id;
    let of_volume = Type::Volume(VolumeSource { volume_id: source.clone() });
    for (method, request) in [
        ("CnsCreateVolume", create_request("pvc-2", GIB)),
        ("CnsCreateSnapshots", from("pvc-3", GIB, of_volume)),
    ] {
        let lost = Fault::on(method).delayed(Duration::from_secs(11)).dropped().times(1);
        stage.vcenter.fault(lost).await;
        let lost = stage.create_with(request.clone()).await.unwrap_err();
        assert_eq!(lost.code(), Code::Unavailable, "{lost}");
        stage.vcenter.forget_calls().await;
        let undecided = stage.create_with(request.clone()).await.unwrap_err();
        assert_eq!(undecided.code(), Code::Unavailable, "{undecided}");
        assert!(undecided.message().contains("got no answer"), "{undecided}");
        assert_eq!(stage.vcenter.calls().await.count(method), 0, "{method}");
        eventually("the volume exists", 40, async || {
            stage.create_with(request.clone()).await.map(drop)
        })
        .await;
        assert_eq!(stage.vcenter.calls().await.count(method), 1, "{method}");
    }
    assert_eq!(stage.volumes().await.len(), 3);
    assert_eq!(snapshots(&stage, &source).await, 0);
}

#[tokio::test]
async fn a_snapshot_call_without_an_answer_is_not_repeated_at_once_however_long_it_took() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let source = stage.create("pvc-1").await.unwrap().volume_id;
    let method = "CnsCreateSnapshots";
    let lost = Fault::on(method).delayed(Duration::from_secs(11)).dropped().times(1);
    stage.vcenter.fault(lost).await;
    let lost = snapshot(&stage, "snapshot-1", &source).await.unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable, "{lost}");
    stage.vcenter.forget_calls().await;
    let undecided = snapshot(&stage, "snapshot-1", &source).await.unwrap_err();
    assert!(undecided.message().contains("got no answer"), "{undecided}");
    assert_eq!(stage.vcenter.calls().await.count(method), 0);
    eventually("the snapshot exists", 40, async || {
        snapshot(&stage, "snapshot-1", &source).await.map(drop)
    })
    .await;
    assert_eq!(snapshots(&stage, &source).await, 1);
}

#[tokio::test]
async fn an_empty_volume_is_not_handed_out_as_a_copy() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let source = stage.create("pvc-1").await.unwrap().volume_id;
    let of_volume = Type::Volume(VolumeSource { volume_id: source });
    let empty = stage.create("pvc-2").await.unwrap().volume_id;
    let copy = stage.create_with(from("pvc-2", GIB, of_volume.clone())).await.unwrap_err();
    assert_eq!(copy.code(), Code::AlreadyExists, "{copy}");
    assert_eq!(stage.create("pvc-2").await.unwrap().volume_id, empty);
    stage.create_with(from("pvc-3", GIB, of_volume)).await.unwrap();
    let empty = stage.create("pvc-3").await.unwrap_err();
    assert_eq!(empty.code(), Code::AlreadyExists, "{empty}");
}

#[tokio::test]
async fn a_copy_for_a_zone_without_its_source_is_refused() {
    let inventory = Inventory::with_vms(2).category(
        "k8s-zone",
        &[("zone-a", &["/DC0/host/cluster-a"][..]), ("zone-b", &["/DC0/host/cluster-b"][..])],
    );
    let stage = Stage::with_categories(inventory, &["k8s-zone"]).await;
    stage.nodes.set([].into());
    let zone = |zone: &str| Topology {
        segments: [("topology.csi.vmware.com/k8s-zone".to_owned(), zone.to_owned())].into(),
    };
    let in_zone = |at: &str, request: CreateVolumeRequest| CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![zone(at)],
            preferred: Vec::new(),
        }),
        ..request
    };
    let of_zone_a = |name: &str| CreateVolumeRequest {
        parameters: [("datastoreurl".into(), "ds:///vmfs/volumes/shared-a/".into())].into(),
        ..create_request(name, GIB)
    };
    let source = stage.create_with(in_zone("zone-a", of_zone_a("pvc-1"))).await.unwrap();
    assert_eq!(source.accessible_topology, [zone("zone-a")]);
    let copy = |name: &str| {
        from(name, GIB, Type::Volume(VolumeSource { volume_id: source.volume_id.clone() }))
    };
    let refused = stage.create_with(in_zone("zone-b", copy("pvc-2"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("k8s-zone=zone-b"), "{refused}");
    assert_eq!(stage.volumes().await.len(), 1, "nothing is left");
    let copied = stage.create_with(in_zone("zone-a", copy("pvc-3"))).await.unwrap();
    assert_eq!(copied.accessible_topology, [zone("zone-a")]);
}
