//! A test causes every finding of a check on a cluster, or there is a reason why not.

use std::collections::BTreeSet;

use api::finding::CATALOGUE;
use testkit::Breakage;

use self::Reason::{CausedIn, Untested};
use super::field;

/// Why neither `feeds.rs` nor `health.rs` causes a finding.
enum Reason {
    /// Another test causes it.
    CausedIn(&'static str),
    /// No test causes it.
    Untested(&'static str),
}

const ELSEWHERE: &[(&str, Reason)] = &[
    ("VDO-1211", Untested("VDO watches only the listed datacenters")),
    ("VDO-1227", Untested("VDO watches only the listed datacenters")),
    ("VDO-1228", Untested("VDO does not query it: see docs/health.md")),
    ("VDO-1229", Untested("the simulator has no changed block tracking")),
    ("VDO-1231", CausedIn("health.rs")),
    ("VDO-1303", Untested("the simulator cannot change its certificate")),
    ("VDO-1304", Untested("the simulator cannot change its certificate")),
    (
        "VDO-1306",
        Untested("the simulator, like vCenter, answers a locked account as a wrong password"),
    ),
    ("VDO-1310", Untested("the simulator cannot change its release")),
    ("VDO-1311", Untested("the simulator cannot change its release")),
    ("VDO-1314", Untested("two simulators share no datastore")),
    ("VDO-1316", CausedIn("rotation_campaign.rs")),
    ("VDO-1405", Untested("the simulator has no file volumes")),
    ("VDO-1406", Untested("an account that cannot read the root sees no inventory either")),
    ("VDO-1506", Untested("the simulator ignores storage policies")),
    ("VDO-1510", Untested("the simulator has no datastore clusters")),
    ("VDO-1525", Untested("it needs 9000 volumes")),
    ("VDO-1623", CausedIn("diagnosis_campaign/by_hand.rs")),
    ("VDO-1624", CausedIn("diagnosis_campaign/by_hand.rs")),
    ("VDO-1707", Untested("the schema requires a region with a zone; older objects can lack it")),
    ("VDO-1708", Untested("the simulator has no host groups")),
    ("VDO-1801", Untested("VDO delays it for a minute after a start; unit tests cover it")),
    (
        "VDO-1802",
        Untested("it needs thousands of objects; the bounds tests of the checks cover it"),
    ),
    ("VDO-1803", CausedIn("looking_once.rs")),
    ("VDO-1805", CausedIn("hostile.rs")),
    ("VDO-1806", Untested("no test simulates a kubelet without network")),
];

#[test]
fn every_check_runs_on_a_cluster_or_has_a_reason_not_to() {
    let mut caused: BTreeSet<&str> = Breakage::ALL.iter().map(|breakage| breakage.code).collect();
    caused
        .extend(field::ALL.iter().flat_map(|batch| batch.cases).flat_map(field::FaultCase::codes));
    caused.extend(field::AROUND);
    let excused: BTreeSet<&str> = ELSEWHERE.iter().map(|(code, _)| *code).collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/");
    for (code, reason) in ELSEWHERE {
        assert!(!caused.contains(code), "{code} is caused here and needs no reason");
        match reason {
            CausedIn(file) => {
                let text = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
                assert!(text.contains(code), "{file} does not cause {code}");
            }
            Untested(reason) => assert!(!reason.is_empty(), "{code}"),
        }
    }
    let of_checks = |code: &&str| ("VDO-12".."VDO-19").contains(code);
    let all: BTreeSet<&str> = CATALOGUE.iter().map(|d| d.code).filter(of_checks).collect();
    let known: BTreeSet<&str> = caused.union(&excused).copied().filter(of_checks).collect();
    let unknown: Vec<&&str> = known.difference(&all).collect();
    assert!(unknown.is_empty(), "no such finding: {unknown:?}");
    let missing: Vec<&&str> = all.difference(&known).collect();
    assert!(
        missing.is_empty(),
        "no test causes {missing:?}: cause them on a cluster, or give a reason"
    );
}
