//! `spec.storageProvider`.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Implementation, Mode};
use crate::text::{
    ClientAddresses, DatastoreUrl, NodePath, ObjectName, ReleaseVersion, SharePermission,
    TagCategory,
};

/// The storage driver (CSI).
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!(has(self.vsphereCloudConfig) && has(self.vsphereCloudConfigs) && size(self.vsphereCloudConfigs) > 0)")
    .message("set vsphereCloudConfig or vsphereCloudConfigs, not both: the list names all vCenters"))]
#[x_kube(validation = Rule::new("has(self.vsphereCloudConfig) || (has(self.vsphereCloudConfigs) && size(self.vsphereCloudConfigs) > 0) || \
     (has(self.mode) && self.mode != 'Managed')")
    .message("name the vCenter: vsphereCloudConfig with the name of a VsphereCloudConfig object, for example vcenter-a"))]
#[x_kube(validation = Rule::new("!has(self.mode) || self.mode != 'Removed' || \
     !(has(self.version) || has(self.implementation) || has(self.storageClasses) || has(self.snapshots) || has(self.fileVolumes) || has(self.maxVolumesPerNode) || \
     has(self.topologyCategories) || has(self.migrationDatastoreUrl) || has(self.tuning))")
    .message("mode Removed uninstalls the storage driver: remove its version, implementation, storageClasses, snapshots, fileVolumes, maxVolumesPerNode, topologyCategories, migrationDatastoreUrl and tuning too"))]
#[serde(rename_all = "camelCase")]
pub struct StorageProvider {
    /// The name of the VsphereCloudConfig object of the vCenter that stores the volumes.
    ///
    /// Example: `vcenter-a`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsphere_cloud_config: Option<ObjectName>,

    /// Names of the VsphereCloudConfig objects, if more than one vCenter stores the volumes.
    ///
    /// Example: `[vcenter-a, vcenter-b]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub vsphere_cloud_configs: Vec<ObjectName>,

    /// The name of the Kubernetes distribution, which vCenter shows next to the volumes. If omitted, VDO
    /// detects it.
    ///
    /// Example: `OpenShift`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new(r"!self.contains('\n') && !self.contains('\r')")
        .message("must be a single line, such as OpenShift"))]
    pub cluster_distribution: Option<String>,

    /// The kubelet directory on the nodes, if it is not `/var/lib/kubelet`.
    ///
    /// Example: `/var/data/kubelet`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_kubelet_path: Option<NodePath>,

    /// Volumes that many pods can write (RWX), on vSAN file shares.
    ///
    /// Example: `{netPermissions: [{ips: 10.20.0.0/16, permissions: READ_WRITE, rootSquash: true}]}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_volumes: Option<FileVolumes>,

    /// Whether VDO manages the storage driver.
    ///
    /// Default: `Managed`, or `Observe` where the platform installs its own
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,

    /// Which implementation of the storage driver to run. VDO does not replace a running driver of one
    /// implementation with the other.
    ///
    /// Default: `Upstream`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implementation: Option<Implementation>,

    /// The release to run. If omitted, VDO selects one.
    ///
    /// Example: `3.7.0`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ReleaseVersion>,

    /// The vCenter tag categories for volume topology, the widest first. Set it only if they differ from
    /// `cloudProvider.topology`.
    ///
    /// Example: `[k8s-region, k8s-zone]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub topology_categories: Vec<TagCategory>,

    /// Volume snapshots.
    ///
    /// Example: `{installController: true, maxPerVolume: 3}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Snapshots>,

    /// StorageClasses that VDO creates and maintains.
    ///
    /// Example: `[{name: fast, storagePolicy: Gold, default: true}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[x_kube(validation = Rule::new("self.filter(class, has(class.default) && class.default).size() <= 1")
        .message("only one StorageClass can be the default: leave default: true on one of them"))]
    pub storage_classes: Vec<StorageClassSpec>,

    /// The maximum number of volumes per node. More than 59 needs a driver release and a vSphere version
    /// that support it.
    ///
    /// Default: `59`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 255))]
    pub max_volumes_per_node: Option<i32>,

    /// The datastore for volumes of the in-tree driver whose StorageClass names none.
    ///
    /// Example: `ds:///vmfs/volumes/5f3e2b1c-0d4a9e5c-8f1a-0050568c1a2b/`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_datastore_url: Option<DatastoreUrl>,

    /// Intervals and limits inside the driver. The defaults fit nearly every cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<StorageTuning>,
}

impl StorageProvider {
    /// The names of the VsphereCloudConfigs, from either field.
    pub fn vcenters(&self) -> Vec<&ObjectName> {
        self.vsphere_cloud_config.iter().chain(&self.vsphere_cloud_configs).collect()
    }
}

/// Volumes that many pods can write, on vSAN file shares.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileVolumes {
    /// URLs of the vSAN datastores for file shares. If omitted, the driver uses all datastores with the
    /// file service. Driver releases 3.x select by cluster instead: see `vsanClusters`.
    ///
    /// Example: `[ds:///vmfs/volumes/vsan:52cdfa80721ff516-ea1e993113acfc77/]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub vsan_data_store_url: Vec<DatastoreUrl>,

    /// IDs of the vSAN clusters for file shares. If omitted, the driver uses all clusters with the file
    /// service.
    ///
    /// Example: `[domain-c8]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    #[x_kube(validation = Rule::new("self.all(id, !id.contains(','))")
        .message("must be one cluster per item, for example [domain-c8, domain-c9]"))]
    pub vsan_clusters: Vec<String>,

    /// Which clients can mount the shares. If omitted, every client can.
    ///
    /// Example: `[{ips: 10.20.0.0/16, permissions: READ_WRITE, rootSquash: true}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub net_permissions: Vec<NetPermission>,
}

/// Which clients can mount file shares.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetPermission {
    /// The client addresses: one address, a subnet, a range, or `*` for all.
    ///
    /// Example: `10.20.0.0/16`
    pub ips: ClientAddresses,

    /// The access of these clients: `READ_WRITE`, `READ_ONLY` or `NO_ACCESS`.
    ///
    /// Default: `READ_WRITE`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<SharePermission>,

    /// Map the root user of these clients to an unprivileged user.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_squash: Option<bool>,
}

/// Volume snapshots.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshots {
    /// Install the snapshot controller and its CRDs if the cluster has none.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_controller: Option<bool>,

    /// The maximum number of snapshots per volume.
    ///
    /// Default: `3`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub max_per_volume: Option<i32>,

    /// The maximum number of snapshots per volume on vSAN datastores, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub max_per_volume_vsan: Option<i32>,

    /// The maximum number of snapshots per volume on vVols datastores, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub max_per_volume_vvol: Option<i32>,
}

/// A StorageClass that VDO creates and maintains.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageClassSpec {
    /// The name of the StorageClass.
    ///
    /// Example: `fast`
    pub name: ObjectName,

    /// The vCenter storage policy that places the volumes.
    ///
    /// Example: `Gold`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub storage_policy: Option<String>,

    /// The URL of the datastore for the volumes.
    ///
    /// Example: `ds:///vmfs/volumes/vsan:52cdfa80721ff516-ea1e993113acfc77/`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore_url: Option<DatastoreUrl>,

    /// Make this the default StorageClass of the cluster.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<bool>,

    /// Whether a volume is deleted together with its claim.
    ///
    /// Default: `Delete`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_policy: Option<ReclaimPolicy>,

    /// When the driver creates a volume.
    ///
    /// Default: `WaitForFirstConsumer` with zones, else `Immediate`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding_mode: Option<BindingMode>,

    /// Allow volume expansion.
    ///
    /// Default: `true`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_expansion: Option<bool>,

    /// The file system of the volumes.
    ///
    /// Default: `ext4`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<FsType>,
}

/// Whether a volume is deleted together with its claim.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReclaimPolicy {
    /// Delete the volume and its data.
    #[default]
    Delete,
    /// Keep the volume.
    Retain,
}

/// When the driver creates a volume.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BindingMode {
    /// As soon as the claim exists.
    #[default]
    Immediate,
    /// When a pod uses the claim, in the zone of that pod.
    WaitForFirstConsumer,
}

/// A file system.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// ext4.
    #[default]
    Ext4,
    /// ext3.
    Ext3,
    /// XFS.
    Xfs,
    /// NTFS, for Windows nodes.
    Ntfs,
    /// A file share (RWX).
    Nfs4,
}

/// Intervals and limits inside the driver.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageTuning {
    /// The maximum number of volumes in one answer of vCenter.
    ///
    /// Default: `10000`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub query_limit: Option<i32>,

    /// How many volumes can differ between vCenter and Kubernetes before ListVolumes fails.
    ///
    /// Default: `50`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub list_volume_threshold: Option<i32>,

    /// Minutes between two checks of the user's privileges on datastores.
    ///
    /// Default: `5`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub auth_check_minutes: Option<i32>,

    /// Minutes between two checks for preferred datastores.
    ///
    /// Default: `5`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub preferred_datastores_minutes: Option<i32>,

    /// Minutes after which the driver deletes finished volume registrations.
    ///
    /// Default: `720`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub register_volume_cleanup_minutes: Option<i32>,

    /// Minutes between two clean-ups of orphaned claims.
    ///
    /// Default: `10`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub claim_protection_cleanup_minutes: Option<i32>,

    /// Minutes after which the driver deletes stale migration objects.
    ///
    /// Default: `120`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub migration_cleanup_minutes: Option<i32>,

    /// Minutes after which the driver deletes stale volume operations.
    ///
    /// Default: `15`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub operation_cleanup_minutes: Option<i32>,
}
