//! Compares the rights that the operator used in all end-to-end tests with the rights it is shipped with.
//!
//! Each test writes what the operator used (`common/usage.rs`). After a complete run `scripts/test` starts
//! this program once more, with the folder in `VDO_AUDIT_REPLAY`. It fails if a rule of the manifest was
//! never used, if a request was denied, or if a request needed a rule that the operator only holds to grant
//! it to drivers.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod rbac;

use std::{collections::BTreeSet, path::Path};

use rbac::{Request, Rule, rules_of};

/// Names the folder that a complete run of the tests has filled.
const REPLAY: &str = "VDO_AUDIT_REPLAY";

/// Rules that no request shows, with the reason: a resource and a verb of the rule.
const UNSEEN: [(&str, &str, &str); 2] = [
    ("clusterroles", "bind", "the API server checks it inside the request that writes a binding"),
    ("roles", "bind", "the API server checks it inside the request that writes a binding"),
];

/// Tests in which the operator lacks rights for a while: they take rights away or grant others than the
/// manifest does, or they restart the API server, which denies everything until it has read the roles.
const OTHER_RIGHTS: [&str; 5] = [
    "a_driver_in_a_namespace_of_its_own_is_adopted_where_it_is_once_vdo_is_let",
    "an_api_server_that_restarts_is_met_again_and_olm_is_told_when_to_wait",
    "the_operator_writes_and_grants_what_it_is_let_and_reports_what_it_lacks",
    "troubles_around_the_operator_are_said_and_pass_without_a_trace",
    "two_instances_on_one_node_are_both_ready_and_the_leader_serves_the_metrics",
];

/// What the tests of a complete run wrote. A single program of tests uses few rules: it has nothing to
/// compare.
fn complete_run() -> Option<BTreeSet<String>> {
    let folder = std::env::var_os(REPLAY)?;
    let lines = read(Path::new(&folder)).unwrap();
    assert!(!lines.is_empty(), "the tests wrote nothing into {}", folder.display());
    Some(lines)
}

#[test]
fn every_rule_of_the_manifest_is_used_and_no_request_is_denied() {
    let rules = rules_of(&operator::install::objects(), api::NAMESPACE, "vdo");
    assert!(rules.iter().any(is_held) && !rules.iter().all(is_held));
    if let Some(lines) = complete_run() {
        let faults = faults(&rules, &lines);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}

fn read(folder: &Path) -> std::io::Result<BTreeSet<String>> {
    let mut lines = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let text = std::fs::read_to_string(entry?.path())?;
        lines.extend(text.lines().map(str::to_owned));
    }
    Ok(lines)
}

fn faults(rules: &[Rule], lines: &BTreeSet<String>) -> Vec<String> {
    let mut faults = BTreeSet::new();
    let mut used = BTreeSet::new();
    for line in lines {
        let fields: Vec<&str> = line.split('\t').collect();
        let [test, outcome, verb, group, resource, namespace, name] = fields[..] else {
            faults.insert(format!("cannot read: {line}"));
            continue;
        };
        let request = Request { verb, group, resource, namespace, name };
        let manifest_alone = !OTHER_RIGHTS.iter().any(|known| test.ends_with(known));
        if outcome == "denied" {
            if manifest_alone {
                faults.insert(format!(
                    "denied in {test}: {verb} {resource}.{group} {namespace}/{name}"
                ));
            }
            continue;
        }
        let allowing: Vec<&Rule> = rules.iter().filter(|rule| rule.allows(&request)).collect();
        let held = !allowing.is_empty() && allowing.iter().all(|rule| is_held(rule));
        if held && manifest_alone {
            faults.insert(format!(
                "only a rule held for drivers allows {verb} {resource}.{group} {namespace}/{name}, in {test}"
            ));
        }
        used.extend(allowing.into_iter().filter(|rule| !is_held(rule)).map(everywhere));
    }
    let own = rules.iter().filter(|rule| !is_held(rule)).map(everywhere);
    for rule in own.collect::<BTreeSet<Rule>>().difference(&used) {
        let known = UNSEEN.iter().any(|(resource, verb, _)| {
            let has = |all: &[String], one: &str| all.iter().any(|other| other == one);
            has(&rule.resources, resource) && has(&rule.verbs, verb)
        });
        if !known {
            let Rule { groups, resources, verbs, .. } = rule;
            faults.insert(format!("never used: {verbs:?} {resources:?} of {groups:?}"));
        }
    }
    faults.into_iter().collect()
}

/// Whether the operator holds a rule only to grant it.
fn is_held(rule: &Rule) -> bool {
    rule.role == "vdo-drivers"
}

/// The driver namespaces have the same rules: one that is used in one of them is used.
fn everywhere(rule: &Rule) -> Rule {
    let namespace = rule.namespace.clone().filter(|namespace| namespace == api::NAMESPACE);
    let namespace = namespace.or_else(|| rule.namespace.as_ref().map(|_| "drivers".to_owned()));
    Rule { namespace, ..rule.clone() }
}

fn rule(role: &str, resource: &str, verb: &str) -> Rule {
    Rule {
        role: role.into(),
        namespace: None,
        groups: vec![String::new()],
        resources: vec![resource.into()],
        verbs: vec![verb.into()],
        names: Vec::new(),
    }
}

fn seen(outcome: &str, verb: &str, resource: &str) -> BTreeSet<String> {
    BTreeSet::from([format!("some_test\t{outcome}\t{verb}\t\t{resource}\t\t")])
}

#[test]
fn a_rule_that_nothing_used_is_a_fault() {
    let rules = [rule("vdo", "nodes", "get"), rule("vdo", "pods", "get")];
    let faults = faults(&rules, &seen("used", "get", "nodes"));
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("never used") && faults[0].contains("pods"), "{faults:?}");
}

#[test]
fn a_request_that_was_denied_is_a_fault() {
    let rules = [rule("vdo-drivers", "nodes", "get")];
    let faults = faults(&rules, &seen("denied", "delete", "nodes"));
    assert!(faults[0].starts_with("denied in some_test: delete nodes"), "{faults:?}");
}

#[test]
fn a_request_that_only_a_rule_of_drivers_allows_is_a_fault() {
    let rules = [rule("vdo-drivers", "nodes", "delete")];
    let faults = faults(&rules, &seen("used", "delete", "nodes"));
    assert!(faults[0].starts_with("only a rule held for drivers allows"), "{faults:?}");
    assert_eq!(faults.len(), 1, "a held rule need not be used: {faults:?}");
}
