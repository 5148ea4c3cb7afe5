//! Taking over a driver that other hands installed.
//!
//! Adopted is what matches a known release piece by piece: the same objects by the same names in the
//! same namespace, with the same selectors. Then nothing is deleted or made anew: the objects are
//! written down as ours, and from there on treated like any other. The identity of the cluster in CNS
//! stays what it is.

use semver::Version;

use super::{configuration::Configuration, driver::Wish};
use crate::{
    facts::{Facts, ObjectId, Task, Workload},
    record::Record,
};

/// The parts of a driver that are not ours. A DaemonSet that no node wants, as the one for Windows in
/// a cluster without, does nothing and stands in nobody's way.
pub(super) fn theirs<'a>(facts: &'a Facts, wish: &Wish<'_>) -> Vec<(&'a ObjectId, &'a Workload)> {
    [Task::Controller, Task::Node]
        .into_iter()
        .flat_map(|task| facts.workloads_of(wish.driver, task))
        .filter(|(id, _)| !facts.is_ours(id))
        .filter(|(_, w)| !(w.task == Task::Node && w.current && w.wanted == 0))
        .collect()
}

/// The record that makes them ours, or why they cannot be.
pub(super) fn adopted(
    facts: &Facts,
    wish: &Wish<'_>,
    record: &Record,
    theirs: &[(&ObjectId, &Workload)],
) -> Result<Record, String> {
    let version = theirs.iter().find_map(|(_, workload)| workload.version.as_deref());
    let version = version.and_then(|text| Version::parse(text).ok());
    let version = version.ok_or("its image does not say which release it is")?;
    let known = facts.catalog.find(wish.driver, wish.implementation(), &version);
    known.ok_or_else(|| format!("the catalog has no release {version}"))?;
    let configuration = Configuration::make(facts, wish, record, &version)
        .map_err(|finding| finding.seen.unwrap_or(finding.title))?;
    for (id, workload) in theirs {
        let own = configuration.objects.iter().find(|object| ObjectId::of(object) == **id);
        let own = own.ok_or_else(|| format!("release {version} has no {id}"))?;
        let selector = serde_json::to_value(&workload.selector).unwrap_or_default();
        if own.0.pointer("/spec/selector/matchLabels") != Some(&selector) {
            return Err(format!("{id} selects its pods in another way, which cannot be changed"));
        }
    }
    Ok(Record {
        version: Some(version.to_string()),
        since: Some(facts.now),
        generation: facts.generation(),
        healthy: true,
        objects: theirs.iter().map(|(id, _)| (*id).clone()).collect(),
        ..record.clone()
    })
}
