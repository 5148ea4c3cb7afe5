//! What we wrote down about what we applied, before we applied it.
//!
//! A record lives in a ConfigMap of the operator's namespace, one for each driver. It is what makes
//! a crash at any instant harmless: what may be pruned is only what stands here, and an upgrade that
//! was under way is known to be one.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::facts::ObjectId;

/// The records of both drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The cloud controller.
    pub cpi: Record,
    /// The storage driver.
    pub csi: Record,
}

/// What is known of one driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// The release that is being applied, or was last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The generation of the VDOConfig that asked for it.
    pub generation: i64,
    /// The digest of its configuration as it was last rolled out, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
    /// Whether it became healthy.
    pub healthy: bool,
    /// The release before it, to go back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// A release that did not become healthy, and under which wish: it is not tried again until the
    /// wish changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejected>,
    /// Every object that may have been applied.
    pub objects: BTreeSet<ObjectId>,
    /// The identity of this cluster in CNS. Once written it never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Whether the driver made that identity and keeps it itself: it is then not written into its
    /// configuration.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cluster_id_kept_by_driver: bool,
    /// The names it was found under when it was adopted. They stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<Names>,
}

/// The names of a driver that other hands installed and VDO adopted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Names {
    /// Where it lives.
    pub namespace: String,
    /// The Secret or ConfigMap it reads its configuration from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    /// Its workloads, by the names releases have for them.
    pub workloads: BTreeMap<String, Named>,
}

/// What a workload is called, and how it knows its pods: neither can be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Named {
    /// Its name.
    pub name: String,
    /// The labels it selects its pods by.
    pub selector: BTreeMap<String, String>,
}

/// A release that was tried and did not become healthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejected {
    /// Which.
    pub version: String,
    /// What was wrong.
    pub why: String,
    /// The generation of the VDOConfig that wanted it.
    pub generation: i64,
}
