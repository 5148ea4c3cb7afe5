//! VolumeSnapshots, VolumeSnapshotContents and VolumeSnapshotClasses (`snapshot.storage.k8s.io/v1`). They are custom
//! resources: a cluster without snapshots does not serve them.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use serde::Deserialize;

use crate::loops::quantity::Bytes;

pub const GROUP: &str = "snapshot.storage.k8s.io";

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Snapshot {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub status: SnapshotStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    pub bound_volume_snapshot_content_name: Option<String>,
    pub ready_to_use: Option<bool>,
    pub restore_size: Option<Bytes>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Content {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ContentSpec,
    /// Absent until the first attempt.
    pub status: Option<ContentStatus>,
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
    /// The volume to take a snapshot of.
    pub volume_handle: Option<String>,
    /// A snapshot that exists already.
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
    pub error: Option<ContentError>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContentError {
    pub message: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct SnapshotClass {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
}

macro_rules! custom_resource {
    ($type:ty, $kind:literal, $plural:literal, $scope:ty) => {
        impl Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind(_: &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group(_: &()) -> Cow<'_, str> {
                GROUP.into()
            }

            fn version(_: &()) -> Cow<'_, str> {
                "v1".into()
            }

            fn plural(_: &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

custom_resource!(Snapshot, "VolumeSnapshot", "volumesnapshots", NamespaceResourceScope);
custom_resource!(Content, "VolumeSnapshotContent", "volumesnapshotcontents", ClusterResourceScope);
custom_resource!(
    SnapshotClass,
    "VolumeSnapshotClass",
    "volumesnapshotclasses",
    ClusterResourceScope
);
