//! The nodes, and the location of their VMs.

use health::facts::{VSPHERE_LABEL, is_labelled_foreign};
use plan::facts::NodePlacement;

use crate::{
    cluster::{Stores, nodes::Kept},
    vcenters::Vcenters,
};

pub(super) fn of(stores: &Stores, vcenters: &Vcenters) -> Vec<NodePlacement> {
    stores.nodes(|nodes| {
        let label = |node: &Kept, label: &str| {
            let mut labels = node.labels.iter();
            labels.find(|(key, _)| *key == label).map(|(_, value)| value.to_string())
        };
        let nodes = nodes.iter().map(|(name, node)| NodePlacement {
            name: name.clone(),
            said: label(node, VSPHERE_LABEL),
            left_out: node.left_out,
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
