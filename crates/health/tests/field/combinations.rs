//! Faults come together: all causes are named, and what follows from them is marked as such.

use std::collections::BTreeSet;

use api::Severity;
use proptest::{collection::btree_set, prelude::*};

use crate::{
    found, healthy,
    rows::{Row, rows},
};

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

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn up_to_six_faults_at_once_are_all_named_and_nothing_else_raises_an_alarm(
        places in btree_set(0..rows().len(), 1..=6)
    ) {
        let rows = chosen(&places);
        let mut facts = healthy();
        for row in &rows {
            (row.inject)(&mut facts);
        }
        let ids: Vec<&str> = rows.iter().map(|row| row.id).collect();
        let roots: BTreeSet<&str> = rows.iter().flat_map(|row| row.roots).copied().collect();
        let found = found(facts);
        for code in &roots {
            let given = found.get(*code);
            prop_assert!(given.is_some(), "{ids:?}: {code} is not named");
            for finding in given.unwrap() {
                // A cause may itself follow from another of the causes: a lost volume from a shared id.
                let cause = finding.consequence_of.as_deref();
                prop_assert!(cause.is_none_or(|cause| roots.contains(cause)), "{ids:?}: {finding:#?}");
            }
        }
        for finding in found.values().flatten() {
            let alarm = finding.consequence_of.is_none() && finding.severity > Severity::Info;
            let expected = roots.contains(finding.code.as_str());
            prop_assert!(!alarm || expected, "{ids:?}: a separate alarm: {finding:#?}");
            if let Some(cause) = &finding.consequence_of {
                prop_assert!(roots.contains(cause.as_str()), "{ids:?}: {finding:#?}");
            }
        }
    }
}
