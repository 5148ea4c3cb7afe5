//! Objects that a cluster has once for all its drivers, or that an admin keeps: whoever made them,
//! they are not taken over for having the name that ours would have.

use catalog::manifest::Object;
use kube::{Api, api::DynamicObject};

use crate::cluster::is_labelled;

/// How the place of an object is taken that is about to be applied.
pub(super) enum Standing {
    /// By nobody, or by what is ours to write.
    Open,
    /// By one of ours that is an admin's to change from then on.
    Settled,
    /// By other hands, and it stays theirs; what to do instead.
    Theirs(&'static str),
}

/// What to do instead, if an object of this kind is there and is not ours; none where it is taken
/// over.
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

/// Looks whether the object is there, by whose hand, where that matters.
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
        // What becomes of the data of a deleted snapshot is not ours to change back.
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
    fn what_a_cluster_has_once_is_nobodys_to_take() {
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
