//! What this binary is.

use serde::Serialize;

/// Release and commit, for `--version`: `0.7.0 (3f2a91c)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("VDO_COMMIT"), ")");

/// Name, version and commit of a binary, as logs, metrics, `/version` and `--version` show them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BuildInfo {
    /// The binary's name.
    pub name: &'static str,
    /// The release.
    pub version: &'static str,
    /// The commit it was built from, or `unknown` outside a checkout.
    pub commit: &'static str,
}

impl BuildInfo {
    /// The build of the binary called `name`.
    pub const fn of(name: &'static str) -> Self {
        Self { name, version: env!("CARGO_PKG_VERSION"), commit: env!("VDO_COMMIT") }
    }

    /// As a user agent: `vdo/0.7.0 (3f2a91c)`.
    pub fn user_agent(&self) -> String {
        format!("{}/{} ({})", self.name, self.version, self.commit)
    }
}

impl std::fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({})", self.name, self.version, self.commit)
    }
}
