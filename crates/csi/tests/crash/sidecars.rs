//! Upstream's sidecars drive the controller through its socket, and its own loops are off.
//!
//! csi-resizer and csi-snapshotter, with the snapshot-controller. The other sidecars (external-provisioner,
//! external-attacher, node-driver-registrar, livenessprobe) cannot be obtained here; the test does their work.

use csi::{DRIVER_NAME, proto::csi::ListSnapshotsRequest};
use k8s_openapi::{
    api::{
        core::v1::{Event, PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Resource,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testkit::peer;

use super::*;

const GROUP: &str = "snapshot.storage.k8s.io";

async fn create<K>(api: &Api<K>, object: Value)
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

impl Site {
    fn pvs(&self) -> Api<PersistentVolume> {
        Api::all(self.plane.client())
    }

    fn pvcs(&self) -> Api<PersistentVolumeClaim> {
        Api::default_namespaced(self.plane.client())
    }

    /// A claim with its PersistentVolume, as external-provisioner makes them.
    async fn provision(&self, handle: &str) {
        let class = json!({
            "metadata": {"name": "csi"}, "provisioner": DRIVER_NAME, "allowVolumeExpansion": true,
        });
        create::<StorageClass>(&Api::all(self.plane.client()), class).await;
        create(
            &self.pvs(),
            json!({"metadata": {"name": "pv"}, "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "csi",
                "csi": {"driver": DRIVER_NAME, "volumeHandle": handle, "fsType": "ext4"},
                "claimRef": {"namespace": "default", "name": "data"},
            }}),
        )
        .await;
        create(
            &self.pvcs(),
            json!({"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "csi", "volumeName": "pv",
                "resources": {"requests": {"storage": "1Gi"}},
            }}),
        )
        .await;
        eventually("the claim is bound", 60, async || {
            let claim = self.pvcs().get("data").await.unwrap();
            match claim.status.and_then(|status| status.phase) {
                Some(phase) if phase == "Bound" => Ok(()),
                phase => Err(format!("{phase:?}")),
            }
        })
        .await;
    }

    fn sidecar(&self, name: &str, more: &[&str]) -> Process {
        let mut arguments = vec![format!("--kubeconfig={}", self.plane.kubeconfig().display())];
        arguments.extend(more.iter().map(ToString::to_string));
        Process::spawn(&peer(name), name, arguments, &[], &self.workdir).unwrap()
    }

    async fn capacity_mib(&self) -> i64 {
        self.cns_volumes().await.remove(0).backing.unwrap().capacity_mib()
    }

    async fn snapshots(&self, volume: &str) -> usize {
        let request =
            ListSnapshotsRequest { source_volume_id: volume.into(), ..Default::default() };
        let listed = self.client().await.unwrap().list_snapshots(request).await.unwrap();
        listed.into_inner().entries.len()
    }
}

fn plural(kind: &str) -> String {
    format!("{}{}", kind.to_lowercase(), if kind.ends_with("Class") { "es" } else { "s" })
}

fn snapshot_api(site: &Site, kind: &str) -> Api<DynamicObject> {
    let kind_of = GroupVersionKind::gvk(GROUP, "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind_of, &plural(kind));
    if kind == "VolumeSnapshot" {
        Api::default_namespaced_with(site.plane.client(), &resource)
    } else {
        Api::all_with(site.plane.client(), &resource)
    }
}

/// Without validation: only upstream's programs and this test write these objects.
async fn install_snapshot_kinds(site: &Site) {
    let kinds = Api::<CustomResourceDefinition>::all(site.plane.client());
    for (kind, scope) in [
        ("VolumeSnapshot", "Namespaced"),
        ("VolumeSnapshotContent", "Cluster"),
        ("VolumeSnapshotClass", "Cluster"),
    ] {
        let subresources = if kind.ends_with("Class") { json!({}) } else { json!({"status": {}}) };
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({
            "metadata": {
                "name": format!("{}.{GROUP}", plural(kind)),
                "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814"},
            },
            "spec": {
                "group": GROUP, "scope": scope,
                "names": {"kind": kind, "plural": plural(kind), "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "subresources": subresources,
                    "schema": {"openAPIV3Schema": schema},
                }],
            },
        });
        create(&kinds, definition).await;
    }
}

async fn create_snapshot_object(site: &Site, kind: &str, name: &str, data: Value) {
    let kind_of = GroupVersionKind::gvk(GROUP, "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind_of, &plural(kind));
    let object = DynamicObject::new(name, &resource).data(data);
    let api = snapshot_api(site, kind);
    eventually("an object of a new kind is created", 60, async || {
        api.create(&PostParams::default(), &object).await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstreams_resizer_and_snapshotter_work_with_the_driver() {
    let site = Site::on(ControlPlane::builder().with_controllers().start().await).await;
    let controller = site.controller("controller").await;
    let volume = site.create_at_last().await.volume_id;
    site.provision(&volume).await;

    let larger = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    site.pvcs().patch("data", &PatchParams::default(), &larger).await.unwrap();
    let events = Api::<Event>::default_namespaced(site.plane.client());
    eventually("Kubernetes waits for a resizer", 60, async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let waits = all.iter().any(|event| event.reason.as_deref() == Some("ExternalExpanding"));
        if waits { Ok(()) } else { Err(format!("{} events", all.len())) }
    })
    .await;
    assert_eq!(site.capacity_mib().await, 1024, "the loops of the controller are off");

    let address = format!("--csi-address={}", site.socket().display());
    let resizer = site.sidecar("csi-resizer", &[&address, "--handle-volume-inuse-error=false"]);
    eventually("the resizer expands the volume", 90, async || {
        let volume = site.pvs().get("pv").await.unwrap();
        let capacity = volume.spec.unwrap().capacity.unwrap()["storage"].0.clone();
        if capacity == "2Gi" { Ok(()) } else { Err(format!("{capacity}\n{}", resizer.tail())) }
    })
    .await;
    assert_eq!(site.capacity_mib().await, 2048);
    let claim = site.pvcs().get("data").await.unwrap();
    let conditions = claim.status.unwrap().conditions.unwrap_or_default();
    let pending = conditions.iter().any(|condition| condition.type_ == "FileSystemResizePending");
    assert!(pending, "the node must grow the file system: {conditions:?}");

    install_snapshot_kinds(&site).await;
    let _binder = site.sidecar("snapshot-controller", &[]);
    let snapshotter = site.sidecar("csi-snapshotter", &[&address]);
    let class = json!({"driver": DRIVER_NAME, "deletionPolicy": "Delete"});
    create_snapshot_object(&site, "VolumeSnapshotClass", "snapshots", class).await;
    let source = json!({"persistentVolumeClaimName": "data"});
    let spec = json!({"spec": {"volumeSnapshotClassName": "snapshots", "source": source}});
    create_snapshot_object(&site, "VolumeSnapshot", "copy", spec).await;
    let snapshots = snapshot_api(&site, "VolumeSnapshot");
    eventually("the snapshot is ready", 90, async || {
        let snapshot = snapshots.get("copy").await.unwrap();
        let status = &snapshot.data["status"];
        if status["readyToUse"] == true {
            Ok(())
        } else {
            Err(format!("{status}\n{}", snapshotter.tail()))
        }
    })
    .await;
    assert_eq!(site.snapshots(&volume).await, 1);
    snapshots.delete("copy", &DeleteParams::default()).await.unwrap();
    eventually("the snapshot is deleted", 90, async || {
        let left = snapshot_api(&site, "VolumeSnapshotContent");
        let left = left.list(&ListParams::default()).await.unwrap().items;
        if left.is_empty() { Ok(()) } else { Err(snapshotter.tail()) }
    })
    .await;
    assert_eq!(site.snapshots(&volume).await, 0);
    controller.kill();
}
