//! The nodes, and where their machines are.

use kube::ResourceExt;

use super::Stores;
use crate::{facts::Node, vcenters::Vcenters};

/// The labels by which control-plane nodes are known.
const CONTROL_PLANE: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

pub(super) fn of(stores: &Stores, vcenters: &Vcenters) -> Vec<Node> {
    let mut nodes: Vec<Node> = stores
        .nodes
        .state()
        .iter()
        .map(|node| {
            let spec = node.spec.as_ref();
            let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
            let taints = spec.and_then(|spec| spec.taints.as_ref());
            let label = CONTROL_PLANE.iter().find(|label| node.labels().contains_key(**label));
            Node {
                name: node.name_any(),
                control_plane: label.map(|label| (*label).to_owned()),
                taints: taints
                    .into_iter()
                    .flatten()
                    .map(|taint| (taint.key.clone(), taint.effect.clone()))
                    .collect(),
                windows: info.is_some_and(|info| info.operating_system == "windows"),
                provider_id: spec.and_then(|s| s.provider_id.clone()).unwrap_or_default(),
                machine: vcenters.machine(info.map_or("", |info| &info.system_uuid)),
            }
        })
        .collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}
