//! Nodes, as the checks see them.

use std::collections::BTreeMap;

use health::facts::{CsiEntry, Event, Known, Node};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::CSINode;

use super::site::Site;
use crate::{names, observe::nodes::Kept};

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

fn of_node<T: Clone>(known: &Known<BTreeMap<String, T>>, name: &str) -> Known<Option<T>> {
    super::site::map(known, |all| all.get(name).cloned())
}

/// One node with what is known of it elsewhere.
pub(super) fn node(name: &str, node: &Kept, beside: &Beside) -> Node {
    let labels = node.labels.iter().map(|(key, value)| ((*key).to_owned(), value.to_string()));
    Node {
        name: name.to_owned(),
        created: node.created,
        ready: node.ready,
        ready_since: node.since.unwrap_or(node.created),
        control_plane: node.control_plane.is_some(),
        os: node.os.to_string(),
        provider_id: node.provider_id.as_deref().map(ToOwned::to_owned),
        system_uuid: node.system_uuid.to_string(),
        pressure: node.pressure.map(ToOwned::to_owned),
        taints: node.taints.iter().map(|(key, _)| key.clone()).collect(),
        labels: labels.collect(),
        provided_ip: node.provided_ip.as_deref().map(ToOwned::to_owned),
        kubelet: node.kubelet.parse().unwrap_or_default(),
        csi: of_node(&beside.csi, name),
        topology_error: of_node(&beside.topologies, name),
        mount_failures: super::site::map(&beside.mounts, |all| {
            all.get(name).cloned().unwrap_or_default()
        }),
    }
}

/// The nodes whose kubelet says that they have no network, and since when.
pub(super) fn without_network<'a>(
    nodes: impl Iterator<Item = (&'a String, &'a Kept)>,
) -> Vec<(String, Timestamp)> {
    let silent = nodes.filter(|(_, node)| node.without_network);
    silent.filter_map(|(name, node)| Some((name.clone(), node.since?))).collect()
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
