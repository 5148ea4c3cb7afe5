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
    /// The implementation in the spec, if a driver of another one runs and stays.
    replaced: Option<Implementation>,
    /// Whether the spec asks for NSX load balancers and routes.
    nsx: bool,
}

impl<'a> DesiredDriver<'a> {
    pub(super) fn from_spec(facts: &'a Facts, driver: Driver) -> Option<Self> {
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
                    implementation: cpi.implementation.unwrap_or_else(|| adopted(facts)),
                    replaced: None,
                    version: cpi.version.as_ref().map(|v| v.0.as_str()),
                    nsx: cpi.nsx.is_some(),
                })
            }
            Driver::Csi => {
                let csi = spec.storage_provider.as_ref()?;
                let wanted = csi.implementation.unwrap_or_default();
                let implementation = storage_implementation(facts, wanted);
                Some(Self {
                    driver,
                    mode: mode(facts, csi.mode),
                    vcenters: csi.vcenters().into_iter().map(|n| n.0.as_str()).collect(),
                    implementation,
                    replaced: (implementation != wanted).then_some(wanted),
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
        if let Some(wanted) = self.replaced {
            let finding = codes::STORAGE_DRIVER_KEPT.found();
            let finding = finding.with("field", "spec.storageProvider.implementation");
            let finding = finding.with("wanted", format!("{wanted:?}"));
            let finding = finding.with("running", format!("{:?}", self.implementation));
            return Some(finding.about(super::myself(facts)).build());
        }
        let overruled = self.nsx && self.implementation == Implementation::Rust;
        let field = "spec.cloudProvider.implementation";
        let finding = codes::UPSTREAM_NEEDED.found().with("field", field);
        overruled.then(|| finding.about(super::myself(facts)).build())
    }
}

/// A running storage driver stays of its implementation: volumes are attached through it.
fn storage_implementation(facts: &Facts, wanted: Implementation) -> Implementation {
    match facts.records.csi.running().map(|build| build.implementation) {
        Some(catalog::Implementation::Rust) => Implementation::Rust,
        Some(catalog::Implementation::Upstream) => Implementation::Upstream,
        Some(catalog::Implementation::Unknown) | None => wanted,
    }
}

/// The implementation of a cloud controller if the spec names none. An adopted one stays what it is.
fn adopted(facts: &Facts) -> Implementation {
    let record = &facts.records.cpi;
    match record.implementation {
        catalog::Implementation::Rust if record.names.is_some() => Implementation::Rust,
        _ => Implementation::default(),
    }
}
