//! The parts of Kubernetes objects that the loops read. Watches drop everything else, so that a cluster with many
//! volumes costs little memory.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{
            Node as KubeNode, PersistentVolume, PersistentVolumeClaim,
            PersistentVolumeClaimCondition, SecretReference, TypedLocalObjectReference,
            TypedObjectReference,
        },
        storage::v1::{CSINode as KubeCsiNode, VolumeAttachment},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use serde::{Deserialize, Deserializer};

use super::quantity::Bytes;

/// A PersistentVolumeClaim.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = PersistentVolumeClaim)]
pub struct Claim {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ClaimSpec,
    #[serde(default)]
    pub status: ClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    pub access_modes: Vec<String>,
    pub data_source: Option<TypedLocalObjectReference>,
    pub data_source_ref: Option<TypedObjectReference>,
    pub resources: Resources,
    pub selector: Option<serde_json::Value>,
    pub storage_class_name: Option<String>,
    pub volume_attributes_class_name: Option<String>,
    pub volume_mode: Option<String>,
    pub volume_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub requests: Storage,
}

/// The storage of a resource list.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Storage {
    pub storage: Option<Bytes>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    pub phase: String,
    pub capacity: Storage,
    pub allocated_resources: Storage,
    pub allocated_resource_statuses: AllocatedStatuses,
    pub conditions: Vec<PersistentVolumeClaimCondition>,
    pub current_volume_attributes_class_name: Option<String>,
    pub modify_volume_status: Option<ModifyStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocatedStatuses {
    pub storage: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyStatus {
    pub status: String,
    pub target_volume_attributes_class_name: Option<String>,
}

/// A PersistentVolume.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = PersistentVolume)]
pub struct Volume {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: VolumeSpec,
    #[serde(default)]
    pub status: VolumeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    pub access_modes: Vec<String>,
    pub capacity: Storage,
    pub claim_ref: Option<ClaimRef>,
    pub csi: Option<CsiSource>,
    pub mount_options: Vec<String>,
    pub persistent_volume_reclaim_policy: String,
    pub storage_class_name: String,
    pub volume_attributes_class_name: Option<String>,
    pub volume_mode: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimRef {
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    pub driver: String,
    pub volume_handle: String,
    pub fs_type: Option<String>,
    pub read_only: Option<bool>,
    pub volume_attributes: BTreeMap<String, String>,
    pub controller_expand_secret_ref: Option<SecretReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    pub phase: String,
}

/// A VolumeAttachment.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = VolumeAttachment)]
pub struct Attachment {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: AttachmentSpec,
    #[serde(default)]
    pub status: AttachmentStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    pub attacher: String,
    pub node_name: String,
    pub source: AttachmentSource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    pub persistent_volume_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentStatus {
    pub attached: bool,
    pub attach_error: Option<AttachmentError>,
    pub detach_error: Option<AttachmentError>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AttachmentError {
    pub message: String,
}

/// A CSINode: the drivers on a node.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = KubeCsiNode)]
pub struct CsiNode {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: CsiNodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    #[serde(deserialize_with = "null_is_empty")]
    pub drivers: Vec<NodeDriver>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeDriver {
    pub name: String,
    #[serde(rename = "nodeID")]
    pub node_id: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub topology_keys: Vec<String>,
}

/// A Node: its labels.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = KubeNode)]
pub struct Node {
    pub metadata: ObjectMeta,
}

/// The API server writes an empty list of drivers as `null`.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl CsiNode {
    /// What the driver registered on this node.
    pub fn driver(&self, name: &str) -> Option<&NodeDriver> {
        self.spec.drivers.iter().find(|driver| driver.name == name)
    }
}

impl Claim {
    /// `namespace/name`, as in messages.
    pub fn path(&self) -> String {
        format!("{}/{}", text(self.metadata.namespace.as_ref()), text(self.metadata.name.as_ref()))
    }

    pub fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }

    pub fn condition(&self, kind: &str) -> bool {
        self.status.conditions.iter().any(|c| c.type_ == kind && c.status == "True")
    }
}

impl Volume {
    pub fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }

    /// Its CSI source, if it belongs to the driver.
    pub fn source_of(&self, driver: &str) -> Option<&CsiSource> {
        self.spec.csi.as_ref().filter(|csi| csi.driver == driver)
    }

    /// Whether its claim reference names this claim.
    pub fn is_bound_to(&self, claim: &Claim) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|reference| {
            Some(&reference.namespace) == claim.metadata.namespace.as_ref()
                && Some(&reference.name) == claim.metadata.name.as_ref()
                && reference.uid == claim.metadata.uid
        })
    }
}

/// Short access to the metadata of any object.
pub trait Metadata {
    fn name(&self) -> &str;
    fn annotation(&self, key: &str) -> Option<&str>;
    fn has_finalizer(&self, finalizer: &str) -> bool;
    fn is_deleting(&self) -> bool;
    fn uid(&self) -> &str;
    /// The resource version as a number; 0 if it is none.
    fn revision(&self) -> u64;
}

impl<K: Resource> Metadata for K {
    fn name(&self) -> &str {
        text(self.meta().name.as_ref())
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.meta().annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn has_finalizer(&self, finalizer: &str) -> bool {
        self.meta().finalizers.iter().flatten().any(|f| f == finalizer)
    }

    fn is_deleting(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    fn uid(&self) -> &str {
        text(self.meta().uid.as_ref())
    }

    fn revision(&self) -> u64 {
        text(self.meta().resource_version.as_ref()).parse().unwrap_or_default()
    }
}

fn text(value: Option<&String>) -> &str {
    value.map_or("", String::as_str)
}

/// Drops metadata that no loop reads.
pub fn trim(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.owner_references = None;
    metadata.generate_name = None;
    metadata.creation_timestamp = None;
    metadata.generation = None;
    metadata.self_link = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_without_drivers_is_read() {
        for drivers in [json!(null), json!([])] {
            let node = json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}});
            assert!(serde_json::from_value::<CsiNode>(node).unwrap().spec.drivers.is_empty());
        }
    }

    /// The kubelet writes `null` for a driver without topology, ours or another one.
    #[test]
    fn a_node_with_a_driver_without_topology_is_read() {
        let driver = json!({"name": "d", "nodeID": "1", "topologyKeys": null});
        let node = json!({"metadata": {"name": "n"}, "spec": {"drivers": [driver]}});
        let node = serde_json::from_value::<CsiNode>(node).unwrap();
        assert!(node.spec.drivers[0].topology_keys.is_empty());
    }
}
