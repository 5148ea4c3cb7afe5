//! Nodes that do not run on vSphere, in a cluster in which other nodes do.
//!
//! The storage driver on such a node registers a VM that no vCenter knows. The controller of the driver then
//! exits, for the whole cluster. So VDO labels such a node as an admin would, and the driver's pod leaves the
//! node.
//!
//! VDO labels a node only if there is no doubt:
//!
//! - Its provider id belongs to another cloud.
//! - VDO searched every vCenter for its VM, and found none.
//! - No volume of the driver is attached to it.
//! - VDO found the VMs of other nodes in the same vCenters.
//! - Nobody else has labelled the node.
//!
//! VDO removes its own label again when it finds the VM.

use std::collections::BTreeSet;

use api::vdo_config::Mode;
use catalog::Driver;
use health::facts::is_foreign_id;

use crate::{
    facts::{Facts, NodePlacement, NodeVm, VcenterState},
    plan::{DriverPlan, NodeLabel},
};

/// The maximum number of nodes in one round, so that a mistake does not affect all nodes at once.
const AT_ONCE: usize = 10;

/// The nodes to label, and the nodes whose label VDO removes.
pub(super) fn labels(facts: &Facts, drivers: &[DriverPlan]) -> Vec<NodeLabel> {
    let managed = |d: &DriverPlan| d.driver == Driver::Csi && d.mode == Mode::Managed;
    if !drivers.iter().any(managed) || facts.records.csi.version.is_none() {
        return Vec::new();
    }
    let attached: BTreeSet<&str> = facts.attached.iter().map(|(_, node)| node.as_str()).collect();
    let sure = all_answer(facts) && facts.cluster.nodes.iter().any(is_found);
    let labels = facts.cluster.nodes.iter().filter_map(|placement| {
        let node = &placement.node;
        let out = match () {
            () if is_revoked(placement) => false,
            () if sure && runs_elsewhere(placement) && !attached.contains(node.name.as_str()) => {
                true
            }
            () => return None,
        };
        let why = if out {
            format!("its provider id is {}, and no vCenter has its VM", node.provider_id())
        } else {
            "its VM is in a vCenter after all".to_owned()
        };
        Some(NodeLabel { node: node.name.clone(), out, why })
    });
    labels.take(AT_ONCE).collect()
}

fn all_answer(facts: &Facts) -> bool {
    facts.vcenters.values().all(|v| matches!(v.state, VcenterState::Verified { .. }))
}

fn is_found(placement: &NodePlacement) -> bool {
    matches!(placement.vm, NodeVm::Found(_))
}

fn runs_elsewhere(NodePlacement { node, vm }: &NodePlacement) -> bool {
    let unlabelled = node.vsphere_label().is_none() && !node.is_labelled_foreign();
    unlabelled && is_foreign_id(node.provider_id()) && *vm == NodeVm::Missing
}

fn is_revoked(placement: &NodePlacement) -> bool {
    let node = &placement.node;
    node.excluded_by_vdo && node.vsphere_label() == Some("false") && is_found(placement)
}
