//! Compares the permissions that the operator used in all end-to-end tests with those in its manifest.
//!
//! Each test records the permissions that the operator used (`common/usage.rs`). After a complete run, `scripts/test`
//! starts this program again with the folder in `VDO_AUDIT_REPLAY`. It fails if no test used a rule of the manifest,
//! if RBAC denied a request, if no rule of the manifest allows a request, or if a request needed a rule that the operator
//! has only to grant it to drivers.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod rbac;

use std::{collections::BTreeSet, path::Path};

use rbac::{Request, Rule, rules_of};

/// The folder with the records of a complete run.
const REPLAY: &str = "VDO_AUDIT_REPLAY";

/// Rules that appear in no request: resource, verb and reason.
const NOT_IN_REQUESTS: [(&str, &str, &str); 1] = [(
    "securitycontextconstraints",
    "use",
    "OpenShift checks it when it admits the operator's pods",
)];

/// Tests in which the operator has other permissions for a while. They change its roles, add those of another driver
/// namespace, or restart the API server, which denies everything until it has read the roles.
const OTHER_PERMISSIONS: [&str; 7] = [
    "an_adopted_cloud_controller_restarts_with_a_new_password_in_its_own_secret",
    "a_driver_in_its_own_namespace_is_adopted_there_once_vdo_has_permission",
    "the_command_in_the_finding_replaces_the_pods_of_a_driver_that_restarts_on_delete",
    "the_operator_reconnects_to_a_restarted_api_server_and_tells_olm_when_to_wait",
    "the_operator_uses_only_granted_permissions_and_reports_missing_ones",
    "the_operator_reports_failures_around_it_and_recovers",
    "two_instances_on_one_node_are_both_ready_and_the_leader_serves_the_metrics",
];

/// Tests in which an admin gives the operator one more role, as the documentation describes: credentials in
/// `kube-system`, or repairs of CSINodes.
const MORE_PERMISSIONS: [&str; 3] = [
    "an_installation_with_credentials_in_kube_system_keeps_working_after_an_upgrade",
    "a_cluster_of_the_go_vdo_is_adopted_unchanged_and_upgraded_on_approval",
    "vdo_remediates_what_is_allowed_and_undoes_it_on_request",
];

/// The records of a complete run. A single test program uses too few rules for a comparison.
fn complete_run() -> Option<BTreeSet<String>> {
    let folder = std::env::var_os(REPLAY)?;
    let lines = read(Path::new(&folder)).unwrap();
    assert!(!lines.is_empty(), "the tests wrote no records into {}", folder.display());
    Some(lines)
}

#[test]
fn every_rule_of_the_manifest_is_used_and_no_request_is_denied() {
    let rules = rules_of(&operator::install::objects(), api::NAMESPACE, "vdo");
    assert!(rules.iter().any(is_driver_rule) && !rules.iter().all(is_driver_rule));
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
        let manifest_alone = !OTHER_PERMISSIONS.iter().any(|known| test.ends_with(known));
        if outcome == "denied" {
            if manifest_alone {
                faults.insert(format!(
                    "denied in {test}: {verb} {resource}.{group} {namespace}/{name}"
                ));
            }
            continue;
        }
        let allowing: Vec<&Rule> = rules.iter().filter(|rule| rule.allows(&request)).collect();
        let has_more = MORE_PERMISSIONS.iter().any(|known| test.ends_with(known));
        // Every account can ask for its own permissions.
        let is_own_review = group == "authorization.k8s.io" && resource.starts_with("selfsubject");
        if allowing.is_empty() && manifest_alone && !has_more && !is_own_review {
            faults.insert(format!(
                "no rule of the manifest allows {verb} {resource}.{group} {namespace}/{name}, in {test}"
            ));
        }
        let driver_only = !allowing.is_empty() && allowing.iter().all(|rule| is_driver_rule(rule));
        if driver_only && manifest_alone {
            faults.insert(format!(
                "only a driver rule allows {verb} {resource}.{group} {namespace}/{name}, in {test}"
            ));
        }
        used.extend(
            allowing.into_iter().filter(|rule| !is_driver_rule(rule)).map(without_driver_namespace),
        );
    }
    let own = rules.iter().filter(|rule| !is_driver_rule(rule)).map(without_driver_namespace);
    for rule in own.collect::<BTreeSet<Rule>>().difference(&used) {
        let known = NOT_IN_REQUESTS.iter().any(|(resource, verb, _)| {
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

/// The operator has these rules only to grant them to drivers.
fn is_driver_rule(rule: &Rule) -> bool {
    rule.role == "vdo-drivers"
}

/// The driver namespaces have the same rules: a rule must be used in one of them.
fn without_driver_namespace(rule: &Rule) -> Rule {
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

fn record(outcome: &str, verb: &str, resource: &str) -> BTreeSet<String> {
    BTreeSet::from([format!("some_test\t{outcome}\t{verb}\t\t{resource}\t\t")])
}

#[test]
fn an_unused_rule_is_a_fault() {
    let rules = [rule("vdo", "nodes", "get"), rule("vdo", "pods", "get")];
    let faults = faults(&rules, &record("used", "get", "nodes"));
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("never used") && faults[0].contains("pods"), "{faults:?}");
}

#[test]
fn a_denied_request_is_a_fault() {
    let rules = [rule("vdo-drivers", "nodes", "get")];
    let faults = faults(&rules, &record("denied", "delete", "nodes"));
    assert!(faults[0].starts_with("denied in some_test: delete nodes"), "{faults:?}");
}

#[test]
fn a_request_that_another_role_allows_is_a_fault() {
    let rules = [rule("vdo", "nodes", "get")];
    let mut records = record("used", "get", "nodes");
    records.extend(record("used", "delete", "nodes"));
    let faults = faults(&rules, &records);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with("no rule of the manifest allows delete nodes"), "{faults:?}");
}

#[test]
fn a_request_that_only_a_driver_rule_allows_is_a_fault() {
    let rules = [rule("vdo-drivers", "nodes", "delete")];
    let faults = faults(&rules, &record("used", "delete", "nodes"));
    assert!(faults[0].starts_with("only a driver rule allows"), "{faults:?}");
    assert_eq!(faults.len(), 1, "a driver rule need not be used: {faults:?}");
}
