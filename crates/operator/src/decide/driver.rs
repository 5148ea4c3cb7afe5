//! The plan for one driver.

use api::{
    finding::{Finding, Subject, codes},
    vdo_config::{Adoption, Mode},
};
use catalog::{Driver, manifest::Object};
use jiff::SignedDuration;

use super::{
    Notes, adoption,
    configuration::Configuration,
    deletion::{DeletionOutcome, deletion_outcome},
    desired::DesiredDriver,
    embedded,
    gate::gate,
    kept_releases, may_pass, privileges, record_recovery, release, removal, rendering, rollout,
    settings::Look,
    steps,
    vms::{self, Doubts},
    zones,
};
use crate::{
    facts::{Facts, ObjectId, Task, VcenterState, Workload},
    plan::{DriverPlan, Next, Step, StepState},
    record::{Build, Origin, Record, Rejected},
};

/// Decides about one driver; none if nobody asked for it and nothing of it is ours, or if the
/// drivers are to outlive the VDOConfig that is being deleted.
pub(super) fn decide(
    facts: &Facts,
    driver: Driver,
    before: Option<&DriverPlan>,
    notes: &mut Notes,
) -> Option<DriverPlan> {
    let desired = DesiredDriver::of(facts, driver);
    let record = facts.record(driver);
    let bye = deletion_outcome(facts);
    let known = !record.objects.is_empty() || facts.unreadable.contains_key(&driver);
    if bye == DeletionOutcome::Retain || desired.is_none() && !known {
        return None;
    }
    // Whoever does not mention a driver has not asked for its removal: it is watched, and left as it is.
    let wished = desired.as_ref().map_or(Mode::Observe, |desired| desired.mode);
    let observed = desired.as_ref().is_some_and(|desired| desired.mode == Mode::Observe);
    if desired.is_none() && bye == DeletionOutcome::None {
        notes.findings.push(unasked(facts, driver));
    }
    if let Some(desired) = &desired {
        notes.findings.extend(desired.overruled(facts));
    }
    let controllers = facts.workloads_of(driver, Task::Controller);
    let runs = controllers.first().map(|(_, workload)| *workload);
    let mut plan = DriverPlan {
        driver,
        // What is only observed does not go with the VDOConfig either.
        mode: if bye == DeletionOutcome::Remove && !observed { Mode::Removed } else { wished },
        installed: runs.and_then(|workload| workload.version.clone()),
        implementation: runs.and_then(|workload| workload.implementation),
        target: None,
        target_implementation: None,
        decision: None,
        steps: Vec::new(),
        next: Next::Nothing,
        held: None,
    };
    if let Some(why) = facts.unreadable.get(&driver) {
        notes.findings.push(doubtful(facts, driver, why));
        plan.next = Next::Blocked;
        return Some(plan);
    }
    match (plan.mode, &desired) {
        (Mode::Observe, _) => {}
        (Mode::Managed, Some(desired)) if !identity_is_free(facts, desired, &mut plan, notes) => {}
        (Mode::Managed, Some(desired)) if record.is_of_another(&facts.cluster.uid) => {
            take(facts, desired, record, &mut plan, notes);
        }
        (Mode::Managed, Some(desired)) if is_lost(facts, desired, record, &mut plan, notes) => {}
        (Mode::Managed, Some(desired)) => {
            let theirs = adoption::theirs(facts, desired);
            if !theirs.is_empty() {
                notes.findings.push(foreign(record, driver, &theirs));
            }
            if theirs.is_empty() || record.version.is_some() {
                manage(facts, desired, record, before, &mut plan, notes);
            } else {
                adopt(facts, desired, record, &theirs, &mut plan, notes);
            }
        }
        (Mode::Removed | Mode::Managed, _)
            if !record_recovery::parts(facts, driver, record).is_empty() =>
        {
            let why = "it is to be removed, and what VDO applied is not on record; with mode: Managed the \
                       record is made anew";
            notes.findings.push(doubtful(facts, driver, why));
            plan.next = Next::Blocked;
        }
        (Mode::Removed | Mode::Managed, _) => removal::decide(facts, record, &mut plan, notes),
    }
    Some(plan)
}

/// Whether the identity in CNS that is about to be taken is nobody else's. One that is shared is not
/// taken unless somebody who knows the claims says that they are of this cluster, by accepting the
/// finding; one of which it is not known is not taken at all.
fn identity_is_free(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    match &facts.foreign_volumes {
        _ if desired.driver == Driver::Cpi => return true,
        _ if !facts.ambiguous.is_empty() => {
            notes.findings.push(unclear(facts));
            plan.next = Next::Blocked;
        }
        Ok(foreign_volumes) if foreign_volumes.is_empty() => return true,
        // Nothing is taken before they are verified, and what keeps them from it is said then.
        Err(_) if !desired.vcenters.iter().all(|name| is_verified(facts, name)) => return true,
        Ok(foreign_volumes) => {
            let shared = shared(facts, foreign_volumes);
            let accepted = super::acknowledgement::by(facts, &shared).is_some();
            notes.findings.push(shared);
            if accepted {
                return true;
            }
            plan.next = Next::Blocked;
        }
        Err(why) => {
            let title = "Ask CNS whose volumes are under which cluster-id";
            plan.steps.push(waiting(title, Some(why.clone())));
            plan.next = Next::Wait;
        }
    }
    // Nobody tells when the others are gone, when CNS answers again, or when an admin names the
    // identity. A look around asks CNS only when that is due.
    notes.wake_at(facts.now + SignedDuration::from_secs(20));
    false
}

/// Writes down a record of another cluster as this one's: what is in it is there, or put there. Not before
/// CNS has said that its identity is free.
fn take(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) {
    let asked = facts.foreign_volumes.is_ok()
        && desired.vcenters.iter().all(|name| is_verified(facts, name));
    if desired.driver == Driver::Cpi || asked {
        plan.next = Next::Record(Box::new(record.clone()));
        return;
    }
    let why = "the record was written in another cluster, and its cluster-id may be in use there";
    let title = "Ask CNS whose volumes are under which cluster-id";
    plan.steps.push(waiting(title, Some(why.into())));
    plan.next = Next::Wait;
    notes.wake_at(facts.now + SignedDuration::from_secs(20));
}

/// The volumes do not agree on the identity in CNS, and nothing else tells one.
fn unclear(facts: &Facts) -> Finding {
    codes::CLUSTER_ID_UNCLEAR
        .found()
        .with("ids", facts.ambiguous.join(" and "))
        .with("namespace", crate::names::CSI_NAMESPACE)
        .with("secret", crate::names::CSI_SECRET)
        .about(super::myself(facts))
        .build()
}

/// The identity in CNS is used by another cluster too.
fn shared(facts: &Facts, foreign_volumes: &[String]) -> Finding {
    let id = facts.cluster_id.as_ref().ok().and_then(Option::as_ref);
    let first: Vec<&str> = foreign_volumes.iter().take(3).map(String::as_str).collect();
    let others = format!(
        "a cluster with {} claims that are not here: {}",
        foreign_volumes.len(),
        first.join(", ")
    );
    let home = facts.workloads_of(Driver::Csi, Task::Controller);
    let home = home.first().map_or(crate::names::CSI_NAMESPACE, |(id, _)| id.namespace.as_str());
    codes::CLUSTER_ID_SHARED
        .found()
        .with("id", id.map(|id| id.id.as_str()).unwrap_or_default())
        .with("others", others)
        .with("namespace", home)
        .about(super::myself(facts))
        .build()
}

/// Whether a driver of ours runs that is not on record: the record is made anew from it, first.
fn is_lost(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    let parts = record_recovery::parts(facts, desired.driver, record);
    if parts.is_empty() {
        return false;
    }
    if !vcenters_are_verified(facts, desired, record, plan, notes) {
        return true;
    }
    plan.steps.push(waiting("Write down anew what runs: its record is lost", None));
    plan.next = match record_recovery::found_again(facts, desired, record, &parts) {
        Ok(record) => Next::Record(Box::new(record)),
        Err(why) => {
            let why = format!("it is not on record, and the record cannot be made anew: {why}");
            notes.findings.push(doubtful(facts, desired.driver, &why));
            Next::Blocked
        }
    };
    true
}

/// What was written down cannot be relied upon.
fn doubtful(facts: &Facts, driver: Driver, why: &str) -> Finding {
    let record = crate::observe::record_name(driver);
    codes::RECORD_DOUBTFUL
        .found()
        .with("driver", driver.to_string())
        .with("reason", why)
        .with("namespace", &facts.home)
        .with("record", record)
        .about(Subject::kubernetes("ConfigMap", Some(&facts.home), record))
        .build()
}

/// A driver of ours that the VDOConfig says nothing about.
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

/// A driver by other hands is reported. Where ours does not run yet, it is not doubled.
fn foreign(record: &Record, driver: Driver, theirs: &[(&ObjectId, &Workload)]) -> Finding {
    let first = theirs[0].0;
    let subjects =
        theirs.iter().map(|(id, _)| Subject::kubernetes(&id.kind, Some(&id.namespace), &id.name));
    let finding = if record.version.is_some() {
        let own = format!("{driver} of VDO");
        codes::TWO_DRIVERS.found().with("other", first.to_string()).with("own", own)
    } else {
        codes::FOREIGN_DRIVER
            .found()
            .with("driver", driver.to_string())
            .with("namespace", &first.namespace)
            .with("name", &first.name)
    };
    finding.about_all(subjects).build()
}

/// Takes over a driver by other hands, or says what taking over would mean.
fn adopt(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    theirs: &[(&ObjectId, &Workload)],
    plan: &mut DriverPlan,
    notes: &mut Notes,
) {
    plan.next = Next::Blocked;
    let unsaid = facts.config.spec.adoption.is_none();
    let adoption = match facts.config.spec.adoption() {
        _ if unsaid && adoption::are_of_predecessor(facts, desired, theirs) => Adoption::Automatic,
        said => said,
    };
    if adoption == Adoption::Never || !vcenters_are_verified(facts, desired, record, plan, notes) {
        return;
    }
    let title = "Adopt the driver that is there";
    match adoption::adopted(facts, desired, record, theirs) {
        Err(why) => plan.steps.push(waiting(title, Some(format!("not possible: {why}")))),
        Ok(adopted) if adoption == Adoption::Automatic => {
            notes.findings.retain(|finding| finding.code != codes::FOREIGN_DRIVER.code);
            plan.steps.push(waiting(title, None));
            plan.next = Next::Record(Box::new(adopted.record));
        }
        Ok(adopted) => plan.steps.push(waiting(title, Some(proposal(desired, &adopted)))),
    }
}

/// How many changes a proposal lists.
const CHANGES_LISTED: usize = 24;

/// What adoption would mean, before anybody asks for it.
fn proposal(desired: &DesiredDriver<'_>, adopted: &adoption::Adopted) -> String {
    let version = adopted.record.version.as_deref().unwrap_or_default();
    let mut text = format!(
        "it is {} {version}; with adoption: Automatic in the VDOConfig its objects, names and \
         cluster id stay, and VDO writes its configuration from now on",
        desired.driver
    );
    let listed = adopted.changes.iter().take(CHANGES_LISTED).cloned().collect::<Vec<_>>();
    if !listed.is_empty() {
        text.extend([". This would change: ", &listed.join("; ")]);
    }
    if let Some(more) = adopted.changes.len().checked_sub(CHANGES_LISTED).filter(|n| *n > 0) {
        text.extend(["; and ", &more.to_string(), " more"]);
    }
    text
}

/// Brings a driver to where it should be, but for zones that are not there yet.
fn manage(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    before: Option<&DriverPlan>,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) {
    let Some(held) = zones::held(facts, desired.driver, record) else {
        return bring(facts, desired, record, before, plan, notes);
    };
    let Some(desired) = DesiredDriver::of(&held.facts, desired.driver) else { return };
    bring(&held.facts, &desired, record, before, plan, notes);
    plan.steps.push(held.step);
    if plan.next == Next::Nothing {
        plan.next = if held.blocked { Next::Blocked } else { Next::Wait };
    }
}

/// Brings a driver to where it should be, one thing at a time.
fn bring(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    before: Option<&DriverPlan>,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) {
    if !vcenters_are_verified(facts, desired, record, plan, notes) {
        put_back(facts, desired, record, plan);
        return;
    }
    notes.findings.extend(kept_releases::finding(facts, desired.driver, record));
    let choice = release::of(facts, desired, record, before, notes);
    plan.target = choice.goal.as_ref().map(|build| build.version.to_string());
    plan.target_implementation = choice.goal.as_ref().map(|build| build.implementation);
    plan.decision = Some(choice.decision);
    plan.held = choice.held;
    let Some(target) = choice.target else {
        plan.next = Next::Blocked;
        return;
    };
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
    let mut configuration = match Configuration::make(facts, desired, record, &target, Look::Real) {
        Ok(configuration) => configuration,
        Err(finding) => {
            notes.findings.push(*finding);
            plan.next = Next::Blocked;
            return;
        }
    };
    if desired.driver == Driver::Cpi
        && !machines_are_found(facts, desired, record, &target, &configuration, plan, notes)
    {
        return;
    }
    let left_behind = vms::left_behind(facts, desired, record);
    if desired.driver == Driver::Csi && !left_behind.is_empty() {
        removal::refuse(&left_behind, plan, notes);
        return;
    }
    if desired.driver == Driver::Csi
        && !machines_are_seen(facts, desired, record, &configuration, plan, notes)
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
    let (all, next) = steps::of(facts, record, &configuration, hold.as_ref().map(|_| record));
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
    plan.next = match recorded(facts, record, &target, &configuration) {
        Some(record) => Next::Record(Box::new(record)),
        None if next == Next::Nothing => finish(facts, record, &configuration),
        // A class that is refused must not keep a driver that runs from being known to be healthy.
        None if !record.healthy && steps::driver_is_done(&plan.steps) => {
            Next::Record(Box::new(healthy(record)))
        }
        None => match rollout::extended(facts, desired, record, notes) {
            Some(record) => Next::Record(Box::new(record)),
            None => next,
        },
    };
}

pub(super) fn waiting(title: &str, message: Option<String>) -> Step {
    Step { title: title.into(), state: StepState::Running, message }
}

/// Storage is installed once the nodes it will run on are nodes: a controller that cannot be
/// scheduled would only look broken.
fn nodes_may_be_used(facts: &Facts, cpi: &DriverPlan) -> bool {
    cpi.mode != Mode::Managed
        || facts.cluster.nodes.iter().any(|node| node.is_initialized() && !node.windows)
}

/// The cloud controller is not given another configuration or release before the machine of every
/// node is found with it, and is not installed before those of all nodes are that another one has
/// initialised. What was rolled out before may be repaired all the same, and a release that does not
/// run may be taken back.
fn machines_are_found(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    target: &Build,
    configuration: &Configuration,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    let mut doubts = Doubts::of(facts, desired);
    notes.findings.extend(doubts.finding(facts));
    let first = record.version.is_none();
    if first {
        doubts = Doubts::of_initialized(facts, desired);
    }
    let same = record.configuration.as_deref() == Some(configuration.digest.as_str());
    let goes_back = record.before().as_ref() == Some(target);
    if same || goes_back || doubts.is_empty() {
        return true;
    }
    let title = "Find the virtual machine of every node with the new configuration";
    let waits = waits_for_machines(record, Some(target), configuration, &doubts);
    plan.steps.push(waiting(title, Some(waits)));
    plan.next = if first && !doubts.is_certain() { Next::Wait } else { Next::Blocked };
    false
}

/// What waits for the machines, and for which of them.
fn waits_for_machines(
    record: &Record,
    target: Option<&Build>,
    configuration: &Configuration,
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

/// The storage driver is not given other settings, as after a change of user, before the
/// machine of every node is seen with them. Another release of the driver may be installed all the
/// same, and so may anything when the settings stay.
fn machines_are_seen(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    configuration: &Configuration,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    let doubts = Doubts::at_home(facts, desired);
    if record.version.is_none()
        || doubts.is_empty()
        || !configuration.changes_settings(facts, record)
    {
        return true;
    }
    notes.findings.retain(|finding| finding.code != codes::VM_NOT_FOUND.code);
    notes.findings.extend(doubts.finding(facts));
    let title = "Find the virtual machine of every node with the new settings";
    let waits = waits_for_machines(record, None, configuration, &doubts);
    plan.steps.push(waiting(title, Some(waits)));
    plan.next = Next::Blocked;
    false
}

/// Every vCenter a driver will talk to must be verified first: credentials are proven before a
/// driver sees them. A driver that runs is held as it is while a vCenter is away.
fn vcenters_are_verified(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    plan: &mut DriverPlan,
    notes: &mut Notes,
) -> bool {
    let away = desired.vcenters.iter().copied().filter(|name| !is_verified(facts, name));
    let away: Vec<&str> = away.collect();
    if away.is_empty() && !desired.vcenters.is_empty() {
        return true;
    }
    for name in away.iter().filter(|name| !facts.vcenters.contains_key(**name)) {
        notes.findings.push(missing(facts, desired.driver, name));
    }
    let passes = |name: &&&str| facts.vcenters.get(**name).is_some_and(|v| may_pass(facts, v));
    let may_pass = !away.is_empty() && away.iter().filter(passes).count() == away.len();
    if may_pass && record.healthy {
        return false;
    }
    let names = if away.is_empty() { "a vCenter to be named".into() } else { away.join(", ") };
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

/// What somebody changed or deleted of a driver that runs is put back although a vCenter is away, as long
/// as nothing else is asked for: that needs none.
fn put_back(facts: &Facts, desired: &DesiredDriver<'_>, record: &Record, plan: &mut DriverPlan) {
    let Some(running) = record.running().filter(|_| record.healthy) else { return };
    let Ok(mut configuration) = Configuration::make(facts, desired, record, &running, Look::Masked)
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
        plan.steps.push(waiting("Put back what was changed or deleted", Some(message)));
        plan.next = Next::Apply(open);
    }
}

/// Whether the vCenter of this VsphereCloudConfig answers as it should.
pub(super) fn is_verified(facts: &Facts, name: &str) -> bool {
    let state = facts.vcenters.get(name).map(|vcenter| &vcenter.state);
    matches!(state, Some(VcenterState::Verified { .. }))
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

/// The record that must be written before anything of this target is applied; none if it stands.
fn recorded(
    facts: &Facts,
    record: &Record,
    target: &Build,
    configuration: &Configuration,
) -> Option<Record> {
    let mut next = record.clone();
    next.objects.extend(configuration.identities());
    if record.configuration.as_ref() != Some(&configuration.digest) {
        next.configuration = Some(configuration.digest.clone());
        next.origin = Some(configuration.origin.clone());
    }
    next.users.clone_from(&configuration.users);
    next.zones = Some(zones::wished(facts, configuration.driver));
    if record.cluster_id.is_none()
        && let Some(cluster_id) = &configuration.cluster_id
    {
        next.cluster_id = Some(cluster_id.id.clone());
        next.cluster_id_kept_by_driver = cluster_id.kept_by_driver;
    }
    if record.running().as_ref() != Some(target) {
        let going_back = record.before().as_ref() == Some(target);
        if going_back {
            next.rejected = record.version.clone().map(|version| Rejected {
                version,
                implementation: record.implementation,
                why: trouble(facts, configuration.driver),
                generation: facts.generation(),
                circumstances: Some(release::circumstances(facts, configuration.driver)),
                entry: record
                    .running()
                    .and_then(|build| release::entry(facts, configuration.driver, &build)),
            });
        } else if is_outdated(facts, configuration.driver, record) {
            next.rejected = None;
        }
        if record.healthy {
            next.ailing = rollout::ailing(facts, configuration.driver);
        }
        let previous = match going_back {
            true => None,
            false if record.healthy => record.running(),
            false => record.before(),
        };
        next.previous = previous.as_ref().map(|build| build.version.to_string());
        next.previous_implementation = previous.map(|b| b.implementation).unwrap_or_default();
        next.version = Some(target.version.to_string());
        next.implementation = target.implementation;
        next.since = Some(facts.now);
        next.progress = None;
        next.generation = facts.generation();
        next.healthy = false;
    } else if !record.healthy {
        // The wish changed in something else: this release is still what it asks for.
        next.generation = facts.generation();
    }
    next.releases = kept_releases::of(facts, &next, configuration);
    (next != *record).then_some(next)
}

/// Whether a release that was given up may be tried again, because something has changed since.
fn is_outdated(facts: &Facts, driver: Driver, record: &Record) -> bool {
    record.rejected.as_ref().is_some_and(|rejected| !release::stands(facts, driver, rejected))
}

/// What is wrong with a release that did not become healthy.
fn trouble(facts: &Facts, driver: Driver) -> String {
    let mut all = facts.workloads.iter().filter(|(id, w)| w.driver == driver && facts.is_ours(id));
    let troubles = |(_, workload): (&ObjectId, &Workload)| workload.trouble.clone();
    all.find_map(troubles).unwrap_or_else(|| "it did not become healthy in time".into())
}

/// What was made by another build and is the same with this one is from now on by this one: only what
/// this one changes by itself has to wait for a window.
fn confirmed(record: &Record, configuration: &Configuration) -> Next {
    let same = record.origin.as_ref().is_some_and(|o| o.build == configuration.origin.build);
    if same {
        return Next::Nothing;
    }
    let origin = Some(configuration.origin.clone());
    Next::Record(Box::new(Record { origin, ..record.clone() }))
}

/// The record of a release that became healthy: there is no way back any more, and none is needed.
fn healthy(record: &Record) -> Record {
    Record {
        healthy: true,
        previous: None,
        previous_implementation: catalog::Implementation::default(),
        progress: None,
        ..record.clone()
    }
}

/// What is left once everything is applied and healthy: say so in the record, then prune what the
/// new release does not have.
fn finish(facts: &Facts, record: &Record, configuration: &Configuration) -> Next {
    if !record.healthy {
        return Next::Record(Box::new(healthy(record)));
    }
    if is_outdated(facts, configuration.driver, record) {
        return Next::Record(Box::new(Record { rejected: None, ..record.clone() }));
    }
    let wanted: std::collections::BTreeSet<_> = configuration.identities().collect();
    let left: Vec<_> = record.objects.difference(&wanted).cloned().collect();
    if left.is_empty() {
        return confirmed(record, configuration);
    }
    let prune = removal::remove(facts, configuration.driver, left.iter());
    if prune != Next::Nothing {
        return prune;
    }
    let objects = record.objects.intersection(&wanted).cloned().collect();
    Next::Record(Box::new(Record { objects, ..record.clone() }))
}
