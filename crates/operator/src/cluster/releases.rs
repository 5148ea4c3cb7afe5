//! Looks up the running releases in a catalog.

use std::{cmp::Ordering, collections::BTreeMap};

use catalog::{Catalog, Implementation, Release, version::KubernetesVersion, why::Reason};
use health::facts::InstalledDriver;

/// A catalog, and the Kubernetes version that its releases must support.
pub(crate) struct Releases<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) kubernetes: Option<KubernetesVersion>,
}

impl Releases<'_> {
    /// The feature switches that a driver's release ships with, and the reason why it does not support this
    /// cluster, if there is one. A release that the catalog does not know has neither.
    pub(crate) fn facts_for(
        &self,
        which: catalog::Driver,
        driver: &InstalledDriver,
    ) -> (BTreeMap<String, String>, Option<String>) {
        let Some(release) = self.release_of(which, driver) else {
            return (BTreeMap::new(), None);
        };
        let implementation = release.implementation;
        let switches = release.features.iter();
        let switches = switches.map(|(name, on)| (name.clone(), on.to_string())).collect();
        (switches, self.unsuitable(release, which, implementation))
    }

    /// The release of a driver, if the catalog knows it.
    pub(crate) fn release_of(
        &self,
        which: catalog::Driver,
        driver: &InstalledDriver,
    ) -> Option<&Release> {
        let implementation =
            if driver.upstream { Implementation::Upstream } else { Implementation::Rust };
        let runs = |release: &&Release| {
            driver.version.is_some() && release.version.to_string().parse().ok() == driver.version
        };
        self.catalog.releases_of(which, implementation).find(runs)
    }

    /// Compares only the Kubernetes version. Other checks compare vCenter and the hosts.
    fn unsuitable(
        &self,
        release: &Release,
        which: catalog::Driver,
        implementation: Implementation,
    ) -> Option<String> {
        let (cluster, supports) = (self.kubernetes?, release.kubernetes);
        let minor = cluster.as_minor();
        // The cluster is newer than every version in the catalog, so the catalog has no answer.
        let newest = self.catalog.newest_kubernetes(which, implementation);
        let unknown = newest.is_some_and(|newest| minor > newest);
        match supports.place(cluster) {
            Ordering::Less => Some(Reason::KubernetesTooOld { supports, cluster }.to_string()),
            Ordering::Greater if unknown => None,
            Ordering::Greater if supports.tolerates.is_some_and(|most| minor <= most) => None,
            Ordering::Greater => Some(Reason::KubernetesTooNew { supports, cluster }.to_string()),
            Ordering::Equal => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kubernetes: KubernetesVersion, version: &str) -> (usize, Option<String>) {
        let catalog = catalog::embedded();
        let releases = Releases { catalog, kubernetes: Some(kubernetes) };
        let version = Some(version.parse().unwrap());
        let driver = InstalledDriver { version, upstream: true, ..InstalledDriver::default() };
        let (switches, unsuitable) = releases.facts_for(catalog::Driver::Csi, &driver);
        (switches.len(), unsuitable)
    }

    #[test]
    fn the_catalog_gives_the_switches_of_a_release_and_whether_it_suits_the_cluster() {
        let (switches, unsuitable) = facts(KubernetesVersion::minor(1, 33), "3.7.0");
        assert!(switches > 0);
        assert_eq!(unsuitable, None);
        assert!(
            facts(KubernetesVersion::minor(1, 20), "3.7.0").1.is_some(),
            "the cluster is too old"
        );
        assert_eq!(facts(KubernetesVersion::minor(1, 20), "99.0.0"), (0, None), "nobody knows it");
    }
}
