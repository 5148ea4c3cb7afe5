//! What a catalog says, once it has been read: plain data, no behaviour beyond looking things up.
//!
//! Everything here tolerates fields it does not know, so that an older operator can use a newer
//! catalog; values of an enumeration it does not know fall on the careful side (see each type).

use std::{cmp::Ordering, collections::BTreeMap, fmt};

use jiff::{Timestamp, civil::Date};
use semver::Version;
use serde::{Deserialize, Serialize};

pub use crate::template::{
    CloudControllerTemplate, CpiTemplate, CsiTemplate, Election, Godebug, Manifest, ProbeTiming,
    WindowsMode,
};
use crate::{
    image::Image,
    version::{KubernetesMinor, KubernetesVersion, VsphereBound, VsphereVersion},
};

/// The two drivers VDO installs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// The cloud controller: names nodes after their VMs and removes the uninitialised taint.
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

/// Who wrote the driver.
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
    /// One a newer catalog knows and this operator does not: never chosen.
    #[serde(other)]
    Unknown,
}

impl Implementation {
    /// The last part of the name of the cloud controller's image, where it is this project's.
    pub const CLOUD_CONTROLLER_IMAGE: &str = "vdo-cloud-controller";

    /// Whose driver an image without its tag is, wherever it was mirrored to.
    pub fn of_image(name: &str) -> Self {
        if name.ends_with(Self::CLOUD_CONTROLLER_IMAGE) { Self::Rust } else { Self::Upstream }
    }
}

/// How far a release has proved itself.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// In the field for a while: what the policy `stable` prefers.
    #[default]
    Stable,
    /// Released, young: what the policy `latest` also takes.
    Latest,
    /// Not for production. Only a pin reaches it. A channel of a newer catalog counts as this.
    #[serde(other)]
    Candidate,
}

/// Whether somebody still mends the release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// Fixes are still made.
    Maintained,
    /// No more fixes; it is chosen only where nothing newer fits, with a warning.
    Ended,
    /// Nobody has said.
    #[default]
    #[serde(other)]
    Unstated,
}

/// The Kubernetes minors a release supports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesRange {
    /// The oldest minor.
    pub min: KubernetesMinor,
    /// The newest minor.
    pub max: KubernetesMinor,
    /// A minor newer than `max` with which the release may run while the cluster is being upgraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerates: Option<KubernetesMinor>,
}

impl KubernetesRange {
    /// Where a cluster stands to the range: before it, in it or after it.
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

/// The vSphere versions a release supports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsphereRange {
    /// The oldest vCenter.
    pub min: VsphereBound,
    /// The newest vCenter it works with. Absent where no upper end is known, which is the rule:
    /// closed ranges are how a matrix dies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<VsphereBound>,
    /// The newest vCenter it was tried with. A newer one is a warning, not a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tested: Option<VsphereBound>,
    /// The oldest ESXi host. Absent: hosts are not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<VsphereBound>,
    /// What goes wrong below `min`, for the sentence that refuses it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub because: String,
}

/// When a known fault or a step applies. Every field that is set must hold; none set = always.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Any vCenter at or above this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsphere_min: Option<VsphereBound>,
    /// Any vCenter at or below this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsphere_max: Option<VsphereBound>,
    /// The cluster at or above this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_min: Option<KubernetesMinor>,
    /// The cluster at or below this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_max: Option<KubernetesMinor>,
    /// One of these distributions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub distributions: Vec<String>,
    /// Whether the cluster has Windows nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<bool>,
    /// Whether zones are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<bool>,
    /// Whether there is more than one vCenter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub several_vcenters: Option<bool>,
}

/// What a known fault does to the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The release may be chosen; the reason is shown.
    Warn,
    /// The release is not chosen. A severity of a newer catalog counts as this.
    #[serde(other)]
    Refuse,
}

/// A fault of a release that somebody has met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownBad {
    /// A name that stays the same from catalog to catalog.
    pub id: String,
    /// What it does to the choice.
    pub severity: Severity,
    /// Where it strikes.
    #[serde(default)]
    pub when: Condition,
    /// What goes wrong, in one sentence.
    pub reason: String,
    /// What the admin can do, in one sentence.
    pub remedy: String,
}

/// Something to do, or to make sure of, when a cluster moves onto a release from an older one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// A name the operator may know how to carry out; unknown ones are shown to the admin.
    pub id: String,
    /// Where it is needed.
    #[serde(default)]
    pub when: Condition,
    /// What and why, in one sentence.
    pub text: String,
}

/// One release of one driver: everything needed to judge it and to install it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Which driver.
    pub driver: Driver,
    /// Whose.
    #[serde(default)]
    pub implementation: Implementation,
    /// Its version.
    pub version: Version,
    /// When it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Date>,
    /// How far it has proved itself.
    #[serde(default)]
    pub channel: Channel,
    /// Whether it is still mended.
    #[serde(default)]
    pub support: Support,
    /// The day after which it no longer is, where one was announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_of_support: Option<Date>,
    /// The Kubernetes minors it supports.
    pub kubernetes: KubernetesRange,
    /// The vSphere versions it supports.
    pub vsphere: VsphereRange,
    /// Its images by the part they play: `driver`, `syncer`, `attacher`, ...
    #[serde(default)]
    pub images: BTreeMap<String, Image>,
    /// Its feature switches and their defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<String, bool>,
    /// Where its objects come from.
    #[serde(default)]
    pub manifest: Manifest,
    /// To be done before a cluster moves onto this line from an older one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<Step>,
    /// To be done afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Step>,
    /// Faults somebody has met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_bad: Vec<KnownBad>,
    /// The oldest version that may be upgraded straight to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_from: Option<Version>,
}

impl Release {
    /// A release of which only the manifest is known; everything else is to be filled in.
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

    /// `3.7`, the line the release belongs to.
    pub fn line(&self) -> (u64, u64) {
        (self.version.major, self.version.minor)
    }
}

/// Images that can no longer, or never could, be pulled from where they are named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unavailable {
    /// Every image whose name (with its tag) begins so.
    pub prefix: String,
    /// What became of them, in one sentence.
    pub reason: String,
}

/// Every release somebody vouches for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Catalog {
    /// Grows with every catalog published; never goes back.
    pub serial: u64,
    /// When it was made.
    pub issued: Timestamp,
    /// When it should have been followed by a newer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// The newest vSphere its makers knew of.
    pub newest_vsphere: VsphereBound,
    /// The newest Kubernetes its makers knew of, where no release of theirs supports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_kubernetes: Option<KubernetesMinor>,
    /// Images that cannot be pulled.
    #[serde(default)]
    pub unavailable: Vec<Unavailable>,
    /// The releases, each driver's from oldest to newest.
    pub releases: Vec<Release>,
    /// Whether it is believed for its signature. What the signature does not cover is not installed from
    /// it: an image without a digest, a manifest that is only named.
    #[serde(skip)]
    pub signed: bool,
}

impl Catalog {
    /// The releases of one driver by one hand, from oldest to newest.
    pub fn of(
        &self,
        driver: Driver,
        whose: Implementation,
    ) -> impl DoubleEndedIterator<Item = &Release> + Clone {
        self.releases
            .iter()
            .filter(move |release| release.driver == driver && release.implementation == whose)
    }

    /// One release, if the catalog has it.
    pub fn find(
        &self,
        driver: Driver,
        whose: Implementation,
        version: &Version,
    ) -> Option<&Release> {
        self.of(driver, whose).find(|release| release.version == *version)
    }

    /// Whether it is a matrix of the Go VDO, which has neither serial nor date.
    pub fn is_matrix(&self) -> bool {
        self.serial == 0 && self.issued == Timestamp::UNIX_EPOCH
    }

    /// The newest Kubernetes known: what any release of the driver supports, or what the catalog's
    /// makers said they knew of. None without a release.
    pub fn newest_kubernetes(
        &self,
        driver: Driver,
        whose: Implementation,
    ) -> Option<KubernetesMinor> {
        let supported = self.of(driver, whose).map(|release| release.kubernetes.max).max()?;
        Some(self.newest_kubernetes.map_or(supported, |known| known.max(supported)))
    }

    /// Which release an image that runs belongs to, wherever it was pulled from: by its digest where it
    /// has one that is known, else by its tag and the last part of its name. For drivers installed by
    /// other hands.
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

    /// Why an image cannot be pulled, if it cannot.
    pub fn why_unavailable(&self, image: &Image) -> Option<&str> {
        let name = image.tagged();
        self.unavailable
            .iter()
            .find(|gone| name.starts_with(&gone.prefix))
            .map(|gone| gone.reason.as_str())
    }
}

/// One vCenter as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vcenter {
    /// What the admin calls it.
    pub name: String,
    /// What it says it is.
    pub version: VsphereVersion,
    /// The oldest ESXi host that carries a node, where hosts were looked at.
    pub oldest_host: Option<VsphereVersion>,
}
