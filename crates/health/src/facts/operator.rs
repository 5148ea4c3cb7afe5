use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Known;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Operator {
    pub catalog: Known<CatalogState>,
    /// Objects that both VDO and another manager keep changing.
    pub conflicts: Known<Vec<Conflict>>,
    pub acknowledged: Vec<Acknowledged>,
    /// Upper limit for all grace periods, in seconds.
    pub grace: Option<u32>,
}

impl Operator {
    pub fn grace_period(&self, usual: i64) -> i64 {
        self.grace.map_or(usual, |most| usual.min(i64::from(most)))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CatalogState {
    pub source: String,
    pub serial: i64,
    pub expires: Option<Timestamp>,
    /// The error of the last attempt to fetch a newer catalog.
    pub fetch_error: Option<String>,
    /// Why VDO does not trust the newest catalog.
    pub distrusted: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conflict {
    pub kind: String,
    /// `namespace/name`, or only the name.
    pub object: String,
    pub field: String,
    pub manager: String,
    /// Within the last hour.
    pub times: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Acknowledged {
    pub code: String,
    /// `None` acknowledges the finding for all objects.
    pub object: Option<String>,
    pub reason: String,
    pub until: Option<Timestamp>,
}
