//! The compatibility matrix of the Go VDO, and the ConfigMap it was kept in.

use std::sync::Arc;

use catalog::{Catalog, Release};

/// The ConfigMap of the Go VDO, beside the operator.
pub(crate) const NAME: &str = "compat-matrix-config";
/// Its key for a matrix that stands in it.
pub(super) const CONTENT: &str = "versionConfigContent";
/// Its key for the address of one.
pub(super) const URL: &str = "versionConfigURL";

/// A matrix with what VDO itself knows of its releases. A matrix names only where manifests were; of a
/// release VDO carries, the manifest and the images are known, so nothing has to be fetched. The
/// others are left out, and returned by name.
pub(super) fn filled(matrix: &Catalog, known: &Catalog) -> (Arc<Catalog>, Vec<String>) {
    let mut left_out = Vec::new();
    let mut releases = Vec::new();
    for release in &matrix.releases {
        match known.find(release.driver, release.implementation, &release.version) {
            Some(same) => releases.push(Release {
                kubernetes: release.kubernetes,
                vsphere: release.vsphere.clone(),
                ..same.clone()
            }),
            None => left_out.push(format!("{} {}", release.driver, release.version)),
        }
    }
    (Arc::new(Catalog { releases, ..matrix.clone() }), left_out)
}
