//! The plan for one driver.

use api::{
    finding::{Finding, codes},
    vdo_config::Mode,
};
use catalog::{Driver, manifest::Object};

use super::{
    Notes, adoption, cluster_id,
    configuration::RenderedDriver,
    deletion::{DeletionOutcome, deletion_outcome},
    desired::DesiredDriver,
    embedded, first_rollout, foreign_driver,
    gate::gate,
    kept_releases, known_faults, privileges, proxy, record_recovery, recording, release, removal,
    rendering, rollback, rollout,
    settings::PasswordRendering,
    shared_vcenters,
    steps::{self, waiting},
    vcenters, vm_gate, vms, zones,
};
use crate::{
    facts::{Facts, WorkloadRole},
    plan::{DriverPlan, Next, StepState},
    record::Record,
};

/// Decides on one driver. Returns none if the spec does not ask for it and none of its objects belong to VDO,
/// or if the drivers outlive the VDOConfig that is being deleted.
pub(super) fn decide(
    facts: &Facts,
    driver: Driver,
    before: Option<&DriverPlan>,
    notes: &mut Notes,
) -> Option<DriverPlan> {
    let desired = DesiredDriver::from_spec(facts, driver);
    let record = facts.record(driver);
    let deletion = deletion_outcome(facts);
    let known = !record.objects.is_empty() || facts.unreadable.contains_key(&driver);
    if deletion == DeletionOutcome::Retain || desired.is_none() && !known {
        return None;
    }
    // A spec without a section for a driver does not ask for its removal: VDO observes the driver and leaves
    // it as it is.
    let mode = desired.as_ref().map_or(Mode::Observe, |desired| desired.mode);
    let observed = desired.as_ref().is_some_and(|desired| desired.mode == Mode::Observe);
    if desired.is_none() && deletion == DeletionOutcome::None {
        notes.findings.push(unasked(facts, driver));
    }
    if let Some(desired) = &desired {
        notes.findings.extend(desired.overruled(facts));
    }
    let controllers = facts.workloads_of(driver, WorkloadRole::Controller);
    let runs = controllers.first().map(|(_, workload)| *workload);
    let mut plan = DriverPlan {
        driver,
        // VDO does not remove a driver in mode Observe together with the VDOConfig.
        mode: if deletion == DeletionOutcome::Remove && !observed { Mode::Removed } else { mode },
        installed: runs.and_then(|workload| workload.version.clone()),
        implementation: runs.and_then(|workload| workload.implementation),
        target: None,
        target_implementation: None,
        decision: None,
        steps: Vec::new(),
        next: Next::Nothing,
        held: None,
        adoption: None,
    };
    if let Some(why) = facts.unreadable.get(&driver) {
        notes.findings.push(record_recovery::unreadable(facts, driver, why));
        plan.next = Next::Blocked;
        return Some(plan);
    }
    match (plan.mode, &desired) {
        (Mode::Observe, _) => {}
        (Mode::Managed, Some(desired))
            if !cluster_id::is_free(facts, desired, &mut plan, notes) => {}
        (Mode::Managed, Some(desired)) if record.is_of_another(&facts.cluster.uid) => {
            cluster_id::claim(facts, desired, record, &mut plan, notes);
        }
        (Mode::Managed, Some(desired))
            if record_recovery::is_lost(facts, desired, record, &mut plan, notes) => {}
        (Mode::Managed, Some(desired)) => {
            let theirs = adoption::theirs(facts, desired);
            if !theirs.is_empty() {
                notes.findings.push(foreign_driver::finding(record, driver, &theirs));
            }
            if theirs.is_empty() || record.version.is_some() {
                manage(facts, desired, record, before, &mut plan, notes);
            } else {
                foreign_driver::adopt(facts, desired, record, &theirs, &mut plan, notes);
            }
        }
        (Mode::Removed | Mode::Managed, _)
            if !record_recovery::parts(facts, driver, record).is_empty() =>
        {
            let why = "it is to be removed, and what VDO applied is not on record; with mode: Managed the \
                       record is created again";
            notes.findings.push(record_recovery::missing(facts, driver, why));
            plan.next = Next::Blocked;
        }
        (Mode::Removed | Mode::Managed, _) => removal::decide(facts, record, &mut plan, notes),
    }
    if let Some(desired) = desired.filter(|_| plan.mode != Mode::Removed) {
        notes.findings.extend(known_faults::findings(facts, &desired, &plan));
    }
    Some(plan)
}

/// A driver of VDO that has no section in the VDOConfig.
fn unasked(facts: &Facts, driver: Driver) -> Finding {
    let section = match driver {
        Driver::Cpi => "cloudProvider",
        Driver::Csi => "storageProvider",
    };
    let metadata = &facts.config.metadata;
    codes::DRIVER_UNASKED
        .found()
        .with("driver", driver.to_string())
        .with("section", section)
        .with("patch", format!(r#"{{"spec":{{"{section}":{{"mode":"Removed"}}}}}}"#))
        .with("namespace", metadata.namespace.as_deref().unwrap_or_default())
        .with("config", metadata.name.as_deref().unwrap_or_default())
        .about(super::myself(facts))
        .build()
}

/// Brings a driver to its desired state, except for zones that are not ready yet.
fn manage(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    before: Option<&DriverPlan>,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) {
    let Some(held) = zones::held(facts, desired.driver, record) else {
        return reconcile(facts, desired, record, before, plan, notes);
    };
    let Some(desired) = DesiredDriver::from_spec(&held.facts, desired.driver) else { return };
    reconcile(&held.facts, &desired, record, before, plan, notes);
    if plan.is_untouched() {
        return;
    }
    plan.steps.push(held.step);
    if plan.next == Next::Nothing {
        plan.next = if held.blocked { Next::Blocked } else { Next::Wait };
    }
}

/// Brings a driver to its desired state, one action at a time.
fn reconcile(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    before: Option<&DriverPlan>,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) {
    if !vcenters::are_verified(facts, desired, record, plan, notes) {
        restore(facts, desired, record, plan);
        return;
    }
    notes.findings.extend(kept_releases::finding(facts, desired.driver, record));
    let choice = release::select(facts, desired, record, before, notes);
    plan.target = choice.goal.as_ref().map(|build| build.version.to_string());
    plan.target_implementation = choice.goal.as_ref().map(|build| build.implementation);
    plan.decision = Some(choice.decision);
    plan.held = choice.held;
    let Some(target) = choice.target else {
        plan.next = Next::Blocked;
        return;
    };
    if first_rollout::waits(facts, desired, record, &target) {
        return first_rollout::hold(facts, desired, record, plan);
    }
    if !proxy::is_known(facts, plan) {
        restore(facts, desired, record, plan);
        return;
    }
    if let Some(step) = shared_vcenters::hold(facts, desired) {
        plan.steps.push(step);
        plan.next = Next::Blocked;
        restore(facts, desired, record, plan);
        return;
    }
    if let Some((step, next)) = gate(facts, desired.driver, record, &target) {
        plan.steps.push(step);
        plan.next = next;
        return;
    }
    if let Some(step) = embedded::hold(facts, desired.driver, record, &target) {
        plan.steps.push(step);
        plan.next = Next::Blocked;
        return;
    }
    let mut configuration =
        match RenderedDriver::render(facts, desired, record, &target, PasswordRendering::Real) {
            Ok(configuration) => configuration,
            Err(finding) => {
                notes.findings.push(*finding);
                plan.next = Next::Blocked;
                return;
            }
        };
    if desired.driver == Driver::Cpi
        && !vm_gate::vms_are_found(facts, desired, record, &target, &configuration, plan, notes)
    {
        return;
    }
    let left_behind = vms::left_behind(facts, desired, record);
    if desired.driver == Driver::Csi && !left_behind.is_empty() {
        removal::refuse(&left_behind, plan, notes);
        return;
    }
    if desired.driver == Driver::Csi
        && !vm_gate::vms_are_seen(facts, desired, record, &configuration, plan, notes)
    {
        return;
    }
    if !privileges::are_there(facts, desired, record, &configuration, plan) {
        return;
    }
    if record.version.is_none() && before.is_some_and(|cpi| !nodes_may_be_used(facts, cpi)) {
        plan.steps.push(waiting("Wait for the cloud controller to initialise a node", None));
        plan.next = Next::Wait;
        return;
    }
    rollout::past_dead_nodes(facts, record, &mut configuration.objects);
    let hold = rendering::hold(facts, record, &target, &configuration, notes);
    let (all, next) = steps::plan(facts, record, &configuration, hold.as_ref().map(|_| record));
    plan.steps = all;
    if let (Next::Apply(_), Some(why)) = (&next, facts.refused.get(&desired.driver)) {
        let running = plan.steps.iter_mut().find(|step| step.state == StepState::Running);
        if let Some(step) = running {
            step.message = Some(why.text.clone());
        }
    }
    if hold.is_some() {
        plan.held = hold;
        plan.next = kept_releases::first(facts, record, &configuration, next);
        return;
    }
    plan.next = match recording::recorded(facts, record, &target, &configuration) {
        Some(record) => Next::Record(Box::new(record)),
        None if next == Next::Nothing => recording::finish(facts, record, &configuration),
        // The record marks a running driver as healthy even if the API server rejects a StorageClass.
        None if !record.healthy && steps::driver_is_done(&plan.steps) => {
            Next::Record(Box::new(recording::healthy(record)))
        }
        None => match rollback::extended(facts, desired, record, notes) {
            Some(record) => Next::Record(Box::new(record)),
            None => next,
        },
    };
}

/// Whether a node can run the storage driver. VDO installs storage only after the nodes are initialised,
/// because a controller that cannot be scheduled would look broken.
fn nodes_may_be_used(facts: &Facts, cpi: &DriverPlan) -> bool {
    cpi.mode != Mode::Managed
        || facts.cluster.nodes().any(|node| node.is_initialized() && !node.is_windows())
}

/// Restores changed or deleted objects of a running driver even while a vCenter is unreachable, as long as the spec asks
/// for nothing else. This needs no vCenter. While VDO cannot read the proxy that a driver uses, it restores nothing of it.
fn restore(facts: &Facts, desired: &DesiredDriver<'_>, record: &Record, plan: &mut DriverPlan) {
    let Some(running) = record.running().filter(|_| record.healthy) else { return };
    let Ok(mut configuration) =
        RenderedDriver::render(facts, desired, record, &running, PasswordRendering::Masked)
    else {
        return;
    };
    if record.configuration.as_ref() != Some(&configuration.digest) {
        return;
    }
    rollout::past_dead_nodes(facts, record, &mut configuration.objects);
    let open = configuration.objects.into_iter().filter(|object| !steps::is_applied(facts, object));
    let open: Vec<Object> = open.collect();
    if !open.is_empty() {
        let message = format!("applying {} objects", open.len());
        plan.steps.push(waiting("Restore changed or deleted objects", Some(message)));
        plan.next = Next::Apply(open);
    }
}
