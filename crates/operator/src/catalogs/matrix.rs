//! The compatibility matrix of the Go VDO, and its ConfigMap.

use std::sync::Arc;

use catalog::{Catalog, Driver, Image, Release, Rewrite};

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
/// of a driver, the matrix would leave nothing to install. VDO then uses the embedded releases of that driver, unless
/// the admin has a mirror for any of the images.
pub(super) fn filled(
    matrix: &Catalog,
    known: &Catalog,
    rewrite: &Rewrite,
) -> (Arc<Catalog>, Vec<String>) {
    let mut left_out = Vec::new();
    let mut releases = Vec::new();
    for driver in [Driver::Cpi, Driver::Csi] {
        let of_driver = |release: &&Release| release.driver == driver;
        let listed: Vec<&Release> = matrix.releases.iter().filter(of_driver).collect();
        let is_gone = |release: &&Release| is_gone(release, known, rewrite);
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

/// The deleted images of a release.
fn deleted<'a>(release: &'a Release, known: &'a Catalog) -> impl Iterator<Item = &'a Image> {
    release.images.values().filter(|image| known.why_unavailable(image).is_some())
}

/// Whether the images of a release were deleted and no mirror is set for them. An unlisted release that is older than
/// all releases that can be pulled had its images in the same registry as the listed releases of that age.
fn is_gone(release: &Release, known: &Catalog, rewrite: &Rewrite) -> bool {
    let has_deleted = |listed: &Release| deleted(listed, known).next().is_some();
    let is_mirrored = |listed: &Release| deleted(listed, known).any(|image| rewrite.covers(image));
    let is_lost = |listed: &Release| has_deleted(listed) && !is_mirrored(listed);
    if let Some(same) = same(release, known) {
        return is_lost(same);
    }
    let listed = known.releases_of(release.driver, release.implementation);
    let available = listed.clone().filter(|listed| !has_deleted(listed));
    let oldest = available.map(|listed| &listed.version).min();
    oldest.is_some_and(|oldest| {
        release.version < *oldest && listed.filter(|listed| listed.version < *oldest).all(is_lost)
    })
}
