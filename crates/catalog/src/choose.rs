//! Choosing: from a catalog and what was seen of the cluster to one release per driver, and why.
//!
//! ```text
//!   every release ─► judge: does it fit here? ─► those that fit ─► policy ─► the one
//!                        │                             │               │
//!                        └── Reason                    └── Reason      └── Path from what runs
//! ```
//!
//! A pure function: no client, no clock, no chance. The rules:
//!
//! - The newest release that fits *every* vCenter and the cluster wins.
//! - Nothing is ever downgraded unless the admin pins an older version and says so.
//! - A Kubernetes or vSphere newer than the catalog knows is treated as the newest it knows, with a
//!   notice. The world moves on before catalogs do.
//! - When nothing fits, or no vCenter is known to fit to, what runs stays.
//! - A known fault that strikes here takes a release out, and its remedy is said.
//! - From a signed catalog only releases are installed whose images all have a digest.

use std::cmp::Ordering;

use jiff::civil::Date;
use semver::Version;

use crate::{
    image::Rewrite,
    manifest::images_to_mirror,
    model::{
        Catalog, Channel, Condition, Driver, Implementation, Release, Severity, Support, Vcenter,
    },
    path::{self, Path},
    version::{KubernetesVersion, VsphereVersion},
    why::{Notice, Reason, Standstill},
};

/// What was seen of the cluster and of vSphere.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The API server's version.
    pub kubernetes: KubernetesVersion,
    /// Every vCenter the driver will talk to.
    pub vcenters: Vec<Vcenter>,
    /// `vanilla`, `openshift`, `rke2`, ...: as the distribution is called in conditions.
    pub distribution: String,
    /// Whether there are Windows nodes.
    pub windows_nodes: bool,
    /// Whether zones are configured.
    pub topology: bool,
    /// Where the admin keeps images; an image that is covered counts as available.
    pub rewrite: Rewrite,
    /// The day, for ends of support. None: they are not looked at.
    pub today: Option<Date>,
}

/// Who decides about change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// The newest release that fits.
    Latest,
    /// The newest release with some service behind it; a young one only where nothing else fits.
    Stable,
    /// This version and no other.
    Pinned {
        /// The version.
        version: Version,
        /// Whether it may be older than what runs.
        downgrade: bool,
    },
    /// The newest at first; after that nothing changes until the admin says so.
    Manual,
}

/// What is wanted of one driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Whose driver.
    pub implementation: Implementation,
    /// Who decides about change.
    pub policy: Policy,
    /// What runs now.
    pub installed: Option<Version>,
}

/// What is to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing runs; this is installed.
    Install(Version),
    /// What runs is changed, step by step.
    Change(Path),
    /// What runs stays.
    Keep(Version),
    /// Nothing runs and nothing is installed.
    Nothing,
}

impl Action {
    /// The version that will run when the action is done.
    pub fn version(&self) -> Option<&Version> {
        match self {
            Self::Install(version) | Self::Keep(version) => Some(version),
            Self::Change(path) => path.hops.last().map(|hop| &hop.to),
            Self::Nothing => None,
        }
    }
}

/// The choice for one driver, with everything there is to say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Which driver.
    pub driver: Driver,
    /// What is to happen.
    pub action: Action,
    /// Why nothing happens, where one might expect that something would.
    pub standstill: Option<Standstill>,
    /// What to mind.
    pub notices: Vec<Notice>,
    /// Every release that will not run, newest first, with the reason.
    pub others: Vec<(Version, Reason)>,
}

/// A release that fits, and what there is to mind about it.
struct Fit<'a> {
    release: &'a Release,
    exact: bool,
    notices: Vec<Notice>,
}

/// Chooses for one driver.
pub fn choose(
    catalog: &Catalog,
    seen: &Environment,
    driver: Driver,
    request: &Request,
) -> Decision {
    let known = Known::from(catalog, seen, driver, request.implementation);
    let pin = match &request.policy {
        Policy::Pinned { version, .. } => Some(version),
        _ => None,
    };
    let mut fits = Vec::new();
    let mut others = Vec::new();
    for release in catalog.of(driver, request.implementation).rev() {
        match judge(catalog, seen, &known, release, pin == Some(&release.version)) {
            Ok(fit) => fits.push(fit),
            Err(reason) => others.push((release.version.clone(), reason)),
        }
    }
    let (action, standstill) = decide(catalog, seen, driver, request, &fits, &others);
    let mut notices = known.notices;
    notices.extend(notices_of(catalog, driver, request, &action, &fits, &others));
    others.extend(passed_over(request, &action, &fits));
    others.retain(|(version, _)| Some(version) != action.version());
    others.sort_by(|(a, _), (b, _)| b.cmp(a));
    Decision { driver, action, standstill, notices, others }
}

/// The cluster as far as the catalog knows the world.
struct Known {
    kubernetes: KubernetesVersion,
    newest_vsphere: VsphereVersion,
    notices: Vec<Notice>,
}

impl Known {
    fn from(catalog: &Catalog, seen: &Environment, driver: Driver, whose: Implementation) -> Self {
        let mut notices = Vec::new();
        let mut kubernetes = seen.kubernetes;
        if let Some(newest) = catalog.newest_kubernetes(driver, whose)
            && kubernetes.as_minor() > newest
        {
            notices.push(Notice::KubernetesUnknown { newest, cluster: kubernetes });
            kubernetes = KubernetesVersion::minor(newest.major, newest.minor);
        }
        if seen.vcenters.is_empty() {
            notices.push(Notice::NoVcenter);
        }
        for vcenter in &seen.vcenters {
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

/// Whether a release fits here, whoever is asking and whatever runs.
fn judge<'a>(
    catalog: &Catalog,
    seen: &Environment,
    known: &Known,
    release: &'a Release,
    pinned: bool,
) -> Result<Fit<'a>, Reason> {
    let mut notices = Vec::new();
    let exact = judge_kubernetes(known.kubernetes, seen, release, &mut notices)?;
    for vcenter in &seen.vcenters {
        judge_vcenter(known, vcenter, release, &mut notices)?;
    }
    for fault in release.known_bad.iter().filter(|fault| holds(&fault.when, seen)) {
        let (id, reason, remedy) = (fault.id.clone(), fault.reason.clone(), fault.remedy.clone());
        match fault.severity {
            Severity::Refuse => return Err(Reason::KnownBad { id, reason, remedy }),
            Severity::Warn => notices.push(Notice::KnownBad { id, reason, remedy }),
        }
    }
    can_be_pulled(catalog, &seen.rewrite, release)?;
    is_covered(catalog, release)?;
    if !pinned && (release.channel == Channel::Candidate || !release.version.pre.is_empty()) {
        return Err(Reason::Candidate);
    }
    if release.manifest.is_unknown() {
        return Err(Reason::NeedsNewerOperator);
    }
    let over = match (release.end_of_support, seen.today) {
        (Some(end), Some(today)) => end < today,
        _ => false,
    };
    if over || release.support == Support::Ended {
        notices.push(Notice::SupportEnded { version: release.version.clone() });
    }
    Ok(Fit { release, exact, notices })
}

/// Whether every image of a release is somewhere to be had. To be asked again of a release whose
/// manifest was fetched ([`crate::manifest::from_manifest::fetched`]): before, its images are unknown.
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

/// Whether a signed catalog's signature covers what a release runs. It does where every image is named by
/// digest: a tag means whatever the registry says that day, and the drivers run as root on every node.
pub fn is_covered(catalog: &Catalog, release: &Release) -> Result<(), Reason> {
    let images = images_to_mirror(release).into_iter().filter(|image| image.digest.is_none());
    let images: Vec<String> = images.map(|image| image.tagged()).collect();
    let covered = images.is_empty() && release.manifest.urls.is_empty();
    if catalog.signed && !covered {
        return Err(Reason::ImagesNotPinned { images });
    }
    Ok(())
}

/// Whether the cluster is in the release's range; `false` when it is only tolerated.
fn judge_kubernetes(
    known: KubernetesVersion,
    seen: &Environment,
    release: &Release,
    notices: &mut Vec<Notice>,
) -> Result<bool, Reason> {
    let (supports, cluster) = (release.kubernetes, seen.kubernetes);
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

fn judge_vcenter(
    known: &Known,
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

/// Whether a condition holds here. Conditions about vSphere hold when any vCenter meets them.
pub(crate) fn holds(condition: &Condition, seen: &Environment) -> bool {
    let Condition {
        vsphere_min,
        vsphere_max,
        kubernetes_min,
        kubernetes_max,
        distributions,
        windows,
        topology,
        several_vcenters,
    } = condition;
    let minor = seen.kubernetes.as_minor();
    let vsphere = vsphere_min.is_none() && vsphere_max.is_none()
        || seen.vcenters.iter().any(|vcenter| {
            vsphere_min.is_none_or(|min| min.compare(vcenter.version) != Ordering::Less)
                && vsphere_max.is_none_or(|max| max.compare(vcenter.version) != Ordering::Greater)
        });
    vsphere
        && kubernetes_min.is_none_or(|min| minor >= min)
        && kubernetes_max.is_none_or(|max| minor <= max)
        && (distributions.is_empty() || distributions.contains(&seen.distribution))
        && windows.is_none_or(|windows| windows == seen.windows_nodes)
        && topology.is_none_or(|topology| topology == seen.topology)
        && several_vcenters.is_none_or(|several| several == (seen.vcenters.len() > 1))
}

/// The action, from the releases that fit (newest first) and the policy.
fn decide(
    catalog: &Catalog,
    seen: &Environment,
    driver: Driver,
    request: &Request,
    fits: &[Fit<'_>],
    refused: &[(Version, Reason)],
) -> (Action, Option<Standstill>) {
    let stay = match &request.installed {
        None => Action::Nothing,
        Some(version) => Action::Keep(version.clone()),
    };
    if seen.vcenters.is_empty() {
        return (stay, Some(Standstill::NothingFits));
    }
    let road = |to: &Release| match &request.installed {
        None => Some(Action::Install(to.version.clone())),
        Some(from) if *from == to.version => Some(Action::Keep(from.clone())),
        Some(from) => {
            let may_stop = |at: &Release| fits.iter().any(|fit| fit.release.version == at.version);
            path::find(catalog, seen, (driver, request.implementation), from, to, &may_stop)
                .map(Action::Change)
        }
    };
    if let Policy::Pinned { version, downgrade } = &request.policy {
        return pinned(version, *downgrade, request, fits, refused, &road, stay);
    }
    let ahead = |fit: &&Fit<'_>| {
        request.installed.as_ref().is_none_or(|installed| fit.release.version >= *installed)
    };
    let stable = |fit: &&Fit<'_>| fit.release.channel == Channel::Stable;
    let newest = || fits.iter().filter(ahead).find_map(|fit| road(fit.release));
    let listed = |version| catalog.find(driver, request.implementation, version).is_some();
    let best = match request.policy {
        Policy::Stable => {
            let tried = fits.iter().filter(ahead).filter(stable).find_map(|fit| road(fit.release));
            // That a catalog does not list what runs is no reason to move to a young release.
            if tried.is_none() && request.installed.as_ref().is_some_and(|runs| !listed(runs)) {
                return (stay, None);
            }
            tried.or_else(newest)
        }
        _ => newest(),
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
    refused: &[(Version, Reason)],
    road: &dyn Fn(&Release) -> Option<Action>,
    stay: Action,
) -> (Action, Option<Standstill>) {
    if request.installed.as_ref() == Some(pin) {
        return (stay, None);
    }
    let pinned = pin.clone();
    if let Some((_, reason)) = refused.iter().find(|(version, _)| version == pin) {
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
    if let Some(action) = road(fit.release) {
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

/// What to mind about the release that will run.
fn notices_of(
    catalog: &Catalog,
    driver: Driver,
    request: &Request,
    action: &Action,
    fits: &[Fit<'_>],
    refused: &[(Version, Reason)],
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
    // Only what runs can be here without fitting.
    match refused.iter().find(|(other, _)| *other == version) {
        // It runs, so it is no candidate for anything; the images and the ranges still matter.
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

/// Why the releases that fit were not the one.
fn passed_over(request: &Request, action: &Action, fits: &[Fit<'_>]) -> Vec<(Version, Reason)> {
    let Some(chosen) = action.version() else {
        return Vec::new();
    };
    let taken = fits.iter().find(|fit| fit.release.version == *chosen);
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
                && fit.release.channel != Channel::Stable =>
            {
                Reason::NotStable { chosen: chosen.clone() }
            }
            _ if version > chosen => unreachable(request, fit.release),
            _ if !fit.exact && taken.is_some_and(|taken| taken.exact) => {
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
