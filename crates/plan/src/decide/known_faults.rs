//! Known faults of the releases that run, no matter who installed them.

use api::finding::{Finding, Severity, codes};
use catalog::{
    Driver,
    model::{KnownBad, Severity as FaultSeverity},
    version::VsphereVersion,
};
use semver::{BuildMetadata, Prerelease, Version};

use super::{desired::DesiredDriver, release};
use crate::{
    facts::{Facts, VcenterConnection},
    plan::{DriverPlan, Next},
};

/// The findings about the known faults of the running release that occur here. There are none while VDO
/// replaces the release.
pub(super) fn findings(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    plan: &DriverPlan,
) -> Vec<Finding> {
    let Some(version) = plan.installed.as_deref() else { return Vec::new() };
    let is_replaced = plan.held.is_none()
        && matches!(plan.next, Next::Record(_) | Next::Apply(_) | Next::Wait)
        && plan.target.as_deref().is_some_and(|target| target != version);
    let Some(release) = release_of(facts, plan, version).filter(|_| !is_replaced) else {
        return Vec::new();
    };
    let seen = release::environment(facts, desired, last_version);
    let faults = seen.known_faults(release).into_iter();
    faults.map(|fault| finding(facts, plan.driver, version, fault)).collect()
}

/// The release that runs. Rebuilt releases carry a suffix in their version.
fn release_of<'a>(
    facts: &'a Facts,
    plan: &DriverPlan,
    version: &str,
) -> Option<&'a catalog::Release> {
    let version = Version::parse(version.trim_start_matches('v')).ok()?;
    let implementation = plan.implementation?;
    let released =
        Version { pre: Prerelease::EMPTY, build: BuildMetadata::EMPTY, ..version.clone() };
    let find = |version: &Version| facts.catalog.find(plan.driver, implementation, version);
    find(&version).or_else(|| find(&released))
}

/// The version of a vCenter, as it last reported it: a fault does not pass while the vCenter is unreachable.
fn last_version(vcenter: &VcenterConnection) -> Option<VsphereVersion> {
    let before = || {
        let about = vcenter.status.as_ref()?.about.as_ref()?;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (api, build) = (text(&about.api_version), text(&about.build));
        VsphereVersion::from_about(about.version.as_deref()?, &api, &build).ok()
    };
    release::verified_version(vcenter).or_else(before)
}

fn finding(facts: &Facts, driver: Driver, version: &str, fault: &KnownBad) -> Finding {
    let severity = match fault.severity {
        FaultSeverity::Refuse => Severity::Error,
        FaultSeverity::Warn => Severity::Warning,
    };
    codes::RELEASE_KNOWN_BAD
        .found()
        .severity(severity)
        .with("driver", driver.to_string())
        .with("version", version)
        .with("reason", &fault.reason)
        .with("advice", advice(&fault.remedy))
        .about(super::myself(facts))
        .build()
}

/// A remedy of the catalog as a sentence.
pub(super) fn advice(remedy: &str) -> String {
    let mut letters = remedy.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
