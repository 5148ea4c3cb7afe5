//! Who may depend on whom: DESIGN's list of crates, held by a test.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

/// The crates in order of dependency: each may depend only on crates before it, and of those only
/// on the ones named. Every crate may depend on `redaction`.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("redaction", &[]),
    ("vsphere", &[]),
    ("driver-config", &[]),
    ("api", &[]),
    ("catalog", &["vsphere", "api"]),
    ("health", &["vsphere", "api", "catalog"]),
    ("runtime", &[]),
    ("operator", &["vsphere", "driver-config", "api", "catalog", "health", "runtime"]),
    ("cloud-controller", &["vsphere", "driver-config", "runtime"]),
    ("csi", &["vsphere", "driver-config", "runtime"]),
    ("vdoctl", &["vsphere", "driver-config", "api", "catalog", "health", "runtime", "operator"]),
    ("testkit", &[]),
    ("sandbox", &["api", "operator", "testkit"]),
];

/// Crates that would make a pure crate impure.
const DOES_NO_IO: &[&str] = &["redaction", "driver-config", "api", "catalog", "health"];
const DOES_IO: &[&str] = &["tokio", "reqwest", "hyper", "kube-client"];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--locked", "--offline"])
        .current_dir(testkit::repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// For each crate of the workspace, its direct dependencies with their kind and features.
fn dependencies() -> BTreeMap<String, Vec<Value>> {
    let packages = metadata()["packages"].as_array().unwrap().clone();
    packages
        .into_iter()
        .map(|p| {
            (p["name"].as_str().unwrap().into(), p["dependencies"].as_array().unwrap().clone())
        })
        .collect()
}

fn is_normal(dependency: &Value) -> bool {
    dependency["kind"].is_null()
}

#[test]
fn arrows_only_point_up() {
    let all = dependencies();
    for (name, dependencies) in &all {
        let (_, allowed) = MAY_DEPEND_ON
            .iter()
            .find(|(known, _)| known == name)
            .unwrap_or_else(|| panic!("{name} is new: give it its place in this list"));
        for dependency in dependencies.iter().filter(|d| is_normal(d)) {
            let target = dependency["name"].as_str().unwrap();
            assert!(
                !all.contains_key(target) || target == "redaction" || allowed.contains(&target),
                "{name} must not depend on {target}"
            );
        }
    }
}

#[test]
fn the_pure_crates_do_no_io() {
    for (name, dependencies) in dependencies() {
        if !DOES_NO_IO.contains(&name.as_str()) {
            continue;
        }
        for dependency in dependencies.iter().filter(|d| is_normal(d)) {
            let target = dependency["name"].as_str().unwrap();
            assert!(!DOES_IO.contains(&target), "{name} is pure: it must not use {target}");
            let client = target == "kube"
                && dependency["features"].as_array().unwrap().iter().any(|f| f == "client");
            assert!(!client, "{name} is pure: it must not use kube's client");
        }
    }
}
