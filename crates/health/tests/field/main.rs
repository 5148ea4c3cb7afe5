//! The field benchmark: the tests inject faults that users of the drivers had, one by one and in random
//! combinations, and check the findings.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use health::facts;

mod benchmark;
mod bounds;
mod combinations;
mod coverage;
mod faults;
mod incremental;
mod proven;
mod rows;
#[path = "../../src/shortcuts.rs"]
mod shortcuts;
mod texts;
mod unknown;

use std::collections::BTreeMap;

use api::Finding;
use facts::{Facts, Platform};
use health::Examination;

/// The findings, by code.
fn found(facts: Facts) -> BTreeMap<String, Vec<Finding>> {
    let mut by_code: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for finding in Examination::run(facts).report().all() {
        by_code.entry(finding.code.clone()).or_default().push(finding);
    }
    by_code
}

fn healthy() -> Facts {
    health::sample::cluster(Platform::Kubernetes)
}
