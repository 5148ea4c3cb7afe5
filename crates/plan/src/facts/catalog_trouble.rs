//! Why VDO does not use a catalog that was offered.

/// What is wrong with a catalog that was offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogTrouble {
    /// Where it came from.
    pub source: String,
    /// What kind of trouble it is.
    pub kind: CatalogTroubleKind,
    /// The reason in words.
    pub reason: String,
}

/// A kind of trouble with a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatalogTroubleKind {
    /// It cannot be had.
    Unreachable,
    /// Its signature does not hold.
    Untrusted,
    /// It is older than the one in use.
    RolledBack,
    /// It makes no sense.
    Unreadable,
}

impl CatalogTroubleKind {
    /// As a condition's reason.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "Unreachable",
            Self::Untrusted => "Untrusted",
            Self::RolledBack => "RolledBack",
            Self::Unreadable => "Unreadable",
        }
    }
}
