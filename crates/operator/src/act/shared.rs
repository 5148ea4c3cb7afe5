//! Objects that a cluster has only once, or that an admin maintains. VDO does not adopt such an object merely
//! because it has the name that VDO would use.

use catalog::manifest::Object;
use kube::{Api, api::DynamicObject};

use crate::cluster::is_labelled;

/// Whether VDO can apply an object under its name.
pub(super) enum Standing {
    /// No such object exists, or VDO can write the existing one.
    Open,
    /// VDO created the object, and the admin maintains it from then on.
    Settled,
    /// The object exists and is not managed by VDO, so VDO leaves it alone. Holds the remedy.
    Theirs(&'static str),
}

/// The remedy if such an object exists and is not managed by VDO. `None` for objects that VDO adopts.
fn remedy(object: &Object) -> Option<&'static str> {
    let name = object.name();
    let pulls =
        object.0["type"].as_str().is_some_and(|kind| kind.starts_with("kubernetes.io/docker"));
    match object.kind() {
        "Secret" if pulls => {
            Some("delete it, or give the Secret in spec.images.pullSecrets another name")
        }
        "StorageClass" => {
            Some("give the class in spec.storageProvider.storageClasses another name, or none")
        }
        SNAPSHOT_CLASS => Some(
            "the snapshots of this class are taken as it says; leave out \
             spec.storageProvider.snapshots, or delete the class",
        ),
        "CustomResourceDefinition" if name.ends_with(".snapshot.storage.k8s.io") => Some(SNAPSHOTS),
        _ if name.starts_with("snapshot-controller") => Some(SNAPSHOTS),
        _ => None,
    }
}

const SNAPSHOT_CLASS: &str = "VolumeSnapshotClass";
const SNAPSHOTS: &str = "this cluster has its snapshot controller already; leave out \
                         spec.storageProvider.snapshots.installController";

/// Checks who manages an existing object, for the kinds where that matters.
pub(super) async fn standing(
    api: &Api<DynamicObject>,
    object: &Object,
) -> Result<Standing, kube::Error> {
    let Some(remedy) = remedy(object) else { return Ok(Standing::Open) };
    let Some(there) = api.get_metadata_opt(object.name()).await? else {
        return Ok(Standing::Open);
    };
    Ok(if !is_labelled(&there.metadata.labels.unwrap_or_default()) {
        Standing::Theirs(remedy)
    } else if object.kind() == SNAPSHOT_CLASS {
        // The class decides about the data of deleted snapshots: VDO must not revert the admin's choice.
        Standing::Settled
    } else {
        Standing::Open
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_that_a_cluster_has_only_once_are_not_overwritten() {
        let object = |kind: &str, name: &str, of: &str| {
            remedy(&Object(json!({"kind": kind, "metadata": {"name": name}, "type": of})))
        };
        assert!(object("Secret", "registry", "kubernetes.io/dockerconfigjson").is_some());
        assert!(object("Deployment", "snapshot-controller", "").is_some());
        assert!(object("ClusterRole", "snapshot-controller-runner", "").is_some());
        let definition = "volumesnapshots.snapshot.storage.k8s.io";
        assert!(object("CustomResourceDefinition", definition, "").is_some());
        assert!(object("StorageClass", "gold", "").is_some());
        assert!(object("VolumeSnapshotClass", "vsphere-csi", "").is_some());
        assert!(object("Secret", "vsphere-config-secret", "Opaque").is_none());
        assert!(object("Deployment", "vsphere-csi-controller", "").is_none());
    }
}
