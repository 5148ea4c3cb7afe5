//! Whether a new vCenter user has the privileges that the driver needs.

use api::{
    Finding, Severity,
    finding::{Theme, codes},
};
use catalog::Driver;

use super::{configuration::RenderedDriver, desired::DesiredDriver, steps::waiting};
use crate::{
    facts::Facts,
    plan::{DriverPlan, Next},
    record::Record,
};

/// VDO hands a different user to a driver only after vCenter has reported the privileges of that user, and
/// the user lacks none that the driver needs. A new password of the same user changes no privilege and does
/// not wait, because the old password can be invalid already.
pub(super) fn are_there(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    configuration: &RenderedDriver,
    plan: &mut DriverPlan,
) -> bool {
    let same = record.users == configuration.users;
    if record.version.is_none() || same || !configuration.changes_settings(facts, record) {
        return true;
    }
    let title = "Check the privileges of the new vCenter user";
    if facts.health.pending {
        plan.steps.push(waiting(title, Some("the vCenters are asked".into())));
        plan.next = Next::Wait;
        return false;
    }
    let needed = |finding: &Finding| match desired.driver {
        Driver::Cpi => finding.code == codes::PRIVILEGE_READ.code,
        Driver::Csi => finding.definition().is_some_and(|d| d.theme == Theme::Privileges),
    };
    let mut lacks = facts.health.findings.iter();
    let lacks = lacks.find(|finding| needed(finding) && finding.severity >= Severity::Error);
    let Some(lacks) = lacks else { return true };
    let seen = lacks.seen.as_deref().unwrap_or(&lacks.title);
    let message = format!("{}: {seen}; until then the user before stays in use", lacks.code);
    plan.steps.push(waiting(title, Some(message)));
    plan.next = Next::Blocked;
    false
}
