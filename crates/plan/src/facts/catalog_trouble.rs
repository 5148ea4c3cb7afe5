//! Why VDO does not use an offered catalog.

/// The problem with an offered catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogTrouble {
    pub source: String,
    pub kind: CatalogTroubleKind,
    /// The reason as a sentence.
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatalogTroubleKind {
    /// VDO cannot download the catalog.
    Unreachable,
    /// The signature of the catalog is not valid.
    Untrusted,
    /// The catalog is older than the one in use.
    RolledBack,
    /// VDO cannot parse the catalog.
    Unreadable,
}

impl CatalogTroubleKind {
    /// The name as the reason of a condition.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "Unreachable",
            Self::Untrusted => "Untrusted",
            Self::RolledBack => "RolledBack",
            Self::Unreadable => "Unreadable",
        }
    }
}
