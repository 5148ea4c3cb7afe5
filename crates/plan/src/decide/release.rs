//! The release of a driver to work on now.

use api::{
    finding::{Finding, Severity, codes},
    vdo_config::UpgradePolicy,
};
use catalog::{
    Action, Decision, Driver, Environment, Policy, Request, choose,
    version::VsphereVersion,
    why::{Notice, Reason, Standstill},
};
use health::facts::Node;
use semver::Version;

use super::{
    Notes,
    desired::DesiredDriver,
    known_faults, profile, rollback,
    window::{self, WindowState},
};
use crate::{
    facts::{Facts, VcenterConnection, VcenterState},
    names,
    plan::{DriverPlan, Next},
    record::{Build, Record},
};

pub(super) struct Choice {
    /// The decision of the catalog.
    pub(super) decision: Decision,
    /// The release to work on now; none if nothing runs and nothing fits.
    pub(super) target: Option<Build>,
    /// The release that will run in the end.
    pub(super) goal: Option<Build>,
    /// The reason why a change waits, if it waits.
    pub(super) held: Option<String>,
}

/// Chooses the next hop of an upgrade, the running release if it should stay, or the previous release if the
/// last hop did not become healthy.
pub(super) fn select(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    before: Option<&DriverPlan>,
    notes: &mut Notes,
) -> Choice {
    let running = record.running();
    let decision = decision(facts, desired, record);
    notes.findings.extend(finding(facts, desired, record, &decision));
    let unknown = decision.notices.iter().filter_map(unknown_version);
    for unknown in unknown {
        // Both drivers can be for the same versions.
        if !notes.findings.contains(&unknown) {
            notes.findings.push(unknown);
        }
    }
    let build = |version: &Version| Build {
        implementation: desired.implementation(),
        version: version.clone(),
    };
    let mut goal = decision.action.version().map(build);
    let mut held = None;
    let next = match &decision.action {
        Action::Install(version) | Action::Keep(version) => Some(build(version)),
        Action::Nothing => None,
        Action::Change(path) => path.hops.first().map(|hop| build(&hop.to)),
    };
    // A release of another implementation is a change too, although the catalog treats it as a first install.
    let changes = settled(facts, record).is_some() && !matches!(decision.action, Action::Keep(_));
    let mut target = next.or_else(|| running.clone());
    if changes && target != running {
        held = hold(facts, desired, before, notes);
        let version = decision.action.version();
        if let Some(available) = version.filter(|_| waits_for_approval(facts, desired, record)) {
            held = Some(fits(facts, desired.driver, available));
        }
        if held.is_some() {
            target.clone_from(&running);
        }
    }
    if let Some(Standstill::AwaitsApproval { available }) = &decision.standstill {
        held = Some(fits(facts, desired.driver, available));
        goal = Some(build(available));
    }
    if let Some(rejected) = rollback::rejected(facts, desired.driver, record, target.as_ref()) {
        notes.findings.push(rollback::finding(facts, desired.driver, record, rejected));
        target.clone_from(&running);
        goal.clone_from(&running);
    }
    if let Some(stay) = rollback::unfinished(facts, desired, record, notes) {
        target = Some(stay);
        held = None;
    }
    Choice { decision, target, goal, held }
}

/// Whether the upgrade of an adopted driver waits for an admin. Another implementation or version in the spec is a
/// request.
fn waits_for_approval(facts: &Facts, desired: &DesiredDriver<'_>, record: &Record) -> bool {
    let running = record.running();
    let approved = approved(facts, desired.driver);
    is_unasked(facts, record)
        && desired.version.is_none()
        && running.as_ref().is_some_and(|running| {
            running.implementation == desired.implementation()
                && approved.is_none_or(|approved| approved <= running.version)
        })
}

/// The text about a release that an admin has to approve.
fn fits(facts: &Facts, driver: Driver, available: &Version) -> String {
    format!("{available} fits, and waits for {}", approval(facts, driver, available))
}

fn parsed(text: Option<&str>) -> Option<Version> {
    text.and_then(|text| Version::parse(text.trim_start_matches('v')).ok())
}

/// The reason why a change must wait before it can begin.
fn hold(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    before: Option<&DriverPlan>,
    notes: &mut Notes,
) -> Option<String> {
    // VDO changes the cloud controller first, and waits until it is healthy.
    let under_way =
        before.filter(|cpi| matches!(cpi.next, Next::Record(_) | Next::Apply(_) | Next::Wait));
    if desired.driver == Driver::Csi && under_way.is_some() {
        return Some("the cloud provider is being changed".into());
    }
    window(facts, notes)
}

/// The reason to wait for the maintenance window; none if there is no window, or if it is open.
pub(super) fn window(facts: &Facts, notes: &mut Notes) -> Option<String> {
    let window = facts.config.spec.upgrades.as_ref()?.window.as_ref()?;
    match window::state(window, facts.now) {
        WindowState::Open => None,
        WindowState::Until(opens) => {
            notes.wake_at(opens);
            Some(format!("waits for the maintenance window at {opens}"))
        }
        WindowState::Unreadable => Some(
            "waits for a maintenance window that cannot be read: correct spec.upgrades.window"
                .into(),
        ),
    }
}

/// The running release, as far as it limits the choice. A release that never became healthy does not, once
/// the spec has changed.
fn settled(facts: &Facts, record: &Record) -> Option<Build> {
    if record.healthy || record.generation == facts.generation() {
        record.running()
    } else {
        // During a rollback, the target is the release that ran before and was healthy then.
        let back = record.running().filter(|_| record.rejected.is_some());
        record.before().or(back)
    }
}

/// The cluster and the vCenters that a release of the driver has to fit. `version` is the version of a vCenter,
/// if it counts.
pub(super) fn environment(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    version: impl Fn(&VcenterConnection) -> Option<VsphereVersion>,
) -> Environment {
    let vcenters = desired.vcenters.iter().filter_map(|name| {
        let vcenter = facts.vcenters.get(*name)?;
        Some(catalog::Vcenter {
            name: vcenter.spec.vc_ip.0.as_str().into(),
            version: version(vcenter)?,
            oldest_host: vcenter.oldest_host,
        })
    });
    Environment {
        kubernetes: facts.cluster.version,
        vcenters: vcenters.collect(),
        distribution: facts.cluster.platform.name().into(),
        windows_nodes: facts.cluster.nodes().any(Node::is_windows),
        topology: profile::has_topology(facts),
        rewrite: profile::rewrite(&facts.config.spec),
        today: Some(facts.now.to_zoned(jiff::tz::TimeZone::UTC).date()),
    }
}

/// The version of a verified vCenter.
pub(super) fn verified_version(vcenter: &VcenterConnection) -> Option<VsphereVersion> {
    let VcenterState::Verified { version, api_version, build, .. } = &vcenter.state else {
        return None;
    };
    VsphereVersion::from_about(version, api_version, build).ok()
}

/// The reason why VDO would install no release if the driver were not there.
pub(super) struct NoFirstInstall {
    pub(super) reason: String,
    /// A release fits, but its images were deleted from their registry.
    pub(super) images_gone: bool,
}

/// The release that VDO would install if the driver were not there.
pub(super) fn first_install(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
) -> Result<Version, NoFirstInstall> {
    let decision = decision(facts, desired, &Record::default());
    if let Some(version) = decision.action.version() {
        return Ok(version.clone());
    }
    let nothing_fits = decision.standstill == Some(Standstill::NothingFits);
    let mut others = decision.others.iter().filter(|_| nothing_fits);
    let gone = |(_, reason): &&(Version, Reason)| matches!(reason, Reason::ImagesGone { .. });
    let gone = others.clone().find(gone);
    let reasons = decision.standstill.iter().map(ToString::to_string);
    let nearest = gone.or_else(|| others.next());
    let reasons = reasons.chain(nearest.map(|(version, reason)| format!("{version}: {reason}")));
    Err(NoFirstInstall {
        reason: reasons.collect::<Vec<_>>().join(" "),
        images_gone: gone.is_some(),
    })
}

fn decision(facts: &Facts, desired: &DesiredDriver<'_>, record: &Record) -> Decision {
    let seen = environment(facts, desired, verified_version);
    // The versions of two implementations cannot be compared: neither is older or newer than the other.
    let installed = settled(facts, record)
        .filter(|build| build.implementation == desired.implementation())
        .map(|build| build.version);
    let request = Request {
        implementation: desired.implementation(),
        policy: policy(facts, desired, record, installed.as_ref()),
        installed,
    };
    choose(&facts.catalog, &seen, desired.driver, &request)
}

fn policy(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    installed: Option<&Version>,
) -> Policy {
    if let Some(version) = parsed(desired.version) {
        return Policy::Pinned { version, downgrade: false };
    }
    let approved = || {
        let approved = approved(facts, desired.driver)?;
        installed.is_some_and(|installed| *installed < approved).then_some(approved)
    };
    match facts.config.spec.upgrade_policy() {
        UpgradePolicy::Latest => Policy::Latest,
        UpgradePolicy::Stable => match approved().filter(|_| is_unasked(facts, record)) {
            Some(version) => Policy::Pinned { version, downgrade: false },
            None => Policy::Stable,
        },
        UpgradePolicy::Manual | UpgradePolicy::Pinned => match approved() {
            Some(version) => Policy::Pinned { version, downgrade: false },
            None => Policy::Manual,
        },
    }
}

/// Whether nobody asked for upgrades of an adopted driver: VDO has changed nothing of it, and the spec names no
/// policy.
fn is_unasked(facts: &Facts, record: &Record) -> bool {
    let policy = facts.config.spec.upgrades.as_ref().and_then(|upgrades| upgrades.policy);
    record.untouched && policy.is_none()
}

/// The release that an admin approved.
pub(super) fn approved(facts: &Facts, driver: Driver) -> Option<Version> {
    let annotations = facts.config.metadata.annotations.as_ref()?;
    parsed(annotations.get(annotation(driver)).map(String::as_str))
}

pub(super) fn annotation(driver: Driver) -> &'static str {
    match driver {
        Driver::Cpi => names::APPROVE_CPI,
        Driver::Csi => names::APPROVE_CSI,
    }
}

/// The command with which an admin approves a release.
pub(super) fn approval(facts: &Facts, driver: Driver, version: &Version) -> String {
    let (namespace, name) = super::own_name(facts);
    format!(
        "kubectl annotate vdoconfig --namespace {namespace} {name} {}={version} --overwrite",
        annotation(driver)
    )
}

/// The finding about a version that the catalog does not know yet.
fn unknown_version(notice: &Notice) -> Option<Finding> {
    let finding = match notice {
        Notice::KubernetesUnknown { newest, cluster } => codes::KUBERNETES_UNKNOWN
            .found()
            .with("version", cluster.to_string())
            .with("known", newest.to_string()),
        Notice::VsphereUnknown { name, version, newest } => codes::VSPHERE_UNKNOWN
            .found()
            .with("vcenter", name)
            .with("version", version.to_string())
            .with("known", newest.to_string()),
        _ => return None,
    };
    Some(finding.build())
}

/// The finding about the reason why the expected release cannot run.
fn finding(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    decision: &Decision,
) -> Option<Finding> {
    let driver = desired.driver.to_string();
    let field = match desired.driver {
        Driver::Cpi => "spec.cloudProvider.version",
        Driver::Csi => "spec.storageProvider.version",
    };
    let running = record.version.as_deref().unwrap_or("nothing");
    let finding = match decision.standstill.as_ref()? {
        Standstill::AwaitsApproval { .. } => return None,
        Standstill::PinUnknown { pinned } => {
            let known: Vec<String> = facts
                .catalog
                .releases_of(desired.driver, desired.implementation())
                .map(|release| release.version.to_string())
                .collect();
            let version = pinned.to_string();
            let known = known.join(", ");
            codes::VERSION_UNKNOWN
                .found()
                .with("field", field)
                .with("version", version)
                .with("known", known)
        }
        Standstill::PinRefused { pinned, reason: Reason::OlderThanInstalled { .. } } => {
            codes::DOWNGRADE_REFUSED
                .found()
                .with("driver", driver)
                .with("running", running)
                .with("field", field)
                .with("version", pinned.to_string())
        }
        Standstill::PinRefused { pinned, reason: Reason::KnownBad { reason, remedy, .. } } => {
            codes::RELEASE_KNOWN_BAD
                .found()
                .with("driver", driver)
                .with("version", pinned.to_string())
                .with("reason", reason)
                .with("advice", known_faults::advice(remedy))
        }
        Standstill::PinRefused { pinned, reason } => codes::RELEASE_UNSUITABLE
            .found()
            .severity(Severity::Error)
            .with("driver", driver)
            .with("version", pinned.to_string())
            .with("reason", reason.to_string()),
        standstill => {
            let others = decision.others.iter().take(3);
            let reasons = others.map(|(version, reason)| format!("{version}: {reason}"));
            let reasons: Vec<String> =
                std::iter::once(standstill.to_string()).chain(reasons).collect();
            codes::NOTHING_FITS.found().with("driver", driver).with("reason", reasons.join(" "))
        }
    };
    Some(finding.about(super::myself(facts)).build())
}
