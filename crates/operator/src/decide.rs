//! From what is wished and what was seen to what is to be done. Pure: all rules live here.
//!
//! ```text
//!   Facts ─► choose a release (catalog) ─► configuration ─► render ─► steps ─► the one next thing
//!                    │                          │                       │
//!                 findings                  findings                 findings
//! ```
//!
//! The rules that are never broken:
//!
//! - A running driver is left alone when nothing matches, when a vCenter is away, or when its own
//!   configuration cannot be made: [`Next::Blocked`] changes nothing.
//! - What is applied is recorded first; what is deleted stands in the record.
//! - A driver installed by other hands is reported, not touched.
//! - While volumes are attached, storage is not removed.

mod configuration;
mod driver;
mod removal;
mod steps;

use api::{
    finding::{Finding, Subject, codes},
    vdo_config::Mode,
};
use catalog::Driver;

use crate::{
    facts::{Facts, Platform, VcenterState},
    names,
    plan::{DriverPlan, Next, Plan},
};

/// Decides.
pub fn decide(facts: &Facts) -> Plan {
    let mut plan = Plan { paused: is_paused(facts), ..Plan::default() };
    plan.findings.extend(findings_of_vcenters(facts));
    for driver in [Driver::Cpi, Driver::Csi] {
        let waits_for = plan.drivers.first().filter(|cpi| !nodes_may_be_used(facts, cpi));
        let decided = driver::decide(facts, driver, waits_for.is_some(), &mut plan.findings);
        plan.drivers.extend(decided);
    }
    if plan.paused {
        for driver in &mut plan.drivers {
            driver.next = Next::Nothing;
        }
        plan.findings.push(codes::PAUSED.found().about(myself(facts)).build());
    }
    plan.findings.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.code.cmp(&b.code)));
    plan
}

fn is_paused(facts: &Facts) -> bool {
    let annotated = facts.config.metadata.annotations.as_ref();
    let annotated = annotated.and_then(|all| all.get(names::PAUSED)).is_some_and(|v| v != "false");
    annotated || facts.config.spec.paused == Some(true)
}

/// Storage is installed once the nodes it will run on are nodes: a controller that cannot be
/// scheduled would only look broken.
fn nodes_may_be_used(facts: &Facts, cpi: &DriverPlan) -> bool {
    cpi.mode != Mode::Managed
        || facts.cluster.nodes.iter().any(|node| node.is_initialized() && !node.windows)
}

/// The object all of this is about.
fn myself(facts: &Facts) -> Subject {
    let metadata = &facts.config.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    Subject::kubernetes("VDOConfig", metadata.namespace.as_deref(), name)
}

fn findings_of_vcenters(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, vcenter) in &facts.vcenters {
        let VcenterState::Failed { message, .. } = &vcenter.state else { continue };
        let namespace = facts.config.metadata.namespace.as_deref();
        findings.push(
            codes::VCENTER_NOT_VERIFIED
                .found()
                .with("vcenter", vcenter.spec.vc_ip.0.as_str())
                .with("config", name)
                .with("reason", message)
                .about(Subject::kubernetes("VsphereCloudConfig", namespace, name))
                .build(),
        );
    }
    findings
}

/// How a driver is treated, where the spec does not say: on a platform that owns its drivers they
/// are only observed.
fn mode(facts: &Facts, wished: Option<Mode>) -> Mode {
    let owned = matches!(facts.cluster.platform, Platform::OpenShift { owns_drivers: true });
    wished.unwrap_or(if owned { Mode::Observe } else { Mode::Managed })
}
