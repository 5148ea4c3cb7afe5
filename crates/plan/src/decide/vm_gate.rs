//! A driver gets a new configuration only after VDO finds the VM of every node with it.

use api::finding::codes;

use super::{
    Notes, configuration::RenderedDriver, desired::DesiredDriver, rollback, steps::waiting,
    vms::Doubts,
};
use crate::{
    facts::Facts,
    plan::{DriverPlan, Next},
    record::{Build, Origin, Record},
};

/// The cloud controller gets a new configuration or release only after VDO finds the VM of every node with
/// it. VDO installs it only after it finds the VMs of all nodes that another cloud controller has
/// initialised. VDO can still repair the current rollout, and roll back a release that does not run.
pub(super) fn vms_are_found(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    target: &Build,
    configuration: &RenderedDriver,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    let mut doubts = Doubts::for_driver(facts, desired);
    notes.findings.extend(doubts.finding(facts));
    let first = record.version.is_none();
    if first {
        doubts = Doubts::for_initialized_nodes(facts, desired);
    }
    let same = record.configuration.as_deref() == Some(configuration.digest.as_str());
    let goes_back = rollback::is_rollback(record, target);
    if same || goes_back || doubts.is_empty() {
        return true;
    }
    let title = "Find the virtual machine of every node with the new configuration";
    let waits = waits_for_vms(record, Some(target), configuration, &doubts);
    plan.steps.push(waiting(title, Some(waits)));
    plan.next = if first && !doubts.is_certain() { Next::Wait } else { Next::Blocked };
    false
}

/// The storage driver gets new settings, for example after a change of user, only after VDO sees the VM of
/// every node with them. Changes that keep the settings do not wait, and neither does another release of the
/// driver.
pub(super) fn vms_are_seen(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    configuration: &RenderedDriver,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    let doubts = Doubts::in_desired_vcenters(facts, desired);
    if record.version.is_none()
        || doubts.is_empty()
        || !configuration.changes_settings(facts, record)
    {
        return true;
    }
    notes.findings.retain(|finding| finding.code != codes::VM_NOT_FOUND.code);
    notes.findings.extend(doubts.finding(facts));
    let title = "Find the virtual machine of every node with the new settings";
    let waits = waits_for_vms(record, None, configuration, &doubts);
    plan.steps.push(waiting(title, Some(waits)));
    plan.next = Next::Blocked;
    false
}

/// The change that waits, and the VMs that it waits for.
fn waits_for_vms(
    record: &Record,
    target: Option<&Build>,
    configuration: &RenderedDriver,
    doubts: &Doubts,
) -> String {
    if record.version.is_none() {
        return doubts.message();
    }
    let now = &configuration.origin;
    let differs = |part: fn(&Origin) -> &String| {
        record.origin.as_ref().is_some_and(|before| part(before) != part(now))
    };
    let parts = [
        (record.users != configuration.users, "another vCenter or user"),
        (target.is_some() && record.running().as_ref() != target, "another release"),
        (differs(|origin| &origin.settings), "other settings (datacenters, zones, certificates)"),
        (differs(|origin| &origin.desired), "a change of the VDOConfig"),
        (differs(|origin| &origin.build), "a new rendering by this VDO"),
        (record.origin.is_none(), "the first configuration by VDO"),
    ];
    let parts: Vec<&str> = parts.iter().filter(|(is, _)| *is).map(|(_, part)| *part).collect();
    let what = if parts.is_empty() { "a new configuration".into() } else { parts.join(", ") };
    format!("{what}: {}; new passwords of the same users do not wait", doubts.message())
}
