//! The first rollout of an adopted driver: VDO applies its own objects, and the pods restart.
//!
//! Adoption alone changes nothing. The first rollout begins when an admin asks for it: with the approval of a
//! release, with a policy or a version in the spec that names another release, or with another implementation.
//! Until then VDO observes the driver, passes on new passwords, and lists what the first rollout would change.

use catalog::Driver;

use super::{
    adoption, configuration::RenderedDriver, desired::DesiredDriver, differences, release,
    settings::PasswordRendering,
};
use crate::{
    facts::{DriverWorkload, Facts, WorkloadRole},
    object_id::ObjectId,
    plan::{ADOPT, AdoptionPreview, DriverPlan, Next, PlannedStep, StepState},
    record::{Build, Record},
};

/// Whether an adopted driver stays as it is. `target` is the release to work on now; it differs from the running
/// one only if an admin asked for it.
pub(super) fn waits(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    target: &Build,
) -> bool {
    record.untouched && !is_asked(facts, record, target, desired.driver) && is_there(facts, record)
}

/// Whether an admin asked for a change of an adopted driver: for another release, or for VDO's configuration of the
/// running one.
pub(super) fn is_asked(facts: &Facts, record: &Record, target: &Build, driver: Driver) -> bool {
    record.running().as_ref() != Some(target)
        || release::approved(facts, driver).as_ref() == Some(&target.version)
}

/// Whether all adopted workloads exist. VDO installs a workload again that somebody deleted.
fn is_there(facts: &Facts, record: &Record) -> bool {
    let Some(names) = &record.names else { return true };
    names.workloads.values().all(|named| {
        let mut all = facts.workloads.keys().chain(&facts.lookalikes);
        all.any(|id| id.namespace == names.namespace && id.name == named.name)
    })
}

/// Leaves the driver as it is, and lists what the first rollout would change.
pub(super) fn hold(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    plan: &mut DriverPlan,
) {
    let Some(running) = record.running() else { return };
    let version = plan.target.as_ref().and_then(|target| target.parse().ok());
    let goal =
        version.map_or_else(|| running.clone(), |version| Build { version, ..running.clone() });
    let command = release::approval(facts, desired.driver, &goal.version);
    let workloads = workloads(facts, record);
    let preview = AdoptionPreview {
        adopted: true,
        release: Some(running.version.to_string()),
        workloads: workloads.iter().map(|(id, _)| id.to_string()).collect(),
        changes: changes(facts, desired, record, &goal, &workloads),
        left: left(facts, desired.driver, &workloads),
        impossible: None,
    };
    plan.steps.push(PlannedStep { title: ADOPT.into(), state: StepState::Done, message: None });
    let held = plan.held.get_or_insert_with(|| {
        format!(
            "VDO adopted {} and leaves it as it is; its own configuration waits for {command}",
            running.version
        )
    });
    plan.steps.push(PlannedStep {
        title: format!("Roll out {}", goal.version),
        state: StepState::Pending,
        message: Some(format!("{held}{}", adoption::listed(&preview.changes))),
    });
    plan.adoption = Some(preview);
    plan.next = Next::Nothing;
}

/// The adopted workloads.
fn workloads<'a>(facts: &'a Facts, record: &Record) -> Vec<(&'a ObjectId, &'a DriverWorkload)> {
    facts.workloads.iter().filter(|(id, _)| record.objects.contains(id)).collect()
}

fn changes(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    goal: &Build,
    workloads: &[(&ObjectId, &DriverWorkload)],
) -> Vec<String> {
    let rendered = RenderedDriver::render(facts, desired, record, goal, PasswordRendering::Real);
    match rendered {
        Ok(configuration) => differences::list(facts, desired, &configuration, workloads),
        Err(finding) => vec![finding.seen.unwrap_or(finding.title)],
    }
}

/// The objects of a driver that VDO does not adopt.
pub(super) fn left(
    facts: &Facts,
    driver: Driver,
    adopted: &[(&ObjectId, &DriverWorkload)],
) -> Vec<String> {
    let mut left = Vec::new();
    let mut releases: Vec<&String> =
        adopted.iter().filter_map(|(_, workload)| workload.origin.helm.as_ref()).collect();
    releases.sort();
    releases.dedup();
    for release in releases {
        left.push(format!("the Helm release {release}: do not upgrade or uninstall it"));
    }
    let others = facts.workloads.iter().filter(|(id, workload)| {
        workload.driver == driver && !facts.is_ours(id) && !adopted.iter().any(|(own, _)| own == id)
    });
    for (id, workload) in others {
        left.push(match workload.role {
            WorkloadRole::Node => format!("{id}: it runs on no node"),
            _ => id.to_string(),
        });
    }
    if let (Driver::Cpi, Some(Ok(running))) = (driver, &facts.in_use.cpi) {
        let all = std::iter::once((
            &running.config.global.secret_namespace,
            &running.config.global.secret_name,
        ))
        .chain(running.config.vcenters.values().map(|v| (&v.secret_namespace, &v.secret_name)));
        let own = (crate::names::KUBE_SYSTEM, crate::names::CPI_SECRET);
        let mut secrets: Vec<String> = all
            .filter(|(_, name)| !name.is_empty())
            .filter(|(namespace, name)| (namespace.as_str(), name.as_str()) != own)
            .map(|(namespace, name)| format!("Secret {namespace}/{name}, with its credentials"))
            .collect();
        secrets.sort();
        secrets.dedup();
        left.extend(secrets);
    }
    left
}
