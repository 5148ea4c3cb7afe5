//! Queries and results of the container storage service.

use jiff::Timestamp;

use super::types::{BackingDetails, KeyValue, SnapshotId, VolumeId, VolumeMetadata};
use crate::moref::MoRef;
use crate::soap::Fault;
use crate::xml::codec::data;

data! {
    /// A page of a long list.
    #[derive(Eq)]
    pub struct Cursor {
        /// The number of entries to skip.
        offset: i64 = "offset",
        /// The number of entries to return.
        limit: i64 = "limit",
        total: Option<i64> = "totalRecords",
    }
}

impl Cursor {
    /// The page of up to `limit` entries that starts at `offset`.
    pub(super) fn page_at(offset: usize, limit: usize) -> Self {
        let number = |n| i64::try_from(n).unwrap_or(i64::MAX);
        Self { offset: number(offset), limit: number(limit), total: None }
    }
}

data! {
    /// Selects volumes. Empty fields match all.
    #[derive(Eq, Default)]
    pub struct QueryFilter xsi "CnsQueryFilter" {
        ids: Vec<VolumeId> = "volumeIds",
        names: Vec<String> = "names",
        /// By the id of the cluster that owns them.
        clusters: Vec<String> = "containerClusterIds",
        policy: Option<String> = "storagePolicyId",
        /// By datastore.
        datastores: Vec<MoRef> = "datastores",
        labels: Vec<KeyValue> = "labels",
        /// The page. The query sets it.
        cursor: Option<Cursor> = "cursor",
        health: Option<String> = "healthStatus",
    }
}

data! {
    pub(super) struct QuerySelection {
        names: Vec<String> = "names",
    }
}

data! {
    #[derive(Eq)]
    pub struct Volume {
        id: VolumeId = "volumeId",
        /// The URL of its datastore.
        datastore_url: Option<String> = "datastoreUrl",
        name: Option<String> = "name",
        /// `BLOCK` or `FILE`.
        kind: Option<String> = "volumeType",
        policy: Option<String> = "storagePolicyId",
        metadata: Option<VolumeMetadata> = "metadata",
        backing: Option<BackingDetails> = "backingObjectDetails",
        /// Whether it complies with its policy.
        compliance: Option<String> = "complianceStatus",
        /// Whether its datastore is accessible.
        accessibility: Option<String> = "datastoreAccessibilityStatus",
        health: Option<String> = "healthStatus",
    }
}

impl Volume {
    /// The ids of the clusters that own the volume.
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
    #[derive(Eq)]
    pub struct SnapshotCreateSpec {
        volume: VolumeId = "volumeId",
        /// Drivers put the name of the snapshot here.
        description: String = "description",
    }
}

data! {
    #[derive(Eq)]
    pub struct SnapshotDeleteSpec {
        volume: VolumeId = "volumeId",
        snapshot: SnapshotId = "snapshotId",
    }
}

data! {
    #[derive(Eq)]
    pub struct SnapshotQuerySpec {
        volume: VolumeId = "volumeId",
        /// Restricts the list to this snapshot.
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
    #[derive(Eq)]
    pub struct SnapshotInfo {
        id: SnapshotId = "snapshotId",
        volume: VolumeId = "volumeId",
        /// Free text; drivers put the name of the snapshot here.
        description: Option<String> = "description",
        created: Timestamp = "createTime",
    }
}

data! {
    /// A snapshot, or the reason why it is missing.
    pub struct SnapshotEntry {
        snapshot: Option<SnapshotInfo> = "snapshot",
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
    /// The result for one volume: the union of all result types.
    pub struct OperationResult {
        volume: Option<VolumeId> = "volumeId",
        fault: Option<Fault> = "fault",
        name: Option<String> = "name",
        placements: Vec<Placement> = "placementResults",
        /// The id of the attached disk in the guest.
        disk_uuid: Option<String> = "diskUUID",
        snapshot: Option<SnapshotInfo> = "snapshot",
        /// The disk behind a volume.
        info: Option<RawInfo> = "volumeInfo",
    }
}

data! {
    pub struct Placement {
        datastore: Option<MoRef> = "datastore",
        /// Why CNS did not use the datastore.
        faults: Vec<Fault> = "placementFaults",
    }
}

data! {
    pub struct RawInfo {
        object: Option<RawStorageObject> = "vStorageObject",
    }
}

data! {
    pub struct RawStorageObject {
        config: RawStorageConfig = "config",
    }
}

data! {
    pub struct RawStorageConfig {
        name: Option<String> = "name",
        /// The URL of its datastore.
        backing: Option<RawStorageBacking> = "backing",
        capacity_mib: Option<i64> = "capacityInMB",
        /// The ids of the VMs that have the disk.
        consumers: Vec<RawConsumer> = "consumerId",
    }
}

data! {
    pub struct RawConsumer {
        id: String = "id",
    }
}

data! {
    pub struct RawStorageBacking {
        datastore: Option<MoRef> = "datastore",
        file: Option<String> = "filePath",
        /// The vSAN object.
        object: Option<String> = "backingObjectId",
        /// `thin` or `thick`.
        provisioning: Option<String> = "provisioningType",
    }
}

/// The disk behind a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeInfo {
    pub name: Option<String>,
    pub capacity_mib: Option<i64>,
    pub datastore: Option<MoRef>,
    pub file: Option<String>,
    /// The vSAN object.
    pub object: Option<String>,
    /// `thin` or `thick`.
    pub provisioning: Option<String>,
    /// The ids of the VMs that have the disk.
    pub consumers: Vec<String>,
}

impl From<Option<RawInfo>> for VolumeInfo {
    fn from(raw: Option<RawInfo>) -> Self {
        let Some(config) = raw.and_then(|raw| raw.object).map(|object| object.config) else {
            return Self::default();
        };
        let mut info =
            Self { name: config.name, capacity_mib: config.capacity_mib, ..Self::default() };
        info.consumers = config.consumers.into_iter().map(|consumer| consumer.id).collect();
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

    /// Hand-made data: the simulator has no file volumes.
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
