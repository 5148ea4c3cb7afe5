//! Whether the virtual machine of every node is found with the configuration that is wanted.

use std::collections::BTreeSet;

use api::finding::{Finding, Subject, codes};

use super::driver::Wish;
use crate::facts::{Facts, Machine};

/// The nodes whose machine is not proven to be where the cloud controller will look.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// In none of the vCenters the cloud controller is told of.
    missing: Vec<String>,
    /// Not known, and why.
    unknown: Vec<(String, String)>,
}

impl Doubts {
    pub(super) fn of(facts: &Facts, wish: &Wish<'_>) -> Self {
        let namespace = facts.config.metadata.namespace.as_deref().unwrap_or_default();
        let address = |name: &str| Some(facts.vcenters.get(name)?.spec.vc_ip.0.as_str());
        let asked: BTreeSet<&str> = wish.vcenters.iter().filter_map(|name| address(name)).collect();
        // Two objects may lead to one vCenter, each with a user of its own: either will do.
        let is_asked = |vcenter: &str| {
            let name = vcenter.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('/'));
            name.and_then(address).is_some_and(|address| asked.contains(address))
        };
        let mut doubts = Self::default();
        for node in facts.cluster.nodes.iter().filter(|node| !node.is_foreign()) {
            match &node.machine {
                Machine::Found(vcenter) if is_asked(vcenter) => {}
                // The cloud controller will not be told of that vCenter: to it the machine is gone.
                Machine::Found(_) | Machine::Missing => doubts.missing.push(node.name.clone()),
                Machine::Unknown(why) => doubts.unknown.push((node.name.clone(), why.clone())),
            }
        }
        doubts
    }

    /// The nodes whose machine no vCenter shows.
    pub(super) fn anywhere(facts: &Facts) -> Self {
        let mut doubts = Self::default();
        for node in facts.cluster.nodes.iter().filter(|node| !node.is_foreign()) {
            match &node.machine {
                Machine::Found(_) => {}
                Machine::Missing => doubts.missing.push(node.name.clone()),
                Machine::Unknown(why) => doubts.unknown.push((node.name.clone(), why.clone())),
            }
        }
        doubts
    }

    pub(super) fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_empty()
    }

    /// What a step that waits says.
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

    /// Nodes that certainly have no machine there.
    pub(super) fn finding(&self) -> Option<Finding> {
        let first = self.missing.first()?;
        let nodes = self.missing.iter().map(|name| Subject::kubernetes("Node", None, name));
        let finding = codes::MACHINE_MISSING
            .found()
            .with("count", self.missing.len().to_string())
            .with("first", first)
            .about_all(nodes);
        Some(finding.build())
    }
}
