//! VolumeSnapshots and VolumeSnapshotContents (`snapshot.storage.k8s.io/v1`), which are custom resources.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde::Deserialize;

use crate::loops::quantity::Bytes;

pub const GROUP: &str = "snapshot.storage.k8s.io";

/// A VolumeSnapshot. `raw` is the object as read, for writes.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub metadata: ObjectMeta,
    pub status: SnapshotStatus,
    pub raw: DynamicObject,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    pub bound_volume_snapshot_content_name: Option<String>,
    pub ready_to_use: Option<bool>,
    pub restore_size: Option<Bytes>,
}

/// A VolumeSnapshotContent. `raw` is the object as read, for writes.
#[derive(Clone, Debug)]
pub struct Content {
    pub metadata: ObjectMeta,
    pub spec: ContentSpec,
    pub status: ContentStatus,
    /// Whether there is a status at all.
    pub has_status: bool,
    pub raw: DynamicObject,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSpec {
    pub driver: String,
    pub deletion_policy: String,
    pub source: ContentSource,
    pub source_volume_mode: Option<String>,
    pub volume_snapshot_class_name: Option<String>,
    pub volume_snapshot_ref: SnapshotReference,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSource {
    pub volume_handle: Option<String>,
    pub snapshot_handle: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SnapshotReference {
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentStatus {
    pub snapshot_handle: Option<String>,
    pub creation_time: Option<i64>,
    pub restore_size: Option<i64>,
    pub ready_to_use: Option<bool>,
    pub error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct SnapshotData {
    #[serde(default)]
    status: SnapshotStatus,
}

#[derive(Deserialize)]
struct ContentData {
    #[serde(default)]
    spec: ContentSpec,
    status: Option<ContentStatus>,
}

impl TryFrom<DynamicObject> for Snapshot {
    type Error = serde_json::Error;

    fn try_from(raw: DynamicObject) -> Result<Self, Self::Error> {
        let SnapshotData { status } = serde_json::from_value(raw.data.clone())?;
        Ok(Self { metadata: raw.metadata.clone(), status, raw })
    }
}

impl TryFrom<DynamicObject> for Content {
    type Error = serde_json::Error;

    fn try_from(raw: DynamicObject) -> Result<Self, Self::Error> {
        let ContentData { spec, status } = serde_json::from_value(raw.data.clone())?;
        let has_status = status.is_some();
        let (metadata, status) = (raw.metadata.clone(), status.unwrap_or_default());
        Ok(Self { metadata, spec, status, has_status, raw })
    }
}

macro_rules! metadata_of {
    ($($kind:ty),*) => {$(
        impl $kind {
            pub fn name(&self) -> &str {
                self.metadata.name.as_deref().unwrap_or_default()
            }

            pub fn uid(&self) -> &str {
                self.metadata.uid.as_deref().unwrap_or_default()
            }

            pub fn is_deleting(&self) -> bool {
                self.metadata.deletion_timestamp.is_some()
            }

            pub fn annotation(&self, key: &str) -> Option<&str> {
                self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
            }

            pub fn has_finalizer(&self, finalizer: &str) -> bool {
                self.metadata.finalizers.iter().flatten().any(|f| f == finalizer)
            }
        }
    )*};
}

metadata_of!(Snapshot, Content);

pub fn content_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk(GROUP, "v1", "VolumeSnapshotContent");
    ApiResource::from_gvk_with_plural(&kind, "volumesnapshotcontents")
}

pub fn contents(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &content_resource())
}

pub fn snapshots(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, "v1", "VolumeSnapshot");
    let resource = ApiResource::from_gvk_with_plural(&kind, "volumesnapshots");
    Api::namespaced_with(client, namespace, &resource)
}
