//! Nodes that the embedded cloud controller of their distribution has initialised.
//!
//! Kubernetes never lets a provider id change, so upstream's cloud controller cannot adopt such a node. It
//! looks for a VM with the provider id as its uuid, finds none, and deletes the node as soon as it is not
//! Ready. So VDO does not install it in such a cluster, unless the spec forbids it to delete nodes.

use api::vdo_config::NodeDeletion;
use catalog::{Driver, Implementation};
use health::facts::is_embedded_id;

use super::steps::waiting;
use crate::{
    facts::Facts,
    plan::PlannedStep,
    record::{Build, Record},
};

/// The step that waits for these nodes; none if nothing stops the installation of `target`. VDO leaves a
/// running driver as it is.
pub(super) fn hold(
    facts: &Facts,
    driver: Driver,
    record: &Record,
    target: &Build,
) -> Option<PlannedStep> {
    let cloud = facts.config.spec.cloud_provider.as_ref();
    let keeps = cloud.and_then(|cloud| cloud.node_deletion) == Some(NodeDeletion::Never);
    let theirs = target.implementation != Implementation::Rust;
    if driver != Driver::Cpi || record.version.is_some() || keeps || !theirs {
        return None;
    }
    let taken = facts.cluster.nodes().filter(|node| is_embedded_id(node.provider_id()));
    let taken: Vec<_> = taken.collect();
    let first = taken.first()?;
    let message = format!(
        "{} nodes have the provider id of the cloud controller that came with the distribution, {} ({}) \
         among them: this one would not find their VMs, and delete those that are not Ready. Switch \
         the other off and let the nodes join again, or set cloudProvider.nodeDeletion: Never",
        taken.len(),
        first.name,
        first.provider_id(),
    );
    let title = "Wait until no node is of another cloud controller";
    Some(waiting(title, Some(message)))
}
