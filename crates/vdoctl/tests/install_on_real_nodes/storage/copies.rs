//! Snapshots, the volumes restored from them, and clones, with upstream's snapshot-controller.

use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};
use testkit::{Process, Workdir, eventually, peer};

use super::workload::pod;
use crate::cluster::Cluster;

const GROUP: &str = "snapshot.storage.k8s.io";

pub(super) async fn snapshots_and_clones_have_the_data(cluster: &Cluster) {
    create(
        cluster,
        "VolumeSnapshotClass",
        "snapshots",
        json!({
            "driver": "csi.vsphere.vmware.com", "deletionPolicy": "Delete",
        }),
    )
    .await;
    // XFS: two file systems with the same uuid on one node.
    cluster.claim("source", "xfs", json!({})).await;
    let write = "echo before >/data/file; report written";
    cluster.run(pod("source", "source", "node-1", write)).await;
    let path = cluster.in_pod("source", "/data/file").await;
    sync(&path);

    create(cluster, "VolumeSnapshot", "snapshot", json!({"spec": {
        "volumeSnapshotClassName": "snapshots", "source": {"persistentVolumeClaimName": "source"},
    }}))
    .await;
    let snapshots = api(cluster, "VolumeSnapshot");
    eventually("the snapshot is ready", 60, async || {
        let snapshot = snapshots.get("snapshot").await.unwrap();
        if snapshot.data["status"]["readyToUse"] == true {
            Ok(())
        } else {
            Err(snapshot.data.to_string())
        }
    })
    .await;
    std::fs::write(&path, "after\n").unwrap();
    sync(&path);

    let from = |kind: &str, name: &str| {
        let group = if kind == "VolumeSnapshot" { GROUP } else { "" };
        json!({"dataSource": {"apiGroup": group, "kind": kind, "name": name}})
    };
    let mut larger = from("VolumeSnapshot", "snapshot");
    larger["resources"] = json!({"requests": {"storage": "2Gi"}});
    cluster.claim("restored", "xfs", larger).await;
    cluster.claim("cloned", "xfs", from("PersistentVolumeClaim", "source")).await;
    let read = "read line </data/file; report $line";
    assert_eq!(cluster.run(pod("restored", "restored", "node-1", read)).await, "before");
    let size = cluster.size_in_pod("restored").await;
    assert!(size > (2 << 30) - (1 << 27), "a larger volume has a larger file system: {size}");
    assert_eq!(cluster.run(pod("cloned", "cloned", "node-2", read)).await, "after");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "after\n", "the source goes on");

    for name in ["source", "restored", "cloned"] {
        cluster.delete_pod(name).await;
    }
    snapshots.delete("snapshot", &DeleteParams::default()).await.unwrap();
    let contents = api(cluster, "VolumeSnapshotContent");
    eventually("the snapshot is deleted", 60, async || {
        let left = contents.list(&ListParams::default()).await.unwrap().items;
        if left.is_empty() { Ok(()) } else { Err(format!("{:?}", left[0])) }
    })
    .await;
    cluster.delete_claims(&["source", "restored", "cloned"]).await;
}

/// A snapshot has what is on the disk, not what the node keeps in memory.
fn sync(path: &Path) {
    rustix::fs::syncfs(std::fs::File::open(path).unwrap()).unwrap();
}

/// The kinds of snapshots, and their controller. It runs outside of the cluster, because its image cannot be pulled.
pub(crate) async fn start_snapshot_controller(cluster: &Cluster) -> (Process, Workdir) {
    let kinds = Api::<CustomResourceDefinition>::all(cluster.plane.client());
    for (kind, scope) in [
        ("VolumeSnapshot", "Namespaced"),
        ("VolumeSnapshotContent", "Cluster"),
        ("VolumeSnapshotClass", "Cluster"),
    ] {
        let kind = serde_json::from_value(definition(kind, scope)).unwrap();
        kinds.create(&PostParams::default(), &kind).await.unwrap();
    }
    let workdir = Workdir::new("snapshot-controller").unwrap();
    let arguments = [format!("--kubeconfig={}", cluster.plane.kubeconfig().display())];
    let (name, program) = ("snapshot-controller", peer("snapshot-controller"));
    (Process::spawn(&program, name, arguments, &[], &workdir).unwrap(), workdir)
}

/// Without validation: upstream's controllers and ours write these objects.
fn definition(kind: &str, scope: &str) -> Value {
    let (singular, plural) = (kind.to_lowercase(), plural(kind));
    let subresources = if kind.ends_with("Class") { json!({}) } else { json!({"status": {}}) };
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "metadata": {
            "name": format!("{plural}.{GROUP}"),
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814"},
        },
        "spec": {
            "group": GROUP, "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": singular, "listKind": format!("{kind}List")},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": subresources,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

fn plural(kind: &str) -> String {
    let suffix = if kind.ends_with("Class") { "es" } else { "s" };
    format!("{}{suffix}", kind.to_lowercase())
}

fn api(cluster: &Cluster, kind: &str) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", kind), &plural(kind));
    if kind == "VolumeSnapshot" {
        Api::default_namespaced_with(cluster.plane.client(), &resource)
    } else {
        Api::all_with(cluster.plane.client(), &resource)
    }
}

async fn create(cluster: &Cluster, kind: &str, name: &str, data: Value) {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", kind), &plural(kind));
    let object = DynamicObject::new(name, &resource).data(data);
    let api = api(cluster, kind);
    eventually("an object of a new kind is created", 60, async || {
        api.create(&PostParams::default(), &object).await.map(drop)
    })
    .await;
}
