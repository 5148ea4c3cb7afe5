//! The record of a driver: the state before VDO applies anything, and the state once the driver is healthy.

use super::{
    configuration::RenderedDriver, first_rollout, kept_releases, removal, rollback, rollout, zones,
};
use crate::{
    facts::Facts,
    plan::Next,
    record::{Build, Record},
};

/// The record that VDO must write before it applies this target; none if the current record is up to date.
pub(super) fn recorded(
    facts: &Facts,
    record: &Record,
    target: &Build,
    configuration: &RenderedDriver,
) -> Option<Record> {
    let mut next = record.clone();
    next.objects.extend(configuration.identities());
    next.untouched =
        record.untouched && !first_rollout::is_asked(facts, record, target, configuration.driver);
    if record.configuration.as_ref() != Some(&configuration.digest) {
        next.configuration = Some(configuration.digest.clone());
        next.origin = Some(configuration.origin.clone());
    }
    next.users.clone_from(&configuration.users);
    next.zones = Some(zones::desired(facts, configuration.driver));
    if record.cluster_id.is_none()
        && let Some(cluster_id) = &configuration.cluster_id
    {
        next.cluster_id = Some(cluster_id.id.clone());
        next.cluster_id_kept_by_driver = cluster_id.kept_by_driver;
    }
    if record.running().as_ref() != Some(target) {
        let going_back = rollback::is_rollback(record, target);
        if going_back {
            next.rejected = rollback::rejection(facts, configuration.driver, record);
        } else if rollback::is_outdated(facts, configuration.driver, record) {
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
        // Something else in the spec changed: it still asks for this release.
        next.generation = facts.generation();
    }
    next.releases = kept_releases::entries(facts, &next, configuration);
    (next != *record).then_some(next)
}

/// The record of a release that became healthy. It keeps no previous release, because a rollback is no longer
/// needed.
pub(super) fn healthy(record: &Record) -> Record {
    Record {
        healthy: true,
        previous: None,
        previous_implementation: catalog::Implementation::default(),
        progress: None,
        ..record.clone()
    }
}

/// The action after everything is applied and healthy: mark the record as healthy, then prune the objects
/// that the new release does not have.
pub(super) fn finish(facts: &Facts, record: &Record, configuration: &RenderedDriver) -> Next {
    if !record.healthy {
        return Next::Record(Box::new(healthy(record)));
    }
    if rollback::is_outdated(facts, configuration.driver, record) {
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

/// Assigns the configuration to this build if it renders the same as the earlier one. Only changes that this
/// build introduces have to wait for a maintenance window.
fn confirmed(record: &Record, configuration: &RenderedDriver) -> Next {
    let same = record.origin.as_ref().is_some_and(|o| o.build == configuration.origin.build);
    if same {
        return Next::Nothing;
    }
    let origin = Some(configuration.origin.clone());
    Next::Record(Box::new(Record { origin, ..record.clone() }))
}
