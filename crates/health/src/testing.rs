//! What the tests beside the checks share.

use std::collections::BTreeSet;

use api::finding::codes;

use crate::{
    check::{Check, Run, Sink},
    examination::{Examination, examine_node, examine_volume},
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
    let view = View { facts, index: &index };
    let mut sink = Sink::default();
    if let Run::Cluster(_, run) = check.run {
        run(&view, &mut sink);
    }
    for node in view.nodes() {
        examine_node(&view, node, &[check], &mut sink);
    }
    for volume in facts.storage.volumes.get().into_iter().flat_map(|v| v.values()) {
        examine_volume(&view, volume, &[check], &mut sink);
    }
    let codes: BTreeSet<&str> = sink.hits.iter().map(|hit| hit.definition.code).collect();
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

/// As [`shows`], for a check of node VMs: without the inventory it says nothing itself, and the
/// examination says that it cannot tell.
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
    assert_eq!(codes_of(check, &facts), [""; 0], "{}: without the inventory", check.name);
    let examination = Examination::of(facts);
    let told = examination.report().page(codes::CHECK_INCOMPLETE.code, 0, usize::MAX);
    assert!(told.entries.iter().any(|entry| entry.subject.name == "worker-1"), "{told:#?}");
}
