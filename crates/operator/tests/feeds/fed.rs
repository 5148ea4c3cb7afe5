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
    ("VDO-1206", Because("only its check is tested, on facts")),
    ("VDO-1211", MadeIn("switching.rs")),
    ("VDO-1215", Because("only its check is tested, on facts")),
    ("VDO-1221", Because("only its check is tested, on facts")),
    ("VDO-1227", Because("only its check is tested, on facts")),
    ("VDO-1228", Because("vCenter keeps no figure of it that can be watched")),
    ("VDO-1229", Because("only its check is tested, on facts")),
    ("VDO-1231", MadeIn("health.rs")),
    ("VDO-1232", Because("only its check is tested, on facts")),
    ("VDO-1233", Because("only its check is tested, on facts")),
    ("VDO-1303", Because("only its check is tested, on facts")),
    ("VDO-1304", Because("only its check is tested, on facts")),
    ("VDO-1306", Because("only its check is tested, on facts")),
    ("VDO-1308", Because("vCenter does not tell the account of a driver")),
    ("VDO-1309", Because("only its check is tested, on facts")),
    ("VDO-1310", Because("only its check is tested, on facts")),
    ("VDO-1311", Because("only its check is tested, on facts")),
    ("VDO-1314", MadeIn("switching.rs")),
    ("VDO-1403", Because("only its check is tested, on facts")),
    ("VDO-1405", Because("only its check is tested, on facts")),
    ("VDO-1406", Because("only its check is tested, on facts")),
    ("VDO-1410", Because("only its check is tested, on facts")),
    ("VDO-1504", Because("only its check is tested, on facts")),
    ("VDO-1506", Because("only its check is tested, on facts")),
    ("VDO-1510", Because("only its check is tested, on facts")),
    ("VDO-1525", Because("only its check is tested, on facts")),
    ("VDO-1527", Because("only its check is tested, on facts")),
    ("VDO-1528", Because("only its check is tested, on facts")),
    ("VDO-1611", Because("only its check is tested, on facts")),
    ("VDO-1612", Because("only its check is tested, on facts")),
    ("VDO-1620", Because("only its check is tested, on facts")),
    ("VDO-1621", Because("only its check is tested, on facts")),
    ("VDO-1701", Because("only its check is tested, on facts")),
    ("VDO-1703", Because("only its check is tested, on facts")),
    ("VDO-1707", Because("only its check is tested, on facts")),
    ("VDO-1708", Because("only its check is tested, on facts")),
    ("VDO-1709", Because("only its check is tested, on facts")),
    ("VDO-1801", Because("only its check is tested, on facts")),
    ("VDO-1802", Because("thousands are made of facts, in the bounds of the health checks")),
    ("VDO-1803", MadeIn("looking_once.rs")),
    ("VDO-1805", MadeIn("hostile.rs")),
    ("VDO-1806", Because("only its check is tested, on facts")),
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
