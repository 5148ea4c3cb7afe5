//! Nodes, as the checks see them.

use std::collections::BTreeMap;

use health::facts::{Address, AddressKind, CsiEntry, Event, Known, Node, Version};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Node as Seen, storage::v1::CSINode};
use kube::ResourceExt;

use super::site::Site;
use crate::names;

/// Labels the checks look at.
pub(crate) const LABELS: [&str; 5] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.openshift.io/platform-type",
];
/// The annotation in which kubelet says which address it was told to use.
pub(crate) const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// What is known of nodes beside the nodes themselves, by name.
pub(super) struct Beside {
    csi: Known<BTreeMap<String, CsiEntry>>,
    topologies: Known<BTreeMap<String, String>>,
    mounts: Known<BTreeMap<String, Vec<Event>>>,
}

impl Beside {
    pub(super) fn of(csi: Known<BTreeMap<String, CsiEntry>>, site: &Site) -> Self {
        let mounts = super::site::map(&site.mounts, |all| {
            let mut by_node: BTreeMap<String, Vec<Event>> = BTreeMap::new();
            for (node, event) in all.values() {
                by_node.entry(node.clone()).or_default().push(event.clone());
            }
            by_node
        });
        Self { csi, topologies: site.topologies.clone(), mounts }
    }
}

/// What kubelet says of a node it has no network for.
const NO_NETWORK: &str = "network";

/// Whether a condition of a node is worth its words.
pub(crate) fn tells_of_network(message: &str) -> bool {
    message.to_ascii_lowercase().contains(NO_NETWORK)
}

/// The node and since when, where its kubelet says that it has no network.
pub(super) fn without_network(node: &Seen) -> Option<(String, Timestamp)> {
    let conditions = node.status.as_ref()?.conditions.as_deref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let says = ready.message.as_deref().is_some_and(tells_of_network);
    let since = ready.last_transition_time.as_ref()?.0;
    (ready.status == "False" && says).then(|| (node.name_any(), since))
}

fn of_node<T: Clone>(known: &Known<BTreeMap<String, T>>, name: &str) -> Known<Option<T>> {
    super::site::map(known, |all| all.get(name).cloned())
}

/// One node with what is known of it elsewhere.
pub(super) fn node(node: &Seen, beside: &Beside) -> Node {
    let name = node.name_any();
    let status = node.status.as_ref();
    let info = status.and_then(|status| status.node_info.as_ref());
    let spec = node.spec.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let created = node.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0);
    let addresses = status.and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let labels = node.labels().iter().filter(|(key, _)| LABELS.contains(&key.as_str()));
    Node {
        created,
        ready: ready.is_some_and(|condition| condition.status == "True"),
        ready_since: ready
            .and_then(|condition| condition.last_transition_time.as_ref())
            .map_or(created, |time| time.0),
        control_plane: node.labels().keys().any(|key| {
            key == "node-role.kubernetes.io/control-plane"
                || key == "node-role.kubernetes.io/master"
        }),
        os: info.map(|info| info.operating_system.clone()).unwrap_or_default(),
        provider_id: spec.and_then(|s| s.provider_id.clone()).filter(|id| !id.is_empty()),
        system_uuid: info.map(|info| info.system_uuid.clone()).unwrap_or_default(),
        taints: taints.iter().map(|taint| taint.key.clone()).collect(),
        labels: labels.map(|(key, value)| (key.clone(), value.clone())).collect(),
        addresses: addresses.iter().filter_map(address).collect(),
        provided_ip: node.annotations().get(PROVIDED_IP).cloned(),
        kubelet: version(info.map_or("", |info| &info.kubelet_version)),
        csi: of_node(&beside.csi, &name),
        topology_error: of_node(&beside.topologies, &name),
        mount_failures: super::site::map(&beside.mounts, |all| {
            all.get(&name).cloned().unwrap_or_default()
        }),
        name,
    }
}

fn version(text: &str) -> Version {
    text.parse().unwrap_or_default()
}

fn address(seen: &k8s_openapi::api::core::v1::NodeAddress) -> Option<Address> {
    let kind = match seen.type_.as_str() {
        "InternalIP" => AddressKind::Internal,
        "ExternalIP" => AddressKind::External,
        "Hostname" => AddressKind::Hostname,
        _ => return None,
    };
    Some(Address { kind, address: seen.address.clone() })
}

/// The vSphere driver's entry of a CSINode.
pub(crate) fn csi_entry(node: &CSINode) -> Option<CsiEntry> {
    let driver = node.spec.drivers.iter().find(|driver| driver.name == names::CSI_DRIVER)?;
    let limit = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count);
    Some(CsiEntry {
        node_id: driver.node_id.clone(),
        limit: limit.and_then(|limit| u32::try_from(limit).ok()),
        topology_keys: driver.topology_keys.clone().unwrap_or_default(),
    })
}
