//! Volumes, as they are sent to the container storage service.

use crate::moref::MoRef;
use crate::version::ApiVersion;
use crate::xml::XmlError;
use crate::xml::codec::{Decode, Encode, data};
use crate::xml::reader::{Reader, Start};
use crate::xml::writer::Writer;

data! {
    /// Names a volume.
    #[derive(Eq, Hash)]
    pub struct VolumeId {
        /// The id, a uuid; of a file volume with `file:` before it.
        id: String = "id",
    }
}

impl From<&str> for VolumeId {
    fn from(id: &str) -> Self {
        Self { id: id.to_owned() }
    }
}

data! {
    /// Names a snapshot of a volume.
    #[derive(Eq, Hash)]
    pub struct SnapshotId {
        /// The id.
        id: String = "id",
    }
}

data! {
    /// A label.
    #[derive(Eq)]
    pub struct KeyValue {
        /// Its key.
        key: String = "key",
        /// Its value.
        value: String = "value",
    }
}

data! {
    /// A container cluster that owns volumes.
    #[derive(Eq)]
    pub struct ContainerCluster {
        /// `KUBERNETES`.
        kind: String = "clusterType",
        /// The cluster's id: unique, and never changed.
        id: String = "clusterId",
        /// The user that works for it.
        user: String = "vSphereUser",
        /// `VANILLA`.
        flavor: Option<String> = "clusterFlavor",
        /// What kind of Kubernetes, in words.
        distribution: Option<String> = "clusterDistribution",
        /// Whether it is to be taken off the volume.
        delete: Option<bool> = "delete",
    }
}

data! {
    /// What a Kubernetes object has to do with a volume.
    #[derive(Eq)]
    pub struct EntityMetadata xsi "CnsKubernetesEntityMetadata" {
        /// The object's name.
        name: String = "entityName",
        /// Its labels.
        labels: Vec<KeyValue> = "labels",
        /// Whether it is to be taken off the volume.
        delete: Option<bool> = "delete",
        /// Its cluster.
        cluster: Option<String> = "clusterId",
        /// `PERSISTENT_VOLUME`, `PERSISTENT_VOLUME_CLAIM`, `POD`.
        kind: Option<String> = "entityType",
        /// Its namespace.
        namespace: Option<String> = "namespace",
        /// Objects it refers to.
        refers: Vec<EntityReference> = "referredEntity",
    }
}

data! {
    /// A Kubernetes object.
    #[derive(Eq)]
    pub struct EntityReference {
        /// Its kind.
        kind: String = "entityType",
        /// Its name.
        name: String = "entityName",
        /// Its namespace.
        namespace: Option<String> = "namespace",
        /// Its cluster.
        cluster: Option<String> = "clusterId",
    }
}

data! {
    /// Whose a volume is, and what for.
    #[derive(Eq)]
    pub struct VolumeMetadata {
        /// Its cluster.
        cluster: Option<ContainerCluster> = "containerCluster",
        /// Its Kubernetes objects.
        entities: Vec<EntityMetadata> = "entityMetadata",
        /// Its clusters, where there are several.
        clusters: Vec<ContainerCluster> = "containerClusterArray",
    }
}

data! {
    /// A policy to create a volume by.
    #[derive(Eq)]
    pub struct PolicyProfile xsi "VirtualMachineDefinedProfileSpec" {
        /// The policy's id.
        id: String = "profileId",
    }
}

data! {
    /// Who may use a file share.
    #[derive(Eq)]
    pub struct FilePermission xsi "VsanFileShareNetPermission" {
        /// Addresses, or `*`.
        ips: String = "ips",
        /// `READ_WRITE`, `READ_ONLY`, `NO_ACCESS`.
        access: Option<String> = "permissions",
        /// Whether root stays root.
        allow_root: Option<bool> = "allowRoot",
    }
}

/// What a volume is made of, or is to be made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackingDetails {
    /// A disk.
    Block {
        /// Its size.
        capacity_mib: i64,
        /// A disk that is there already, to become a volume.
        disk_id: Option<String>,
        /// The same, by the address of its file.
        disk_url: Option<String>,
    },
    /// A share of the vSAN file service.
    File {
        /// Its size.
        capacity_mib: i64,
        /// A share that is there already, to become a volume.
        file_id: Option<String>,
        /// How to reach it: `NFSv4.1` and the like, with an address.
        access_points: Vec<KeyValue>,
    },
}

impl BackingDetails {
    /// A new disk of this size.
    pub fn block(capacity_mib: i64) -> Self {
        Self::Block { capacity_mib, disk_id: None, disk_url: None }
    }

    /// The size.
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
    /// A snapshot to make a volume from.
    #[derive(Eq)]
    pub struct VolumeSource xsi "CnsSnapshotVolumeSource" {
        /// The volume it was made of.
        volume: VolumeId = "volumeId",
        /// The snapshot.
        snapshot: SnapshotId = "snapshotId",
    }
}

data! {
    struct FileCreateSpec xsi "CnsVSANFileCreateSpec" {
        quota_mib: Option<i64> = "softQuotaInMb",
        permissions: Vec<FilePermission> = "permission",
    }
}

/// A volume to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateSpec {
    /// Its name; at most 80 characters.
    pub name: String,
    /// The id it is to have; vCenter 9.1 and later.
    pub id: Option<VolumeId>,
    /// Where it may be put; vCenter chooses.
    pub datastores: Vec<MoRef>,
    /// Whose it is.
    pub metadata: VolumeMetadata,
    /// What it is made of.
    pub backing: BackingDetails,
    /// The policy it follows.
    pub policy: Option<PolicyProfile>,
    /// Who may use it, if it is a file share.
    pub permissions: Vec<FilePermission>,
    /// The snapshot it is made from.
    pub source: Option<VolumeSource>,
}

impl CreateSpec {
    /// Leaves out what an older vCenter would refuse the request for.
    pub(super) fn fit(mut self, version: ApiVersion) -> Self {
        self.metadata.fit(version);
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
    /// Leaves out what an older vCenter would refuse the request for: each of these came with a
    /// release.
    fn fit(&mut self, version: ApiVersion) {
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
    /// What to change of a volume's metadata.
    #[derive(Eq)]
    pub struct VolumeMetadataUpdate {
        /// The volume.
        volume: VolumeId = "volumeId",
        /// What is added or taken off.
        metadata: VolumeMetadata = "metadata",
    }
}

impl VolumeMetadataUpdate {
    pub(super) fn fit(mut self, version: ApiVersion) -> Self {
        self.metadata.fit(version);
        self
    }
}

data! {
    /// A volume and the machine it is, or is to be, attached to.
    #[derive(Eq)]
    pub struct AttachSpec {
        /// The volume.
        volume: VolumeId = "volumeId",
        /// The machine.
        vm: MoRef = "vm",
    }
}

data! {
    /// A volume and the size it is to have.
    #[derive(Eq)]
    pub struct ExtendSpec {
        /// The volume.
        volume: VolumeId = "volumeId",
        /// The new size.
        capacity_mib: i64 = "capacityInMb",
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
    fn a_create_spec_is_written_in_the_order_vcenter_demands() {
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
    fn older_releases_are_not_told_what_they_do_not_know() {
        let written = |version: &str| to_xml("s", &spec().fit(version.parse().unwrap()));
        assert!(written("8.0.0.0").contains("clusterDistribution"));
        assert!(
            !written("7.0.1.0").contains("clusterDistribution")
                && written("7.0.1.0").contains("clusterFlavor")
        );
        assert!(!written("6.7.3").contains("clusterFlavor"));
    }
}
