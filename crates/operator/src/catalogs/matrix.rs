//! The compatibility matrix of the Go VDO, and its ConfigMap.

use std::sync::Arc;

use catalog::{Catalog, Driver, Release};

/// The ConfigMap of the Go VDO, in the operator's namespace.
pub(crate) const NAME: &str = "compat-matrix-config";
/// The key of a matrix inside the ConfigMap.
pub(super) const CONTENT: &str = "versionConfigContent";
/// The key of the URL of a matrix.
pub(super) const URL: &str = "versionConfigURL";

/// Completes a matrix with the manifests and images of the embedded catalog. A matrix names only URLs of
/// manifests. For a release in the embedded catalog, VDO knows the manifest and the images, so it fetches
/// nothing. The other releases are left out; the second value lists them.
///
/// The images of all releases in the matrices that came with the Go VDO were deleted. If that holds for every release
/// of a driver, the matrix would leave nothing to install. VDO then uses the embedded releases of that driver.
pub(super) fn filled(matrix: &Catalog, known: &Catalog) -> (Arc<Catalog>, Vec<String>) {
    let mut left_out = Vec::new();
    let mut releases = Vec::new();
    for driver in [Driver::Cpi, Driver::Csi] {
        let of_driver = |release: &&Release| release.driver == driver;
        let listed: Vec<&Release> = matrix.releases.iter().filter(of_driver).collect();
        let is_gone = |release: &&Release| is_gone(release, known);
        if !listed.is_empty() && listed.iter().all(is_gone) {
            left_out.extend(listed.into_iter().map(name));
            releases.extend(known.releases.iter().filter(of_driver).cloned());
            continue;
        }
        for release in listed {
            match same(release, known) {
                Some(same) => releases.push(Release {
                    kubernetes: release.kubernetes,
                    vsphere: release.vsphere.clone(),
                    ..same.clone()
                }),
                None => left_out.push(name(release)),
            }
        }
    }
    (Arc::new(Catalog { releases, ..matrix.clone() }), left_out)
}

fn name(release: &Release) -> String {
    format!("{} {}", release.driver, release.version)
}

/// The release in the embedded catalog.
fn same<'a>(release: &Release, known: &'a Catalog) -> Option<&'a Release> {
    known.find(release.driver, release.implementation, &release.version)
}

/// Whether the images of a release were deleted. The images of an unlisted release that is older than all that can be
/// pulled were in the same registry.
fn is_gone(release: &Release, known: &Catalog) -> bool {
    let lacks_images = |listed: &Release| {
        listed.images.values().any(|image| known.why_unavailable(image).is_some())
    };
    if let Some(same) = same(release, known) {
        return lacks_images(same);
    }
    known
        .releases_of(release.driver, release.implementation)
        .filter(|listed| !lacks_images(listed))
        .all(|listed| release.version < listed.version)
}
