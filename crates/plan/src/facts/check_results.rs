//! The results of the health checks that rules and reports use.

use std::collections::{BTreeMap, BTreeSet};

use api::{Finding, Severity};
use health::{
    facts::{Known, NetworkPlugin},
    repair::Proposal,
};
use jiff::Timestamp;

/// The results of the health checks, as far as plan and report need them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// The findings that fit into the status, most severe first.
    pub findings: Vec<Finding>,
    /// All findings that stop a step.
    pub blockers: Vec<Finding>,
    /// Whether a vCenter has not answered every question yet. Until then, VDO cannot report that nothing is
    /// wrong.
    pub pending: bool,
    /// Whether VDO knows the attached tags in every vCenter.
    pub tags_are_known: bool,
    /// Nodes whose zone VDO cannot determine because no user has permission to see the host of their VM. VDO
    /// fills this only if the spec asks for zones.
    pub unplaced: BTreeSet<String>,
    /// The time of the last answers of the vCenters; the oldest answer counts.
    pub audited: Option<Timestamp>,
    /// The value of the last check-now annotation that all vCenters have answered.
    pub checked: Option<String>,
    /// The objects that do not fit into the status.
    pub paged: Option<Paged>,
    /// The repairs that VDO proposes.
    pub repairs: Vec<Proposal>,
    /// The time of the next check even if nothing changes.
    pub due: Option<Timestamp>,
    /// The network plugin, and the nodes without it.
    pub network: Known<NetworkPlugin>,
}

/// All objects of all findings as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paged {
    /// The text by finding code.
    pub pages: BTreeMap<String, String>,
}

/// The number of findings of a severity that nobody has acknowledged.
pub fn open(findings: &[Finding], severity: Severity) -> usize {
    let open = findings.iter().filter(|finding| finding.acknowledged.is_none());
    open.filter(|finding| finding.severity == severity).count()
}
