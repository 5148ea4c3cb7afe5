//! The results of the health checks that rules and reports use.

use std::collections::{BTreeMap, BTreeSet};

use api::{Finding, Severity};
use health::{
    facts::{Known, Network},
    repair::Proposal,
};
use jiff::Timestamp;

/// What the checks say, as far as plan and report need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// The findings a status can carry, worst first.
    pub findings: Vec<Finding>,
    /// Those that stop a step, all of them.
    pub blockers: Vec<Finding>,
    /// Whether a vCenter has not been asked everything yet: too early to say that nothing is wrong.
    pub pending: bool,
    /// Whether it is known of every vCenter which tags are attached to what.
    pub tags_are_known: bool,
    /// Nodes whose zone cannot be told because nobody may see the host of their machine, if zones are
    /// asked for.
    pub unplaced: BTreeSet<String>,
    /// When the vCenters were last asked; the oldest answer counts.
    pub audited: Option<Timestamp>,
    /// What was last asked for by annotation and is answered by all vCenters.
    pub checked: Option<String>,
    /// What does not fit into a status.
    pub paged: Option<Paged>,
    /// What could be repaired.
    pub repairs: Vec<Proposal>,
    /// When to look again even if nothing changes.
    pub due: Option<Timestamp>,
    /// The network plugin, and the nodes without it.
    pub network: Known<Network>,
}

/// All objects of all findings, by code, as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paged {
    /// By code.
    pub pages: BTreeMap<String, String>,
}

/// How many findings of a severity nobody has acknowledged.
pub fn open(findings: &[Finding], severity: Severity) -> usize {
    let open = findings.iter().filter(|finding| finding.acknowledged.is_none());
    open.filter(|finding| finding.severity == severity).count()
}
