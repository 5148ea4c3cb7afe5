//! `VDOConfig`: the desired state of the drivers.

mod cloud_provider;
mod operation;
mod overrides;
mod status;
mod storage_provider;

use std::collections::BTreeSet;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::ObjectName;

pub use cloud_provider::{
    CloudProvider, IpFamily, NodeAddresses, NodeDeletion, NodeDeletionLimits, Nsx, NsxLoadBalancer,
    NsxLoadBalancerClass, NsxLoadBalancerSize, Topology,
};
pub use operation::{
    AcknowledgedFinding, Adoption, CatalogSource, DeletionPolicy, Images, Mirror, Remediation,
    Remedy, Repair, UpgradePolicy, UpgradeWindow, Upgrades, Weekday,
};
pub use overrides::{
    Amounts, ContainerOverrides, LogLevel, Overrides, PodToleration, Proxy, Resources, TaintEffect,
    Variable, WorkloadOverrides,
};
pub use status::{
    DriverStatus, Health, HealthSummary, NodeState, Phase, Plan, PlanState, PlanStep,
    RepairSummary, StepState, VDOConfigStatus, VcenterVersion, Versions,
};
pub use storage_provider::{
    BindingMode, FileVolumes, FsType, NetPermission, ReclaimPolicy, Snapshots, StorageClassSpec,
    StorageProvider, StorageTuning,
};

/// The vSphere drivers of the cluster, their vCenters, and how VDO manages them. One per cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "vdo.vmware.com",
    version = "v1alpha1",
    kind = "VDOConfig",
    plural = "vdoconfigs",
    namespaced,
    status = "VDOConfigStatus",
    shortname = "vdo",
    category = "vsphere",
    derive = "PartialEq",
    derive = "Default",
    // The Go VDO stored objects without a spec; one of them must not break the watch of all objects.
    // The macro rejects a plain `serde` attribute, hence the detour.
    attr = "cfg_attr(all(), serde(default))",
    doc = "The vSphere drivers of the cluster, their vCenters, and how VDO manages them. One per cluster.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "CPI", type_ = "string", json_path = ".status.cpi.version"),
    printcolumn(name = "CSI", type_ = "string", json_path = ".status.csi.version"),
    printcolumn(
        name = "Upgrade",
        type_ = "string",
        json_path = ".status.plan.summary",
        priority = "1"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = "1"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("has(self.cloudProvider) || has(self.storageProvider)")
    .message("the spec requests no driver: add storageProvider, cloudProvider or both"))]
#[x_kube(validation = Rule::new("has(self.storageProvider) || !has(self.cloudProvider) || \
     (has(self.cloudProvider.vsphereCloudConfigs) && size(self.cloudProvider.vsphereCloudConfigs) > 0) || \
     (has(self.cloudProvider.mode) && self.cloudProvider.mode != 'Managed')")
    .message("name the vCenters: cloudProvider.vsphereCloudConfigs with names of VsphereCloudConfig objects, for example [vcenter-a]"))]
#[x_kube(validation = Rule::new("!has(self.storageProvider) || !has(self.storageProvider.vsphereCloudConfigs) || \
     size(self.storageProvider.vsphereCloudConfigs) < 2 || \
     (has(self.storageProvider.topologyCategories) && size(self.storageProvider.topologyCategories) > 0) || \
     (has(self.cloudProvider) && has(self.cloudProvider.topology) && has(self.cloudProvider.topology.zone) && self.cloudProvider.topology.zone != '')")
    .message("storage on several vCenters needs zones: set cloudProvider.topology, or storageProvider.topologyCategories such as [k8s-region, k8s-zone]"))]
#[x_kube(validation = Rule::new("!has(self.upgrades) || !has(self.upgrades.policy) || self.upgrades.policy != 'Pinned' || \
     ((!has(self.cloudProvider) || has(self.cloudProvider.version)) && (!has(self.storageProvider) || has(self.storageProvider.version)))")
    .message("upgrades.policy Pinned needs the releases to stay on: set version in cloudProvider and storageProvider, for example version: 3.7.0"))]
#[serde(rename_all = "camelCase")]
pub struct VDOConfigSpec {
    /// The cloud provider (CPI). It sets the addresses, zones and provider IDs of nodes, and removes
    /// nodes whose VM no longer exists. Omit it to install storage only.
    ///
    /// Example: `{vsphereCloudConfigs: [vcenter-a], topology: {zone: k8s-zone, region: k8s-region}}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_provider: Option<CloudProvider>,

    /// The storage driver (CSI). It provides persistent volumes on vSphere datastores.
    ///
    /// Example: `{vsphereCloudConfig: vcenter-a}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_provider: Option<StorageProvider>,

    /// When and how VDO upgrades drivers.
    ///
    /// Example: `{policy: Stable, window: {days: [Saturday], start: "02:00", duration: 4h}}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrades: Option<Upgrades>,

    /// The registry that nodes pull driver images from.
    ///
    /// Example: `{registry: registry.example.com/vsphere, pullSecrets: [registry]}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Images>,

    /// Settings of the driver pods that replace those of the release, or add to them: resources,
    /// tolerations, arguments, log level, proxy and others. VDO keeps them in every release.
    ///
    /// Example: `{storageController: {logLevel: Debug}}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<Overrides>,

    /// Which problems VDO fixes without asking. By default VDO only proposes a fix.
    ///
    /// Example: `{diskUuid: Fix}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<Remediation>,

    /// Whether VDO adopts drivers that it did not install.
    ///
    /// Default: `Propose`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adoption: Option<Adoption>,

    /// Whether VDO keeps or uninstalls the drivers when you delete this object.
    ///
    /// Default: `Retain`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,

    /// Findings that you accept for now. The status still shows them, marked as acknowledged. They
    /// neither block a step nor set the condition Degraded.
    ///
    /// Example: `[{code: VDO-1207, object: worker-3, reason: backup window, until: "2027-01-31T00:00:00Z"}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub acknowledgements: Vec<AcknowledgedFinding>,

    /// Pause VDO: it observes and reports, but changes nothing.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

impl VDOConfigSpec {
    /// The names of the VsphereCloudConfigs of both drivers, each once.
    pub fn vcenters(&self) -> BTreeSet<&ObjectName> {
        let cloud = self.cloud_provider.iter().flat_map(|cloud| &cloud.vsphere_cloud_configs);
        let storage = self.storage_provider.iter().flat_map(StorageProvider::vcenters);
        cloud.chain(storage).collect()
    }

    /// The tag categories for volume topology, the widest first: those of the storage provider, else
    /// those of the cloud provider. Empty without zones.
    pub fn topology_categories(&self) -> Vec<&str> {
        let own = self.storage_provider.iter().flat_map(|storage| &storage.topology_categories);
        let own: Vec<&str> = own.map(|category| &**category).collect();
        let shared = self.cloud_provider.as_ref().and_then(|cloud| cloud.topology.as_ref());
        match shared.filter(|topology| own.is_empty() && topology.is_set()) {
            Some(topology) => vec![&topology.region, &topology.zone],
            None => own,
        }
    }

    pub fn upgrade_policy(&self) -> UpgradePolicy {
        self.upgrades.as_ref().and_then(|upgrades| upgrades.policy).unwrap_or_default()
    }

    pub fn adoption(&self) -> Adoption {
        self.adoption.unwrap_or_default()
    }

    pub fn deletion_policy(&self) -> DeletionPolicy {
        self.deletion_policy.unwrap_or_default()
    }

    pub fn remedy(&self, repair: Repair) -> Remedy {
        self.remediation.as_ref().map(|remediation| remediation.remedy(repair)).unwrap_or_default()
    }

    pub fn is_paused(&self) -> bool {
        self.paused.unwrap_or_default()
    }
}

/// Whether VDO manages a driver.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// VDO installs, configures, upgrades and repairs the driver.
    #[default]
    Managed,
    /// VDO only observes and reports. This is the default where the platform installs the driver, as
    /// OpenShift on vSphere does.
    Observe,
    /// VDO uninstalls the driver, unless volumes still depend on it.
    Removed,
}

/// Which implementation of a driver runs.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Implementation {
    /// The upstream Go driver.
    #[default]
    Upstream,
    /// The Rust driver of this project.
    Rust,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: serde_json::Value) -> VDOConfigSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn storage_uses_the_zones_of_the_cloud_provider_unless_it_has_its_own() {
        let topology = serde_json::json!({"zone": "z", "region": "r"});
        let shared = spec(serde_json::json!({"cloudProvider": {"topology": topology}}));
        assert_eq!(shared.topology_categories(), ["r", "z"]);
        let own = spec(serde_json::json!({
            "cloudProvider": {"topology": topology},
            "storageProvider": {"topologyCategories": ["rack"]},
        }));
        assert_eq!(own.topology_categories(), ["rack"]);
        let empty = serde_json::json!({"cloudProvider": {"topology": {"zone": "", "region": ""}}});
        assert!(spec(empty).topology_categories().is_empty());
    }

    #[test]
    fn a_vcenter_named_twice_is_returned_once() {
        let spec = spec(serde_json::json!({
            "cloudProvider": {"vsphereCloudConfigs": ["b", "a"]},
            "storageProvider": {"vsphereCloudConfig": "a"},
        }));
        let names: Vec<&str> = spec.vcenters().into_iter().map(|name| &**name).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn defaults_are_the_safe_choice() {
        let spec = VDOConfigSpec::default();
        assert_eq!(spec.deletion_policy(), DeletionPolicy::Retain);
        assert_eq!(spec.adoption(), Adoption::Propose);
        assert_eq!(spec.upgrade_policy(), UpgradePolicy::Stable);
        assert_eq!(spec.remedy(Repair::DiskUuid), Remedy::Propose);
        assert!(!spec.is_paused());
    }

    #[test]
    fn a_setting_for_one_repair_overrides_the_default() {
        let remediation = serde_json::json!({"default": "Off", "diskUuid": "Fix"});
        let spec = spec(serde_json::json!({"remediation": remediation}));
        assert_eq!(spec.remedy(Repair::DiskUuid), Remedy::Fix);
        assert_eq!(spec.remedy(Repair::CsiNodes), Remedy::Off);
    }
}
