//! Chooses one release per driver from a catalog and an [`Environment`], and explains the choice.
//!
//! ```text
//!   every release ─► assess: does it fit here? ─► releases that fit ─► policy ─► chosen release
//!                        │                              │               │
//!                        └── Reason                     └── Reason      └── Path from the installed one
//! ```
//!
//! A pure function: no client, no clock, no randomness. The rules:
//!
//! - The newest release that fits the cluster and *every* vCenter wins.
//! - A driver is never downgraded unless the admin pins an older version and allows the downgrade.
//! - A Kubernetes or vSphere version newer than the catalog knows counts as the newest known version, with a
//!   notice. New platform versions appear before new catalogs do.
//! - When nothing fits, or no vCenter is known, the installed release stays.
//! - A known fault that applies here excludes a release, and the reason names the remedy. A fault that depends
//!   on the versions of unknown ESXi hosts is a notice.
//! - A release from a signed catalog is installed only if all its images have a digest.
//! - The policy `stable` chooses only proven releases: of the channel `stable`, with a digest for every image.

use std::cmp::Ordering;

use semver::Version;

use crate::{
    environment::{Applies, Environment},
    image::Rewrite,
    manifest::images_to_mirror,
    model::{Catalog, Channel, Driver, Implementation, Release, Severity, Support, Vcenter},
    path::{self, Path},
    version::{KubernetesVersion, VsphereVersion},
    why::{Notice, Reason, Standstill},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// The newest release that fits.
    Latest,
    /// The newest proven release: of the channel `stable`, with a digest for every image. If the catalog has no
    /// proven release of the implementation at all, the newest one.
    Stable,
    Pinned {
        version: Version,
        /// Allows a version older than the installed one.
        downgrade: bool,
    },
    /// The newest release at first; after that every change needs the admin's approval.
    Manual,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub implementation: Implementation,
    pub policy: Policy,
    pub installed: Option<Version>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing is installed yet.
    Install(Version),
    /// Upgrade, or downgrade, step by step.
    Change(Path),
    Keep(Version),
    /// Nothing is installed, and nothing will be.
    Nothing,
}

impl Action {
    /// The version that runs once the action is complete.
    pub fn version(&self) -> Option<&Version> {
        match self {
            Self::Install(version) | Self::Keep(version) => Some(version),
            Self::Change(path) => path.hops.last().map(|hop| &hop.to),
            Self::Nothing => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub driver: Driver,
    pub action: Action,
    /// Why nothing changes although the admin might expect a change.
    pub standstill: Option<Standstill>,
    pub notices: Vec<Notice>,
    /// Every release that was not chosen, newest first.
    pub others: Vec<(Version, Reason)>,
}

/// A release that fits, with its notices. `exact` is false if it only tolerates this Kubernetes minor.
struct Fit<'a> {
    release: &'a Release,
    exact: bool,
    notices: Vec<Notice>,
}

pub fn choose(
    catalog: &Catalog,
    environment: &Environment,
    driver: Driver,
    request: &Request,
) -> Decision {
    let known = KnownEnvironment::from(catalog, environment, driver, request.implementation);
    let pin = match &request.policy {
        Policy::Pinned { version, .. } => Some(version),
        _ => None,
    };
    let mut fits = Vec::new();
    let mut others = Vec::new();
    for release in catalog.releases_of(driver, request.implementation).rev() {
        match assess(catalog, environment, &known, release, pin == Some(&release.version)) {
            Ok(fit) => fits.push(fit),
            Err(reason) => others.push((release.version.clone(), reason)),
        }
    }
    let (action, standstill) = decide(catalog, environment, driver, request, &fits, &others);
    let mut notices = known.notices;
    notices.extend(notices_for(catalog, driver, request, &action, &fits, &others));
    others.extend(not_chosen(request, &action, &fits));
    others.retain(|(version, _)| Some(version) != action.version());
    others.sort_by(|(a, _), (b, _)| b.cmp(a));
    Decision { driver, action, standstill, notices, others }
}

/// The environment, limited to the newest versions that the catalog knows.
struct KnownEnvironment {
    kubernetes: KubernetesVersion,
    newest_vsphere: VsphereVersion,
    notices: Vec<Notice>,
}

impl KnownEnvironment {
    fn from(
        catalog: &Catalog,
        environment: &Environment,
        driver: Driver,
        implementation: Implementation,
    ) -> Self {
        let mut notices = Vec::new();
        let mut kubernetes = environment.kubernetes;
        if let Some(newest) = catalog.newest_kubernetes(driver, implementation)
            && kubernetes.as_minor() > newest
        {
            notices.push(Notice::KubernetesUnknown { newest, cluster: kubernetes });
            kubernetes = KubernetesVersion::minor(newest.major, newest.minor);
        }
        if environment.vcenters.is_empty() {
            notices.push(Notice::NoVcenter);
        }
        for vcenter in &environment.vcenters {
            if catalog.newest_vsphere.compare(vcenter.version) == Ordering::Greater {
                notices.push(Notice::VsphereUnknown {
                    name: vcenter.name.clone(),
                    version: vcenter.version,
                    newest: catalog.newest_vsphere,
                });
            }
        }
        Self { kubernetes, newest_vsphere: catalog.newest_vsphere.version(), notices }
    }
}

/// Checks whether a release fits here, regardless of policy and installed version.
fn assess<'a>(
    catalog: &Catalog,
    environment: &Environment,
    known: &KnownEnvironment,
    release: &'a Release,
    pinned: bool,
) -> Result<Fit<'a>, Reason> {
    let mut notices = Vec::new();
    let exact = assess_kubernetes(known.kubernetes, environment, release, &mut notices)?;
    for vcenter in &environment.vcenters {
        assess_vcenter(known, vcenter, release, &mut notices)?;
    }
    for fault in &release.known_bad {
        let (id, reason, remedy) = (fault.id.clone(), fault.reason.clone(), fault.remedy.clone());
        match (environment.applies(&fault.when), fault.severity) {
            (Applies::No, _) => {}
            (Applies::Yes, Severity::Refuse) => {
                return Err(Reason::KnownBad { id, reason, remedy });
            }
            (Applies::Unknown, Severity::Refuse) | (_, Severity::Warn) => {
                notices.push(Notice::KnownBad { id, reason, remedy });
            }
        }
    }
    can_be_pulled(catalog, &environment.rewrite, release)?;
    is_covered(catalog, release)?;
    if !pinned && (release.channel == Channel::Candidate || !release.version.pre.is_empty()) {
        return Err(Reason::Candidate);
    }
    if release.manifest.is_unknown() {
        return Err(Reason::NeedsNewerOperator);
    }
    let over = match (release.end_of_support, environment.today) {
        (Some(end), Some(today)) => end < today,
        _ => false,
    };
    if over || release.support == Support::Ended {
        notices.push(Notice::SupportEnded { version: release.version.clone() });
    }
    Ok(Fit { release, exact, notices })
}

/// Checks that every image of a release is available. Call it again after the manifest was fetched
/// ([`crate::manifest::from_manifest::fetched`]): before that, the images are unknown.
pub fn can_be_pulled(
    catalog: &Catalog,
    rewrite: &Rewrite,
    release: &Release,
) -> Result<(), Reason> {
    for image in release.images.values() {
        if let Some(reason) = catalog.why_unavailable(image)
            && !rewrite.covers(image)
        {
            return Err(Reason::ImagesGone { image: image.tagged(), reason: reason.to_owned() });
        }
    }
    Ok(())
}

/// Checks that the signature of a signed catalog covers everything that a release runs: every image needs a
/// digest. A registry can move a tag at any time, and the drivers run as root on every node.
pub fn is_covered(catalog: &Catalog, release: &Release) -> Result<(), Reason> {
    let images = images_to_mirror(release).into_iter().filter(|image| image.digest.is_none());
    let images: Vec<String> = images.map(|image| image.tagged()).collect();
    let covered = images.is_empty() && release.manifest.urls.is_empty();
    if catalog.signed && !covered {
        return Err(Reason::ImagesNotPinned { images });
    }
    Ok(())
}

/// Whether the policy `stable` accepts a release.
fn is_proven(release: &Release) -> bool {
    let pinned = || images_to_mirror(release).iter().all(|image| image.digest.is_some());
    release.channel == Channel::Stable && release.manifest.urls.is_empty() && pinned()
}

fn has_proven(catalog: &Catalog, driver: Driver, implementation: Implementation) -> bool {
    catalog.releases_of(driver, implementation).any(is_proven)
}

/// Checks the release's Kubernetes range. `Ok(false)` means that the release only tolerates this minor.
fn assess_kubernetes(
    known: KubernetesVersion,
    environment: &Environment,
    release: &Release,
    notices: &mut Vec<Notice>,
) -> Result<bool, Reason> {
    let (supports, cluster) = (release.kubernetes, environment.kubernetes);
    match supports.place(known) {
        Ordering::Equal => Ok(true),
        Ordering::Less => Err(Reason::KubernetesTooOld { supports, cluster }),
        Ordering::Greater if supports.tolerates.is_some_and(|most| known.as_minor() <= most) => {
            notices.push(Notice::OneMinorBehind { supports, cluster });
            Ok(false)
        }
        Ordering::Greater => Err(Reason::KubernetesTooNew { supports, cluster }),
    }
}

fn assess_vcenter(
    known: &KnownEnvironment,
    vcenter: &Vcenter,
    release: &Release,
    notices: &mut Vec<Notice>,
) -> Result<(), Reason> {
    let range = &release.vsphere;
    let (name, version) = (vcenter.name.clone(), vcenter.version);
    if range.min.compare(version) == Ordering::Less {
        let because = range.because.clone();
        return Err(Reason::VcenterTooOld { name, version, min: range.min, because });
    }
    if let Some(max) = range.max
        && max.compare(version.min(known.newest_vsphere)) == Ordering::Greater
    {
        return Err(Reason::VcenterTooNew { name, version, max });
    }
    if let (Some(min), Some(host)) = (range.hosts, vcenter.oldest_host)
        && min.compare(host) == Ordering::Less
    {
        return Err(Reason::HostTooOld { vcenter: name, version: host, min });
    }
    if let Some(tested) = range.tested
        && tested.compare(version) == Ordering::Greater
    {
        notices.push(Notice::VsphereUntested { name, version, tested });
    }
    Ok(())
}

/// Applies the policy to the releases that fit (newest first).
fn decide(
    catalog: &Catalog,
    environment: &Environment,
    driver: Driver,
    request: &Request,
    fits: &[Fit<'_>],
    excluded: &[(Version, Reason)],
) -> (Action, Option<Standstill>) {
    let stay = match &request.installed {
        None => Action::Nothing,
        Some(version) => Action::Keep(version.clone()),
    };
    if environment.vcenters.is_empty() {
        return (stay, Some(Standstill::NothingFits));
    }
    let action_for = |to: &Release| match &request.installed {
        None => Some(Action::Install(to.version.clone())),
        Some(from) if *from == to.version => Some(Action::Keep(from.clone())),
        Some(from) => {
            let strict = request.policy == Policy::Stable
                && has_proven(catalog, driver, request.implementation);
            let may_stop = |at: &Release| {
                fits.iter().any(|fit| fit.release.version == at.version)
                    && (!strict || is_proven(at))
            };
            path::find(catalog, environment, (driver, request.implementation), from, to, &may_stop)
                .map(Action::Change)
        }
    };
    if let Policy::Pinned { version, downgrade } = &request.policy {
        return pinned(version, *downgrade, request, fits, excluded, &action_for, stay);
    }
    let ahead = |fit: &&Fit<'_>| {
        request.installed.as_ref().is_none_or(|installed| fit.release.version >= *installed)
    };
    let ahead: Vec<&Fit<'_>> = fits.iter().filter(ahead).collect();
    let newest = |acceptable: &dyn Fn(&Release) -> bool| {
        let mut fits = ahead.iter().filter(|fit| acceptable(fit.release));
        fits.find_map(|fit| action_for(fit.release))
    };
    let best = match request.policy {
        Policy::Stable if has_proven(catalog, driver, request.implementation) => {
            let none = !ahead.iter().any(|fit| is_proven(fit.release));
            if let Some(unproven) = ahead.first().filter(|_| none) {
                let newest = unproven.release.version.clone();
                let waits = Standstill::NothingProven { newest };
                return (stay, request.installed.is_none().then_some(waits));
            }
            newest(&is_proven)
        }
        // Without proven releases the policy can only prefer: this project's own drivers, a matrix of the Go VDO.
        Policy::Stable => {
            let best_stable = newest(&|release| release.channel == Channel::Stable);
            // An installed release that the catalog does not list is no reason to move to a `latest` one.
            let listed = |version| catalog.find(driver, request.implementation, version).is_some();
            if best_stable.is_none() && request.installed.as_ref().is_some_and(|runs| !listed(runs))
            {
                return (stay, None);
            }
            best_stable.or_else(|| newest(&|_| true))
        }
        _ => newest(&|_| true),
    };
    match (best, &request.installed) {
        (None, Some(installed)) if fits.iter().any(|fit| fit.release.version > *installed) => {
            (stay, Some(Standstill::NoWayForward { installed: installed.clone() }))
        }
        (None, _) if fits.is_empty() => (stay, Some(Standstill::NothingFits)),
        (None, _) => (stay, None),
        (Some(Action::Change(path)), Some(_)) if request.policy == Policy::Manual => {
            let available = path.hops.last().map(|hop| hop.to.clone());
            (stay, available.map(|available| Standstill::AwaitsApproval { available }))
        }
        (Some(action), _) => (action, None),
    }
}

fn pinned(
    pin: &Version,
    downgrade: bool,
    request: &Request,
    fits: &[Fit<'_>],
    excluded: &[(Version, Reason)],
    action_for: &dyn Fn(&Release) -> Option<Action>,
    stay: Action,
) -> (Action, Option<Standstill>) {
    if request.installed.as_ref() == Some(pin) {
        return (stay, None);
    }
    let pinned = pin.clone();
    if let Some((_, reason)) = excluded.iter().find(|(version, _)| version == pin) {
        return (stay, Some(Standstill::PinRefused { pinned, reason: reason.clone() }));
    }
    let Some(fit) = fits.iter().find(|fit| fit.release.version == *pin) else {
        return (stay, Some(Standstill::PinUnknown { pinned }));
    };
    if let Some(installed) = request.installed.clone()
        && installed > *pin
    {
        if downgrade {
            return (Action::Change(Path::back(installed, pinned)), None);
        }
        let reason = Reason::OlderThanInstalled { installed };
        return (stay, Some(Standstill::PinRefused { pinned, reason }));
    }
    if let Some(action) = action_for(fit.release) {
        return (action, None);
    }
    let reason = unreachable(request, fit.release);
    (stay, Some(Standstill::PinRefused { pinned, reason }))
}

fn unreachable(request: &Request, release: &Release) -> Reason {
    Reason::Unreachable {
        installed: request.installed.clone().unwrap_or(Version::new(0, 0, 0)),
        from: release.upgrade_from.clone().unwrap_or(release.version.clone()),
    }
}

/// The notices about the release that will run.
fn notices_for(
    catalog: &Catalog,
    driver: Driver,
    request: &Request,
    action: &Action,
    fits: &[Fit<'_>],
    excluded: &[(Version, Reason)],
) -> Vec<Notice> {
    let Some(version) = action.version().cloned() else {
        return Vec::new();
    };
    if let Some(fit) = fits.iter().find(|fit| fit.release.version == version) {
        let mut notices = fit.notices.clone();
        let fresh = !matches!(action, Action::Keep(_));
        if fresh && request.policy == Policy::Stable && fit.release.channel != Channel::Stable {
            notices.push(Notice::NothingStable { version: version.clone() });
        }
        let images = fit.release.images.values().filter(|image| image.digest.is_none());
        let images: Vec<_> = images.map(crate::Image::tagged).collect();
        if fresh && !images.is_empty() {
            notices.push(Notice::NotPinned { version, images });
        }
        return notices;
    }
    // Only an installed release can be here without fitting.
    match excluded.iter().find(|(other, _)| *other == version) {
        // These reasons concern new installations only. Ranges and unavailable images still matter.
        Some((
            _,
            Reason::Candidate | Reason::NeedsNewerOperator | Reason::ImagesNotPinned { .. },
        )) => Vec::new(),
        Some((_, reason)) => {
            vec![Notice::RunningDoesNotFit { version, reason: Box::new(reason.clone()) }]
        }
        None if catalog.find(driver, request.implementation, &version).is_none() => {
            vec![Notice::RunningUnknown { version }]
        }
        None => Vec::new(),
    }
}

/// Why the other releases that fit were not chosen.
fn not_chosen(request: &Request, action: &Action, fits: &[Fit<'_>]) -> Vec<(Version, Reason)> {
    let Some(chosen) = action.version() else {
        return Vec::new();
    };
    let chosen_fit = fits.iter().find(|fit| fit.release.version == *chosen);
    let reason = |fit: &Fit<'_>| {
        let version = &fit.release.version;
        match (&request.policy, &request.installed) {
            (Policy::Pinned { version: pin, .. }, _) if version != pin => {
                Reason::NotPinned { pinned: pin.clone() }
            }
            (_, Some(installed)) if version < installed => {
                Reason::OlderThanInstalled { installed: installed.clone() }
            }
            (Policy::Manual, Some(installed)) if chosen == installed => {
                Reason::HeldByPolicy { installed: installed.clone() }
            }
            _ if version > chosen
                && request.policy == Policy::Stable
                && !is_proven(fit.release) =>
            {
                Reason::NotStable { chosen: chosen.clone() }
            }
            _ if version > chosen => unreachable(request, fit.release),
            _ if !fit.exact && chosen_fit.is_some_and(|chosen_fit| chosen_fit.exact) => {
                Reason::NotTheSameMinor { chosen: chosen.clone() }
            }
            _ => Reason::NotTheNewest { chosen: chosen.clone() },
        }
    };
    fits.iter()
        .filter(|fit| fit.release.version != *chosen)
        .map(|fit| (fit.release.version.clone(), reason(fit)))
        .collect()
}
