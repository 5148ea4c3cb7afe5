//! Helpers for the unit tests of the checks.

use std::collections::BTreeSet;

use api::finding::codes;

use crate::{
    check::Check,
    examination::Examination,
    facts::{Facts, Known, Platform},
    index::Index,
    shortcuts::Shortcuts,
    view::FactsView,
};

pub(crate) fn healthy() -> Facts {
    crate::sample::cluster(Platform::Kubernetes)
}

/// The codes that a check reports, each once, in order. `VDO-1801` means "cannot tell".
pub(crate) fn codes_of(check: &'static Check, facts: &Facts) -> Vec<&'static str> {
    let index = Index::new(facts);
    let hits = check.hits(&FactsView { facts, index: &index });
    let codes: BTreeSet<&str> = hits.iter().map(|hit| hit.definition.code).collect();
    for code in &codes {
        let declared = check.gives.iter().any(|definition| definition.code == *code);
        assert!(declared || *code == codes::CHECK_INCOMPLETE.code, "{} gives {code}", check.name);
    }
    codes.into_iter().collect()
}

/// Asserts that a check reports nothing for a healthy cluster, its code with the fault, and "cannot tell"
/// without the facts it needs.
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

/// Like [`shows`], for a check of node VMs: without the inventory the check does not run, and the examination
/// reports its topic as unknown for each node. A cluster-wide check reports that itself.
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
    if !check.needs_vm() {
        let code = codes::CHECK_INCOMPLETE.code;
        assert_eq!(codes_of(check, &facts), [code], "{}: without the inventory", check.name);
        return;
    }
    assert_eq!(codes_of(check, &facts), [""; 0], "{}: without the inventory", check.name);
    let examination = Examination::run(facts);
    let unknown = examination.report().page(codes::CHECK_INCOMPLETE.code, 0, usize::MAX);
    let mut entries = unknown.entries.iter().filter(|entry| entry.subject.name == "worker-1");
    let topic = check.topic();
    assert!(entries.any(|entry| entry.seen.contains(&topic)), "{topic}: {unknown:#?}");
}
