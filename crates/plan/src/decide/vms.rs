//! Whether VDO finds the VM of every node with the desired configuration.

use std::collections::BTreeSet;

use api::finding::{Finding, Subject, codes};
use health::facts::Node;

use super::{desired::DesiredDriver, vcenters::is_verified};
use crate::{
    facts::{Facts, NodePlacement, NodeVm},
    record::Record,
};

/// The nodes for which VDO cannot prove that the driver's user sees the VM where the driver looks for it.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// Nodes whose VM is in none of the driver's vCenters.
    missing: Vec<String>,
    /// Nodes whose VM is unknown, with the reason.
    unknown: Vec<(String, String)>,
}

impl Doubts {
    /// The nodes whose VM is not visible to the users of the desired vCenters. Another user's view of the
    /// same vCenter proves nothing, because the driver does not log in with that user.
    pub(super) fn for_driver(facts: &Facts, desired: &DesiredDriver<'_>) -> Self {
        Self::among(facts, desired, |_| true, |_| true)
    }

    /// Like `for_driver`, but only for nodes that a cloud controller has initialised. A cloud controller that does
    /// not find their VM treats these nodes as gone. Other nodes only wait for their VM.
    pub(super) fn for_initialized_nodes(facts: &Facts, desired: &DesiredDriver<'_>) -> Self {
        Self::among(facts, desired, |node| node.provider_id().starts_with("vsphere://"), |_| true)
    }

    /// Like `for_driver`, but without the nodes in vCenters that the spec does not name.
    pub(super) fn in_desired_vcenters(facts: &Facts, desired: &DesiredDriver<'_>) -> Self {
        let address = |name: &str| Some(facts.vcenters.get(name)?.spec.vc_ip.0.as_str());
        let asked: BTreeSet<&str> =
            desired.vcenters.iter().filter_map(|name| address(name)).collect();
        Self::among(
            facts,
            desired,
            |_| true,
            |seen_by| {
                let mut addresses = seen_by.iter().filter_map(|name| address(local(facts, name)?));
                addresses.any(|address| asked.contains(address))
            },
        )
    }

    /// `counts` selects the nodes. `matters` decides, for a VM that other VsphereCloudConfigs see, whether
    /// the desired ones must see it too.
    fn among(
        facts: &Facts,
        desired: &DesiredDriver<'_>,
        counts: impl Fn(&Node) -> bool,
        matters: impl Fn(&[String]) -> bool,
    ) -> Self {
        let is_desired =
            |name: &String| local(facts, name).is_some_and(|name| desired.vcenters.contains(&name));
        let unverified = desired.vcenters.iter().find(|name| !is_verified(facts, name));
        let mut doubts = Self::default();
        let counts =
            |placement: &&NodePlacement| !placement.node.is_foreign() && counts(&placement.node);
        for NodePlacement { node, vm } in facts.cluster.nodes.iter().filter(counts) {
            match (vm, unverified) {
                (NodeVm::Found(seen_by), _) if seen_by.iter().any(is_desired) => {}
                (NodeVm::Found(seen_by), _) if !matters(seen_by) => {}
                (NodeVm::Unknown(why), _) => doubts.unknown.push((node.name.clone(), why.clone())),
                (_, Some(vcenter)) => {
                    doubts.unknown.push((node.name.clone(), format!("{vcenter} is not verified")));
                }
                // The driver will not see the VM and will treat it as gone.
                (_, None) => doubts.missing.push(node.name.clone()),
            }
        }
        doubts
    }

    pub(super) fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_empty()
    }

    /// Whether at least one VM is certainly missing.
    pub(super) fn is_certain(&self) -> bool {
        !self.missing.is_empty()
    }

    /// The message of the step that waits.
    pub(super) fn message(&self) -> String {
        let missing = self.missing.first().map(|first| {
            format!(
                "{} nodes have no virtual machine in these vCenters, {first} among them",
                self.missing.len()
            )
        });
        let unknown = self.unknown.first().map(|(first, why)| {
            format!("of {} nodes it is not known, {first} among them: {why}", self.unknown.len())
        });
        let texts: Vec<String> = missing.into_iter().chain(unknown).collect();
        texts.join("; ")
    }

    /// The finding about nodes that certainly have no VM in these vCenters.
    pub(super) fn finding(&self, facts: &Facts) -> Option<Finding> {
        let first = self.missing.first()?;
        let nodes = self.missing.iter().map(|name| Subject::kubernetes("Node", None, name));
        let node = facts.cluster.nodes().find(|node| node.name == *first);
        let uuid = node.and_then(|node| node.provider_id().strip_prefix("vsphere://"));
        let finding = codes::VM_NOT_FOUND
            .found()
            .with("node", first)
            .with("uuid", uuid.unwrap_or("SYSTEM_UUID"))
            .about_all(nodes);
        Some(finding.build())
    }
}

/// The volumes that are attached to nodes in vCenters which the storage driver is losing: volume and node.
/// Without those vCenters nothing could detach them.
pub(super) fn left_behind<'a>(
    facts: &'a Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
) -> Vec<&'a (String, String)> {
    let address = |name: &str| Some(facts.vcenters.get(name)?.spec.vc_ip.0.as_str());
    let stays: BTreeSet<&str> = desired.vcenters.iter().filter_map(|name| address(name)).collect();
    let configured = record.users.iter().filter_map(|user| address(user.split(' ').next()?));
    let goes: BTreeSet<&str> = configured.filter(|address| !stays.contains(address)).collect();
    let is_left = |placement: &NodePlacement| match &placement.vm {
        NodeVm::Found(seen_by) => {
            let seen_by = seen_by.iter().filter_map(|name| address(local(facts, name)?));
            let seen_by: BTreeSet<&str> = seen_by.collect();
            seen_by.is_disjoint(&stays) && !seen_by.is_disjoint(&goes)
        }
        NodeVm::Missing | NodeVm::Unknown(_) => false,
    };
    let left = facts.cluster.nodes.iter().filter(|node| !goes.is_empty() && is_left(node));
    let left: BTreeSet<&str> = left.map(|placement| placement.node.name.as_str()).collect();
    facts.attached.iter().filter(|(_, node)| left.contains(node.as_str())).collect()
}

/// The name of a VsphereCloudConfig in the namespace of the VDOConfig; none for one in another namespace.
fn local<'a>(facts: &Facts, name: &'a str) -> Option<&'a str> {
    let namespace = facts.config.metadata.namespace.as_deref().unwrap_or_default();
    name.strip_prefix(namespace)?.strip_prefix('/')
}
