//! The storage section.

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
    .message("set vsphereCloudConfig or vsphereCloudConfigs, not both: the list holds all vCenters"))]
#[x_kube(validation = Rule::new("has(self.vsphereCloudConfig) || (has(self.vsphereCloudConfigs) && size(self.vsphereCloudConfigs) > 0) || \
     (has(self.mode) && self.mode != 'Managed')")
    .message("name the vCenter: vsphereCloudConfig with the name of a VsphereCloudConfig object, for example vcenter-a"))]
#[x_kube(validation = Rule::new("!has(self.mode) || self.mode != 'Removed' || \
     !(has(self.version) || has(self.implementation) || has(self.storageClasses) || has(self.snapshots) || has(self.fileVolumes) || has(self.maxVolumesPerNode) || \
     has(self.topologyCategories) || has(self.migrationDatastoreUrl) || has(self.tuning))")
    .message("mode Removed takes the storage driver away: remove its version, implementation, storageClasses, snapshots, fileVolumes, maxVolumesPerNode, topologyCategories, migrationDatastoreUrl and tuning too"))]
#[serde(rename_all = "camelCase")]
pub struct StorageProvider {
    /// Name of the VsphereCloudConfig object of the vCenter volumes are made on.
    ///
    /// Example: `vcenter-a`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsphere_cloud_config: Option<ObjectName>,

    /// Names of the VsphereCloudConfig objects, if volumes are made on more than one vCenter.
    ///
    /// Example: `[vcenter-a, vcenter-b]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub vsphere_cloud_configs: Vec<ObjectName>,

    /// Name of the distribution, shown in vCenter beside the volumes. VDO fills it in if left out.
    ///
    /// Example: `OpenShift`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new(r"!self.contains('\n') && !self.contains('\r')")
        .message("must be a single line, such as OpenShift"))]
    pub cluster_distribution: Option<String>,

    /// Kubelet's directory on the nodes, if it is not `/var/lib/kubelet`.
    ///
    /// Example: `/var/data/kubelet`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_kubelet_path: Option<NodePath>,

    /// Volumes many pods can write (RWX), on vSAN file shares.
    ///
    /// Example: `{netPermissions: [{ips: 10.20.0.0/16, permissions: READ_WRITE, rootSquash: true}]}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_volumes: Option<FileVolumes>,

    /// Whether VDO runs the storage driver.
    ///
    /// Default: `Managed`, or `Observe` where the platform brings its own
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,

    /// Whose storage driver to run.
    ///
    /// Default: `Upstream`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implementation: Option<Implementation>,

    /// Release to run, instead of the one VDO chooses.
    ///
    /// Example: `3.7.0`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ReleaseVersion>,

    /// Tag categories volumes follow. Only needed if they differ from `cloudProvider.topology`.
    ///
    /// Example: `[k8s-region, k8s-zone]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub topology_categories: Vec<TagCategory>,

    /// Snapshots of volumes.
    ///
    /// Example: `{installController: true, maxPerVolume: 3}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Snapshots>,

    /// StorageClasses VDO keeps.
    ///
    /// Example: `[{name: fast, storagePolicy: Gold, default: true}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[x_kube(validation = Rule::new("self.filter(class, has(class.default) && class.default).size() <= 1")
        .message("only one StorageClass can be the default: leave default: true on one of them"))]
    pub storage_classes: Vec<StorageClassSpec>,

    /// How many volumes one node can hold. More than 59 needs a driver release and a vSphere that
    /// support it.
    ///
    /// Default: `59`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 255))]
    pub max_volumes_per_node: Option<i32>,

    /// Datastore of volumes that were made by the in-tree driver, if their StorageClass names none.
    ///
    /// Example: `ds:///vmfs/volumes/5f3e2b1c-0d4a9e5c-8f1a-0050568c1a2b/`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_datastore_url: Option<DatastoreUrl>,

    /// Intervals and limits inside the driver. The defaults suit nearly everyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<StorageTuning>,
}

impl StorageProvider {
    /// The vCenters by the name of their object, whichever field names them.
    pub fn vcenters(&self) -> Vec<&ObjectName> {
        self.vsphere_cloud_config.iter().chain(&self.vsphere_cloud_configs).collect()
    }
}

/// Volumes many pods can write, on vSAN file shares.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileVolumes {
    /// vSAN datastores file shares may be made on, by URL; all with file services if left out. Driver
    /// releases 3.x choose by cluster: see `vsanClusters`.
    ///
    /// Example: `[ds:///vmfs/volumes/vsan:52cdfa80721ff516-ea1e993113acfc77/]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub vsan_data_store_url: Vec<DatastoreUrl>,

    /// vSAN clusters file shares may be made on, by id; all with file services if left out.
    ///
    /// Example: `[domain-c8]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    #[x_kube(validation = Rule::new("self.all(id, !id.contains(','))")
        .message("must be one cluster per item, for example [domain-c8, domain-c9]"))]
    pub vsan_clusters: Vec<String>,

    /// Who may mount the shares; everyone if left out.
    ///
    /// Example: `[{ips: 10.20.0.0/16, permissions: READ_WRITE, rootSquash: true}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub net_permissions: Vec<NetPermission>,
}

/// Who may mount file shares.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetPermission {
    /// Addresses: one, a subnet, a range, or `*` for all.
    ///
    /// Example: `10.20.0.0/16`
    pub ips: ClientAddresses,

    /// What they may do: `READ_WRITE`, `READ_ONLY` or `NO_ACCESS`.
    ///
    /// Default: `READ_WRITE`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<SharePermission>,

    /// Take root's rights away from root users of these clients.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_squash: Option<bool>,
}

/// Snapshots of volumes.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshots {
    /// Install the snapshot controller and its CRDs, if the cluster has none.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_controller: Option<bool>,

    /// How many snapshots one volume may have.
    ///
    /// Default: `3`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub max_per_volume: Option<i32>,

    /// The same on vSAN datastores, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub max_per_volume_vsan: Option<i32>,

    /// The same on vVols datastores, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub max_per_volume_vvol: Option<i32>,
}

/// A StorageClass VDO keeps.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageClassSpec {
    /// Name of the StorageClass.
    ///
    /// Example: `fast`
    pub name: ObjectName,

    /// Storage policy in vCenter that places its volumes.
    ///
    /// Example: `Gold`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub storage_policy: Option<String>,

    /// Datastore its volumes are made on, by URL.
    ///
    /// Example: `ds:///vmfs/volumes/vsan:52cdfa80721ff516-ea1e993113acfc77/`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore_url: Option<DatastoreUrl>,

    /// Use this class where a claim names none.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<bool>,

    /// What happens to a volume when its claim is deleted.
    ///
    /// Default: `Delete`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_policy: Option<ReclaimPolicy>,

    /// When a volume is made.
    ///
    /// Default: `WaitForFirstConsumer` with zones, else `Immediate`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding_mode: Option<BindingMode>,

    /// Let claims grow.
    ///
    /// Default: `true`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_expansion: Option<bool>,

    /// File system of its volumes.
    ///
    /// Default: `ext4`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<FsType>,
}

/// What happens to a volume when its claim is deleted.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReclaimPolicy {
    /// The volume and its data are deleted.
    #[default]
    Delete,
    /// The volume stays.
    Retain,
}

/// When a volume is made.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BindingMode {
    /// As soon as it is claimed.
    #[default]
    Immediate,
    /// When a pod needs it, in the pod's zone.
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
    /// How many volumes one query to vCenter may return.
    ///
    /// Default: `10000`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub query_limit: Option<i32>,

    /// How many volumes may differ between vCenter and Kubernetes before listing volumes fails.
    ///
    /// Default: `50`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub list_volume_threshold: Option<i32>,

    /// Minutes between looks at which datastores the user may use.
    ///
    /// Default: `5`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub auth_check_minutes: Option<i32>,

    /// Minutes between looks at preferred datastores.
    ///
    /// Default: `5`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub preferred_datastores_minutes: Option<i32>,

    /// Minutes after which finished registrations of volumes are cleaned up.
    ///
    /// Default: `720`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub register_volume_cleanup_minutes: Option<i32>,

    /// Minutes between clean-ups of orphaned claims.
    ///
    /// Default: `10`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub claim_protection_cleanup_minutes: Option<i32>,

    /// Minutes after which stale migration objects are cleaned up.
    ///
    /// Default: `120`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub migration_cleanup_minutes: Option<i32>,

    /// Minutes after which stale volume operations are cleaned up.
    ///
    /// Default: `15`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub operation_cleanup_minutes: Option<i32>,
}
