use api::finding::{Definition, codes};
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
    pub serial: i64,
    pub expires: Option<Timestamp>,
    /// Why VDO does not use the catalog that was offered last.
    pub trouble: Option<CatalogTrouble>,
}

/// The problem with an offered catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CatalogTrouble {
    pub source: String,
    pub kind: CatalogTroubleKind,
    /// The reason as a sentence.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CatalogTroubleKind {
    /// VDO cannot download the catalog.
    Unreachable,
    /// The signature of the catalog is not valid.
    Untrusted,
    /// The catalog is older than the one in use.
    RolledBack,
    /// The catalog has a schema that only a newer VDO supports.
    TooNew {
        schema: String,
        /// The newest schema that this VDO supports.
        known: String,
    },
    TooLarge {
        /// For example `4 MiB`.
        limit: String,
    },
    /// VDO cannot parse the catalog.
    Unreadable,
}

impl CatalogTroubleKind {
    /// The name as the reason of a condition.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unreachable => "Unreachable",
            Self::Untrusted => "Untrusted",
            Self::RolledBack => "RolledBack",
            Self::TooNew { .. } => "TooNew",
            Self::TooLarge { .. } => "TooLarge",
            Self::Unreadable => "Unreadable",
        }
    }
}

impl CatalogTrouble {
    /// The finding that reports it, and the values of the finding's texts.
    pub fn finding(&self) -> (&'static Definition, Vec<(&'static str, String)>) {
        let Self { source, kind, reason } = self;
        let mut values =
            vec![("source", source.clone()), ("url", source.clone()), ("reason", reason.clone())];
        let definition = match kind {
            CatalogTroubleKind::Unreachable => codes::CATALOG_UNREACHABLE,
            CatalogTroubleKind::Untrusted => codes::CATALOG_UNTRUSTED,
            CatalogTroubleKind::RolledBack => codes::CATALOG_ROLLED_BACK,
            CatalogTroubleKind::Unreadable => codes::CATALOG_UNREADABLE,
            CatalogTroubleKind::TooNew { schema, known } => {
                values.extend([("schema", schema.clone()), ("known", known.clone())]);
                codes::CATALOG_TOO_NEW
            }
            CatalogTroubleKind::TooLarge { limit } => {
                values.push(("limit", limit.clone()));
                codes::CATALOG_TOO_LARGE
            }
        };
        (definition, values)
    }
}

/// Another field manager changed an object of VDO, and VDO restored it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conflict {
    pub kind: String,
    /// `namespace/name`, or only the name.
    pub object: String,
    /// The other field manager.
    pub manager: String,
    /// The number of changes within the last hour.
    pub times: u32,
    /// When VDO last restored the object.
    pub last: Timestamp,
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
