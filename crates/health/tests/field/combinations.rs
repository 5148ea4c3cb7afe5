//! Faults come together: all causes are named, and what follows from them is marked as such.

use std::collections::{BTreeMap, BTreeSet};

use api::{Finding, Severity, finding::NAMED_OBJECTS};
use proptest::{collection::btree_set, prelude::*};

use crate::{
    found, healthy,
    rows::{Row, rows},
};

/// Causes that follow from another cause where both are there: effect and cause. Any other cause that is
/// shown as a consequence has been swallowed by a stranger.
const ALSO: &[(&str, &str)] =
    &[("VDO-1515", "VDO-1401"), ("VDO-1515", "VDO-1512"), ("VDO-1515", "VDO-1514")];

/// The rows of a choice, without those that clash with an earlier one.
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

/// Objects of all findings with a code; with their causes.
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
                prop_assert!(found.contains_key(*code), "{ids:?}: {code} is not named");
                let now = objects(&found, code);
                for (name, _) in objects(&alone, code) {
                    let same = now.iter().find(|(other, _)| *other == name);
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
                let many = found.get(*code).into_iter().flatten();
                let many = many.map(|f| usize::try_from(f.count).unwrap()).sum::<usize>();
                prop_assert!(many > 0, "{ids:?}: {code} has vanished");
                for (name, _) in objects(&alone, code) {
                    let same = now.iter().find(|(other, _)| *other == name);
                    prop_assert!(
                        same.is_some() || many > NAMED_OBJECTS,
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
