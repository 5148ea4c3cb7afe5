//! StorageClasses and the VolumeSnapshotClass that an admin can ask for in addition to the storage driver.

use api::vdo_config::{BindingMode, ReclaimPolicy, StorageClassSpec};
use catalog::Driver;
use serde_json::{Map, Value, json};

use super::{desired::DesiredDriver, profile};
use crate::{facts::Facts, names};

/// The desired classes; none for the cloud controller.
pub(super) fn render(facts: &Facts, desired: &DesiredDriver<'_>) -> Vec<Value> {
    let storage =
        facts.config.spec.storage_provider.as_ref().filter(|_| desired.driver == Driver::Csi);
    let snapshots = storage.is_some_and(|storage| storage.snapshots.is_some());
    let classes = storage.into_iter().flat_map(|storage| &storage.storage_classes);
    let classes = classes.map(|class| storage_class(class, profile::has_topology(facts)));
    classes.chain(snapshots.then(snapshot_class)).collect()
}

/// The class that a VolumeSnapshot names to use this driver.
fn snapshot_class() -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": names::SNAPSHOT_CLASS},
        "driver": names::CSI_DRIVER,
        "deletionPolicy": "Delete",
    })
}

fn storage_class(class: &StorageClassSpec, zones: bool) -> Value {
    let mut parameters = Map::new();
    if let Some(policy) = &class.storage_policy {
        parameters.insert("storagepolicyname".into(), json!(policy));
    }
    if let Some(url) = &class.datastore_url {
        parameters.insert("datastoreurl".into(), json!(url.0));
    }
    if let Some(fs_type) = class.fs_type {
        parameters.insert("csi.storage.k8s.io/fstype".into(), json!(fs_type));
    }
    // With zones, Kubernetes must choose the node of the pod first, and the driver then creates the volume
    // there.
    let binding = class.binding_mode.unwrap_or(if zones {
        BindingMode::WaitForFirstConsumer
    } else {
        BindingMode::Immediate
    });
    let default = class.default.unwrap_or_default().to_string();
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {
            "name": class.name.0,
            "annotations": {"storageclass.kubernetes.io/is-default-class": default},
        },
        "provisioner": names::CSI_DRIVER,
        "parameters": parameters,
        "reclaimPolicy": class.reclaim_policy.unwrap_or(ReclaimPolicy::Delete),
        "volumeBindingMode": binding,
        "allowVolumeExpansion": class.allow_expansion.unwrap_or(true),
    })
}
