use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Known;

/// The operator itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Operator {
    /// What it knows of its catalog.
    pub catalog: Known<CatalogState>,
    /// Objects it and somebody else keep changing.
    pub conflicts: Known<Vec<Conflict>>,
    /// Findings somebody decided to live with.
    pub acknowledged: Vec<Acknowledged>,
    /// How many seconds anything may take before it is a finding, where that shall be less than usual.
    pub grace: Option<u32>,
}

impl Operator {
    /// How many seconds something may take that usually has so many.
    pub fn grace_period(&self, usual: i64) -> i64 {
        self.grace.map_or(usual, |most| usual.min(i64::from(most)))
    }
}

/// What is known of the catalog.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CatalogState {
    /// Where the one in use came from.
    pub source: String,
    /// Its serial number.
    pub serial: i64,
    /// Until when it is good.
    pub expires: Option<Timestamp>,
    /// Why the last attempt to fetch a newer one failed.
    pub fetch_error: Option<String>,
    /// Why the newest one is not trusted.
    pub distrusted: Option<String>,
}

/// An object two parties keep changing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conflict {
    /// Kind.
    pub kind: String,
    /// `namespace/name`, or name alone.
    pub object: String,
    /// The field.
    pub field: String,
    /// Who else writes it.
    pub manager: String,
    /// How often within the last hour.
    pub times: u32,
}

/// A finding somebody decided to live with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Acknowledged {
    /// Its code.
    pub code: String,
    /// The object, if only for one.
    pub object: Option<String>,
    /// Why.
    pub reason: String,
    /// Until when.
    pub until: Option<Timestamp>,
}
