//! What the tests beside the checks share.

use std::collections::BTreeSet;

use api::finding::codes;

use crate::{
    check::Check,
    examination::Examination,
    facts::{Facts, Known, Platform},
    index::Index,
    shortcuts::Shortcuts,
    view::View,
};

/// A healthy cluster.
pub(crate) fn healthy() -> Facts {
    crate::sample::cluster(Platform::Kubernetes)
}

/// The codes one check gives, each once, in order. `VDO-1801` is "cannot tell".
pub(crate) fn codes_of(check: &'static Check, facts: &Facts) -> Vec<&'static str> {
    let index = Index::of(facts);
    let hits = check.alone(&View { facts, index: &index });
    let codes: BTreeSet<&str> = hits.iter().map(|hit| hit.definition.code).collect();
    for code in &codes {
        let declared = check.gives.iter().any(|definition| definition.code == *code);
        assert!(declared || *code == codes::CHECK_INCOMPLETE.code, "{} gives {code}", check.name);
    }
    codes.into_iter().collect()
}

/// Asserts what a check gives for a healthy cluster (nothing), after a fault (its code), and when
/// the facts it needs are unknown (that it cannot tell).
pub(crate) fn shows(
    check: &'static Check,
    expected: &[&str],
    fault: impl FnOnce(&mut Facts),
    blind: impl FnOnce(&mut Facts),
) {
    assert_eq!(codes_of(check, &healthy()), [""; 0], "{}: a healthy cluster", check.name);
    let mut facts = healthy();
    fault(&mut facts);
    assert_eq!(codes_of(check, &facts), expected, "{}: with the fault", check.name);
    let mut facts = healthy();
    blind(&mut facts);
    assert_eq!(
        codes_of(check, &facts),
        [codes::CHECK_INCOMPLETE.code],
        "{}: without the fact",
        check.name
    );
}

/// As [`shows`], for a check of node VMs: without the inventory it is not run, and the examination
/// says of each node that this very matter cannot be told. One that runs over the cluster says it itself.
pub(crate) fn shows_of_vms(
    check: &'static Check,
    expected: &[&str],
    fault: impl FnOnce(&mut Facts),
) {
    assert_eq!(codes_of(check, &healthy()), [""; 0], "{}: a healthy cluster", check.name);
    let mut facts = healthy();
    fault(&mut facts);
    assert_eq!(codes_of(check, &facts), expected, "{}: with the fault", check.name);
    let mut facts = healthy();
    facts.vcenter().inventory = Known::unknown("vcenter-a does not answer");
    if !check.is_of_vms() {
        let code = codes::CHECK_INCOMPLETE.code;
        assert_eq!(codes_of(check, &facts), [code], "{}: without the inventory", check.name);
        return;
    }
    assert_eq!(codes_of(check, &facts), [""; 0], "{}: without the inventory", check.name);
    let examination = Examination::of(facts);
    let told = examination.report().page(codes::CHECK_INCOMPLETE.code, 0, usize::MAX);
    let mut entries = told.entries.iter().filter(|entry| entry.subject.name == "worker-1");
    let matter = check.matter();
    assert!(entries.any(|entry| entry.seen.contains(&matter)), "{matter}: {told:#?}");
}
