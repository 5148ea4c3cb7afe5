//! Every finding of a check is given by the operator on a cluster, or there is a reason why not.

use std::collections::BTreeSet;

use api::finding::CATALOGUE;
use testkit::Breakage;

use self::Why::{Because, MadeIn};
use super::field;

/// Why a finding is not made here or in `health.rs`.
enum Why {
    /// Another test makes it.
    MadeIn(&'static str),
    /// It cannot be made, or nobody has.
    Because(&'static str),
}

/// Findings nobody makes here or in `health.rs`.
const ELSEWHERE: &[(&str, Why)] = &[
    ("VDO-1211", Because("the inventory that is watched ends where the listed datacenters end")),
    ("VDO-1227", Because("the inventory that is watched ends where the listed datacenters end")),
    ("VDO-1228", Because("vCenter is not asked for it: see docs/health.md")),
    ("VDO-1229", Because("the simulator has no changed block tracking")),
    ("VDO-1231", MadeIn("health.rs")),
    ("VDO-1303", Because("the simulator keeps the certificate it was started with")),
    ("VDO-1304", Because("the simulator keeps the certificate it was started with")),
    (
        "VDO-1306",
        Because(
            "the simulator, like vCenter, says of a locked account what it says of a wrong password",
        ),
    ),
    ("VDO-1310", Because("the simulator stays at the release it was started as")),
    ("VDO-1311", Because("the simulator stays at the release it was started as")),
    ("VDO-1314", Because("two simulators share no datastore")),
    ("VDO-1316", MadeIn("rotation_campaign.rs")),
    ("VDO-1405", Because("the simulator has no file volumes")),
    ("VDO-1406", Because("an account that may not read the root sees no inventory either")),
    ("VDO-1506", Because("policies mean nothing to the simulator")),
    ("VDO-1510", Because("the simulator has no datastore clusters")),
    ("VDO-1525", Because("that takes 9000 volumes")),
    (
        "VDO-1707",
        Because("the schema lets nobody ask for a zone without a region; older objects may"),
    ),
    ("VDO-1708", Because("the simulator has no groups of hosts")),
    (
        "VDO-1801",
        Because("it is held back for a minute after a start; what is unknown is tested on facts"),
    ),
    ("VDO-1802", Because("thousands are made of facts, in the bounds of the checks")),
    ("VDO-1803", MadeIn("looking_once.rs")),
    ("VDO-1805", MadeIn("hostile.rs")),
    ("VDO-1806", Because("a kubelet without network is simulated by nobody")),
];

#[test]
fn every_check_is_fed_or_there_is_a_reason() {
    let mut made: BTreeSet<&str> = Breakage::ALL.iter().map(|breakage| breakage.code).collect();
    made.extend(field::ALL.iter().flat_map(|t| t.cases).flat_map(field::Case::codes));
    made.extend(field::AROUND);
    let excused: BTreeSet<&str> = ELSEWHERE.iter().map(|(code, _)| *code).collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/");
    for (code, reason) in ELSEWHERE {
        assert!(!made.contains(code), "{code} is made here: it needs no reason");
        match reason {
            MadeIn(file) => {
                let text = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
                assert!(text.contains(code), "{file} does not make {code}");
            }
            Because(reason) => assert!(!reason.is_empty(), "{code}"),
        }
    }
    let of_checks = |code: &&str| ("VDO-12".."VDO-19").contains(code);
    let all: BTreeSet<&str> = CATALOGUE.iter().map(|d| d.code).filter(of_checks).collect();
    let known: BTreeSet<&str> = made.union(&excused).copied().filter(of_checks).collect();
    let unknown: Vec<&&str> = known.difference(&all).collect();
    assert!(unknown.is_empty(), "no such finding: {unknown:?}");
    let unfed: Vec<&&str> = all.difference(&known).collect();
    assert!(unfed.is_empty(), "nobody feeds {unfed:?}: make them on a cluster, or say why not");
}
