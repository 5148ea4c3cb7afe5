//! Why a release was not chosen, and what to mind about the one that was: typed, and one sentence each.

use std::fmt;

use semver::Version;

use crate::{
    model::KubernetesRange,
    version::{KubernetesMinor, KubernetesVersion, VsphereBound, VsphereVersion},
};

/// Why a release was not chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It needs a newer cluster.
    KubernetesTooOld {
        /// What it supports.
        supports: KubernetesRange,
        /// What the cluster runs.
        cluster: KubernetesVersion,
    },
    /// It ends before this cluster.
    KubernetesTooNew {
        /// What it supports.
        supports: KubernetesRange,
        /// What the cluster runs.
        cluster: KubernetesVersion,
    },
    /// A vCenter is older than it needs.
    VcenterTooOld {
        /// Which.
        name: String,
        /// What it runs.
        version: VsphereVersion,
        /// What is needed.
        min: VsphereBound,
        /// What would go wrong.
        because: String,
    },
    /// A vCenter is newer than it works with.
    VcenterTooNew {
        /// Which.
        name: String,
        /// What it runs.
        version: VsphereVersion,
        /// Where support ends.
        max: VsphereBound,
    },
    /// A host is older than it needs.
    HostTooOld {
        /// Whose host.
        vcenter: String,
        /// What it runs.
        version: VsphereVersion,
        /// What is needed.
        min: VsphereBound,
    },
    /// Somebody has met a fault of it, and it strikes here.
    KnownBad {
        /// The fault's name.
        id: String,
        /// What goes wrong.
        reason: String,
        /// What can be done.
        remedy: String,
    },
    /// An image of it cannot be pulled.
    ImagesGone {
        /// The image.
        image: String,
        /// What became of it.
        reason: String,
    },
    /// The catalog's signature does not cover what would run: images are named by tag, or the manifest
    /// is only an address.
    ImagesNotPinned {
        /// The images without a digest; none where the manifest is only an address.
        images: Vec<String>,
    },
    /// It is not meant for production.
    Candidate,
    /// Its objects are described in a way this operator does not know.
    NeedsNewerOperator,
    /// It would be a step back from what runs.
    OlderThanInstalled {
        /// What runs.
        installed: Version,
    },
    /// What runs cannot be upgraded to it, not even in steps.
    Unreachable {
        /// What runs.
        installed: Version,
        /// What would have to run first.
        from: Version,
    },
    /// It fits, and another fits better.
    NotTheNewest {
        /// The other.
        chosen: Version,
    },
    /// It fits; it is younger than the policy wants.
    NotStable {
        /// The one with more service behind it.
        chosen: Version,
    },
    /// It fits by being one minor behind; another matches the cluster.
    NotTheSameMinor {
        /// The other.
        chosen: Version,
    },
    /// The admin named another.
    NotPinned {
        /// The one named.
        pinned: Version,
    },
    /// It fits; the policy leaves changes to the admin.
    HeldByPolicy {
        /// What runs.
        installed: Version,
    },
}

impl Reason {
    /// Whether the release could have been installed here at all.
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
                "{image} cannot be pulled: {reason}. Where a mirror has it, say so in spec.images.registry."
            ),
            Self::ImagesNotPinned { images } => {
                write!(f, "The catalog's signature does not cover what would run: ")?;
                match images.as_slice() {
                    [] => write!(f, "it names the manifest by its address only.")?,
                    [image] => write!(f, "{image} has no digest.")?,
                    [first, ..] => {
                        write!(f, "{} images have no digest, {first} among them.", images.len())?;
                    }
                }
                write!(f, " Ask its publisher to add what is missing and to sign it again.")
            }
            Self::Candidate => {
                write!(f, "It is a release candidate, which only a pinned version installs.")
            }
            Self::NeedsNewerOperator => {
                write!(f, "The catalog describes it in a way only a newer operator knows.")
            }
            Self::OlderThanInstalled { installed } => {
                write!(
                    f,
                    "It is older than {installed}, which runs here; drivers are not downgraded."
                )
            }
            Self::Unreachable { installed, from } => write!(
                f,
                "It can be reached from {from} on; {installed} has to be removed with its own manifest first."
            ),
            Self::NotTheNewest { chosen } => write!(f, "It fits; {chosen} is newer and fits too."),
            Self::NotStable { chosen } => {
                write!(f, "It fits, but it is young, and the policy prefers {chosen}.")
            }
            Self::NotTheSameMinor { chosen } => {
                write!(f, "It would do for a while; {chosen} is made for this Kubernetes minor.")
            }
            Self::NotPinned { pinned } => write!(f, "Version {pinned} is asked for."),
            Self::HeldByPolicy { installed } => {
                write!(
                    f,
                    "It fits; the policy keeps {installed} until somebody approves the change."
                )
            }
        }
    }
}

/// Why things stay as they are although somebody might expect otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standstill {
    /// No release fits this cluster.
    NothingFits,
    /// Releases fit, but none that what runs may be changed to.
    NoWayForward {
        /// What runs.
        installed: Version,
    },
    /// The version asked for is in no catalog.
    PinUnknown {
        /// The version.
        pinned: Version,
    },
    /// The version asked for does not go here.
    PinRefused {
        /// The version.
        pinned: Version,
        /// Why.
        reason: Reason,
    },
    /// The policy leaves the change to the admin.
    AwaitsApproval {
        /// What could be installed.
        available: Version,
    },
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingFits => write!(f, "No release in the catalog fits this cluster."),
            Self::NoWayForward { installed } => {
                write!(f, "No release that fits this cluster can be reached from {installed}.")
            }
            Self::PinUnknown { pinned } => write!(
                f,
                "Version {pinned} is asked for and is in no catalog; name one that is, or load a catalog that has it."
            ),
            Self::PinRefused { pinned, reason } => {
                write!(f, "Version {pinned} is asked for and not installed: {reason}")
            }
            Self::AwaitsApproval { available } => {
                write!(f, "{available} fits; the policy waits for somebody to approve it.")
            }
        }
    }
}

/// Something to mind about what was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// No vCenter is known, so nothing can be said about what fits.
    NoVcenter,
    /// Nobody vouches for this Kubernetes yet.
    KubernetesUnknown {
        /// The newest known.
        newest: KubernetesMinor,
        /// What the cluster runs.
        cluster: KubernetesVersion,
    },
    /// The release is one Kubernetes minor behind, which is allowed for a while.
    OneMinorBehind {
        /// What it is made for.
        supports: KubernetesRange,
        /// What the cluster runs.
        cluster: KubernetesVersion,
    },
    /// Nobody vouches for this vSphere yet.
    VsphereUnknown {
        /// Which vCenter.
        name: String,
        /// What it runs.
        version: VsphereVersion,
        /// The newest known.
        newest: VsphereBound,
    },
    /// The release was tried with older vCenters only.
    VsphereUntested {
        /// Which vCenter.
        name: String,
        /// What it runs.
        version: VsphereVersion,
        /// The newest it was tried with.
        tested: VsphereBound,
    },
    /// A fault that strikes here and can be lived with.
    KnownBad {
        /// The fault's name.
        id: String,
        /// What goes wrong.
        reason: String,
        /// What can be done.
        remedy: String,
    },
    /// The release is no longer mended.
    SupportEnded {
        /// Which.
        version: Version,
    },
    /// Nothing older had enough service behind it.
    NothingStable {
        /// What was taken.
        version: Version,
    },
    /// Some of its images are pulled by tag, so what is pulled can change.
    NotPinned {
        /// Which release.
        version: Version,
        /// The images, by tag.
        images: Vec<String>,
    },
    /// What runs does not fit here, and nothing better could be offered.
    RunningDoesNotFit {
        /// What runs.
        version: Version,
        /// Why it does not.
        reason: Box<Reason>,
    },
    /// What runs is in no catalog.
    RunningUnknown {
        /// What runs.
        version: Version,
    },
}

/// The first of several, and how many more there are.
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
                "No vCenter is known yet, so no release can be chosen; name one that can be reached."
            ),
            Self::KubernetesUnknown { newest, cluster } => write!(
                f,
                "Kubernetes {cluster} is newer than any driver release known here ({newest}); the newest known one is used until the catalog knows more."
            ),
            Self::NotPinned { version, images } => write!(
                f,
                "No digest is known for {} of {version}: pulled by tag, what runs can differ from what was tested. A newer catalog may know it.",
                listed(images)
            ),
            Self::OneMinorBehind { supports, cluster } => write!(
                f,
                "The release is made for Kubernetes {supports} and the cluster runs {cluster}; one minor behind is allowed while no better one is at hand."
            ),
            Self::VsphereUnknown { name, version, newest } => write!(
                f,
                "{name} runs vSphere {version}, newer than the {newest} this catalog knows; the newest release that fits {newest} is used."
            ),
            Self::VsphereUntested { name, version, tested } => write!(
                f,
                "{name} runs vSphere {version}; the release was tried with vSphere up to {tested}."
            ),
            Self::KnownBad { reason, remedy, .. } => write!(f, "Known fault: {reason}; {remedy}."),
            Self::SupportEnded { version } => {
                write!(f, "{version} is no longer maintained; it is the newest that fits here.")
            }
            Self::NothingStable { version } => {
                write!(f, "No release with long service fits here; {version} is young.")
            }
            Self::RunningDoesNotFit { version, reason } => {
                write!(f, "{version} keeps running although it does not fit: {reason}")
            }
            Self::RunningUnknown { version } => {
                write!(f, "{version} runs here and is in no catalog; it is left alone.")
            }
        }
    }
}
