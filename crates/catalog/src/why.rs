//! The reasons against releases and the notices about the chosen one. Each displays as one sentence.

use std::fmt;

use semver::Version;

use crate::{
    model::KubernetesRange,
    version::{KubernetesMinor, KubernetesVersion, VsphereBound, VsphereVersion},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    KubernetesTooOld {
        supports: KubernetesRange,
        cluster: KubernetesVersion,
    },
    KubernetesTooNew {
        supports: KubernetesRange,
        cluster: KubernetesVersion,
    },
    VcenterTooOld {
        name: String,
        version: VsphereVersion,
        min: VsphereBound,
        because: String,
    },
    VcenterTooNew {
        name: String,
        version: VsphereVersion,
        max: VsphereBound,
    },
    HostTooOld {
        vcenter: String,
        version: VsphereVersion,
        min: VsphereBound,
    },
    /// The release has a known fault that applies here.
    KnownBad {
        id: String,
        reason: String,
        remedy: String,
    },
    ImagesGone {
        image: String,
        reason: String,
    },
    /// The catalog's signature does not cover the images: some lack a digest, or the manifest is only a URL
    /// (then `images` is empty).
    ImagesNotPinned {
        images: Vec<String>,
    },
    Candidate,
    /// The catalog describes its objects in a format that this operator does not know.
    NeedsNewerOperator,
    OlderThanInstalled {
        installed: Version,
    },
    /// The installed release cannot be upgraded to it, not even in several hops.
    Unreachable {
        installed: Version,
        from: Version,
    },
    /// It fits, but a newer one fits too.
    NotTheNewest {
        chosen: Version,
    },
    /// It fits, but the policy prefers the channel `stable`.
    NotStable {
        chosen: Version,
    },
    /// It only tolerates this Kubernetes minor; another release supports it.
    NotTheSameMinor {
        chosen: Version,
    },
    NotPinned {
        pinned: Version,
    },
    /// It fits, but the policy requires the admin's approval.
    HeldByPolicy {
        installed: Version,
    },
}

impl Reason {
    /// True if the release can be installed here.
    pub fn fits_here(&self) -> bool {
        matches!(
            self,
            Self::NotTheNewest { .. }
                | Self::NotStable { .. }
                | Self::NotTheSameMinor { .. }
                | Self::NotPinned { .. }
                | Self::HeldByPolicy { .. }
                | Self::OlderThanInstalled { .. }
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KubernetesTooOld { supports, cluster }
            | Self::KubernetesTooNew { supports, cluster } => {
                write!(f, "It supports Kubernetes {supports}; this cluster runs {cluster}.")
            }
            Self::VcenterTooOld { name, version, min, because } => {
                write!(f, "It needs vCenter {min}; {name} runs {version}")?;
                if because.is_empty() { write!(f, ".") } else { write!(f, ": {because}.") }
            }
            Self::VcenterTooNew { name, version, max } => {
                write!(f, "It works with vCenter up to {max}; {name} runs {version}.")
            }
            Self::HostTooOld { vcenter, version, min } => {
                write!(f, "It needs ESXi {min}; a host of {vcenter} runs {version}.")
            }
            Self::KnownBad { reason, remedy, .. } => write!(f, "Known fault: {reason}; {remedy}."),
            Self::ImagesGone { image, reason } => write!(
                f,
                "{image} cannot be pulled: {reason}. If a mirror has it, set spec.images.registry."
            ),
            Self::ImagesNotPinned { images } => {
                write!(f, "The catalog's signature does not cover all images: ")?;
                match images.as_slice() {
                    [] => write!(f, "the catalog only has the URL of the manifest.")?,
                    [image] => write!(f, "{image} has no digest.")?,
                    [first, ..] => {
                        write!(f, "{} images have no digest, for example {first}.", images.len())?;
                    }
                }
                write!(f, " Ask its publisher to add the digests and to sign it again.")
            }
            Self::Candidate => {
                write!(f, "It is a release candidate: VDO installs it only if you pin its version.")
            }
            Self::NeedsNewerOperator => {
                write!(f, "The catalog describes it in a format that needs a newer operator.")
            }
            Self::OlderThanInstalled { installed } => {
                write!(
                    f,
                    "It is older than {installed}, the installed version; VDO does not downgrade drivers."
                )
            }
            Self::Unreachable { installed, from } => write!(
                f,
                "Upgrades to it start at {from}; remove {installed} with its own manifest first."
            ),
            Self::NotTheNewest { chosen } => write!(f, "It fits; {chosen} is newer and fits too."),
            Self::NotStable { chosen } => {
                write!(f, "It fits, but it is not proven yet; the policy prefers {chosen}.")
            }
            Self::NotTheSameMinor { chosen } => {
                write!(f, "It tolerates this Kubernetes minor; {chosen} supports it.")
            }
            Self::NotPinned { pinned } => write!(f, "The spec pins version {pinned}."),
            Self::HeldByPolicy { installed } => {
                write!(f, "It fits; the policy keeps {installed} until you approve the change.")
            }
        }
    }
}

/// Why nothing changes although the admin might expect a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standstill {
    NothingFits,
    /// Releases fit, but none of them is proven, as the policy `stable` demands.
    NothingProven {
        newest: Version,
    },
    /// Releases fit, but the installed one cannot be upgraded to any of them.
    NoWayForward {
        installed: Version,
    },
    /// The catalog does not contain the pinned version.
    PinUnknown {
        pinned: Version,
    },
    /// The pinned version does not fit here.
    PinRefused {
        pinned: Version,
        reason: Reason,
    },
    /// The policy requires the admin's approval.
    AwaitsApproval {
        available: Version,
    },
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingFits => write!(f, "No release in the catalog fits this cluster."),
            Self::NothingProven { newest } => write!(
                f,
                "{newest} fits, but the policy Stable waits for a release that is proven; to install it anyway, set spec.upgrades.policy: Latest or its version."
            ),
            Self::NoWayForward { installed } => {
                write!(f, "{installed} cannot be upgraded to any release that fits this cluster.")
            }
            Self::PinUnknown { pinned } => write!(
                f,
                "Version {pinned} is pinned, but the catalog does not contain it; pin another version, or import a catalog that contains it."
            ),
            Self::PinRefused { pinned, reason } => {
                write!(f, "Version {pinned} is pinned, but cannot be installed: {reason}")
            }
            Self::AwaitsApproval { available } => {
                write!(f, "{available} fits; the policy waits for your approval.")
            }
        }
    }
}

/// A remark about the chosen release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Without a vCenter, VDO cannot determine which releases fit.
    NoVcenter,
    /// No release in the catalog supports this Kubernetes version yet.
    KubernetesUnknown {
        newest: KubernetesMinor,
        cluster: KubernetesVersion,
    },
    /// The release only tolerates this Kubernetes minor.
    OneMinorBehind {
        supports: KubernetesRange,
        cluster: KubernetesVersion,
    },
    /// The catalog does not know this vSphere version yet.
    VsphereUnknown {
        name: String,
        version: VsphereVersion,
        newest: VsphereBound,
    },
    /// The release was tested with older vCenters only.
    VsphereUntested {
        name: String,
        version: VsphereVersion,
        tested: VsphereBound,
    },
    /// A known fault that applies here but does not exclude the release.
    KnownBad {
        id: String,
        reason: String,
        remedy: String,
    },
    SupportEnded {
        version: Version,
    },
    /// No release of the channel `stable` fits.
    NothingStable {
        version: Version,
    },
    /// Some of its images are pulled by tag, so their content can change.
    NotPinned {
        version: Version,
        images: Vec<String>,
    },
    /// The installed release does not fit here, and no better one does.
    RunningDoesNotFit {
        version: Version,
        reason: Box<Reason>,
    },
    RunningUnknown {
        version: Version,
    },
}

/// The first image, and the number of further ones.
fn listed(images: &[String]) -> String {
    match images {
        [] => "an image".to_owned(),
        [only] => only.clone(),
        [first, more @ ..] => format!("{first} and {} more", more.len()),
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVcenter => write!(
                f,
                "No vCenter is known yet, so VDO cannot choose a release; specify a vCenter that is reachable."
            ),
            Self::KubernetesUnknown { newest, cluster } => write!(
                f,
                "Kubernetes {cluster} is newer than any driver release in the catalog supports ({newest}); VDO uses the newest release until a newer catalog arrives."
            ),
            Self::NotPinned { version, images } => write!(
                f,
                "The catalog has no digest for {} of {version}. An image pulled by tag can differ from the tested one. A newer catalog may have the digest.",
                listed(images)
            ),
            Self::OneMinorBehind { supports, cluster } => write!(
                f,
                "The release supports Kubernetes {supports} and tolerates {cluster}, which this cluster runs; no better release fits the policy."
            ),
            Self::VsphereUnknown { name, version, newest } => write!(
                f,
                "{name} runs vSphere {version}, newer than {newest}, the newest in the catalog; VDO uses the newest release that fits {newest}."
            ),
            Self::VsphereUntested { name, version, tested } => write!(
                f,
                "{name} runs vSphere {version}; the release was tested with vSphere up to {tested}."
            ),
            Self::KnownBad { reason, remedy, .. } => write!(f, "Known fault: {reason}; {remedy}."),
            Self::SupportEnded { version } => {
                write!(f, "{version} is no longer maintained; it is the newest that fits here.")
            }
            Self::NothingStable { version } => {
                write!(f, "No stable release fits here; {version} is new.")
            }
            Self::RunningDoesNotFit { version, reason } => {
                write!(f, "{version} keeps running although it does not fit: {reason}")
            }
            Self::RunningUnknown { version } => {
                write!(f, "{version} is installed, but not in the catalog; VDO leaves it as it is.")
            }
        }
    }
}
