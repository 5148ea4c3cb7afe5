//! Nodes, as the checks see them.

use std::collections::BTreeMap;

use health::facts::{Address, AddressKind, CsiEntry, Known, Node, Version};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Node as Seen, storage::v1::CSINode};
use kube::ResourceExt;

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

/// One node with its CSINode.
pub(super) fn node(node: &Seen, csi: &Known<BTreeMap<String, CsiEntry>>) -> Node {
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
        csi: match csi {
            Known::Known(entries) => Known::Known(entries.get(&name).cloned()),
            Known::Unknown { reason } => Known::unknown(reason),
        },
        name,
        ..Node::default()
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
