//! The steps of an installation, and their progress.

use catalog::manifest::{Object, Stage};

use super::{configuration::RenderedDriver, rendering, rollout};
use crate::{
    facts::Facts,
    names,
    object_id::ObjectId,
    plan::{Next, PlannedStep, StepState},
    record::Record,
};

/// A step in progress.
pub(super) fn waiting(title: &str, message: Option<String>) -> PlannedStep {
    PlannedStep { title: title.into(), state: StepState::Running, message }
}

/// The stages that VDO applies together, with their title. Each group waits for the one before.
const GROUPS: [(&str, &[Stage]); 6] = [
    ("Namespaces and definitions", &[Stage::Namespaces, Stage::Definitions]),
    ("Accounts, permissions and configuration", &[Stage::Access, Stage::Settings]),
    ("Controllers", &[Stage::Controllers]),
    ("Node drivers", &[Stage::Nodes]),
    ("Admission checks", &[Stage::Admission]),
    (STORAGE_CLASSES, &[]),
];

/// The last group, when a driver can serve the classes. A class cannot be changed later, and a class that the
/// API server rejects must not delay the driver.
const STORAGE_CLASSES: &str = "Storage classes";

/// All steps, and the next action. With `waits`, a new rendering waits: objects that it would change stay as
/// they are.
pub(super) fn plan(
    facts: &Facts,
    record: &Record,
    configuration: &RenderedDriver,
    waits: Option<&Record>,
) -> (Vec<PlannedStep>, Next) {
    let mut steps = Vec::new();
    let mut next = Next::Nothing;
    for (title, stages) in GROUPS {
        let objects: Vec<&Object> =
            configuration.objects.iter().filter(|o| belongs(o, title, stages)).collect();
        if objects.is_empty() {
            continue;
        }
        if next != Next::Nothing {
            steps.push(step(title, StepState::Pending, None));
            continue;
        }
        let (state, message, todo) = progress(facts, record, &objects, waits);
        steps.push(step(title, state, message));
        if let Some(todo) = todo {
            next = todo;
        }
    }
    (steps, next)
}

/// Whether the driver itself is complete. Only classes can be left.
pub(super) fn driver_is_done(steps: &[PlannedStep]) -> bool {
    steps.iter().all(|step| step.state == StepState::Done || step.title == STORAGE_CLASSES)
}

fn belongs(object: &Object, title: &str, stages: &[Stage]) -> bool {
    let class = matches!(object.kind(), "StorageClass" | "VolumeSnapshotClass");
    class == (title == STORAGE_CLASSES) && (class || stages.contains(&object.stage()))
}

fn step(title: &str, state: StepState, message: Option<String>) -> PlannedStep {
    PlannedStep { title: title.into(), state, message }
}

/// The progress of one group of objects.
fn progress(
    facts: &Facts,
    record: &Record,
    objects: &[&Object],
    waits: Option<&Record>,
) -> (StepState, Option<String>, Option<Next>) {
    let is_left = |object: &Object| waits.is_some_and(|r| rendering::is_left(facts, r, object));
    let open = objects.iter().filter(|object| !is_left(object) && !is_applied(facts, object));
    let open: Vec<Object> = open.map(|object| (*object).clone()).collect();
    if !open.is_empty() {
        let message = format!("applying {} of {} objects", open.len(), objects.len());
        return (StepState::Running, Some(message), Some(Next::Apply(open)));
    }
    let waits: Vec<String> = objects
        .iter()
        .filter(|object| matches!(object.kind(), "Deployment" | "DaemonSet"))
        .filter(|object| {
            !is_left(object) || facts.objects.contains_key(&ObjectId::from_object(object))
        })
        .filter_map(|object| waits_for(facts, record, object))
        .collect();
    if waits.is_empty() {
        return (StepState::Done, None, None);
    }
    (StepState::Running, Some(waits.join("; ")), Some(Next::Wait))
}

/// The reason why a workload is not ready, as text; none if it is.
fn waits_for(facts: &Facts, record: &Record, object: &Object) -> Option<String> {
    let (id, name) = (ObjectId::from_object(object), object.name());
    // The health comes from a different watch than the applied object, and can belong to the previous
    // release.
    let applied = facts.objects.get(&id).map(|seen| seen.mark.as_str());
    let workload = facts.workloads.get(&id).filter(|w| applied == Some(w.mark.as_str()));
    let Some(workload) = workload else { return Some(format!("{name}: starting")) };
    if rollout::is_fit(workload, record) {
        return None;
    }
    let why = workload.trouble.as_deref().unwrap_or("starting");
    let (available, wanted) = (workload.available, workload.wanted);
    Some(format!("{name}: {available} of {wanted} pods are ready ({why})"))
}

/// Whether an object is as desired, as far as VDO knows.
pub(super) fn is_applied(facts: &Facts, object: &Object) -> bool {
    let id = ObjectId::from_object(object);
    let digest = object.0.pointer("/metadata/annotations").and_then(|a| a[names::DIGEST].as_str());
    facts.objects.get(&id).is_some_and(|seen| {
        let left = super::conflicts::is_left(facts, &id);
        // Another manager that also removes the digest gets the same pauses.
        let same = seen.digest.as_deref() == digest || (left && seen.digest.is_none());
        (seen.settled || left) && same
    })
}
