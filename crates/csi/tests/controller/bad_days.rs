//! Bad days between the controller and vCenter: nothing is lost, nothing is doubled.

use runtime::lease::Mandate;
use tokio_util::sync::CancellationToken;
use vsphere::cns::{AttachSpec, VolumeId};

use super::*;

const SLOW: Duration = Duration::from_secs(2);

/// The names of the VMs that have the volume, according to vCenter.
pub(super) async fn holders(stage: &Stage, volume: &str) -> Vec<String> {
    let truth = stage.vcenter.truth().await;
    let vms = truth["datacenters"][0]["vms"].as_array().unwrap().clone();
    let has = |vm: &serde_json::Value| {
        let disks = vm["disks"].as_array().cloned().unwrap_or_default();
        disks.iter().any(|disk| disk["volumeId"] == volume)
    };
    vms.iter().filter(|vm| has(vm)).map(|vm| vm["name"].as_str().unwrap().to_owned()).collect()
}

/// Another controller leads: it may work on the same volumes.
#[tokio::test]
async fn a_controller_that_lost_its_lease_changes_nothing() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let source = stage.create("pvc-1").await.unwrap().volume_id;
    let attached = stage.create("pvc-2").await.unwrap().volume_id;
    stage.publish(&attached, &node(1)).await.unwrap();
    let kept = stage.create("pvc-3").await.unwrap().volume_id;
    let snapshot_id = snapshot(&stage, "snapshot-1", &source).await.unwrap();
    stage.service.lead(Mandate::ended());
    stage.vcenter.forget_calls().await;
    let of_volume = Type::Volume(VolumeSource { volume_id: source.clone() });
    let grow = expand(&kept, 2 * GIB);
    let modify = ControllerModifyVolumeRequest {
        volume_id: kept.clone(),
        mutable_parameters: [("storagePolicyName".into(), "vSAN Default Storage Policy".into())]
            .into(),
        ..Default::default()
    };
    let delete_snapshot = DeleteSnapshotRequest { snapshot_id, ..Default::default() };
    let service = &stage.service;
    for (call, outcome) in [
        ("create", stage.create("pvc-4").await.map(drop)),
        ("clone", stage.create_with(from("pvc-5", GIB, of_volume)).await.map(drop)),
        ("create a snapshot", snapshot(&stage, "snapshot-2", &kept).await.map(drop)),
        (
            "delete a snapshot",
            service.delete_snapshot(Request::new(delete_snapshot)).await.map(drop),
        ),
        ("delete", stage.delete(&kept).await),
        ("attach", stage.publish(&kept, &node(1)).await.map(drop)),
        ("detach", stage.unpublish(&attached, &node(1)).await),
        ("detach from all", stage.unpublish(&attached, "").await),
        ("expand", service.controller_expand_volume(Request::new(grow)).await.map(drop)),
        ("modify", service.controller_modify_volume(Request::new(modify)).await.map(drop)),
    ] {
        let code = outcome.as_ref().err().map(tonic::Status::code);
        assert_eq!(code, Some(Code::Aborted), "{call}: {outcome:?}");
    }
    let calls = stage.vcenter.calls().await;
    for method in [
        "CnsCreateVolume",
        "CnsCreateSnapshots",
        "CnsDeleteSnapshots",
        "CnsDeleteVolume",
        "CnsAttachVolume",
        "CnsDetachVolume",
        "CnsExtendVolume",
        "CnsReconfigVolumePolicy",
    ] {
        assert_eq!(calls.count(method), 0, "{method}");
    }
    assert_eq!(stage.volumes().await.len(), 3);
}

/// The answer of an earlier attach was lost, and the inventory does not show the disk yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_in_use_that_no_vm_shows_yet_can_be_asked_for_again() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    stage.vcenter.fault(Fault::on("CnsAttachVolume").task_fails("ResourceInUse").times(1)).await;
    let early = stage.publish(&id, &node(1)).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable, "{early}");
    assert!(early.message().contains("does not show which VM has it"), "{early}");
    stage.publish(&id, &node(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detach_that_waited_until_the_lease_was_lost_is_not_sent() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let first = stage.create("pvc-1").await.unwrap().volume_id;
    let second = stage.create("pvc-2").await.unwrap().volume_id;
    stage.publish(&second, &node(1)).await.unwrap();
    let lease = CancellationToken::new();
    stage.service.lead(Mandate::until(lease.clone()));
    // Long enough for the detach to wait behind it when the lease is lost, also on a busy computer.
    let slow = Fault::on("CnsAttachVolume").task_takes(Duration::from_secs(10)).times(1);
    stage.vcenter.fault(slow).await;
    stage.vcenter.forget_calls().await;
    let node = node(1);
    let detach = async {
        eventually("vCenter has the attach", 30, async || {
            let calls = stage.vcenter.calls().await;
            if calls.count("CnsAttachVolume") > 0 { Ok(()) } else { Err("not yet") }
        })
        .await;
        let lose = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            lease.cancel();
        };
        tokio::join!(stage.unpublish(&second, &node), lose).0
    };
    let (attached, detached) = tokio::join!(stage.publish(&first, &node), detach);
    attached.unwrap();
    let detached = detached.unwrap_err();
    assert_eq!(detached.code(), Code::Aborted, "{detached}");
    assert_eq!(stage.vcenter.calls().await.count("CnsDetachVolume"), 0);
    assert_eq!(holders(&stage, &second).await, ["node-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_that_moves_to_another_host_during_an_attach_has_its_disk() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    for (host, method) in [("esx-a2", "CnsAttachVolume"), ("esx-a3", "CnsDetachVolume")] {
        stage.vcenter.fault(Fault::on(method).task_takes(SLOW).times(1)).await;
        stage.vcenter.forget_calls().await;
        let moved = async {
            eventually("vCenter has the call", 30, async || {
                let calls = stage.vcenter.calls().await;
                if calls.count(method) > 0 { Ok(()) } else { Err(format!("{:?}", calls.total)) }
            })
            .await;
            stage.vcenter.patch_vm("/DC0/vm/node-1", json!({ "host": host })).await;
        };
        let node = node(1);
        if method == "CnsAttachVolume" {
            let (attached, ()) = tokio::join!(stage.publish(&id, &node), moved);
            attached.unwrap();
            assert_eq!(holders(&stage, &id).await, ["node-1"]);
        } else {
            let (detached, ()) = tokio::join!(stage.unpublish(&id, &node), moved);
            detached.unwrap();
            assert!(holders(&stage, &id).await.is_empty());
        }
    }
}

#[tokio::test]
async fn a_disk_that_was_detached_by_hand_is_detached_and_can_be_attached_again() {
    let stage = Stage::with(Inventory::with_vms(2)).await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    stage.publish(&id, &node(1)).await.unwrap();
    let view = stage.vcenters.all_live().unwrap().remove(0);
    let uuid = node(1).parse().unwrap();
    let vsphere::inventory::Lookup::Found(vm) = view.find_vm(uuid) else { unreachable!() };
    let observer = stage.observer().await;
    let spec = [AttachSpec { volume: VolumeId::from(id.as_str()), vm: vm.reference.clone() }];
    observer.detach_volumes(&spec).await.unwrap().wait(Duration::from_mins(1)).await.unwrap();
    observer.shut_down().await;
    assert!(holders(&stage, &id).await.is_empty());
    stage.unpublish(&id, &node(1)).await.unwrap();
    stage.publish(&id, &node(2)).await.unwrap();
    assert_eq!(holders(&stage, &id).await, ["node-2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_that_ask_at_once_one_gets_the_volume() {
    let stage = Stage::with(Inventory::with_vms(2)).await;
    for name in ["pvc-1", "pvc-2", "pvc-3"] {
        let id = stage.create(name).await.unwrap().volume_id;
        let (one, two) = (node(1), node(2));
        let (first, second) = tokio::join!(stage.publish(&id, &one), stage.publish(&id, &two));
        let refused = match (first, second) {
            (Ok(_), Err(refused)) | (Err(refused), Ok(_)) => refused,
            both => unreachable!("{both:?}"),
        };
        let codes = [Code::Aborted, Code::FailedPrecondition];
        assert!(codes.contains(&refused.code()), "{refused}");
        assert_eq!(holders(&stage, &id).await.len(), 1);
    }
}

#[tokio::test]
async fn a_node_that_is_off_for_good_loses_its_disk_to_another() {
    let stage = Stage::with(Inventory::with_vms(2)).await;
    let id = stage.create("pvc-1").await.unwrap().volume_id;
    stage.publish(&id, &node(1)).await.unwrap();
    stage.vcenter.patch_vm("/DC0/vm/node-1", json!({"power": "off"})).await;
    let elsewhere = stage.publish(&id, &node(2)).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::FailedPrecondition, "{elsewhere}");
    assert!(elsewhere.message().contains("/DC0/vm/node-1"), "{elsewhere}");
    stage.unpublish(&id, &node(1)).await.unwrap();
    stage.publish(&id, &node(2)).await.unwrap();
    assert_eq!(holders(&stage, &id).await, ["node-2"]);
}

/// Its PersistentVolume would get no node affinity, and pods would start where the disk cannot be attached.
#[tokio::test]
async fn a_volume_whose_zone_is_unknown_is_not_handed_out() {
    let zones: &[(&str, &[&str])] = &[("zone-a", &["/DC0/host/cluster-a"])];
    let inventory = Inventory::with_vms(1).category("k8s-zone", zones);
    let stage = Stage::with_categories(inventory, &["k8s-zone"]).await;
    let zone = Topology {
        segments: [("topology.csi.vmware.com/k8s-zone".to_owned(), "zone-a".to_owned())].into(),
    };
    let request = CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![zone.clone()],
            preferred: Vec::new(),
        }),
        ..create_request("pvc-1", GIB)
    };
    let volume = stage.create_with(request.clone()).await.unwrap();
    assert_eq!(volume.accessible_topology, [zone]);
    stage.vcenter.detach_tag("k8s-zone", "zone-a", &["/DC0/host/cluster-a"]).await;
    // vCenter does not report tags: a change of a host makes the driver read them again.
    stage.vcenter.patch_host("/DC0/host/cluster-a/esx-a3", json!({"maintenance": true})).await;
    let refused = eventually("the driver knows that the zone is gone", 60, async || {
        match stage.create_with(request.clone()).await {
            Ok(volume) => Err(format!("{:?}", volume.accessible_topology)),
            Err(status) => Ok(status),
        }
    })
    .await;
    assert!(refused.message().contains(&volume.volume_id), "{refused}");
    assert_eq!(stage.volumes().await.len(), 1);
}

/// vCenter restarts and does not know the task any more, but the work is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_vcenter_forgot_is_not_done_twice() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let source = stage.create("pvc-1").await.unwrap().volume_id;
    let slow = async |method: &str| {
        stage.vcenter.fault(Fault::on(method).task_takes(SLOW).times(1)).await;
        stage.vcenter.forget_calls().await;
    };
    let forget = async |method: &str| {
        eventually("vCenter has the call", 30, async || {
            let calls = stage.vcenter.calls().await;
            if calls.count(method) > 0 { Ok(()) } else { Err(format!("{:?}", calls.total)) }
        })
        .await;
        stage.vcenter.restart_and_forget_tasks(Duration::from_millis(300)).await;
    };
    slow("CnsCreateVolume").await;
    let (first, ()) = tokio::join!(stage.create("pvc-2"), forget("CnsCreateVolume"));
    eprintln!("the volume: {first:?}");
    eventually("the volume exists", 90, async || stage.create("pvc-2").await.map(drop)).await;
    assert_eq!(stage.volumes().await.len(), 2);

    slow("CnsCreateSnapshots").await;
    let (first, ()) =
        tokio::join!(snapshot(&stage, "snapshot-1", &source), forget("CnsCreateSnapshots"));
    eprintln!("the snapshot: {first:?}");
    eventually("the snapshot exists", 90, async || {
        snapshot(&stage, "snapshot-1", &source).await.map(drop)
    })
    .await;
    assert_eq!(snapshots(&stage, &source).await, 1);
}
