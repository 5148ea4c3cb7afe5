//! The vCenters: VDO verifies each before a driver gets its credentials.

use api::finding::{Finding, Severity, Subject, codes};
use catalog::Driver;

use super::{Notes, desired::DesiredDriver, steps::waiting};
use crate::{
    facts::{Facts, VcenterConnection, VcenterState},
    plan::{DriverPlan, Next},
    record::Record,
};

pub(super) fn report(facts: &Facts, notes: &mut Notes) {
    let namespace = facts.config.metadata.namespace.as_deref();
    for (name, vcenter) in facts.referenced_vcenters() {
        let VcenterState::Failed { message, .. } = &vcenter.state else { continue };
        let mut finding = codes::VCENTER_NOT_VERIFIED
            .found()
            .with("vcenter", vcenter.spec.vc_ip.0.as_str())
            .with("config", name)
            .with("reason", message)
            .about(Subject::kubernetes("VsphereCloudConfig", namespace, name));
        if may_pass(facts, vcenter) {
            finding = finding.severity(Severity::Warning);
            notes.wake_at(vcenter.since + facts.grace());
        }
        notes.findings.push(finding.build());
    }
}

/// Every vCenter of a driver must be verified first: VDO proves the credentials before a driver gets them.
/// While a vCenter is unreachable, VDO leaves a running driver as it is.
pub(super) fn are_verified(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    let unverified = desired.vcenters.iter().copied().filter(|name| !is_verified(facts, name));
    let unverified: Vec<&str> = unverified.collect();
    if unverified.is_empty() && !desired.vcenters.is_empty() {
        return true;
    }
    for name in unverified.iter().filter(|name| !facts.vcenters.contains_key(**name)) {
        notes.findings.push(missing(facts, desired.driver, name));
    }
    let passes = |name: &&&str| facts.vcenters.get(**name).is_some_and(|v| may_pass(facts, v));
    let may_pass =
        !unverified.is_empty() && unverified.iter().filter(passes).count() == unverified.len();
    if may_pass && record.healthy {
        return false;
    }
    let names =
        if unverified.is_empty() { "a vCenter to be named".into() } else { unverified.join(", ") };
    let rest = match record.version {
        Some(_) => {
            "; until then the driver gets new passwords of the other vCenters and nothing else"
        }
        None => "",
    };
    plan.steps.push(waiting("Verify the vCenters", Some(format!("waiting for {names}{rest}"))));
    plan.next = if may_pass { Next::Wait } else { Next::Blocked };
    false
}

/// Whether the vCenter of this VsphereCloudConfig is verified.
pub(super) fn is_verified(facts: &Facts, name: &str) -> bool {
    let state = facts.vcenters.get(name).map(|vcenter| &vcenter.state);
    matches!(state, Some(VcenterState::Verified { .. }))
}

/// Whether the problem of a vCenter can still pass within the grace period.
fn may_pass(facts: &Facts, vcenter: &VcenterConnection) -> bool {
    let young = facts.now.duration_since(vcenter.since) < facts.grace();
    match &vcenter.state {
        VcenterState::Verified { .. } => false,
        VcenterState::Untried => true,
        VcenterState::Failed { transient, .. } => *transient && young,
    }
}

fn missing(facts: &Facts, driver: Driver, name: &str) -> Finding {
    let metadata = &facts.config.metadata;
    let field = match driver {
        Driver::Cpi => "spec.cloudProvider.vsphereCloudConfigs",
        Driver::Csi => "spec.storageProvider.vsphereCloudConfig",
    };
    codes::CONFIG_MISSING
        .found()
        .with("field", field)
        .with("config", metadata.name.as_deref().unwrap_or_default())
        .with("missing", name)
        .with("namespace", metadata.namespace.as_deref().unwrap_or_default())
        .about(super::myself(facts))
        .build()
}
