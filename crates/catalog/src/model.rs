//! The data of a catalog: plain types with lookups.
//!
//! All types ignore unknown fields, so that an older operator can use a newer catalog. Unknown values of
//! an enumeration map to the cautious variant (see each type).

use std::{cmp::Ordering, collections::BTreeMap, fmt};

use jiff::{Timestamp, civil::Date};
use semver::Version;
use serde::{Deserialize, Serialize};

pub use crate::template::{
    CloudControllerTemplate, CpiTemplate, CsiTemplate, Election, Godebug, Manifest, ProbeTiming,
    StorageDriverTemplate, WindowsMode,
};
use crate::{
    image::Image,
    version::{KubernetesMinor, KubernetesVersion, VsphereBound, VsphereVersion},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// The cloud controller: initialises nodes from their VMs and removes the uninitialised taint.
    Cpi,
    /// The storage driver.
    Csi,
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpi => "CPI",
            Self::Csi => "CSI",
        })
    }
}

#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Implementation {
    /// The Go drivers of the Kubernetes project.
    #[default]
    Upstream,
    /// The drivers of this project.
    Rust,
    /// A value of a newer catalog that this operator does not know. Never chosen.
    #[serde(other)]
    Unknown,
}

impl Implementation {
    /// The last path segment of the image name of this project's cloud controller.
    pub const CLOUD_CONTROLLER_IMAGE: &str = "vdo-cloud-controller";

    /// The last path segment of the image name of this project's storage driver.
    pub const STORAGE_DRIVER_IMAGE: &str = "vdo-csi";

    /// The implementation that an image belongs to, judged by its name without tag. Mirrors keep that name.
    pub fn of_image(name: &str) -> Self {
        let ours = [Self::CLOUD_CONTROLLER_IMAGE, Self::STORAGE_DRIVER_IMAGE];
        let last = name.rsplit('/').next().unwrap_or_default();
        if ours.contains(&last) { Self::Rust } else { Self::Upstream }
    }
}

#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// In the field for a while. The policy `stable` prefers it.
    #[default]
    Stable,
    /// Released recently. The policy `latest` accepts it.
    Latest,
    /// Not for production: only a pin installs it. Unknown channels count as this one.
    #[serde(other)]
    Candidate,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    Maintained,
    /// No more fixes. Chosen only if nothing newer fits, with a warning.
    Ended,
    /// The catalog does not state it.
    #[default]
    #[serde(other)]
    Unstated,
}

/// The Kubernetes minors that a release supports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesRange {
    pub min: KubernetesMinor,
    pub max: KubernetesMinor,
    /// A minor newer than `max` that the release tolerates during a cluster upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerates: Option<KubernetesMinor>,
}

impl KubernetesRange {
    /// Compares a cluster version with the range: below, inside or above it.
    pub fn place(&self, version: KubernetesVersion) -> Ordering {
        let minor = version.as_minor();
        if minor < self.min {
            Ordering::Less
        } else if minor > self.max {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }
}

impl fmt::Display for KubernetesRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            self.min.fmt(f)
        } else {
            write!(f, "{} to {}", self.min, self.max)
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsphereRange {
    pub min: VsphereBound,
    /// The newest vCenter. Usually absent: a closed range would exclude every vCenter to come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<VsphereBound>,
    /// The newest vCenter that the release was tested with. A newer one causes a warning, not a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tested: Option<VsphereBound>,
    /// The oldest ESXi host. If absent, host versions are not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<VsphereBound>,
    /// The problem with versions below `min`, for the text of the refusal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub because: String,
}

/// When a known fault or a step applies. All fields that are set must hold; without fields it always applies.
/// An operator that does not know a field ignores it, so the condition holds there more often.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsphere_min: Option<VsphereBound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsphere_max: Option<VsphereBound>,
    /// A host of the same vCenter is not newer than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts_max: Option<VsphereBound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_min: Option<KubernetesMinor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_max: Option<KubernetesMinor>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub distributions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub several_vcenters: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The release can be chosen; the reason is shown.
    Warn,
    /// The release is not chosen. Unknown severities count as this one.
    #[serde(other)]
    Refuse,
}

/// A known fault of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownBad {
    /// Stays the same across catalogs.
    pub id: String,
    pub severity: Severity,
    #[serde(default)]
    pub when: Condition,
    /// The problem, in one sentence.
    pub reason: String,
    /// The admin's way out, in one sentence.
    pub remedy: String,
    /// Where the fault is reported or fixed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
}

/// A task or a check for an upgrade onto a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeTask {
    /// The operator runs steps whose id it knows, and shows the others to the admin.
    pub id: String,
    #[serde(default)]
    pub when: Condition,
    /// The task and its reason, in one sentence.
    pub text: String,
}

/// One release of one driver, with everything needed to select and install it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    pub driver: Driver,
    #[serde(default)]
    pub implementation: Implementation,
    pub version: Version,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Date>,
    #[serde(default)]
    pub channel: Channel,
    #[serde(default)]
    pub support: Support,
    /// The announced last day of support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_of_support: Option<Date>,
    pub kubernetes: KubernetesRange,
    pub vsphere: VsphereRange,
    /// By role: `driver`, `syncer`, `attacher`, ...
    #[serde(default)]
    pub images: BTreeMap<String, Image>,
    /// Feature switches and their defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<String, bool>,
    #[serde(default)]
    pub manifest: Manifest,
    /// Steps before an upgrade onto this line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<UpgradeTask>,
    /// Steps after the upgrade.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<UpgradeTask>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_bad: Vec<KnownBad>,
    /// The oldest version that can be upgraded directly to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_from: Option<Version>,
}

impl Release {
    /// A release with nothing but a manifest; the caller fills in the rest.
    pub fn published(driver: Driver, version: Version, manifest: Manifest) -> Self {
        let any = KubernetesMinor { major: 1, minor: 0 };
        Self {
            driver,
            implementation: Implementation::Upstream,
            version,
            released: None,
            channel: Channel::Stable,
            support: Support::Unstated,
            end_of_support: None,
            kubernetes: KubernetesRange { min: any, max: any, tolerates: None },
            vsphere: VsphereRange {
                min: VsphereBound::of_major(0),
                max: None,
                tested: None,
                hosts: None,
                because: String::new(),
            },
            images: BTreeMap::new(),
            features: BTreeMap::new(),
            manifest,
            before: Vec::new(),
            after: Vec::new(),
            known_bad: Vec::new(),
            upgrade_from: None,
        }
    }

    /// The release line, for example `3.7`.
    pub fn line(&self) -> (u64, u64) {
        (self.version.major, self.version.minor)
    }
}

/// Images that cannot be pulled from the registry in their name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unavailable {
    /// Matches every image whose name with tag begins with it.
    pub prefix: String,
    /// In one sentence.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Catalog {
    /// Increases with every published catalog.
    pub serial: u64,
    pub issued: Timestamp,
    /// When a newer catalog is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// The newest vSphere known to the publisher.
    pub newest_vsphere: VsphereBound,
    /// The newest Kubernetes known to the publisher, if no release supports it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_kubernetes: Option<KubernetesMinor>,
    #[serde(default)]
    pub unavailable: Vec<Unavailable>,
    /// Sorted by driver and implementation, oldest first.
    pub releases: Vec<Release>,
    /// True if the catalog is trusted because of its signature. Then VDO installs nothing that
    /// the signature does not cover: no image without a digest, no manifest that is only a URL.
    #[serde(skip)]
    pub signed: bool,
}

impl Catalog {
    /// Sorts by driver, implementation and version. Every reader relies on this order.
    pub(crate) fn sort(&mut self) {
        self.releases.sort_by(|a, b| {
            (a.driver, a.implementation, &a.version).cmp(&(b.driver, b.implementation, &b.version))
        });
    }

    /// The releases of one driver and implementation, oldest first.
    pub fn releases_of(
        &self,
        driver: Driver,
        implementation: Implementation,
    ) -> impl DoubleEndedIterator<Item = &Release> + Clone {
        self.releases.iter().filter(move |release| {
            release.driver == driver && release.implementation == implementation
        })
    }

    pub fn find(
        &self,
        driver: Driver,
        implementation: Implementation,
        version: &Version,
    ) -> Option<&Release> {
        self.releases_of(driver, implementation).find(|release| release.version == *version)
    }

    /// True for a compatibility matrix of the Go VDO, which has neither serial nor date.
    pub fn is_matrix(&self) -> bool {
        self.serial == 0 && self.issued == Timestamp::UNIX_EPOCH
    }

    /// The newest Kubernetes that a release of the driver supports or that the publisher knew.
    /// `None` if there is no release.
    pub fn newest_kubernetes(
        &self,
        driver: Driver,
        implementation: Implementation,
    ) -> Option<KubernetesMinor> {
        let supported =
            self.releases_of(driver, implementation).map(|release| release.kubernetes.max).max()?;
        Some(self.newest_kubernetes.map_or(supported, |known| known.max(supported)))
    }

    /// Finds the release of a running image, regardless of its registry: by a known digest, else by the tag
    /// and the last segment of its name. Used for drivers that VDO did not install.
    pub fn recognise(&self, driver: Driver, image: &Image) -> Option<&Release> {
        let (part, names): (_, &[&str]) = match driver {
            Driver::Cpi => ("manager", &["manager", "cloud-provider-vsphere"]),
            Driver::Csi => ("driver", &["driver"]),
        };
        let name = image.name.rsplit('/').next().unwrap_or_default();
        let same_digest = |release: &&Release| {
            let known = release.images.get(part).and_then(|known| known.digest.as_ref());
            known.is_some() && known == image.digest.as_ref()
        };
        let same_tag = |release: &&Release| match release.implementation {
            Implementation::Rust => {
                Implementation::of_image(&image.name) == Implementation::Rust
                    && image.tag == Some(release.version.to_string())
            }
            _ => names.contains(&name) && image.tag == Some(format!("v{}", release.version)),
        };
        let own = || self.releases.iter().filter(|release| release.driver == driver);
        own().find(same_digest).or_else(|| own().find(same_tag))
    }

    pub fn why_unavailable(&self, image: &Image) -> Option<&str> {
        let name = image.tagged();
        self.unavailable
            .iter()
            .find(|gone| name.starts_with(&gone.prefix))
            .map(|gone| gone.reason.as_str())
    }
}

/// A vCenter as observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vcenter {
    /// The name that the admin uses.
    pub name: String,
    /// The version that it reports.
    pub version: VsphereVersion,
    /// The oldest ESXi host in the clusters that run nodes. `None` if the versions are unknown.
    pub oldest_host: Option<VsphereVersion>,
}
