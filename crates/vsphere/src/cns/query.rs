//! What the container storage service answers: volumes, snapshots, and what became of each in a
//! task.

use jiff::Timestamp;

use super::types::{BackingDetails, KeyValue, SnapshotId, VolumeId, VolumeMetadata};
use crate::moref::MoRef;
use crate::soap::Fault;
use crate::xml::codec::data;

data! {
    /// Which part of a long list.
    #[derive(Eq)]
    pub struct Cursor {
        /// How many to pass over.
        offset: i64 = "offset",
        /// How many to give.
        limit: i64 = "limit",
        /// How many there are.
        total: Option<i64> = "totalRecords",
    }
}

impl Cursor {
    /// The page that starts at this place.
    pub(super) fn page_at(offset: usize) -> Self {
        let number = |n| i64::try_from(n).unwrap_or(i64::MAX);
        Self { offset: number(offset), limit: number(super::PAGE), total: None }
    }
}

data! {
    /// Which volumes. What is empty does not matter.
    #[derive(Eq, Default)]
    pub struct QueryFilter xsi "CnsQueryFilter" {
        /// By id.
        ids: Vec<VolumeId> = "volumeIds",
        /// By name.
        names: Vec<String> = "names",
        /// By the cluster they belong to.
        clusters: Vec<String> = "containerClusterIds",
        /// By policy.
        policy: Option<String> = "storagePolicyId",
        /// By where they lie.
        datastores: Vec<MoRef> = "datastores",
        /// By label.
        labels: Vec<KeyValue> = "labels",
        /// Which part of the list; filled in by the query.
        cursor: Option<Cursor> = "cursor",
        /// By health.
        health: Option<String> = "healthStatus",
    }
}

data! {
    pub(super) struct QuerySelection {
        names: Vec<String> = "names",
    }
}

data! {
    /// A volume.
    #[derive(Eq)]
    pub struct Volume {
        /// Its id.
        id: VolumeId = "volumeId",
        /// Where it lies.
        datastore_url: Option<String> = "datastoreUrl",
        /// Its name.
        name: Option<String> = "name",
        /// `BLOCK` or `FILE`.
        kind: Option<String> = "volumeType",
        /// Its policy.
        policy: Option<String> = "storagePolicyId",
        /// Whose it is.
        metadata: Option<VolumeMetadata> = "metadata",
        /// What it is made of.
        backing: Option<BackingDetails> = "backingObjectDetails",
        /// Whether it follows its policy.
        compliance: Option<String> = "complianceStatus",
        /// Whether its datastore can be reached.
        accessibility: Option<String> = "datastoreAccessibilityStatus",
        /// Its health.
        health: Option<String> = "healthStatus",
    }
}

impl Volume {
    /// The ids of the clusters it belongs to.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        let metadata = self.metadata.iter();
        metadata
            .flat_map(|m| m.cluster.iter().chain(&m.clusters))
            .map(|c| c.id.as_str())
            .filter(|id| !id.is_empty())
    }
}

data! {
    pub(super) struct QueryResult {
        volumes: Vec<Volume> = "volumes",
        cursor: Option<Cursor> = "cursor",
    }
}

data! {
    /// A snapshot to make.
    #[derive(Eq)]
    pub struct SnapshotCreateSpec {
        /// Of which volume.
        volume: VolumeId = "volumeId",
        /// What for; drivers put the snapshot's name here.
        description: String = "description",
    }
}

data! {
    /// A snapshot to delete.
    #[derive(Eq)]
    pub struct SnapshotDeleteSpec {
        /// Of which volume.
        volume: VolumeId = "volumeId",
        /// The snapshot.
        snapshot: SnapshotId = "snapshotId",
    }
}

data! {
    /// Snapshots to list.
    #[derive(Eq)]
    pub struct SnapshotQuerySpec {
        /// Of which volume.
        volume: VolumeId = "volumeId",
        /// Only this one.
        snapshot: Option<SnapshotId> = "snapshotId",
    }
}

data! {
    pub(super) struct SnapshotQueryFilter {
        specs: Vec<SnapshotQuerySpec> = "snapshotQuerySpecs",
        cursor: Option<Cursor> = "cursor",
    }
}

data! {
    /// A snapshot of a volume.
    #[derive(Eq)]
    pub struct SnapshotInfo {
        /// The snapshot.
        id: SnapshotId = "snapshotId",
        /// Its volume.
        volume: VolumeId = "volumeId",
        /// What for.
        description: Option<String> = "description",
        /// When it was made.
        created: Timestamp = "createTime",
    }
}

data! {
    /// An answer to a question for snapshots: one, or why not.
    pub struct SnapshotEntry {
        /// The snapshot.
        snapshot: Option<SnapshotInfo> = "snapshot",
        /// Why not.
        error: Option<Fault> = "error",
    }
}

data! {
    pub(super) struct SnapshotQueryResult {
        entries: Vec<SnapshotEntry> = "entries",
        cursor: Option<Cursor> = "cursor",
    }
}

data! {
    pub(super) struct BatchResult {
        results: Vec<OperationResult> = "volumeResults",
    }
}

data! {
    /// The outcome for one volume, of whatever task: the fields of all the result types.
    pub struct OperationResult {
        /// The volume.
        volume: Option<VolumeId> = "volumeId",
        /// Why it failed.
        fault: Option<Fault> = "fault",
        /// The name of a volume that was created.
        name: Option<String> = "name",
        /// Where it was put.
        placements: Vec<Placement> = "placementResults",
        /// The id of a disk that was attached.
        disk_uuid: Option<String> = "diskUUID",
        /// A snapshot that was made.
        snapshot: Option<SnapshotInfo> = "snapshot",
        /// Where a volume lies.
        info: Option<RawInfo> = "volumeInfo",
    }
}

data! {
    /// Where a volume was put.
    pub struct Placement {
        /// The datastore.
        datastore: Option<MoRef> = "datastore",
    }
}

data! {
    /// As it comes.
    pub struct RawInfo {
        /// The disk.
        object: Option<RawStorageObject> = "vStorageObject",
    }
}

data! {
    /// As it comes.
    pub struct RawStorageObject {
        /// Its configuration.
        config: RawStorageConfig = "config",
    }
}

data! {
    /// As it comes.
    pub struct RawStorageConfig {
        /// Its name.
        name: Option<String> = "name",
        /// Where it lies.
        backing: Option<RawStorageBacking> = "backing",
        /// Its size.
        capacity_mib: Option<i64> = "capacityInMB",
    }
}

data! {
    /// As it comes.
    pub struct RawStorageBacking {
        /// The datastore.
        datastore: Option<MoRef> = "datastore",
        /// The file.
        file: Option<String> = "filePath",
        /// The object on vSAN.
        object: Option<String> = "backingObjectId",
        /// How space is taken.
        provisioning: Option<String> = "provisioningType",
    }
}

/// Where a volume lies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeInfo {
    /// The disk's name.
    pub name: Option<String>,
    /// Its size.
    pub capacity_mib: Option<i64>,
    /// Its datastore.
    pub datastore: Option<MoRef>,
    /// Its file.
    pub file: Option<String>,
    /// Its object on vSAN.
    pub object: Option<String>,
    /// `thin` or `thick`.
    pub provisioning: Option<String>,
}

impl From<Option<RawInfo>> for VolumeInfo {
    fn from(raw: Option<RawInfo>) -> Self {
        let Some(config) = raw.and_then(|raw| raw.object).map(|object| object.config) else {
            return Self::default();
        };
        let mut info =
            Self { name: config.name, capacity_mib: config.capacity_mib, ..Self::default() };
        if let Some(backing) = config.backing {
            info.datastore = backing.datastore;
            info.file = backing.file;
            info.object = backing.object;
            info.provisioning = backing.provisioning;
        }
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::codec::from_xml;

    /// Hand-made: the simulator makes no file volumes.
    #[test]
    fn a_file_volume_is_read_with_its_access_points() {
        let volume: Volume = from_xml(
            r#"<v><volumeId><id>file:1</id></volumeId><volumeType>FILE</volumeType>
               <backingObjectDetails xsi:type="CnsVsanFileShareBackingDetails"><capacityInMb>10</capacityInMb>
               <backingFileId>f</backingFileId><accessPoints><key>NFSv4.1</key><value>h:/s</value></accessPoints>
               </backingObjectDetails></v>"#,
        )
        .unwrap();
        let Some(BackingDetails::File { access_points, capacity_mib, .. }) = volume.backing else {
            panic!("not a file")
        };
        assert_eq!((access_points[0].key.as_str(), capacity_mib), ("NFSv4.1", 10));
    }
}
