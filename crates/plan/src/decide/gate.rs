//! Findings of the checks that stop an installation or an upgrade until somebody fixes the problem.

use api::finding::{Concerns, Finding, Subject, codes};
use catalog::Driver;

use super::{rollback, steps::waiting};
use crate::{
    facts::Facts,
    plan::{Next, PlannedStep},
    record::{Build, Record},
};

/// The step that waits, and the action; none if nothing stops `target`. The gate never stops the release that
/// runs: VDO can repair it, and can roll back a release that failed.
pub(super) fn gate(
    facts: &Facts,
    driver: Driver,
    record: &Record,
    target: &Build,
) -> Option<(PlannedStep, Next)> {
    let changes = record.running().as_ref() != Some(target);
    if !changes || rollback::is_rollback(record, target) {
        return None;
    }
    let blockers: Vec<&Finding> =
        facts.health.blockers.iter().filter(|finding| concerns(finding, driver)).collect();
    if let Some(first) = blockers.first() {
        let names: Vec<&str> = blockers.iter().map(|finding| finding.code.as_str()).collect();
        let message = format!("waits for {} to be fixed: {}", names.join(", "), first.title);
        return Some((waiting("Fix the blocking findings", Some(message)), Next::Blocked));
    }
    let first_time = record.version.is_none();
    (first_time && facts.health.pending).then(|| {
        let message = "the vCenters are asked for privileges, volumes and policies".to_owned();
        (waiting("Run the checks", Some(message)), Next::Wait)
    })
}

fn concerns(finding: &Finding, driver: Driver) -> bool {
    match finding.definition().map(|definition| definition.concerns) {
        Some(Concerns::BothDrivers) => true,
        Some(Concerns::CloudProvider) => driver == Driver::Cpi,
        Some(Concerns::StorageDriver) => driver == Driver::Csi,
        Some(Concerns::NoDriver) | None => false,
    }
}

/// Marks findings that are consequences of other findings, if one comes from the rules and the other from the checks.
pub(super) fn tie(findings: &mut [Finding]) {
    let causes = [
        codes::VCENTER_UNREACHABLE,
        codes::CERTIFICATE_DISTRUSTED,
        codes::LOGIN_REFUSED,
        codes::ACCOUNT_LOCKED,
        codes::DATACENTER_MISSING,
    ];
    // The checks name a vCenter without its namespace, the rules with it.
    let vcenters = |finding: &Finding| -> Vec<String> {
        let of = finding
            .objects
            .iter()
            .filter(|object| ["VsphereCloudConfig", "vCenter"].contains(&&*object.kind));
        let name = |object: &Subject| object.name.rsplit('/').next().unwrap_or_default().to_owned();
        of.map(name).collect()
    };
    let present: Vec<(String, Vec<String>)> =
        findings.iter().map(|finding| (finding.code.clone(), vcenters(finding))).collect();
    // A finding that names no vCenter can be about any.
    let cause_of = |finding: &Finding, code: &str| {
        let own = vcenters(finding);
        present.iter().any(|(present, of)| {
            let same = own.is_empty() || of.is_empty() || of.iter().any(|name| own.contains(name));
            present == code && same
        })
    };
    for finding in findings {
        if finding.code == codes::VCENTER_NOT_VERIFIED.code {
            let cause = causes.iter().find(|cause| cause_of(finding, cause.code));
            finding.consequence_of = cause.map(|cause| cause.code.to_owned());
        }
        if finding.code == codes::CHECK_INCOMPLETE.code
            && finding.consequence_of.is_none()
            && cause_of(finding, codes::VCENTER_NOT_VERIFIED.code)
        {
            finding.consequence_of = Some(codes::VCENTER_NOT_VERIFIED.code.to_owned());
        }
    }
}
