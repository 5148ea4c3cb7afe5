use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Known, Version};

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// Name.
    pub name: String,
    /// When it joined.
    pub created: Timestamp,
    /// Whether its kubelet says it is ready.
    pub ready: bool,
    /// Since when it is (not) ready.
    pub ready_since: Timestamp,
    /// Whether it runs the control plane.
    pub control_plane: bool,
    /// `linux` or `windows`.
    pub os: String,
    /// `spec.providerID`.
    pub provider_id: Option<String>,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: String,
    /// What its kubelet is short of, as Kubernetes calls the condition: it evicts pods for it.
    pub pressure: Option<String>,
    /// Keys of its taints.
    pub taints: Vec<String>,
    /// Labels the checks look at: zones, regions, platform.
    pub labels: BTreeMap<String, String>,
    /// The address kubelet was told to use (`--node-ip`).
    pub provided_ip: Option<String>,
    /// Kubelet's version.
    pub kubelet: Version,
    /// Its CSINode's entry for the vSphere driver; inner absence: it has none.
    pub csi: Known<Option<CsiEntry>>,
    /// `status.errorMessage` of its CSINodeTopology, if there is one.
    pub topology_error: Known<Option<String>>,
    /// Warnings its kubelet wrote about disks it could not mount.
    pub mount_failures: Known<Vec<super::Event>>,
}

impl Node {
    /// The taint that says the cloud provider has not seen it yet.
    pub const UNINITIALIZED: &'static str = "node.cloudprovider.kubernetes.io/uninitialized";
    /// The taint that lets volumes go from a node that is off.
    pub const OUT_OF_SERVICE: &'static str = "node.kubernetes.io/out-of-service";

    /// Whether it has a taint.
    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| taint == key)
    }

    /// Whether it runs on something that is not vSphere, by what it says of itself.
    pub fn is_foreign(&self) -> bool {
        self.provider_id.as_deref().is_some_and(is_foreign_id)
            || is_told_foreign(|label| self.labels.get(label).map(String::as_str))
    }
}

/// How the provider ids of cloud controllers begin that come with a distribution and know no cloud: they
/// give one to every node, whatever it runs on.
const EMBEDDED: [&str; 3] = ["k3s://", "rke2://", "k0s-cloud-provider://"];

/// Whether a provider id is of a cloud controller that came with the distribution. It says nothing about
/// where the node runs, and keeps a cloud provider from taking the node for its own.
pub fn is_embedded_id(provider_id: &str) -> bool {
    EMBEDDED.iter().any(|start| provider_id.starts_with(start))
}

/// Whether a provider id says that the node runs on something that is not vSphere.
pub fn is_foreign_id(provider_id: &str) -> bool {
    let ours = provider_id.is_empty() || provider_id.starts_with("vsphere://");
    !ours && !is_embedded_id(provider_id)
}

/// The label by which an admin says of a node that it is no machine of vSphere, with the value `false`.
pub const VSPHERE_LABEL: &str = "vdo.vmware.com/vsphere";
/// The label by which OpenShift says on what a node of a mixed cluster runs.
pub const PLATFORM_LABEL: &str = "node.openshift.io/platform-type";

/// Whether the labels of a node say that it runs on something that is not vSphere. The storage driver is
/// not put on such nodes either.
pub fn is_told_foreign<'a>(label: impl Fn(&str) -> Option<&'a str>) -> bool {
    label(VSPHERE_LABEL) == Some("false")
        || label(PLATFORM_LABEL).is_some_and(|platform| platform != "vsphere")
}

/// An entry of a CSINode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiEntry {
    /// The node by the driver's name for it: the VM's uuid since release 2.5.
    pub node_id: String,
    /// How many volumes it may hold.
    pub limit: Option<u32>,
    /// Topology keys.
    pub topology_keys: Vec<String>,
}
