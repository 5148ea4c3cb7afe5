//! The removal of a driver.

use api::finding::{Subject, codes};
use catalog::Driver;

use super::Notes;
use crate::{
    facts::Facts,
    object_id::ObjectId,
    plan::{DriverPlan, Next, PlannedStep, StepState},
    record::Record,
};

/// VDO never deletes objects of these kinds, even if the record lists them: users' data depends on them.
const KEPT: [&str; 10] = [
    "Namespace",
    "CustomResourceDefinition",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "VolumeAttachment",
    "VolumeSnapshotClass",
    "StorageClass",
    "CSINode",
    "Node",
    "Pod",
];

pub fn is_kept(kind: &str) -> bool {
    KEPT.contains(&kind)
}

/// Whether VDO deletes this object when it removes the driver. VDO keeps objects that the other driver needs.
pub fn is_deleted(facts: &Facts, driver: Driver, id: &ObjectId) -> bool {
    let other = match driver {
        Driver::Cpi => &facts.records.csi.objects,
        Driver::Csi => &facts.records.cpi.objects,
    };
    !is_kept(&id.kind) && !other.contains(id)
}

/// The next action to delete these objects, which the driver does not need any more; `Nothing` if they are
/// gone. VDO keeps objects of the kept kinds and objects that the other driver needs.
pub(super) fn remove<'a>(
    facts: &Facts,
    driver: Driver,
    objects: impl Iterator<Item = &'a ObjectId>,
) -> Next {
    let there = objects.filter(|id| is_deleted(facts, driver, id));
    let there = there.filter_map(|id| Some((id, facts.objects.get(id)?)));
    let (terminating, left): (Vec<_>, Vec<_>) = there.partition(|(_, seen)| seen.terminating);
    match () {
        () if !left.is_empty() => {
            Next::Delete(left.into_iter().map(|(id, _)| id.clone()).collect())
        }
        () if !terminating.is_empty() => Next::Wait,
        () => Next::Nothing,
    }
}

/// Removes the objects in the record, unless volumes of the driver are attached.
pub(super) fn decide(facts: &Facts, record: &Record, plan: &mut DriverPlan, notes: &mut Notes) {
    if plan.driver == Driver::Csi && !facts.attached.is_empty() && !record.objects.is_empty() {
        let all: Vec<&(String, String)> = facts.attached.iter().collect();
        refuse(&all, plan, notes);
        return;
    }
    plan.next = remove(facts, plan.driver, record.objects.iter());
    if plan.next != Next::Nothing {
        let message = match &plan.next {
            Next::Delete(there) => format!("{} objects are left", there.len()),
            _ => "waiting for objects that are being deleted to be gone".into(),
        };
        plan.steps.push(PlannedStep {
            title: "Remove the driver's objects".into(),
            state: StepState::Running,
            message: Some(message),
        });
        return;
    }
    // The cluster id outlives the driver, because the remaining volumes are registered under it.
    let empty = Record {
        cluster: record.cluster.clone(),
        cluster_id: record.cluster_id.clone(),
        cluster_id_kept_by_driver: record.cluster_id_kept_by_driver,
        ..Record::default()
    };
    if *record != empty {
        plan.next = Next::Record(Box::new(empty));
    }
}

/// VDO removes nothing while volumes are attached.
pub(super) fn refuse(attached: &[&(String, String)], plan: &mut DriverPlan, notes: &mut Notes) {
    let shown = attached.iter().take(5);
    let shown: Vec<String> = shown.map(|(volume, node)| format!("{volume} on {node}")).collect();
    let volumes = attached.iter().map(|(v, _)| Subject::kubernetes("PersistentVolume", None, v));
    notes.findings.push(
        codes::VOLUMES_ATTACHED
            .found()
            .with("count", attached.len().to_string())
            .with("volumes", shown.join(", "))
            .about_all(volumes)
            .build(),
    );
    plan.steps.push(PlannedStep {
        title: "Wait until no volume is attached".into(),
        state: StepState::Running,
        message: Some(format!("{} volumes are attached", attached.len())),
    });
    plan.next = Next::Blocked;
}
