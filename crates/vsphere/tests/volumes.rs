//! Container volumes and their snapshots, on every release that has them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{RELEASES, connected, on_every_release};
use testkit::{Fault, Inventory, Vcenter};
use vsphere::cns::{
    AttachSpec, BackingDetails, ContainerCluster, CreateSpec, ExtendSpec, QueryFilter,
    SnapshotCreateSpec, SnapshotDeleteSpec, SnapshotQuerySpec, VolumeId, VolumeMetadata,
    VolumeMetadataUpdate,
};
use vsphere::inventory::{DeviceDetail, Selection, Vm};
use vsphere::{Client, Error, FaultKind};

const SOON: Duration = Duration::from_mins(4);

fn cluster(id: &str) -> ContainerCluster {
    ContainerCluster {
        kind: "KUBERNETES".to_owned(),
        id: id.to_owned(),
        user: "administrator@vsphere.local".to_owned(),
        flavor: Some("VANILLA".to_owned()),
        distribution: None,
        delete: None,
    }
}

fn volume(name: &str, owner: &str) -> CreateSpec {
    CreateSpec {
        name: name.to_owned(),
        id: None,
        datastores: Vec::new(),
        metadata: VolumeMetadata {
            cluster: Some(cluster(owner)),
            entities: Vec::new(),
            clusters: Vec::new(),
        },
        backing: BackingDetails::block(1024),
        policy: None,
        permissions: Vec::new(),
        source: None,
    }
}

async fn one_volume(client: &Client, name: &str, owner: &str) -> VolumeId {
    let outcomes =
        client.create_volumes(vec![volume(name, owner)]).await.unwrap().wait(SOON).await.unwrap();
    assert!(outcomes[0].result.is_ok(), "{outcomes:?}");
    outcomes[0].volume.clone().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_created_attached_extended_detached_and_deleted() {
    for version in RELEASES {
        let vcenter = Vcenter::start(Inventory::with_vms(2).version(version)).await;
        let client = connected(&vcenter).await;
        let selection = Selection::new().vms(&[Vm::IDENTITY, Vm::HARDWARE]);
        let vm = client
            .collect(&selection)
            .await
            .unwrap()
            .vm_by_name("node-1")
            .found()
            .unwrap()
            .reference
            .clone();

        let id = one_volume(&client, "pvc-1", "cluster-1").await;
        one_volume(&client, "pvc-2", "cluster-2").await;
        assert_eq!(client.volume_owners().await.unwrap(), ["cluster-1", "cluster-2"]);

        let spec = [AttachSpec { volume: id.clone(), vm: vm.clone() }];
        let attached = client.attach_volumes(&spec).await.unwrap().wait(SOON).await.unwrap();
        let disk = attached[0].result.as_ref().expect("attached").disk_uuid.clone();
        let tree = client.collect(&selection).await.unwrap();
        let devices = tree.vm_by_name("node-1").found().unwrap().devices.clone().unwrap();
        let plain = |uuid: &str| uuid.replace('-', "").to_ascii_lowercase();
        assert!(
            devices.iter().any(|d| matches!(&d.detail, DeviceDetail::Disk(found)
                if found.uuid.as_deref().is_some_and(|uuid| plain(uuid) == plain(&disk)))),
            "the disk {disk} is on the VM"
        );
        let again = client.attach_volumes(&spec).await.unwrap().wait(SOON).await;
        let fault = match &again {
            Ok(outcomes) => outcomes[0].result.as_ref().unwrap_err().clone(),
            Err(error) => {
                error.fault().unwrap_or_else(|| panic!("{}", error.error_chain())).clone()
            }
        };
        assert!(matches!(fault.kind, FaultKind::ResourceInUse { .. }), "{fault}");

        let detached = client.detach_volumes(&spec).await.unwrap().wait(SOON).await.unwrap();
        assert!(detached[0].result.is_ok(), "{detached:?}");
        let larger = [ExtendSpec { volume: id.clone(), capacity_mib: 2048 }];
        let extended = client.extend_volumes(&larger).await.unwrap().wait(SOON).await.unwrap();
        assert!(extended[0].result.is_ok(), "{extended:?}");

        let metadata = VolumeMetadata {
            cluster: Some(cluster("cluster-1")),
            entities: Vec::new(),
            clusters: Vec::new(),
        };
        let update = vec![VolumeMetadataUpdate { volume: id.clone(), metadata }];
        let updated =
            client.update_volume_metadata(update).await.unwrap().wait(SOON).await.unwrap();
        assert!(updated[0].result.is_ok(), "{updated:?}");

        let filter =
            QueryFilter { clusters: vec!["cluster-1".to_owned()], ..QueryFilter::default() };
        let found = client.query_volumes(&filter).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].id, found[0].name.as_deref()), (&id, Some("pvc-1")));
        assert_eq!(found[0].backing.as_ref().map(BackingDetails::capacity_mib), Some(2048));
        assert!(found[0].datastore_url.is_some());
        assert_eq!(client.query_all_volumes(&filter, &["VOLUME_NAME"]).await.unwrap().len(), 1);

        let info = client.volume_info(std::slice::from_ref(&id), SOON).await;
        if version == "6.7.3" {
            let error = info.unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{}", error.error_chain());
            assert!(
                error.to_string().contains("this needs vSphere 7.0 Update 2, but it runs 6.7.3"),
                "{error}"
            );
        } else {
            assert!(info.unwrap()[0].result.as_ref().unwrap().datastore.is_some());
        }

        let deleted = client
            .delete_volumes(std::slice::from_ref(&id), true)
            .await
            .unwrap()
            .wait(SOON)
            .await
            .unwrap();
        assert!(deleted[0].result.is_ok(), "{deleted:?}");
        assert!(client.query_volumes(&filter).await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_of_volumes_are_created_listed_and_deleted() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        let client = connected(&vcenter).await;
        let id = one_volume(&client, "pvc-1", "cluster-1").await;
        let spec = [SnapshotCreateSpec { volume: id.clone(), description: "nightly".to_owned() }];
        let query = [SnapshotQuerySpec { volume: id.clone(), snapshot: None }];
        if version == "6.7.3" {
            for error in [
                client.create_volume_snapshots(&spec).await.map(drop).unwrap_err(),
                client.query_volume_snapshots(&query, SOON).await.map(drop).unwrap_err(),
                client.delete_volume_snapshots(&[]).await.map(drop).unwrap_err(),
            ] {
                assert!(matches!(error, Error::Unsupported { .. }), "{}", error.error_chain());
            }
            return;
        }
        let made = client.create_volume_snapshots(&spec).await.unwrap().wait(SOON).await.unwrap();
        let snapshot = made[0].result.as_ref().expect("made").snapshot.clone().expect("named").id;
        // A lost query is retried: it only reads, although it is a task.
        vcenter.forget_calls().await;
        vcenter.fault(Fault::on("CnsQuerySnapshots").dropped().times(1)).await;
        let found = client.query_volume_snapshots(&query, SOON).await.unwrap();
        assert_eq!(
            found.iter().filter_map(|e| e.snapshot.as_ref()).map(|s| &s.id).collect::<Vec<_>>(),
            [&snapshot]
        );
        assert_eq!(vcenter.calls().await.count("CnsQuerySnapshots"), 2);
        let spec = [SnapshotDeleteSpec { volume: id.clone(), snapshot }];
        let deleted = client.delete_volume_snapshots(&spec).await.unwrap().wait(SOON).await;
        let deleted = deleted.unwrap();
        assert!(deleted[0].result.is_ok(), "{deleted:?}");
        let found = client.query_volume_snapshots(&query, SOON).await.unwrap();
        assert!(found.iter().all(|entry| entry.snapshot.is_none()), "{found:?}");

        vcenter.fault(Fault::on("CnsQueryVolumeInfo").dropped().times(1)).await;
        let info = client.volume_info(std::slice::from_ref(&id), SOON).await.unwrap();
        assert!(info[0].result.as_ref().unwrap().datastore.is_some());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_pages_of_volumes_are_read() {
    let vcenter = Vcenter::start(Inventory::with_vms(1)).await;
    let (client, counter) = common::counted(&vcenter).await;
    for batch in 0..6 {
        let specs = (0..100).map(|n| volume(&format!("pvc-{batch}-{n}"), "cluster-1")).collect();
        let made = client.create_volumes(specs).await.unwrap().wait(SOON).await.unwrap();
        assert!(made.iter().all(|outcome| outcome.result.is_ok()), "{made:?}");
    }
    let found = client.query_volumes(&QueryFilter::default()).await.unwrap();
    let names: std::collections::BTreeSet<_> =
        found.iter().filter_map(|volume| volume.name.as_deref()).collect();
    assert_eq!((found.len(), names.len()), (600, 600));
    assert_eq!(counter.count("CnsQueryVolume"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_volume_task_reports_why_and_a_running_one_is_resumed() {
    on_every_release(async |version| {
        let vcenter = Vcenter::start(Inventory::with_vms(1).version(version)).await;
        let client = connected(&vcenter).await;
        vcenter.fault(Fault::on("CnsCreateVolume").task_fails("NoDiskSpace").times(1)).await;
        let task = client.create_volumes(vec![volume("pvc-1", "c")]).await.unwrap();
        let error = task.wait(SOON).await.unwrap_err();
        assert!(matches!(error, Error::TaskFailed { .. }), "{}", error.error_chain());
        assert_eq!(error.fault().map(|fault| &fault.kind), Some(&FaultKind::NoDiskSpace));

        vcenter.clear_faults().await;
        vcenter
            .fault(Fault::on("CnsCreateVolume").task_takes(Duration::from_millis(500)).times(1))
            .await;
        let task = client.create_volumes(vec![volume("pvc-2", "c")]).await.unwrap();
        let reference = task.reference().clone();
        drop(task);
        let resumed = client.resume_volume_task::<vsphere::cns::Created>(reference);
        let resumed = resumed.wait(SOON).await.unwrap();
        assert!(resumed[0].result.is_ok(), "{resumed:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vsan_version_is_guessed_only_without_a_version_list() {
    let list = "GET /sdk/vsanServiceVersions.xml";
    let vcenter = Vcenter::start(Inventory::with_vms(1)).await;
    vcenter.fault(Fault::on(list).status(503)).await;
    let client = connected(&vcenter).await;
    client
        .collect(&Selection::new().vms(&[Vm::IDENTITY]))
        .await
        .expect("other calls do not need it");
    let error = client.query_volumes(&QueryFilter::default()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { status: 503, .. }), "{}", error.error_chain());
    assert_eq!(vcenter.calls().await.count("CnsQueryVolume"), 0, "no call uses a wrong version");

    vcenter.clear_faults().await;
    client.query_volumes(&QueryFilter::default()).await.expect("vCenter is asked again");
    let calls = vcenter.calls().await;
    let asked = calls.count(list);
    assert!(asked > 1 && calls.count("CnsQueryVolume") == 1, "{asked}");
    client.query_volumes(&QueryFilter::default()).await.unwrap();
    assert_eq!(vcenter.calls().await.count(list), asked, "one attempt is enough");

    vcenter.fault(Fault::on(list).status(404)).await;
    let client = connected(&vcenter).await;
    client.query_volumes(&QueryFilter::default()).await.expect("the oldest version does");
}
