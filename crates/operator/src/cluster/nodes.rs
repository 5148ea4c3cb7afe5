//! Converts nodes into facts.

use std::{borrow::Cow, collections::BTreeMap};

use health::facts::{
    CsiEntry, Known, MICROK8S_CONTROL_PLANE, MountFailure, Node, PLATFORM_LABEL, Platform,
    VSPHERE_LABEL, is_labelled_foreign,
};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Node as KubeNode, storage::v1::CSINode};
use kube::ResourceExt;
use plan::names;

use super::site::RelatedObjects;

/// The labels that identify control-plane nodes: the current one of Kubernetes, its predecessor, Rancher's
/// and MicroK8s'. The last one is the only one that a kubelet can set, so the others come first.
const CONTROL_PLANE: [&str; 4] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "node-role.kubernetes.io/controlplane",
    MICROK8S_CONTROL_PLANE,
];
/// Labels that checks and rules read.
const LABELS: [&str; 6] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    PLATFORM_LABEL,
    VSPHERE_LABEL,
];
/// The annotation in which the kubelet reports the address it is configured with.
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Conditions for which a kubelet evicts pods.
const PRESSURES: [&str; 3] = ["DiskPressure", "MemoryPressure", "PIDPressure"];
/// The text in a kubelet's message when its node has no network.
const NO_NETWORK: &str = "network";

/// The cached part of a node. There may be thousands of nodes, and the object itself is large.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CachedNode {
    /// When the node joined.
    pub(crate) created: Timestamp,
    /// Whether the kubelet reports the node as ready.
    pub(crate) ready: bool,
    /// When `ready` last changed.
    pub(crate) since: Option<Timestamp>,
    /// Whether the kubelet reports that the node has no network.
    pub(crate) without_network: bool,
    /// Its label for control plane nodes, if it has one.
    pub(crate) control_plane: Option<&'static str>,
    /// The platform that the node identifies, if it does.
    pub(crate) platform: Option<Platform>,
    /// `linux` or `windows`.
    pub(crate) os: Cow<'static, str>,
    /// `spec.providerID`.
    pub(crate) provider_id: Option<Box<str>>,
    /// `status.nodeInfo.systemUUID`.
    pub(crate) system_uuid: Box<str>,
    /// The address that the kubelet is configured with.
    pub(crate) provided_ip: Option<Box<str>>,
    /// The kubelet's version, as the kubelet writes it.
    pub(crate) kubelet: Box<str>,
    /// The resource pressure for which the kubelet evicts pods, if any.
    pub(crate) pressure: Option<&'static str>,
    /// Whether VDO itself marked the node as not a vSphere VM.
    pub(crate) excluded_by_vdo: bool,
    /// Its taints: key and effect.
    pub(crate) taints: Box<[(String, String)]>,
    /// The labels that checks and rules read.
    pub(crate) labels: Box<[(&'static str, Box<str>)]>,
}

impl CachedNode {
    pub(crate) fn new(node: &KubeNode) -> Self {
        let status = node.status.as_ref();
        let spec = node.spec.as_ref();
        let info = status.and_then(|status| status.node_info.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
        let since = ready.and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0);
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let labels = LABELS.into_iter().filter_map(|label| {
            let value = node.labels().get(label)?;
            Some((label, value.as_str().into()))
        });
        let created = node.metadata.creation_timestamp.as_ref();
        Self {
            created: created.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            ready: ready.is_some_and(|condition| condition.status == "True"),
            since,
            without_network: ready.is_some_and(|condition| {
                let mentions_network = |text: &str| text.to_ascii_lowercase().contains(NO_NETWORK);
                condition.status == "False"
                    && condition.message.as_deref().is_some_and(mentions_network)
            }),
            control_plane: CONTROL_PLANE
                .into_iter()
                .find(|label| node.labels().contains_key(*label)),
            platform: Platform::from_node(node),
            os: match info.map_or("", |info| &info.operating_system) {
                "linux" => Cow::Borrowed("linux"),
                other => Cow::Owned(other.to_owned()),
            },
            provider_id: spec
                .and_then(|spec| spec.provider_id.as_deref())
                .filter(|id| !id.is_empty())
                .map(Into::into),
            system_uuid: info.map_or("", |info| &info.system_uuid).into(),
            provided_ip: node.annotations().get(PROVIDED_IP).map(|ip| ip.as_str().into()),
            kubelet: info.map_or("", |info| &info.kubelet_version).into(),
            pressure: PRESSURES.into_iter().find(|pressure| {
                conditions.iter().any(|c| c.type_ == *pressure && c.status == "True")
            }),
            excluded_by_vdo: node.annotations().contains_key(names::LEFT_OUT),
            taints: taints.iter().map(|taint| (taint.key.clone(), taint.effect.clone())).collect(),
            labels: labels.collect(),
        }
    }

    /// Whether the platform of the node tells the platform of the cluster. Windows nodes and nodes that are no vSphere
    /// VMs, for example virtual ones, can look the same in every distribution.
    pub(crate) fn shows_platform(&self) -> bool {
        self.os != "windows" && !is_labelled_foreign(|label| self.label(label))
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == key).map(|(_, value)| &**value)
    }
}

/// Facts about nodes from other objects, by name of the node.
pub(crate) struct NodeDetails {
    csi: Known<BTreeMap<String, CsiEntry>>,
    topologies: Known<BTreeMap<String, String>>,
    mounts: Known<BTreeMap<String, Vec<MountFailure>>>,
}

impl NodeDetails {
    pub(crate) fn new(csi: Known<BTreeMap<String, CsiEntry>>, site: &RelatedObjects) -> Self {
        let mounts = super::site::map(&site.mounts, |all| {
            let mut by_node: BTreeMap<String, Vec<MountFailure>> = BTreeMap::new();
            for (node, failure) in all.values() {
                by_node.entry(node.clone()).or_default().push(failure.clone());
            }
            by_node
        });
        Self { csi, topologies: site.topologies.clone(), mounts }
    }
}

fn for_node<T: Clone>(known: &Known<BTreeMap<String, T>>, name: &str) -> Known<Option<T>> {
    super::site::map(known, |all| all.get(name).cloned())
}

/// The facts of one node, joined with those from other objects.
pub(crate) fn node(name: &str, node: &CachedNode, details: &NodeDetails) -> Node {
    let labels = node.labels.iter().map(|(key, value)| ((*key).to_owned(), value.to_string()));
    Node {
        name: name.to_owned(),
        created: node.created,
        ready: node.ready,
        ready_since: node.since.unwrap_or(node.created),
        control_plane: node.control_plane.map(ToOwned::to_owned),
        os: node.os.to_string(),
        provider_id: node.provider_id.as_deref().map(ToOwned::to_owned),
        system_uuid: node.system_uuid.to_string(),
        pressure: node.pressure.map(ToOwned::to_owned),
        taints: node.taints.to_vec(),
        labels: labels.collect(),
        excluded_by_vdo: node.excluded_by_vdo,
        provided_ip: node.provided_ip.as_deref().map(ToOwned::to_owned),
        kubelet: node.kubelet.parse().unwrap_or_default(),
        csi: for_node(&details.csi, name),
        topology_error: for_node(&details.topologies, name),
        mount_failures: super::site::map(&details.mounts, |all| {
            all.get(name).cloned().unwrap_or_default()
        }),
    }
}

/// The nodes whose kubelet reports that they have no network, and since when.
pub(crate) fn without_network<'a>(
    nodes: impl Iterator<Item = (&'a String, &'a CachedNode)>,
) -> Vec<(String, Timestamp)> {
    let silent = nodes.filter(|(_, node)| node.without_network);
    silent.filter_map(|(name, node)| Some((name.clone(), node.since?))).collect()
}

/// The vSphere driver's entry of a CSINode.
pub(crate) fn csi_entry(node: &CSINode) -> Option<CsiEntry> {
    let mut drivers = node.spec.drivers.iter().enumerate();
    let (index, driver) = drivers.find(|(_, driver)| driver.name == names::CSI_DRIVER)?;
    let limit = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count);
    Some(CsiEntry {
        node_id: driver.node_id.clone(),
        index,
        limit: limit.and_then(|limit| u32::try_from(limit).ok()),
        topology_keys: driver.topology_keys.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::storage::v1::{CSINodeDriver, CSINodeSpec};

    use super::*;

    #[test]
    fn the_entry_of_the_driver_is_found_among_others() {
        let driver = |name: &str| CSINodeDriver {
            name: name.to_owned(),
            node_id: format!("id of {name}"),
            ..CSINodeDriver::default()
        };
        let with = |names: &[&str]| CSINode {
            spec: CSINodeSpec { drivers: names.iter().map(|name| driver(name)).collect() },
            ..CSINode::default()
        };
        let entry = csi_entry(&with(&["nfs.csi.k8s.io", names::CSI_DRIVER])).unwrap();
        assert_eq!((entry.index, &*entry.node_id), (1, "id of csi.vsphere.vmware.com"));
        let entry = csi_entry(&with(&[names::CSI_DRIVER, "nfs.csi.k8s.io"])).unwrap();
        assert_eq!(entry.index, 0);
        assert_eq!(csi_entry(&with(&["nfs.csi.k8s.io"])), None);
    }

    #[test]
    fn nodes_outside_vsphere_do_not_show_the_platform_of_the_cluster() {
        let shows = |labels: serde_json::Value, os: &str| {
            let node = serde_json::json!({
                "metadata": {"name": "n", "labels": labels},
                "status": {"nodeInfo": {
                    "operatingSystem": os, "kubeletVersion": "v1.34.1", "systemUUID": "", "osImage": "", "bootID": "",
                    "architecture": "amd64", "machineID": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "containerRuntimeVersion": "",
                }},
            });
            CachedNode::new(&serde_json::from_value(node).unwrap()).shows_platform()
        };
        assert!(shows(serde_json::json!({}), "linux"));
        assert!(!shows(serde_json::json!({}), "windows"));
        assert!(!shows(serde_json::json!({VSPHERE_LABEL: "false"}), "linux"));
        assert!(!shows(serde_json::json!({PLATFORM_LABEL: "none"}), "linux"));
        assert!(shows(serde_json::json!({PLATFORM_LABEL: "vsphere"}), "linux"));
    }
}
