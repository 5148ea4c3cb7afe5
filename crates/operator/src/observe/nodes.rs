//! The nodes, and the location of their VMs.

use health::facts::{VSPHERE_LABEL, is_labelled_foreign};
use plan::facts::NodePlacement;

use crate::{
    cluster::{Stores, nodes::CachedNode},
    vcenters::Vcenters,
};

pub(super) fn placements(stores: &Stores, vcenters: &Vcenters) -> Vec<NodePlacement> {
    stores.nodes(|nodes| {
        let label = |node: &CachedNode, label: &str| {
            let mut labels = node.labels.iter();
            labels.find(|(key, _)| *key == label).map(|(_, value)| value.to_string())
        };
        let nodes = nodes.iter().map(|(name, node)| NodePlacement {
            name: name.clone(),
            vsphere_label: label(node, VSPHERE_LABEL),
            excluded_by_vdo: node.excluded_by_vdo,
            control_plane: node.control_plane.map(ToOwned::to_owned),
            taints: node.taints.to_vec(),
            windows: node.os == "windows",
            provider_id: node.provider_id.as_deref().unwrap_or_default().to_owned(),
            labelled_foreign: is_labelled_foreign(|label| {
                let mut labels = node.labels.iter();
                labels.find(|(key, _)| *key == label).map(|(_, value)| &**value)
            }),
            vm: vcenters.vm(&node.system_uuid),
        });
        nodes.collect()
    })
}
