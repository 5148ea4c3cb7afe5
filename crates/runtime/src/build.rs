//! The identity of this binary.

use serde::Serialize;

/// Release and commit, for `--version`: `0.7.0 (3f2a91c)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("VDO_COMMIT"), ")");

/// Name, version and commit of a binary for logs, metrics, `/version` and `--version`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BuildInfo {
    pub name: &'static str,
    pub version: &'static str,
    /// The commit it was built from, or `unknown` outside a checkout.
    pub commit: &'static str,
}

impl BuildInfo {
    pub const fn new(name: &'static str) -> Self {
        Self { name, version: env!("CARGO_PKG_VERSION"), commit: env!("VDO_COMMIT") }
    }

    /// For example `vdo/0.7.0 (3f2a91c)`.
    pub fn user_agent(&self) -> String {
        format!("{}/{} ({})", self.name, self.version, self.commit)
    }
}

impl std::fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({})", self.name, self.version, self.commit)
    }
}
