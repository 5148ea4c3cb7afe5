//! Objects that a cluster has once for all its drivers, or that an admin keeps: whoever made them,
//! they are not taken over for having the name that ours would have.

use catalog::manifest::Object;
use kube::{Api, api::DynamicObject};

use crate::observe::is_labelled;

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
        "CustomResourceDefinition" if name.ends_with(".snapshot.storage.k8s.io") => Some(SNAPSHOTS),
        _ if name.starts_with("snapshot-controller") => Some(SNAPSHOTS),
        _ => None,
    }
}

const SNAPSHOTS: &str = "this cluster has its snapshot controller already; leave out \
                         spec.storageProvider.snapshots.installController";

/// The remedy, if the object is there by other hands and has to stay theirs.
pub(super) async fn theirs(
    api: &Api<DynamicObject>,
    object: &Object,
) -> Result<Option<&'static str>, kube::Error> {
    let Some(remedy) = remedy(object) else { return Ok(None) };
    let there = api.get_metadata_opt(object.name()).await?;
    let labels = there.map(|there| there.metadata.labels.unwrap_or_default());
    let theirs = labels.is_some_and(|labels| !is_labelled(&labels));
    Ok(theirs.then_some(remedy))
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
        assert!(object("Secret", "vsphere-config-secret", "Opaque").is_none());
        assert!(object("Deployment", "vsphere-csi-controller", "").is_none());
    }
}
