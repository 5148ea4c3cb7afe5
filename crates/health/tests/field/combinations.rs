//! Faults occur together: the checks report all causes, and mark their consequences.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use api::{Finding, Severity, finding::NAMED_OBJECTS};
use proptest::{collection::btree_set, prelude::*};

use crate::{
    faults::FAULTS,
    found, healthy,
    rows::{Row, rows},
};

/// Causes that follow from another cause if both occur: effect and cause. If the checks show any other cause
/// as a consequence, an unrelated cause hides it.
const ALSO: &[(&str, &str)] =
    &[("VDO-1515", "VDO-1401"), ("VDO-1515", "VDO-1512"), ("VDO-1515", "VDO-1514")];

/// Whether a finding has more objects than it names. The object in question can be among the unnamed ones.
fn is_crowded(found: &BTreeMap<String, Vec<Finding>>, code: &str) -> bool {
    let many = found.get(code).into_iter().flatten();
    many.map(|f| usize::try_from(f.count).unwrap()).any(|count| count > NAMED_OBJECTS)
}

/// The selected rows, without those that clash with an earlier one.
fn chosen(places: &BTreeSet<usize>) -> Vec<&'static Row> {
    let mut chosen: Vec<&Row> = Vec::new();
    for place in places {
        let row = &rows()[*place];
        if !chosen.iter().any(|other| other.clashes.contains(&row.id)) {
            chosen.push(row);
        }
    }
    chosen
}

fn given(rows: &[&Row]) -> BTreeMap<String, Vec<Finding>> {
    let mut facts = healthy();
    for row in rows {
        (row.inject)(&mut facts);
    }
    found(facts)
}

/// The objects of all findings with this code, each with the cause of its finding.
fn objects(found: &BTreeMap<String, Vec<Finding>>, code: &str) -> Vec<(String, Option<String>)> {
    let all = found.get(code).into_iter().flatten();
    let pair = |finding: &Finding| {
        let cause = finding.consequence_of.clone();
        let names = finding.objects.iter().map(|object| object.name.clone());
        names.map(|name| (name, cause.clone())).collect::<Vec<_>>()
    };
    all.flat_map(pair).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn up_to_six_faults_at_once_are_all_named_and_nothing_else_raises_an_alarm(
        places in btree_set(0..rows().len(), 1..=6)
    ) {
        let rows = chosen(&places);
        let ids: Vec<&str> = rows.iter().map(|row| row.id).collect();
        let roots: BTreeSet<&str> = rows.iter().flat_map(|row| row.roots).copied().collect();
        let found = given(&rows);
        for row in &rows {
            let alone = given(&[row]);
            for code in row.roots {
                let now = objects(&found, code);
                let crowded = is_crowded(&found, code);
                for (name, _) in objects(&alone, code) {
                    let same = now.iter().find(|(other, _)| *other == name);
                    let hidden = is_hidden(code, &ids);
                    prop_assert!(
                        same.is_some() || crowded || hidden,
                        "{ids:?}: the cause {code} of {name} is lost"
                    );
                    let cause = same.and_then(|(_, cause)| cause.as_deref());
                    let swallowed = cause.filter(|cause| !ALSO.contains(&(*code, *cause)));
                    prop_assert!(
                        swallowed.is_none(),
                        "{ids:?}: the cause {code} of {name} is taken for a consequence of {cause:?}"
                    );
                }
            }
            for code in row.derived {
                let now = objects(&found, code);
                let crowded = is_crowded(&found, code);
                prop_assert!(found.contains_key(*code), "{ids:?}: {code} has vanished");
                for (name, _) in objects(&alone, code) {
                    let same = now.iter().find(|(other, _)| *other == name);
                    prop_assert!(
                        same.is_some() || crowded,
                        "{ids:?}: {code} of {name} has vanished"
                    );
                    let cause = same.and_then(|(_, cause)| cause.as_deref());
                    prop_assert!(
                        same.is_none() || cause.is_some_and(|cause| roots.contains(cause)),
                        "{ids:?}: {code} of {name} follows from {cause:?}"
                    );
                }
            }
        }
        for finding in found.values().flatten() {
            let code = finding.code.as_str();
            let alarm = finding.consequence_of.is_none() && finding.severity > Severity::Info;
            prop_assert!(!alarm || roots.contains(code), "{ids:?}: a separate alarm: {finding:#?}");
            if let Some(cause) = &finding.consequence_of {
                prop_assert!(roots.contains(cause.as_str()), "{ids:?}: {finding:#?}");
            }
        }
    }
}

/// Pairs of faults that cannot occur together, with the reason: the cluster has one state or the other.
const APART: &[(&str, &str, &str)] = &[
    ("VDO-1803", "VDO-1917", "each is the complete list of VDO's permissions"),
    ("6", "VDO-1508", "datastores that the account cannot use do not matter"),
    ("6", "VDO-1509", "datastores that the account cannot use do not matter"),
    ("6", "VDO-1510", "datastores that the account cannot use do not matter"),
    ("7", "VDO-1508", "datastores that the account cannot use do not matter"),
    ("7", "VDO-1509", "datastores that the account cannot use do not matter"),
    ("7", "VDO-1510", "datastores that the account cannot use do not matter"),
    ("5", "VDO-1709", "with zones or without"),
    ("13", "VDO-1306", "a login is refused for one reason"),
    ("14", "VDO-1603", "one image of one container"),
    ("15", "VDO-1311", "a vCenter has one version"),
    ("29", "VDO-1222", "a node that is not registered has no entry that could be wrong"),
    ("29", "VDO-1709", "a node that is not registered has no entry that could be wrong"),
    ("32", "VDO-1504", "with zones or without"),
    ("32", "VDO-1709", "with zones or without"),
    ("35", "VDO-1504", "with zones or without"),
    ("37", "VDO-1506", "an account that sees no policy sees none without datastores"),
    ("VDO-1503", "VDO-1504", "one datastore of one class"),
    ("VDO-1504", "VDO-1709", "with zones or without"),
    ("VDO-1505", "VDO-1506", "one policy of one class"),
    ("VDO-1508", "VDO-1509", "the free space of an unavailable datastore is unknown"),
    ("VDO-1519", "VDO-1520", "one attachment comes or goes"),
    ("VDO-1519", "VDO-1528", "vCenter knows the volume or not"),
    ("VDO-1616", "VDO-1801", "leases are read or not"),
];

/// Findings that another fault on the same object hides: fault, finding and reason.
const HIDES: &[(&str, &str, &str)] = &[
    ("3", "VDO-1212", "the host of a VM nobody sees is not known"),
    ("3", "VDO-1213", "the host of a VM nobody sees is not known"),
    ("VDO-1202", "VDO-1212", "of two VMs nobody knows which is the node, nor its host"),
    ("VDO-1202", "VDO-1213", "of two VMs nobody knows which is the node, nor its host"),
    ("33", "VDO-1703", "it moves a VM away from the host with the second tag"),
    ("VDO-1705", "VDO-1703", "it moves a VM away from the host with the second tag"),
    ("VDO-1703", "VDO-1502", "the second tag moves a host to the other zone"),
];

/// Faults of which only one can exist at a time, and the reason.
const ONE_OF: &[(&[&str], &str)] = &[
    (&["VDO-1003", "VDO-1004", "VDO-1005"], "one Secret"),
    (
        &["VDO-1101", "VDO-1102", "VDO-1103", "VDO-1104", "VDO-1106", "VDO-1107"],
        "an offered catalog is refused for one reason",
    ),
];

fn is_apart(one: &str, other: &str) -> bool {
    APART.iter().any(|(a, b, _)| (*a, *b) == (one, other))
        || ONE_OF.iter().any(|(all, _)| all.contains(&one) && all.contains(&other))
}

fn is_hidden(code: &str, faults: &[&str]) -> bool {
    HIDES.iter().any(|(fault, hidden, _)| *hidden == code && faults.contains(fault))
}

#[test]
fn what_may_be_left_out_has_a_reason_and_is_known() {
    let names: BTreeSet<&str> = everything().iter().map(|(name, _)| *name).collect();
    for (one, other, reason) in APART {
        assert!(names.contains(one) && names.contains(other), "{one}, {other}");
        assert!(!reason.is_empty());
    }
    for (all, reason) in ONE_OF {
        assert!(all.iter().all(|one| names.contains(one)) && !reason.is_empty(), "{all:?}");
    }
    for (fault, hidden, reason) in HIDES {
        assert!(names.contains(fault), "{fault}");
        assert!(ALONE.iter().any(|raised| raised.contains_key(*hidden)), "{hidden}");
        assert!(!reason.is_empty());
    }
}

type Inject = fn(&mut health::facts::Facts);

/// All symptoms and all other faults, except the fault of another platform (VDO-1807), by name.
fn everything() -> Vec<(&'static str, Inject)> {
    let faults = FAULTS.iter().filter(|(code, _)| *code != "VDO-1807").copied();
    rows().iter().map(|row| (row.id, row.inject)).chain(faults).collect()
}

fn together(faults: &[(&'static str, Inject)]) -> BTreeMap<String, Vec<Finding>> {
    let mut facts = healthy();
    for (_, inject) in faults {
        inject(&mut facts);
    }
    found(facts)
}

/// The codes that the checks report as causes.
fn causes(found: &BTreeMap<String, Vec<Finding>>) -> BTreeSet<String> {
    let alarms = found.values().flatten();
    let alarms = alarms.filter(|f| f.consequence_of.is_none() && f.severity > Severity::Info);
    alarms.map(|finding| finding.code.clone()).collect()
}

/// The findings of each fault alone: codes, and the objects of each.
type Raised = BTreeMap<String, BTreeSet<String>>;

static ALONE: LazyLock<Vec<Raised>> = LazyLock::new(|| {
    let raised = |fault: &(&'static str, Inject)| -> Raised {
        let found = together(&[*fault]);
        let names =
            |code: &String| objects(&found, code).into_iter().map(|(name, _)| name).collect();
        causes(&found).into_iter().map(|code| (code.clone(), names(&code))).collect()
    };
    everything().iter().map(raised).collect()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn up_to_six_faults_of_any_kind_are_all_named_and_raise_no_alarm_none_raises_alone(
        places in btree_set(0..everything().len(), 1..=6)
    ) {
        let all = everything();
        let clash = |one: &str, other: &str| {
            let listed = |row: &str| rows().iter().find(|r| r.id == row).map_or(&[][..], |r| r.clashes);
            is_apart(one, other) || is_apart(other, one) || listed(one).contains(&other)
        };
        let mut chosen: Vec<usize> = Vec::new();
        for place in places {
            if !chosen.iter().any(|other| clash(all[*other].0, all[place].0)) {
                chosen.push(place);
            }
        }
        let faults: Vec<(&str, Inject)> = chosen.iter().map(|place| all[*place]).collect();
        let names: Vec<&str> = faults.iter().map(|(name, _)| *name).collect();
        let found = together(&faults);
        let alone: BTreeSet<&String> = chosen.iter().flat_map(|place| ALONE[*place].keys()).collect();
        for (code, expected) in chosen.iter().flat_map(|place| &ALONE[*place]) {
            let now: BTreeSet<String> = objects(&found, code).into_iter().map(|(name, _)| name).collect();
            let lost: Vec<&String> = expected.difference(&now).collect();
            prop_assert!(
                lost.is_empty() || is_crowded(&found, code) || is_hidden(code, &names),
                "{names:?}: {code} of {lost:?} is not named"
            );
        }
        for code in causes(&found) {
            prop_assert!(alone.contains(&code), "{names:?}: a separate alarm: {:#?}", found[&code]);
        }
        for finding in found.values().flatten() {
            let cause = finding.consequence_of.as_ref();
            let is_there = cause.is_none_or(|cause| found.contains_key(cause));
            prop_assert!(is_there, "{names:?}: it follows from nothing: {finding:#?}");
        }
    }
}
