//! The desired state of one driver.

use api::{
    finding::{Finding, codes},
    vdo_config::{Implementation, Mode},
};
use catalog::Driver;

use super::mode;
use crate::facts::Facts;

/// The spec of one driver, in one shape for both.
pub(super) struct DesiredDriver<'a> {
    pub(super) driver: Driver,
    pub(super) mode: Mode,
    pub(super) vcenters: Vec<&'a str>,
    pub(super) version: Option<&'a str>,
    implementation: Implementation,
    /// Whether the spec asks for NSX load balancers and routes.
    nsx: bool,
}

impl<'a> DesiredDriver<'a> {
    pub(super) fn of(facts: &'a Facts, driver: Driver) -> Option<Self> {
        let spec = &facts.config.spec;
        match driver {
            Driver::Cpi => {
                let cpi = spec.cloud_provider.as_ref()?;
                let vcenters: Vec<&str> =
                    cpi.vsphere_cloud_configs.iter().map(|n| n.0.as_str()).collect();
                // The Go VDO expressed "storage only" in this way.
                if vcenters.is_empty() && cpi.mode.is_none() {
                    return None;
                }
                Some(Self {
                    driver,
                    mode: mode(facts, cpi.mode),
                    vcenters,
                    implementation: cpi.implementation.unwrap_or_default(),
                    version: cpi.version.as_ref().map(|v| v.0.as_str()),
                    nsx: cpi.nsx.is_some(),
                })
            }
            Driver::Csi => {
                let csi = spec.storage_provider.as_ref()?;
                Some(Self {
                    driver,
                    mode: mode(facts, csi.mode),
                    vcenters: csi.vcenters().into_iter().map(|n| n.0.as_str()).collect(),
                    implementation: Implementation::Upstream,
                    version: csi.version.as_ref().map(|v| v.0.as_str()),
                    nsx: false,
                })
            }
        }
    }

    /// The implementation to install. Only upstream's supports NSX.
    pub(super) fn implementation(&self) -> catalog::Implementation {
        match self.implementation {
            Implementation::Rust if !self.nsx => catalog::Implementation::Rust,
            Implementation::Rust | Implementation::Upstream => catalog::Implementation::Upstream,
        }
    }

    /// The finding that VDO installs another implementation than the spec asks for.
    pub(super) fn overruled(&self, facts: &Facts) -> Option<Finding> {
        let overruled = self.nsx && self.implementation == Implementation::Rust;
        let field = "spec.cloudProvider.implementation";
        let finding = codes::UPSTREAM_NEEDED.found().with("field", field);
        overruled.then(|| finding.about(super::myself(facts)).build())
    }
}
