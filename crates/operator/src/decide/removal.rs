//! Taking a driver away.

use api::finding::{Finding, Subject, codes};
use catalog::Driver;

use crate::{
    facts::{Facts, ObjectId},
    plan::{DriverPlan, Next, Step, StepState},
    record::Record,
};

/// Kinds that are never deleted, whatever the record says: what they hold is not ours.
const KEPT: [&str; 7] = [
    "Namespace",
    "CustomResourceDefinition",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "VolumeAttachment",
    "StorageClass",
    "Node",
];

/// Removes what stands in the record, unless volumes of the driver are attached.
pub(super) fn decide(
    facts: &Facts,
    record: &Record,
    plan: &mut DriverPlan,
    findings: &mut Vec<Finding>,
) {
    if plan.driver == Driver::Csi && !facts.attached.is_empty() && !record.objects.is_empty() {
        let shown: Vec<String> = facts
            .attached
            .iter()
            .take(5)
            .map(|(volume, node)| format!("{volume} on {node}"))
            .collect();
        let volumes =
            facts.attached.iter().map(|(v, _)| Subject::kubernetes("PersistentVolume", None, v));
        findings.push(
            codes::VOLUMES_ATTACHED
                .found()
                .with("count", facts.attached.len().to_string())
                .with("volumes", shown.join(", "))
                .about_all(volumes)
                .build(),
        );
        plan.steps.push(Step {
            title: "Wait until no volume is attached".into(),
            state: StepState::Running,
            message: Some(format!("{} volumes are attached", facts.attached.len())),
        });
        plan.next = Next::Blocked;
        return;
    }
    let removable = |id: &&ObjectId| !KEPT.contains(&id.kind.as_str());
    let there: Vec<ObjectId> = record
        .objects
        .iter()
        .filter(removable)
        .filter(|id| facts.objects.contains_key(id))
        .cloned()
        .collect();
    if !there.is_empty() {
        plan.steps.push(Step {
            title: "Remove the driver's objects".into(),
            state: StepState::Running,
            message: Some(format!("{} objects are left", there.len())),
        });
        plan.next = Next::Delete(there);
        return;
    }
    // The cluster-id outlives the driver: volumes that stay are known by it.
    let empty = Record { cluster_id: record.cluster_id.clone(), ..Record::default() };
    if *record != empty {
        plan.next = Next::Record(Box::new(empty));
    }
}
