//! Every check has a fault that it reports, a healthy cluster on which it reports nothing, and a fact that it
//! needs.

use std::collections::{BTreeMap, BTreeSet};

use health::{Check, FactsView, Index, checks};
use serde_json::json;

use crate::{
    facts::{Facts, Vm},
    faults::FAULTS,
    healthy,
    rows::rows,
    shortcuts::Shortcuts,
    unknown::{asking, places},
};

/// Checks of single volumes that leave it to another check to report an unknown fact once for all volumes:
/// check, reporting check, and a part of its text.
const SPOKEN_FOR: &[(&str, &str, &str)] =
    &[("storage/registered", "storage/volume_counts", "which volumes vCenter knows")];

/// The finding that reports an incomplete check.
const CANNOT_TELL: &str = api::finding::codes::CHECK_INCOMPLETE.code;

/// The findings of a single check, by code.
fn codes_of(check: &'static Check, (facts, index): &IndexedFacts) -> BTreeSet<&'static str> {
    let hits = check.hits(&FactsView { facts, index });
    hits.iter().map(|hit| hit.definition.code).collect()
}

/// All faults: the symptoms from the field and the others.
fn broken() -> Vec<Facts> {
    let injections = rows().iter().map(|row| row.inject).chain(FAULTS.iter().map(|(_, f)| *f));
    let injections = injections.chain([held as fn(&mut Facts)]);
    let broken = injections.map(|inject| {
        let mut facts = healthy();
        inject(&mut facts);
        facts
    });
    broken.collect()
}

/// A volume is attached to a node, and its disk is also attached to another VM.
fn held(facts: &mut Facts) {
    let handle = facts.storage.volumes.get().unwrap().keys().next().unwrap().clone();
    let zombie = Vm { bios_uuid: "zombie".into(), volumes: vec![handle], ..Vm::default() };
    facts.inventory().vms.insert("vm-zombie".into(), zombie);
}

/// Like [`asking`], with a second vCenter whose inventory is empty.
fn with_two_vcenters() -> Facts {
    let mut facts = asking();
    let mut other = facts.vcenter().clone();
    other.name = "vcenter-b".into();
    other.address = "vc-b.example.com".into();
    other.datacenters.clear();
    let inventory = other.inventory.get_mut().unwrap();
    inventory.vms.clear();
    inventory.hosts.clear();
    inventory.datastores.clear();
    other.grants.get_mut().unwrap().entities.truncate(1);
    facts.vcenters.insert("vcenter-b".into(), other);
    facts
}

/// Healthy clusters with one fact unknown, for each fact.
fn blind() -> Vec<Facts> {
    let mut all = Vec::new();
    for healthy in [asking(), with_two_vcenters()] {
        let healthy = serde_json::to_value(healthy).unwrap();
        let mut found = BTreeMap::new();
        places(&healthy, "", "", &mut found);
        for at in found.into_values() {
            let mut blind = healthy.clone();
            *blind.pointer_mut(&at).unwrap() = json!({"unknown": {"reason": "nobody may look"}});
            all.push(serde_json::from_value(blind).unwrap());
        }
    }
    all
}

/// Facts with their index.
type IndexedFacts = (Facts, Index);

fn indexed(facts: Facts) -> IndexedFacts {
    let index = Index::new(&facts);
    (facts, index)
}

/// The findings of a check that none of these faults causes.
fn unnamed(check: &'static Check, broken: &[IndexedFacts]) -> Vec<String> {
    let named: BTreeSet<&str> = broken.iter().flat_map(|seen| codes_of(check, seen)).collect();
    let codes = check.gives.iter().map(|definition| definition.code);
    codes.filter(|code| !named.contains(code)).map(|code| format!("a fault for {code}")).collect()
}

/// Whether a check, or the one that reports for it, reports for one of these clusters that it is incomplete.
fn is_blind(check: &'static Check, blind: &[IndexedFacts]) -> bool {
    let Some((_, other, words)) = SPOKEN_FOR.iter().find(|(name, ..)| *name == check.name) else {
        return blind.iter().any(|seen| codes_of(check, seen).contains(CANNOT_TELL));
    };
    let other = checks::all().iter().find(|check| check.name == *other).unwrap();
    blind.iter().any(|(facts, index)| {
        other.hits(&FactsView { facts, index }).iter().any(|hit| {
            hit.definition.code == CANNOT_TELL
                && hit.own.iter().any(|(_, text)| text.contains(words))
        })
    })
}

#[test]
fn every_check_has_a_fault_it_names_a_cluster_it_is_silent_about_and_a_fact_it_misses() {
    let well = health::sample::platforms().into_iter().map(|(_, facts)| facts);
    let well: Vec<IndexedFacts> =
        well.chain([asking(), with_two_vcenters()]).map(indexed).collect();
    let broken: Vec<IndexedFacts> = broken().into_iter().map(indexed).collect();
    let blind: Vec<IndexedFacts> = blind().into_iter().map(indexed).collect();
    let mut missing = BTreeMap::new();
    for check in checks::all() {
        let mut lacks = unnamed(check, &broken);
        for seen in &well {
            let codes = codes_of(check, seen);
            if !codes.is_empty() {
                lacks.push(format!("a healthy cluster: it reports {codes:?} for one"));
            }
        }
        // A single finding reports a missing VM of a node for all checks of VMs: see below.
        if !check.needs_vm() && !is_blind(check, &blind) {
            lacks.push("a fact without which it cannot tell".to_owned());
        }
        if !lacks.is_empty() {
            missing.insert(check.name, lacks);
        }
    }
    assert!(missing.is_empty(), "checks that lack something: {missing:#?}");
}

#[test]
fn every_check_of_vms_is_incomplete_while_the_vms_are_unknown() {
    let mut facts = healthy();
    facts.vcenters.values_mut().next().unwrap().inventory =
        health::facts::Known::unknown("it does not answer");
    let found = crate::found(facts);
    let incomplete: Vec<&str> =
        found[CANNOT_TELL].iter().filter_map(|finding| finding.seen.as_deref()).collect();
    let of_vms = checks::all().iter().filter(|check| check.needs_vm());
    let matters: Vec<String> = of_vms.map(|check| check.topic()).collect();
    assert!(!matters.is_empty());
    for topic in matters {
        assert!(incomplete.iter().any(|seen| seen.contains(&topic)), "{topic}: {incomplete:#?}");
    }
}
