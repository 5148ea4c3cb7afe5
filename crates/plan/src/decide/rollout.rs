//! The rollout of a release: which of its pods count, and how it passes nodes that are down.

use catalog::{Driver, manifest::Object};
use serde_json::json;

use crate::{
    facts::{DriverWorkload, Facts, WorkloadRole},
    names,
    object_id::ObjectId,
    plan::PassedPods,
    record::Record,
};

/// Whether a workload of a release runs as well as its nodes allow. A release is not at fault for a pod on a
/// node that was unhealthy before the rollout. It can be at fault for a node that went down after its pod
/// started.
pub(super) fn is_fit(workload: &DriverWorkload, record: &Record) -> bool {
    let suspects = suspects(workload, record);
    let lacks = workload.lacks() + suspects;
    let as_before = workload.current && workload.available > 0 && lacks <= record.ailing;
    workload.is_healthy() && suspects == 0
        || !record.healthy && workload.role == WorkloadRole::Node && as_before
}

/// The number of pods that can be the reason why their node went down. Only a release that replaces another
/// one, and that VDO can roll back, has suspects.
fn suspects(workload: &DriverWorkload, record: &Record) -> i32 {
    let hop = !record.healthy && record.before().is_some();
    if hop { workload.suspects() } else { 0 }
}

/// The number of node pods that do not run.
pub(super) fn ailing(facts: &Facts, driver: Driver) -> i32 {
    ours(facts, driver).filter(|w| w.role == WorkloadRole::Node).map(DriverWorkload::lacks).sum()
}

/// The workloads of VDO at the version of the record.
pub(super) fn applied<'a>(
    facts: &'a Facts,
    driver: Driver,
    record: &'a Record,
) -> impl Iterator<Item = &'a DriverWorkload> {
    ours(facts, driver).filter(move |workload| workload.version == record.version)
}

/// The workloads of a driver that belong to VDO.
pub(super) fn ours(facts: &Facts, driver: Driver) -> impl Iterator<Item = &DriverWorkload> {
    let ours = facts.workloads.iter().filter(|(id, _)| facts.is_ours(id));
    ours.map(|(_, workload)| workload).filter(move |workload| workload.driver == driver)
}

/// Lets a rollout pass nodes that are down or unhealthy. Kubernetes counts their pods towards
/// `maxUnavailable` of a DaemonSet, so one dead node of ten would stop the rollout forever.
pub(super) fn past_dead_nodes(facts: &Facts, record: &Record, objects: &mut [Object]) {
    for object in objects.iter_mut().filter(|object| object.kind() == "DaemonSet") {
        let id = ObjectId::from_object(object);
        let Some(workload) = facts.workloads.get(&id) else { continue };
        // The rollout must stop at nodes that go down when it reaches them.
        let dead = workload.unreachable + workload.orphaned - suspects(workload, record);
        // VDO rolls out a healthy release once more when its settings or a password change.
        let passed = match record.healthy {
            true if !is_observed(facts, &id, workload) => noted(facts, &id),
            true if workload.rolled_out => PassedPods::default(),
            true => noted(facts, &id).during_rollout(dead, workload.failing),
            false => PassedPods { unreachable: dead.saturating_add(record.ailing), unready: 0 },
        };
        if passed == PassedPods::default() {
            continue;
        }
        let most = object.0.pointer_mut("/spec/updateStrategy/rollingUpdate/maxUnavailable");
        let Some(most) = most else { continue };
        let at_a_time = match most.as_str().and_then(|text| text.strip_suffix('%')) {
            Some(percent) => {
                let percent: i64 = percent.parse().unwrap_or(0);
                (i64::from(workload.wanted) * percent + 99) / 100
            }
            None => most.as_i64().unwrap_or(1),
        };
        *most = json!(at_a_time.max(1) + i64::from(passed.total()));
        let stamp = &mut object.0["metadata"]["annotations"][names::DIGEST];
        *stamp = json!(passed.noted(stamp.as_str().unwrap_or_default()));
    }
}

/// Whether the number of updated pods belongs to the DaemonSet as VDO last left it. Right after a change, it is that
/// from before, when all pods were up to date.
fn is_observed(facts: &Facts, id: &ObjectId, workload: &DriverWorkload) -> bool {
    let seen = facts.objects.get(id);
    workload.current && seen.is_none_or(|seen| seen.mark == workload.mark)
}

/// Whether nodes went down since the last change of a DaemonSet, so that its rollout waits for their pods.
pub(super) fn has_lost_nodes(facts: &Facts, id: &ObjectId, workload: &DriverWorkload) -> bool {
    is_observed(facts, id, workload)
        && !workload.rolled_out
        && passed_by_restart(facts, id, workload).total() > noted(facts, id).total()
}

/// The pods that a restart of a healthy release passes. While the pods already restart, one that restarts is unready too.
pub(super) fn passed_by_restart(
    facts: &Facts,
    id: &ObjectId,
    workload: &DriverWorkload,
) -> PassedPods {
    let unreachable = workload.unreachable + workload.orphaned;
    if workload.rolled_out && is_observed(facts, id, workload) {
        PassedPods { unreachable, unready: workload.unready }
    } else {
        noted(facts, id).during_rollout(unreachable, workload.failing)
    }
}

/// The pods that the last change of a DaemonSet passes.
fn noted(facts: &Facts, id: &ObjectId) -> PassedPods {
    let digest = facts.objects.get(id).and_then(|seen| seen.digest.as_deref());
    digest.map(|digest| PassedPods::split(digest).1).unwrap_or_default()
}
