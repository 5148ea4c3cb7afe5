//! The rollback rule: when VDO gives up an upgrade, which release runs then, and when VDO can try the failed
//! release again.
//!
//! ```text
//!   upgrade ─► healthy in time ───────────────────────────────────► done, no previous release is kept
//!      │
//!      └─► a pod does not run, or the API server rejects an object,
//!          and nothing improved within the rollout timeout ─► previous release ─► rejected until spec, approval,
//!                                                                                catalog or proxy change
//! ```
//!
//! A timeout alone does not cause a rollback. VDO rolls back a release when one of its pods does not run or
//! the API server rejects an object, and nothing improved before the timeout. A release is not at fault when
//! the operator or a vCenter was unreachable, or when a large cluster has slow registries.

use api::finding::{Finding, codes};
use catalog::Driver;
use jiff::Timestamp;
use serde_json::json;

use super::{
    Notes,
    configuration::digest,
    desired::DesiredDriver,
    proxy, release,
    rollout::{applied, is_fit, ours},
};
use crate::{
    facts::{DriverWorkload, Facts},
    object_id::ObjectId,
    record::{Build, Progress, Record, Rejected},
};

/// Whether a change to `target` is a rollback. Conditions that stop an upgrade do not stop a rollback.
pub(super) fn is_rollback(record: &Record, target: &Build) -> bool {
    record.before().as_ref() == Some(target)
}

/// Whether VDO gave up a release, and the previous release is not healthy yet.
pub(crate) fn is_under_way(record: &Record) -> bool {
    record.rejected.is_some() && record.previous.is_none() && !record.healthy
}

/// The release that should run while the last upgrade is not healthy yet: the new release, or the previous
/// one after VDO gives up. None if no upgrade is in progress, or if the spec changed meanwhile.
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

/// The record with new progress: the timeout starts again because more pods run, or because nothing but time
/// stops the upgrade. VDO does not write it for every pod.
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
    let due = seen_at(record)? + facts.rollout_timeout / MARKS;
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

/// The maximum number of times that VDO records progress within the timeout.
const MARKS: i32 = 4;

/// The end of the timeout. It counts from the last progress. If the operator or a vCenter has just come back,
/// the pods get additional time to recover.
fn over(facts: &Facts, desired: &DesiredDriver<'_>, record: &Record) -> Option<Timestamp> {
    let vcenters = desired.vcenters.iter().filter_map(|name| facts.vcenters.get(*name));
    let back = vcenters.map(|vcenter| vcenter.since).fold(facts.started, Timestamp::max);
    Some((seen_at(record)? + facts.rollout_timeout).max(back + facts.rollout_timeout / 2))
}

/// The time of the last progress.
fn seen_at(record: &Record) -> Option<Timestamp> {
    record.progress.map(|progress| progress.at).or(record.since)
}

/// Whether the release itself is stuck: one of its pods does not run, or the API server rejects an object
/// before all of its pods run. Objects that are not applied yet are no failure. Objects rejected afterwards,
/// such as a StorageClass, are not the fault of the release.
fn is_stuck(facts: &Facts, driver: Driver, record: &Record) -> bool {
    let refused = facts.refused.get(&driver).is_some_and(|refusal| refusal.firm);
    let runs =
        |workload: &DriverWorkload| workload.version == record.version && is_fit(workload, record);
    let runs = ours(facts, driver).peekable().peek().is_some() && ours(facts, driver).all(runs);
    refused && !runs || applied(facts, driver, record).any(|workload| !is_fit(workload, record))
}

/// Whether more of its pods run than ever before.
fn has_risen(facts: &Facts, driver: Driver, record: &Record) -> bool {
    pods(facts, driver, record) > known(record)
}

fn known(record: &Record) -> i32 {
    record.progress.map_or(0, |progress| progress.pods)
}

/// The number of its running pods.
fn pods(facts: &Facts, driver: Driver, record: &Record) -> i32 {
    let current = applied(facts, driver, record).filter(|workload| workload.current);
    current.map(|workload| workload.available).sum()
}

/// The running release as a rejected one, for a rollback.
pub(super) fn rejection(facts: &Facts, driver: Driver, record: &Record) -> Option<Rejected> {
    Some(Rejected {
        version: record.version.clone()?,
        implementation: record.implementation,
        why: trouble(facts, driver),
        generation: facts.generation(),
        circumstances: circumstances(facts, driver),
        entry: record.running().and_then(|build| entry(facts, driver, &build)),
    })
}

/// The reason why a release did not become healthy.
fn trouble(facts: &Facts, driver: Driver) -> String {
    let mut all = facts.workloads.iter().filter(|(id, w)| w.driver == driver && facts.is_ours(id));
    let troubles = |(_, workload): (&ObjectId, &DriverWorkload)| workload.trouble.clone();
    all.find_map(troubles).unwrap_or_else(|| "it did not become healthy in time".into())
}

/// The rejection of `target`, if VDO rolled it back and nothing has changed since.
pub(super) fn rejected<'a>(
    facts: &Facts,
    driver: Driver,
    record: &'a Record,
    target: Option<&Build>,
) -> Option<&'a Rejected> {
    let rejected = record.rejected.as_ref()?;
    let same = target.is_some() && target == rejected.build().as_ref();
    (same && stands(facts, driver, rejected)).then_some(rejected)
}

/// Whether nothing has changed since VDO rolled back a release: neither the spec, nor the approval, nor the
/// cluster's proxy, nor the catalog entry of this very release. A catalog without the release does not count as a change.
fn stands(facts: &Facts, driver: Driver, rejected: &Rejected) -> bool {
    let now = rejected.build().and_then(|build| entry(facts, driver, &build));
    let same_entry = rejected.entry.as_ref().zip(now).is_none_or(|(then, now)| *then == now);
    rejected.generation == facts.generation()
        && rejected.circumstances == circumstances(facts, driver)
        && same_entry
}

/// Whether VDO can try a rejected release again, because something has changed since.
pub(super) fn is_outdated(facts: &Facts, driver: Driver, record: &Record) -> bool {
    record.rejected.as_ref().is_some_and(|rejected| !stands(facts, driver, rejected))
}

/// The digest of the catalog entry of one release.
fn entry(facts: &Facts, driver: Driver, build: &Build) -> Option<String> {
    let release = facts.catalog.find(driver, build.implementation, &build.version)?;
    Some(digest(&json!(release)))
}

/// The approval under which VDO tries a release, and the cluster's proxy, in addition to the spec.
fn circumstances(facts: &Facts, driver: Driver) -> String {
    let annotations = facts.config.metadata.annotations.as_ref();
    let approved = annotations.and_then(|all| all.get(release::annotation(driver)));
    let approved = approved.map_or("nothing", String::as_str);
    let proxy = proxy::address_of_cluster(facts);
    let proxy = proxy.map(|proxy| format!(", proxy: {}", digest(&proxy))).unwrap_or_default();
    format!("approved: {approved}{proxy}")
}

pub(super) fn finding(
    facts: &Facts,
    driver: Driver,
    record: &Record,
    rejected: &Rejected,
) -> Finding {
    codes::UPGRADE_ROLLED_BACK
        .found()
        .with("driver", driver.to_string())
        .with("version", &rejected.version)
        .with("running", record.version.as_deref().unwrap_or("nothing"))
        .with("reason", &rejected.why)
        .with("approval", release::annotation(driver))
        .with("namespace", super::own_name(facts).0)
        .with("config", super::own_name(facts).1)
        .about(super::myself(facts))
        .build()
}
