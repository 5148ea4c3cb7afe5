//! A release on its way: how far it is, and when it is given up.
//!
//! Time alone condemns nothing. A release is taken back when a pod of it does not run, or the API
//! server does not take it, and for as long as patience lasts nothing became better. An operator that
//! was away, a vCenter that was, and a large cluster with slow registries are no fault of a release.

use catalog::{Driver, manifest::Object};
use jiff::Timestamp;
use serde_json::json;

use super::{Notes, desired::DesiredDriver};
use crate::{
    facts::{Facts, ObjectId, Task, Workload},
    names,
    record::{Build, Progress, Record},
};

/// What is to run while the last hop is not healthy yet: itself, or the release before it once it is
/// given up. None if no hop is under way, or if somebody changed the wish meanwhile.
pub(super) fn unfinished(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    notes: &mut Notes,
) -> Option<Build> {
    if record.healthy || record.generation != facts.generation() {
        return None;
    }
    let running = record.running()?;
    let (Some(previous), Some(over)) = (record.before(), over(facts, desired, record)) else {
        return Some(running);
    };
    if facts.now < over {
        notes.wake_at(over);
        return Some(running);
    }
    let stuck =
        is_stuck(facts, desired.driver, record) && !has_risen(facts, desired.driver, record);
    Some(if stuck { previous } else { running })
}

/// The record of a hop that comes on, or that nothing but time is in the way of: patience begins anew.
/// It is not written for every pod.
pub(super) fn extended(
    facts: &Facts,
    desired: &DesiredDriver<'_>,
    record: &Record,
    notes: &mut Notes,
) -> Option<Record> {
    let over = over(facts, desired, record)?;
    if record.healthy || record.before().is_none() {
        return None;
    }
    let due = seen_at(record)? + facts.timeouts / MARKS;
    let risen = has_risen(facts, desired.driver, record);
    if risen && facts.now < due {
        notes.wake_at(due);
        return None;
    }
    let idle = facts.now >= over && !is_stuck(facts, desired.driver, record);
    let pods = pods(facts, desired.driver, record).max(known(record));
    let progress = Some(Progress { pods, at: facts.now });
    (risen || idle).then(|| Record { progress, ..record.clone() })
}

/// So often within the time of patience progress is written down.
const MARKS: i32 = 4;

/// When patience is over. It is counted from the last progress, and an operator or a vCenter that has
/// just come back gives the pods time to notice.
fn over(facts: &Facts, desired: &DesiredDriver<'_>, record: &Record) -> Option<Timestamp> {
    let vcenters = desired.vcenters.iter().filter_map(|name| facts.vcenters.get(*name));
    let back = vcenters.map(|vcenter| vcenter.since).fold(facts.started, Timestamp::max);
    Some((seen_at(record)? + facts.timeouts).max(back + facts.timeouts / 2))
}

/// When it was last seen to come on.
fn seen_at(record: &Record) -> Option<Timestamp> {
    record.progress.map(|progress| progress.at).or(record.since)
}

/// Whether something of the release stands in its way: a pod of it that does not run, or an object
/// that is refused before all of its pods do. What is not applied yet is no failure, and what is
/// refused afterwards, as a storage class, is none of the release.
fn is_stuck(facts: &Facts, driver: Driver, record: &Record) -> bool {
    let refused = facts.refused.get(&driver).is_some_and(|refusal| refusal.firm);
    let runs = |workload: &Workload| workload.version == record.version && is_fit(workload, record);
    let runs = ours(facts, driver).peekable().peek().is_some() && ours(facts, driver).all(runs);
    refused && !runs || applied(facts, driver, record).any(|workload| !is_fit(workload, record))
}

/// Whether a part of a release runs as well as its nodes allow: a pod on a node that was sick before
/// the release came is no fault of the release, one whose node went down under it may be.
pub(super) fn is_fit(workload: &Workload, record: &Record) -> bool {
    let suspects = suspects(workload, record);
    let lacks = workload.lacks() + suspects;
    let as_before = workload.current && workload.available > 0 && lacks <= record.ailing;
    workload.is_healthy() && suspects == 0
        || !record.healthy && workload.task == Task::Node && as_before
}

/// Pods whose node may have gone down because of them: of a release that takes the place of another, and can
/// be taken back.
fn suspects(workload: &Workload, record: &Record) -> i32 {
    let hop = !record.healthy && record.before().is_some();
    if hop { workload.suspects() } else { 0 }
}

/// How many pods on nodes do not run.
pub(super) fn ailing(facts: &Facts, driver: Driver) -> i32 {
    ours(facts, driver).filter(|w| w.task == Task::Node).map(Workload::lacks).sum()
}

/// Whether more of its pods run than ever before.
fn has_risen(facts: &Facts, driver: Driver, record: &Record) -> bool {
    pods(facts, driver, record) > known(record)
}

fn known(record: &Record) -> i32 {
    record.progress.map_or(0, |progress| progress.pods)
}

/// Pods of it that run.
fn pods(facts: &Facts, driver: Driver, record: &Record) -> i32 {
    let current = applied(facts, driver, record).filter(|workload| workload.current);
    current.map(|workload| workload.available).sum()
}

/// The workloads of ours that are of the release on record.
fn applied<'a>(
    facts: &'a Facts,
    driver: Driver,
    record: &'a Record,
) -> impl Iterator<Item = &'a Workload> {
    ours(facts, driver).filter(move |workload| workload.version == record.version)
}

/// The workloads of a driver that are ours.
fn ours(facts: &Facts, driver: Driver) -> impl Iterator<Item = &Workload> {
    let ours = facts.workloads.iter().filter(|(id, _)| facts.is_ours(id));
    ours.map(|(_, workload)| workload).filter(move |workload| workload.driver == driver)
}

/// Lets a rollout pass nodes that are down or sick. Kubernetes lets so many pods of a DaemonSet be
/// unavailable at a time, and counts theirs among them: one dead node of ten would stop it for ever.
pub(super) fn past_dead_nodes(facts: &Facts, record: &Record, objects: &mut [Object]) {
    for object in objects.iter_mut().filter(|object| object.kind() == "DaemonSet") {
        let workload = facts.workloads.get(&ObjectId::of(object));
        let Some(workload) = workload else { continue };
        // Nodes that go down as the rollout comes to them are what it is to stop at.
        let dead = workload.unreachable - suspects(workload, record);
        // A release that is healthy is rolled out once more when its settings are others.
        let passed = match record.healthy {
            true if workload.rolled_out => 0,
            true => dead,
            false => dead.saturating_add(record.ailing),
        };
        if passed == 0 {
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
        *most = json!(at_a_time.max(1) + i64::from(passed));
        let stamp = &mut object.0["metadata"]["annotations"][names::DIGEST];
        *stamp = json!(format!("{}+{}", stamp.as_str().unwrap_or_default(), passed));
    }
}
