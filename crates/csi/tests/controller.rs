//! The controller service end to end on the vCenter simulator.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "controller/bad_days.rs"]
mod bad_days;
mod common;
#[path = "controller/copies.rs"]
mod copies;
#[path = "controller/detach.rs"]
mod detach;
#[path = "controller/recovery.rs"]
mod recovery;
#[path = "controller/refused_logins.rs"]
mod refused_logins;

use std::{sync::Arc, time::Duration};

use common::{GIB, Stage, create_request, node};
use csi::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerModifyVolumeRequest,
    CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, GetCapacityRequest,
    ListSnapshotsRequest, ListVolumesRequest, Topology, TopologyRequirement, VolumeContentSource,
    controller_server::Controller as _,
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};
use csi::{records::MemoryRecords, vcenters::Intervals};
use futures::future::join_all;
use serde_json::json;
use testkit::{Fault, Inventory, Permission, Role, VcenterUser, eventually};
use tokio::time::Instant;
use tonic::{Code, Request};

/// As many as in the measurements of the Go driver, all at once.
const VOLUMES: u32 = 50;

/// Calls of all methods per volume since the counters were reset. The test's own look at the counters is not a call.
async fn calls_per_volume(stage: &Stage, operation: &str, since: Instant) -> f64 {
    let took = since.elapsed();
    let calls = stage.vcenter.calls().await;
    let per_volume = f64::from(u32::try_from(calls.sum()).unwrap_or(u32::MAX)) / f64::from(VOLUMES);
    eprintln!("{operation}: {per_volume:.2} calls per volume in {took:?} {:?}", calls.total);
    stage.vcenter.forget_calls().await;
    per_volume
}

async fn measure(vms: usize) -> [f64; 4] {
    let stage = Stage::with(Inventory::with_vms(vms)).await;
    stage.vcenter.forget_calls().await;
    let began = Instant::now();
    let names: Vec<String> = (0..VOLUMES).map(|n| format!("pvc-{n}")).collect();
    let created = join_all(names.iter().map(|name| stage.create(name))).await;
    let ids: Vec<String> = created.into_iter().map(|volume| volume.unwrap().volume_id).collect();
    let create = calls_per_volume(&stage, "create", began).await;
    let began = Instant::now();
    let nodes: Vec<String> = (0..ids.len()).map(|n| node(n % vms.min(10) + 1)).collect();
    let pairs = || ids.iter().zip(&nodes);
    for published in join_all(pairs().map(|(id, node)| stage.publish(id, node))).await {
        published.unwrap();
    }
    let attach = calls_per_volume(&stage, "attach", began).await;
    let began = Instant::now();
    for detached in join_all(pairs().map(|(id, node)| stage.unpublish(id, node))).await {
        detached.unwrap();
    }
    let detach = calls_per_volume(&stage, "detach", began).await;
    let began = Instant::now();
    for deleted in join_all(ids.iter().map(|id| stage.delete(id))).await {
        deleted.unwrap();
    }
    let delete = calls_per_volume(&stage, "delete", began).await;
    assert!(stage.volumes().await.is_empty(), "nothing is left");
    [create, attach, detach, delete]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_operation_costs_at_most_two_vcenter_calls_with_3_and_with_100_vms() {
    for vms in [3, 100] {
        let measured = measure(vms).await;
        assert!(measured.iter().all(|calls| *calls <= 2.0), "{vms} VMs: {measured:?}");
    }
}

/// A single operation shares its calls with no other one.
#[tokio::test]
async fn a_single_operation_costs_few_calls() {
    let stage = Stage::with(Inventory::with_vms(3)).await;
    let first = stage.create("pvc-0").await.unwrap().volume_id;
    stage.publish(&first, &node(1)).await.unwrap();
    let mut costs = Vec::new();
    let mut count = async |operation: &str| {
        let calls = stage.vcenter.calls().await;
        eprintln!("a single {operation}: {} calls {:?}", calls.sum(), calls.total);
        costs.push(calls.sum());
        stage.vcenter.forget_calls().await;
    };
    stage.vcenter.forget_calls().await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    count("create").await;
    stage.publish(&id, &node(1)).await.unwrap();
    count("attach").await;
    stage.unpublish(&id, &node(1)).await.unwrap();
    count("detach").await;
    stage.delete(&id).await.unwrap();
    count("delete").await;
    assert!(costs.iter().all(|calls| *calls <= 8), "{costs:?}");
}

#[tokio::test]
async fn a_user_without_the_privilege_on_datastores_learns_which_one() {
    let user = VcenterUser::new("csi@vsphere.local", "csi-Dr1ver!");
    let role =
        Role::new("CNS", &["Cns.Searchable", "System.Read", "System.View", "StorageProfile.View"]);
    let mut inventory = Inventory::with_vms(1).user(user.clone(), &role, &["/"]);
    inventory.users.rotate_right(1);
    let stage = Stage::with(inventory).await;
    let refused = stage.create("pvc-1").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let message = refused.message();
    assert!(message.contains("Datastore.FileManagement on shared"), "{message}");
}

/// Where no capacity is published, the scheduler places no pod, so no new volume reads the privileges again.
#[tokio::test]
async fn a_privilege_that_is_granted_later_shows_in_the_capacity() {
    let user = VcenterUser::new("csi@vsphere.local", "csi-Dr1ver!");
    let role =
        Role::new("CNS", &["Cns.Searchable", "System.Read", "System.View", "StorageProfile.View"]);
    let mut inventory = Inventory::with_vms(1).user(user.clone(), &role, &["/"]);
    inventory.users.rotate_right(1);
    let usual = Intervals::default();
    assert!(usual.placement <= Duration::from_mins(5), "docs/howto/privileges.md");
    let intervals = Intervals { placement: Duration::from_millis(100), ..usual };
    let records = Arc::new(MemoryRecords::default());
    let stage = Stage::with_intervals(inventory, &[], records, intervals).await;
    let capacity = async || {
        let request = Request::new(GetCapacityRequest::default());
        stage.service.get_capacity(request).await.unwrap().into_inner().available_capacity
    };
    assert_eq!(capacity().await, 0);
    stage.vcenter.permit(&Permission::new(&user.name, "Admin", "/")).await;
    eventually("the capacity shows the datastore", 30, async || {
        if capacity().await > 0 { Ok(()) } else { Err("no capacity") }
    })
    .await;
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
    assert!(elsewhere.message().contains("/DC0/vm/node-1"), "{elsewhere}");
    let attached = stage.delete(id).await.unwrap_err();
    assert_eq!(attached.code(), Code::FailedPrecondition);
    assert!(attached.message().contains("/DC0/vm/node-1"), "{attached}");
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

#[tokio::test]
async fn a_detach_from_a_vm_that_is_gone_succeeds() {
    let stage = Stage::with(Inventory::with_vms(2)).await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    stage.publish(&id, &node(1)).await.unwrap();
    stage.vcenter.destroy_vm("/DC0/vm/node-1").await;
    eventually("the detach succeeds", 30, async || stage.unpublish(&id, &node(1)).await).await;
    stage.unpublish("no-such-volume", &node(2)).await.unwrap();
    // XML cannot represent every id.
    stage.unpublish("\u{5}no-such-volume", &node(2)).await.unwrap();
    let unknown = stage.publish("\u{5}no-such-volume", &node(2)).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
    stage.unpublish(&id, "no-such-node").await.unwrap();
    let unknown = stage.publish(&id, &node(1)).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
}

#[tokio::test]
async fn two_concurrent_creates_of_one_name_make_one_volume() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let slow = Fault::on("CnsCreateVolume").task_takes(Duration::from_millis(300));
    stage.vcenter.fault(slow).await;
    let (one, other) = tokio::join!(stage.create("pvc-1"), stage.create("pvc-1"));
    let codes = [one, other].map(|result| result.map(drop).map_err(|status| status.code()));
    assert!(codes.contains(&Ok(())) && codes.contains(&Err(Code::Aborted)), "{codes:?}");
    assert!(stage.create("pvc-1").await.is_ok());
    assert_eq!(stage.volumes().await.len(), 1);
}

#[tokio::test]
async fn a_caller_that_gives_up_does_not_stop_the_operation() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let slow = Fault::on("CnsCreateVolume").task_takes(Duration::from_millis(500));
    stage.vcenter.fault(slow).await;
    let given_up = tokio::time::timeout(Duration::from_millis(100), stage.create("pvc-1")).await;
    assert!(given_up.is_err(), "the task takes longer");
    let busy = stage.create("pvc-1").await.unwrap_err();
    assert_eq!(busy.code(), Code::Aborted, "{busy}");
    eventually("the first call ended", 20, async || stage.create("pvc-1").await.map(drop)).await;
    assert_eq!(stage.volumes().await.len(), 1);
    assert_eq!(stage.vcenter.calls().await.count("CnsCreateVolume"), 1);
}

#[tokio::test]
async fn a_lost_answer_does_not_create_a_second_volume() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    stage.vcenter.fault(Fault::on("CnsCreateVolume").truncated().times(1)).await;
    let lost = stage.create("pvc-1").await.unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable, "{lost}");
    eventually("the volume is found", 40, async || stage.create("pvc-1").await.map(drop)).await;
    assert_eq!(stage.volumes().await.len(), 1);
}

#[tokio::test]
async fn a_full_datastore_is_resource_exhausted_and_leaves_nothing() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    for datastore in ["shared-a", "shared-b", "shared"] {
        let path = format!("/DC0/datastore/{datastore}");
        let known = stage.vcenter.truth().await.to_string().contains(datastore);
        if known {
            stage.vcenter.patch_datastore(&path, json!({"freeGiB": 1})).await;
        }
    }
    let full = stage.create_with(create_request("pvc-1", 5000 * GIB)).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted, "{full}");
    assert!(full.message().contains("pvc-1") && full.message().contains("free space"), "{full}");
    assert!(stage.volumes().await.is_empty());
}

#[tokio::test]
async fn a_lost_session_and_a_restart_of_vcenter_are_not_noticed() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    stage.vcenter.expire_sessions("").await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    stage.vcenter.restart(Duration::from_millis(300)).await;
    eventually("the next calls work", 60, async || {
        stage.publish(&id, &node(1)).await.map_err(|status| status.to_string())
    })
    .await;
    assert_eq!(stage.create("pvc-1").await.unwrap().volume_id, id);
    assert_eq!(stage.volumes().await.len(), 1);
}

#[tokio::test]
async fn vcenter_restarts_while_a_volume_is_created() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let slow = Fault::on("CnsCreateVolume").task_takes(Duration::from_secs(2)).times(1);
    stage.vcenter.fault(slow).await;
    let restart = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        stage.vcenter.restart(Duration::from_millis(300)).await;
    };
    let (first, ()) = tokio::join!(stage.create("pvc-1"), restart);
    eprintln!("the first call: {first:?}");
    eventually("the volume exists", 60, async || stage.create("pvc-1").await.map(drop)).await;
    assert_eq!(stage.volumes().await.len(), 1);
}

async fn snapshot(stage: &Stage, name: &str, volume: &str) -> Result<String, tonic::Status> {
    let request = CreateSnapshotRequest {
        name: name.into(),
        source_volume_id: volume.into(),
        ..Default::default()
    };
    let response = stage.service.create_snapshot(Request::new(request)).await?;
    Ok(response.into_inner().snapshot.unwrap().snapshot_id)
}

async fn snapshots(stage: &Stage, volume: &str) -> usize {
    let request = ListSnapshotsRequest { source_volume_id: volume.into(), ..Default::default() };
    let response = stage.service.list_snapshots(Request::new(request)).await.unwrap();
    response.into_inner().entries.len()
}

fn from(name: &str, bytes: i64, source: Type) -> CreateVolumeRequest {
    let source = Some(VolumeContentSource { r#type: Some(source) });
    CreateVolumeRequest { volume_content_source: source, ..create_request(name, bytes) }
}

#[tokio::test]
async fn a_snapshot_is_restored_to_a_larger_volume_and_protects_its_source() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let source = stage.create("pvc-1").await.unwrap().volume_id;
    let id = snapshot(&stage, "snapshot-1", &source).await.unwrap();
    assert_eq!(snapshot(&stage, "snapshot-1", &source).await.unwrap(), id, "idempotent");
    let kept = stage.delete(&source).await.unwrap_err();
    assert_eq!(kept.code(), Code::FailedPrecondition, "{kept}");
    let grow = stage.service.controller_expand_volume(Request::new(expand(&source, 2 * GIB))).await;
    let grow = grow.unwrap_err();
    assert_eq!(grow.code(), Code::FailedPrecondition, "{grow}");
    let from_snapshot = Type::Snapshot(SnapshotSource { snapshot_id: id.clone() });
    let restored = stage.create_with(from("pvc-2", 2 * GIB, from_snapshot.clone())).await.unwrap();
    assert_eq!(restored.capacity_bytes, 2 * GIB);
    let again = stage.create_with(from("pvc-2", 2 * GIB, from_snapshot.clone())).await.unwrap();
    assert_eq!(again.volume_id, restored.volume_id);
    let smaller = stage.create_with(from("pvc-3", GIB / 2, from_snapshot)).await.unwrap_err();
    assert_eq!(smaller.code(), Code::OutOfRange, "{smaller}");
    for n in 2..=3 {
        snapshot(&stage, &format!("snapshot-{n}"), &source).await.unwrap();
    }
    let limit = snapshot(&stage, "snapshot-4", &source).await.unwrap_err();
    assert_eq!(limit.code(), Code::ResourceExhausted, "{limit}");
    let request = DeleteSnapshotRequest { snapshot_id: id, ..Default::default() };
    for _ in 0..2 {
        stage.service.delete_snapshot(Request::new(request.clone())).await.unwrap();
    }
    assert_eq!(snapshots(&stage, &source).await, 2);
}

#[tokio::test]
async fn a_clone_leaves_no_snapshot_behind_even_if_it_was_interrupted() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let source = stage.create("pvc-1").await.unwrap().volume_id;
    let of_volume = || Type::Volume(VolumeSource { volume_id: source.clone() });
    stage.vcenter.fault(Fault::on("CnsDeleteSnapshots").task_fails("CnsFault").times(1)).await;
    let failed = stage.create_with(from("pvc-2", GIB, of_volume())).await.unwrap_err();
    eprintln!("{failed}");
    let clone = stage.create_with(from("pvc-2", GIB, of_volume())).await.unwrap();
    assert_ne!(clone.volume_id, source);
    assert_eq!(stage.volumes().await.len(), 2, "the interrupted clone is the same volume");
    stage.delete(&source).await.unwrap();
    let missing = stage.create_with(from("pvc-3", GIB, of_volume())).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound, "{missing}");
}

fn expand(volume: &str, required_bytes: i64) -> ControllerExpandVolumeRequest {
    ControllerExpandVolumeRequest {
        volume_id: volume.into(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capability: Some(common::mount()),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_that_fails_does_not_keep_its_source_from_being_deleted() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let source = stage.create("pvc-1").await.unwrap().volume_id;
    stage.vcenter.fault(Fault::on("CnsCreateVolume").task_fails("InvalidState").times(1)).await;
    let of_volume = Type::Volume(VolumeSource { volume_id: source.clone() });
    stage.create_with(from("pvc-2", GIB, of_volume)).await.unwrap_err();
    stage.delete(&source).await.unwrap();
    assert!(stage.volumes().await.is_empty());
}

#[tokio::test]
async fn an_attached_volume_is_expanded_and_listed_with_its_node() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(stage.create(&format!("pvc-{n}")).await.unwrap().volume_id);
    }
    stage.publish(&ids[0], &node(1)).await.unwrap();
    for _ in 0..2 {
        let request = Request::new(expand(&ids[0], 3 * GIB));
        let grown = stage.service.controller_expand_volume(request).await.unwrap().into_inner();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (3 * GIB, true));
    }
    let (mut listed, mut token) = (Vec::new(), String::new());
    loop {
        let request = ListVolumesRequest { max_entries: 2, starting_token: token };
        let page = stage.service.list_volumes(Request::new(request)).await.unwrap().into_inner();
        assert!(page.entries.len() <= 2);
        listed.extend(page.entries);
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(listed.len(), 5);
    let grown = listed.iter().find(|e| e.volume.as_ref().unwrap().volume_id == ids[0]).unwrap();
    assert_eq!(grown.volume.as_ref().unwrap().capacity_bytes, 3 * GIB);
    assert_eq!(grown.status.as_ref().unwrap().published_node_ids, [node(1)]);
}

#[tokio::test]
async fn a_volume_gets_another_storage_policy() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    let modify = |policy: &str| ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: [("storagePolicyName".to_owned(), policy.to_owned())].into(),
        ..Default::default()
    };
    let request = Request::new(modify("vSAN Default Storage Policy"));
    stage.service.controller_modify_volume(request).await.unwrap();
    assert!(stage.volumes().await[0].policy.as_deref().is_some_and(|policy| !policy.is_empty()));
    let unknown = stage.service.controller_modify_volume(Request::new(modify("gold"))).await;
    let unknown = unknown.unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument);
    assert!(unknown.message().contains("\"gold\""), "{unknown}");
}

#[tokio::test]
async fn volumes_are_placed_in_the_zone_of_the_request() {
    let inventory = Inventory::with_vms(2).category(
        "k8s-zone",
        &[("zone-a", &["/DC0/host/cluster-a"][..]), ("zone-b", &["/DC0/host/cluster-b"][..])],
    );
    let stage = Stage::with_categories(inventory, &["k8s-zone"]).await;
    stage.nodes.set([].into());
    let zone = |zone: &str| Topology {
        segments: [("topology.csi.vmware.com/k8s-zone".to_owned(), zone.to_owned())].into(),
    };
    let in_zone = |name: &str, topology: Topology| CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![topology],
            preferred: Vec::new(),
        }),
        ..create_request(name, GIB)
    };
    let volume = stage.create_with(in_zone("pvc-b", zone("zone-b"))).await.unwrap();
    assert_eq!(volume.accessible_topology, [zone("zone-b")]);
    // Its datastore reaches both zones, but the request allows one.
    let mut allowed = in_zone("pvc-a", zone("zone-a"));
    allowed.parameters =
        [("datastoreurl".to_owned(), "ds:///vmfs/volumes/shared/".to_owned())].into();
    let volume = stage.create_with(allowed).await.unwrap();
    assert_eq!(volume.accessible_topology, [zone("zone-a")]);
    let nowhere = stage.create_with(in_zone("pvc-c", zone("zone-c"))).await.unwrap_err();
    assert_eq!(nowhere.code(), Code::ResourceExhausted);
    assert!(nowhere.message().contains("k8s-zone=zone-c"), "{nowhere}");
    let request =
        GetCapacityRequest { accessible_topology: Some(zone("zone-a")), ..Default::default() };
    let capacity = stage.service.get_capacity(Request::new(request)).await.unwrap().into_inner();
    assert!(capacity.available_capacity > 0);
    let request =
        GetCapacityRequest { accessible_topology: Some(zone("zone-c")), ..Default::default() };
    let capacity = stage.service.get_capacity(Request::new(request)).await.unwrap().into_inner();
    assert_eq!(capacity.available_capacity, 0);
}
