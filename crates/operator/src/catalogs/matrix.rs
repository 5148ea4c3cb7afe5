//! The compatibility matrix of the Go VDO, and its ConfigMap.

use std::sync::Arc;

use catalog::{Catalog, Release};

/// The ConfigMap of the Go VDO, in the operator's namespace.
pub(crate) const NAME: &str = "compat-matrix-config";
/// The key of a matrix inside the ConfigMap.
pub(super) const CONTENT: &str = "versionConfigContent";
/// The key of the URL of a matrix.
pub(super) const URL: &str = "versionConfigURL";

/// Completes a matrix with the manifests and images of the embedded catalog. A matrix names only URLs of
/// manifests. For a release in the embedded catalog, VDO knows the manifest and the images, so it fetches
/// nothing. The other releases are left out; the second value lists them.
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
