use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Known, Platform, Version};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    pub name: String,
    /// When it joined.
    pub created: Timestamp,
    pub ready: bool,
    /// When `ready` last changed.
    pub ready_since: Timestamp,
    /// Its label for control plane nodes, if it has one. [`control_plane`] decides whether the label counts.
    pub control_plane: Option<String>,
    /// `linux` or `windows`.
    pub os: String,
    /// `spec.providerID`.
    pub provider_id: Option<String>,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: String,
    /// The pressure condition for which its kubelet evicts pods, for example `DiskPressure`.
    pub pressure: Option<String>,
    /// Its taints: key and effect.
    pub taints: Vec<(String, String)>,
    /// Only labels that checks and rules read: zones, regions, platform.
    pub labels: BTreeMap<String, String>,
    /// Whether VDO itself set [`VSPHERE_LABEL`] to `false`.
    pub excluded_by_vdo: bool,
    /// The kubelet's `--node-ip`.
    pub provided_ip: Option<String>,
    pub kubelet: Version,
    /// The vSphere driver's entry in its CSINode; `None` if there is none.
    pub csi: Known<Option<CsiEntry>>,
    /// `status.errorMessage` of its CSINodeTopology, if there is one.
    pub topology_error: Known<Option<String>>,
    /// The kubelet's warnings about disks that it could not mount.
    pub mount_failures: Known<Vec<MountFailure>>,
}

impl Node {
    /// The taint that the cloud provider removes when it initialises the node.
    pub const UNINITIALIZED: &'static str = "node.cloudprovider.kubernetes.io/uninitialized";
    /// The taint that makes Kubernetes detach the volumes of a node that is off.
    pub const OUT_OF_SERVICE: &'static str = "node.kubernetes.io/out-of-service";

    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|(taint, _)| taint == key)
    }

    /// Whether a cloud controller has initialised it.
    pub fn is_initialized(&self) -> bool {
        !self.has_taint(Self::UNINITIALIZED)
    }

    pub fn is_windows(&self) -> bool {
        self.os == "windows"
    }

    /// `spec.providerID`; empty if it has none.
    pub fn provider_id(&self) -> &str {
        self.provider_id.as_deref().unwrap_or_default()
    }

    /// Whether its labels or provider id show that it does not run on vSphere.
    pub fn is_foreign(&self) -> bool {
        is_foreign_id(self.provider_id()) || self.is_labelled_foreign()
    }

    /// Whether its labels show that it does not run on vSphere. VDO keeps the storage driver off such nodes, too.
    pub fn is_labelled_foreign(&self) -> bool {
        is_labelled_foreign(|label| self.labels.get(label).map(String::as_str))
    }

    /// The value of [`VSPHERE_LABEL`].
    pub fn vsphere_label(&self) -> Option<&str> {
        self.labels.get(VSPHERE_LABEL).map(String::as_str)
    }
}

/// Whether labels, by key, show that a node does not run on vSphere.
pub fn is_labelled_foreign<'a>(label: impl Fn(&'static str) -> Option<&'a str>) -> bool {
    label(VSPHERE_LABEL) == Some("false")
        || label(PLATFORM_LABEL).is_some_and(|platform| platform != "vsphere")
}

/// Prefixes of provider ids from cloud controllers embedded in a distribution. They set an id on every
/// node, wherever it runs.
const EMBEDDED: [&str; 3] = ["k3s://", "rke2://", "k0s-cloud-provider://"];

/// Whether the distribution's embedded cloud controller set this provider id. The id does not show where
/// the node runs, and prevents another cloud provider from managing the node.
pub fn is_embedded_id(provider_id: &str) -> bool {
    EMBEDDED.iter().any(|start| provider_id.starts_with(start))
}

/// Whether a provider id shows that the node does not run on vSphere.
pub fn is_foreign_id(provider_id: &str) -> bool {
    let ours = provider_id.is_empty() || provider_id.starts_with("vsphere://");
    !ours && !is_embedded_id(provider_id)
}

/// MicroK8s' label for control plane nodes. MicroK8s sets none that starts with `node-role.kubernetes.io/`.
pub const MICROK8S_CONTROL_PLANE: &str = "node.kubernetes.io/microk8s-controlplane";
/// The prefix of labels that the API server does not accept from kubelets.
const PROTECTED_PREFIX: &str = "node-role.kubernetes.io/";

/// The control plane nodes.
///
/// The drivers' controllers run on them with the vCenter credentials, so no worker must be able to become one. A
/// kubelet can set [`MICROK8S_CONTROL_PLANE`] on its own node. That label counts only on MicroK8s, and only
/// if no node has a label that kubelets cannot set.
pub fn control_plane<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    platform: Platform,
) -> Vec<&'a Node> {
    let labelled = nodes.into_iter().filter_map(|node| Some((node, node.control_plane.as_ref()?)));
    let (protected, others): (Vec<_>, Vec<_>) =
        labelled.partition(|(_, label)| label.starts_with(PROTECTED_PREFIX));
    let counted =
        if protected.is_empty() && platform == Platform::MicroK8s { others } else { protected };
    counted.into_iter().map(|(node, _)| node).collect()
}

/// With the value `false`, an admin marks a node that is not a vSphere VM.
pub const VSPHERE_LABEL: &str = "vdo.vmware.com/vsphere";
/// OpenShift's label for the platform of a node in a mixed cluster.
pub const PLATFORM_LABEL: &str = "node.openshift.io/platform-type";

/// An entry of a CSINode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiEntry {
    /// The driver's id of the node: the VM's uuid since release 2.5.
    pub node_id: String,
    /// Its place in `spec.drivers`.
    pub index: usize,
    pub limit: Option<u32>,
    pub topology_keys: Vec<String>,
}

/// A warning about a volume that could not be mounted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MountFailure {
    /// The namespace of the pod and of the event.
    pub namespace: String,
    pub message: String,
}
