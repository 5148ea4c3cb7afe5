//! Copies of volumes that moved, and snapshots in large numbers.

use vsphere::cns::{SnapshotCreateSpec, SnapshotDeleteSpec, SnapshotId, VolumeId};

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

/// CNS copies within a datastore, and nothing tells the driver that a Storage vMotion moved the source.
#[tokio::test]
async fn a_copy_is_made_where_its_source_is_now() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let at = |datastore: &str| format!("ds:///vmfs/volumes/{datastore}/");
    let request = CreateVolumeRequest {
        parameters: [("datastoreurl".into(), at("shared"))].into(),
        ..create_request("pvc-1", GIB)
    };
    let source = stage.create_with(request).await.unwrap().volume_id;
    let snapshot_id = snapshot(&stage, "snapshot-1", &source).await.unwrap();
    stage.vcenter.move_volume(&source, "/DC0/datastore/shared-a").await;
    let of_volume = Type::Volume(VolumeSource { volume_id: source.clone() });
    let of_snapshot = Type::Snapshot(SnapshotSource { snapshot_id });
    for (name, kind) in [("pvc-2", of_volume), ("pvc-3", of_snapshot)] {
        stage.vcenter.forget_calls().await;
        let copy = stage.create_with(from(name, GIB, kind)).await.unwrap().volume_id;
        assert_eq!(stage.vcenter.calls().await.count("CnsQueryVolume"), 1, "{name}");
        let volumes = stage.volumes().await;
        let copy = volumes.iter().find(|volume| volume.id.id == copy).unwrap();
        assert_eq!(copy.datastore_url.as_deref(), Some(&*at("shared-a")), "{name}");
    }
}

/// The shared list costs several pages. A deletion of one volume must not pay for them, and neither must the deletions
/// wait for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_share_the_list_of_snapshots_again_after_it_was_long() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let kept = stage.create("kept").await.unwrap().volume_id;
    let delete_many = async |name: &str| {
        let names: Vec<String> = (0..20).map(|n| format!("{name}-{n}")).collect();
        let created = join_all(names.iter().map(|name| stage.create(name))).await;
        let ids: Vec<_> = created.into_iter().map(|volume| volume.unwrap().volume_id).collect();
        stage.vcenter.forget_calls().await;
        for deleted in join_all(ids.iter().map(|id| stage.delete(id))).await {
            deleted.unwrap();
        }
        stage.vcenter.calls().await.count("CnsQuerySnapshots")
    };
    let observer = stage.observer().await;
    let spec = |n: i32| SnapshotCreateSpec {
        volume: VolumeId::from(kept.as_str()),
        description: format!("many-{n}"),
    };
    let specs: Vec<_> = (0..600).map(spec).collect();
    let made = observer.create_volume_snapshots(&specs).await.unwrap().wait(MINUTE).await.unwrap();
    delete_many("long").await;
    let ids = made.into_iter().map(|made| made.result.unwrap().snapshot.unwrap().id);
    let specs: Vec<_> = ids
        .map(|snapshot: SnapshotId| SnapshotDeleteSpec {
            volume: VolumeId::from(kept.as_str()),
            snapshot,
        })
        .collect();
    observer.delete_volume_snapshots(&specs).await.unwrap().wait(MINUTE).await.unwrap();
    observer.shut_down().await;
    // These still expect a long list; the next ones know better.
    delete_many("unknown").await;
    let calls = delete_many("short").await;
    assert!(calls <= 5, "{calls} calls for 20 deletions");
}

#[tokio::test]
async fn the_name_of_a_snapshot_belongs_to_one_volume_without_a_list_of_all_snapshots() {
    let mut stage = Stage::with(Inventory::with_vms(1)).await;
    let (one, two) = (stage.create("pvc-1").await.unwrap(), stage.create("pvc-2").await.unwrap());
    let (one, two) = (one.volume_id, two.volume_id);
    let first = snapshot(&stage, "snapshot-1", &one).await.unwrap();
    stage.vcenter.forget_calls().await;
    for n in 2..=3 {
        snapshot(&stage, &format!("snapshot-{n}"), &one).await.unwrap();
    }
    let calls = stage.vcenter.calls().await;
    assert_eq!(calls.count("CnsQuerySnapshots"), 2, "only those of the volume are listed");
    for is_new_process in [false, true] {
        if is_new_process {
            stage.restart().await;
        }
        let refused = snapshot(&stage, "snapshot-1", &two).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
        assert!(refused.message().contains(&one), "{refused}");
        assert_eq!(snapshot(&stage, "snapshot-1", &one).await.unwrap(), first);
    }
    // Somebody else deletes the snapshot: the name is free.
    let observer = stage.observer().await;
    let id = first.rsplit('+').next().unwrap().to_owned();
    let specs =
        [SnapshotDeleteSpec { volume: VolumeId::from(one.as_str()), snapshot: SnapshotId { id } }];
    observer.delete_volume_snapshots(&specs).await.unwrap().wait(MINUTE).await.unwrap();
    observer.shut_down().await;
    snapshot(&stage, "snapshot-1", &two).await.unwrap();
}

/// The snapshot can still appear.
#[tokio::test]
async fn the_name_of_a_snapshot_that_is_being_made_belongs_to_its_volume() {
    let stage = Stage::with(Inventory::with_vms(1)).await;
    let (one, two) = (stage.create("pvc-1").await.unwrap(), stage.create("pvc-2").await.unwrap());
    let (one, two) = (one.volume_id, two.volume_id);
    stage.vcenter.fault(Fault::on("CnsCreateSnapshots").dropped().times(1)).await;
    snapshot(&stage, "snapshot-1", &one).await.unwrap_err();
    let refused = snapshot(&stage, "snapshot-1", &two).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
}
