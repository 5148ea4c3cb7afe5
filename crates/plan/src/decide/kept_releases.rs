//! Releases that the catalog in use does not list. The fetched catalog is gone or was replaced, or a newer
//! VDO embeds another one. The record keeps the catalog entries of the running release and of the previous
//! one. With them VDO repairs the driver, passes on new passwords and rolls back.

use api::finding::{Finding, codes};
use catalog::{Driver, Release};

use super::configuration::RenderedDriver;
use crate::{
    facts::Facts,
    plan::Next,
    record::{Build, Record},
};

/// The maximum size of a kept entry as JSON: two entries and the rest of the record must fit into one
/// ConfigMap. Only an entry that contains a published manifest could be larger.
const LIMIT: usize = 400_000;

/// The entries to keep in a record whose configuration VDO is about to roll out.
pub(super) fn entries(
    facts: &Facts,
    record: &Record,
    configuration: &RenderedDriver,
) -> Vec<Release> {
    let driver = configuration.driver;
    let entry = |build: Build| {
        let Build { implementation, version } = &build;
        let rendered = &configuration.release;
        if (rendered.implementation, &rendered.version) == (*implementation, version) {
            return Some(rendered.clone());
        }
        let known = || facts.catalog.find(driver, *implementation, version);
        record.release(driver, &build).or_else(known).cloned()
    };
    let fits =
        |release: &Release| serde_json::to_string(release).is_ok_and(|text| text.len() <= LIMIT);
    [record.running(), record.before()]
        .into_iter()
        .flatten()
        .filter_map(entry)
        .filter(fits)
        .collect()
}

/// The next action while a new rendering waits. A record from before VDO kept releases gets them first.
pub(super) fn first(
    facts: &Facts,
    record: &Record,
    configuration: &RenderedDriver,
    next: Next,
) -> Next {
    let releases = entries(facts, record, configuration);
    if next != Next::Nothing || !record.releases.is_empty() || releases.is_empty() {
        return next;
    }
    Next::Record(Box::new(Record { releases, ..record.clone() }))
}

/// The catalog in use does not list the running release.
pub(super) fn finding(facts: &Facts, driver: Driver, record: &Record) -> Option<Finding> {
    let Build { implementation, version } = record.running()?;
    if facts.catalog.find(driver, implementation, &version).is_some() {
        return None;
    }
    let finding = codes::RELEASE_NOT_LISTED
        .found()
        .with("driver", driver.to_string())
        .with("version", version.to_string())
        .with("serial", facts.catalog.serial.to_string());
    Some(finding.about(super::myself(facts)).build())
}
