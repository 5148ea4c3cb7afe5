//! Requests to the container storage service.

use crate::moref::MoRef;
use crate::version::ApiVersion;
use crate::xml::XmlError;
use crate::xml::codec::{Decode, Encode, data};
use crate::xml::reader::{Reader, Start};
use crate::xml::writer::Writer;

data! {
    #[derive(Eq, Hash)]
    pub struct VolumeId {
        /// A uuid, with the prefix `file:` for a file volume.
        id: String = "id",
    }
}

impl From<&str> for VolumeId {
    fn from(id: &str) -> Self {
        Self { id: id.to_owned() }
    }
}

data! {
    #[derive(Eq, Hash)]
    pub struct SnapshotId {
        id: String = "id",
    }
}

data! {
    #[derive(Eq)]
    pub struct KeyValue {
        key: String = "key",
        value: String = "value",
    }
}

data! {
    /// A container cluster that owns volumes.
    #[derive(Eq)]
    pub struct ContainerCluster {
        /// `KUBERNETES`.
        kind: String = "clusterType",
        /// Unique and immutable.
        id: String = "clusterId",
        /// The vSphere user of the cluster's driver.
        user: String = "vSphereUser",
        /// `VANILLA`.
        flavor: Option<String> = "clusterFlavor",
        /// The Kubernetes distribution, as free text.
        distribution: Option<String> = "clusterDistribution",
        /// Whether to remove this entry from the volume.
        delete: Option<bool> = "delete",
    }
}

data! {
    /// A Kubernetes object that uses a volume.
    #[derive(Eq)]
    pub struct EntityMetadata xsi "CnsKubernetesEntityMetadata" {
        name: String = "entityName",
        labels: Vec<KeyValue> = "labels",
        /// Whether to remove this entry from the volume.
        delete: Option<bool> = "delete",
        cluster: Option<String> = "clusterId",
        /// `PERSISTENT_VOLUME`, `PERSISTENT_VOLUME_CLAIM`, `POD`.
        kind: Option<String> = "entityType",
        namespace: Option<String> = "namespace",
        /// Objects that this object refers to.
        refers: Vec<EntityReference> = "referredEntity",
    }
}

data! {
    #[derive(Eq)]
    pub struct EntityReference {
        kind: String = "entityType",
        name: String = "entityName",
        namespace: Option<String> = "namespace",
        cluster: Option<String> = "clusterId",
    }
}

data! {
    /// The clusters and Kubernetes objects that use a volume.
    #[derive(Eq)]
    pub struct VolumeMetadata {
        cluster: Option<ContainerCluster> = "containerCluster",
        entities: Vec<EntityMetadata> = "entityMetadata",
        /// All clusters, if the volume has several.
        clusters: Vec<ContainerCluster> = "containerClusterArray",
    }
}

data! {
    /// The storage policy of a volume.
    #[derive(Eq)]
    pub struct PolicyProfile xsi "VirtualMachineDefinedProfileSpec" {
        id: String = "profileId",
    }
}

data! {
    /// Network access to a file share.
    #[derive(Eq)]
    pub struct FilePermission xsi "VsanFileShareNetPermission" {
        /// IP addresses or subnets, or `*`.
        ips: String = "ips",
        /// `READ_WRITE`, `READ_ONLY`, `NO_ACCESS`.
        access: Option<String> = "permissions",
        /// Whether root keeps its permissions on the share.
        allow_root: Option<bool> = "allowRoot",
    }
}

/// The storage behind a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackingDetails {
    Block {
        capacity_mib: i64,
        /// The id of an existing disk to register as a volume.
        disk_id: Option<String>,
        /// The URL of an existing disk to register as a volume.
        disk_url: Option<String>,
    },
    File {
        capacity_mib: i64,
        /// The id of an existing share to register as a volume.
        file_id: Option<String>,
        /// Address per protocol, such as `NFSv4.1`.
        access_points: Vec<KeyValue>,
    },
}

impl BackingDetails {
    /// A new disk.
    pub fn block(capacity_mib: i64) -> Self {
        Self::Block { capacity_mib, disk_id: None, disk_url: None }
    }

    pub fn capacity_mib(&self) -> i64 {
        match self {
            Self::Block { capacity_mib, .. } | Self::File { capacity_mib, .. } => *capacity_mib,
        }
    }
}

data! {
    struct RawBacking {
        capacity: Option<i64> = "capacityInMb",
        disk_id: Option<String> = "backingDiskId",
        disk_url: Option<String> = "backingDiskUrlPath",
        file_id: Option<String> = "backingFileId",
        access_points: Vec<KeyValue> = "accessPoints",
    }
}

impl Decode for BackingDetails {
    fn decode(start: &Start<'_>, reader: &mut Reader<'_>) -> Result<Self, XmlError> {
        let is_file = start.xsi_type().is_some_and(|name| name.contains("File"));
        let raw = RawBacking::decode(start, reader)?;
        let capacity_mib = raw.capacity.unwrap_or_default();
        let (file_id, access_points) = (raw.file_id, raw.access_points);
        Ok(if is_file || file_id.is_some() {
            Self::File { capacity_mib, file_id, access_points }
        } else {
            Self::Block { capacity_mib, disk_id: raw.disk_id, disk_url: raw.disk_url }
        })
    }
}

impl Encode for BackingDetails {
    fn encode(&self, name: &str, writer: &mut Writer) {
        match self {
            Self::Block { capacity_mib, disk_id, disk_url } => {
                writer.open_with(name, &[("xsi:type", "CnsBlockBackingDetails")]);
                (*capacity_mib != 0).then_some(*capacity_mib).encode("capacityInMb", writer);
                disk_id.encode("backingDiskId", writer);
                disk_url.encode("backingDiskUrlPath", writer);
            }
            Self::File { capacity_mib, file_id, access_points } => {
                writer.open_with(name, &[("xsi:type", "CnsVsanFileShareBackingDetails")]);
                (*capacity_mib != 0).then_some(*capacity_mib).encode("capacityInMb", writer);
                file_id.encode("backingFileId", writer);
                access_points.encode("accessPoints", writer);
            }
        }
        writer.close(name);
    }
}

data! {
    /// The snapshot to create a volume from.
    #[derive(Eq)]
    pub struct VolumeSource xsi "CnsSnapshotVolumeSource" {
        /// The volume of the snapshot.
        volume: VolumeId = "volumeId",
        snapshot: SnapshotId = "snapshotId",
    }
}

data! {
    struct FileCreateSpec xsi "CnsVSANFileCreateSpec" {
        quota_mib: Option<i64> = "softQuotaInMb",
        permissions: Vec<FilePermission> = "permission",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateSpec {
    /// At most 80 characters.
    pub name: String,
    /// The id to assign. Needs vCenter 9.1.
    pub id: Option<VolumeId>,
    /// The candidate datastores. vCenter chooses one.
    pub datastores: Vec<MoRef>,
    pub metadata: VolumeMetadata,
    pub backing: BackingDetails,
    pub policy: Option<PolicyProfile>,
    /// Network access, for a file volume.
    pub permissions: Vec<FilePermission>,
    /// The snapshot to create the volume from.
    pub source: Option<VolumeSource>,
}

impl CreateSpec {
    /// Drops fields that an older vCenter rejects.
    pub(super) fn drop_unsupported(mut self, version: ApiVersion) -> Self {
        self.metadata.drop_unsupported(version);
        if version < ApiVersion::V7_0U2
            && let BackingDetails::Block { disk_url, .. } = &mut self.backing
        {
            *disk_url = None;
        }
        self
    }
}

impl Encode for CreateSpec {
    fn encode(&self, name: &str, writer: &mut Writer) {
        let is_file = matches!(self.backing, BackingDetails::File { .. });
        writer.open(name);
        self.name.encode("name", writer);
        (if is_file { "FILE" } else { "BLOCK" }).encode("volumeType", writer);
        self.id.encode("volumeId", writer);
        self.datastores.encode("datastores", writer);
        self.metadata.encode("metadata", writer);
        self.backing.encode("backingObjectDetails", writer);
        self.policy.encode("profile", writer);
        if is_file {
            let quota_mib = Some(self.backing.capacity_mib());
            FileCreateSpec { quota_mib, permissions: self.permissions.clone() }
                .encode("createSpec", writer);
        }
        self.source.encode("volumeSource", writer);
        writer.close(name);
    }
}

impl VolumeMetadata {
    /// Drops fields that an older vCenter rejects. Each field was added in some release.
    fn drop_unsupported(&mut self, version: ApiVersion) {
        if version < ApiVersion::V7_0U2 {
            for cluster in self.cluster.iter_mut().chain(&mut self.clusters) {
                cluster.distribution = None;
            }
        }
        if version < ApiVersion::V7_0 {
            self.cluster.iter_mut().for_each(|cluster| cluster.flavor = None);
            self.clusters.clear();
            for entity in &mut self.entities {
                entity.cluster = None;
                entity.refers.clear();
            }
        }
    }
}

data! {
    #[derive(Eq)]
    pub struct VolumeMetadataUpdate {
        volume: VolumeId = "volumeId",
        /// The entries to add or remove.
        metadata: VolumeMetadata = "metadata",
    }
}

impl VolumeMetadataUpdate {
    pub(super) fn drop_unsupported(mut self, version: ApiVersion) -> Self {
        self.metadata.drop_unsupported(version);
        self
    }
}

data! {
    /// A volume and the VM to attach it to or detach it from.
    #[derive(Eq)]
    pub struct AttachSpec {
        volume: VolumeId = "volumeId",
        vm: MoRef = "vm",
    }
}

data! {
    /// A volume and its new size.
    #[derive(Eq)]
    pub struct ExtendSpec {
        volume: VolumeId = "volumeId",
        capacity_mib: i64 = "capacityInMb",
    }
}

data! {
    /// A volume and its new storage policy.
    #[derive(Eq)]
    pub struct PolicyChange {
        volume: VolumeId = "volumeId",
        policy: PolicyProfile = "profile",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::codec::to_xml;

    fn spec() -> CreateSpec {
        let cluster = ContainerCluster {
            kind: "KUBERNETES".to_owned(),
            id: "c1".to_owned(),
            user: "u".to_owned(),
            flavor: Some("VANILLA".to_owned()),
            distribution: Some("k".to_owned()),
            delete: None,
        };
        CreateSpec {
            name: "pvc-1".to_owned(),
            id: None,
            datastores: vec![MoRef::new("Datastore", "ds-1")],
            metadata: VolumeMetadata {
                cluster: Some(cluster),
                entities: Vec::new(),
                clusters: Vec::new(),
            },
            backing: BackingDetails::block(1024),
            policy: Some(PolicyProfile { id: "p".to_owned() }),
            permissions: Vec::new(),
            source: None,
        }
    }

    #[test]
    fn a_create_spec_is_encoded_in_the_order_vcenter_requires() {
        assert_eq!(
            to_xml("createSpecs", &spec()),
            "<createSpecs><name>pvc-1</name><volumeType>BLOCK</volumeType><datastores type=\"Datastore\">ds-1</datastores>\
             <metadata><containerCluster><clusterType>KUBERNETES</clusterType><clusterId>c1</clusterId>\
             <vSphereUser>u</vSphereUser><clusterFlavor>VANILLA</clusterFlavor><clusterDistribution>k</clusterDistribution>\
             </containerCluster></metadata>\
             <backingObjectDetails xsi:type=\"CnsBlockBackingDetails\"><capacityInMb>1024</capacityInMb></backingObjectDetails>\
             <profile xsi:type=\"VirtualMachineDefinedProfileSpec\"><profileId>p</profileId></profile></createSpecs>"
        );
    }

    #[test]
    fn fields_unknown_to_older_releases_are_dropped() {
        let encoded =
            |version: &str| to_xml("s", &spec().drop_unsupported(version.parse().unwrap()));
        assert!(encoded("8.0.0.0").contains("clusterDistribution"));
        assert!(
            !encoded("7.0.1.0").contains("clusterDistribution")
                && encoded("7.0.1.0").contains("clusterFlavor")
        );
        assert!(!encoded("6.7.3").contains("clusterFlavor"));
    }
}
