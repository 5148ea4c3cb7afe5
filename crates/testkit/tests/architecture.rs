//! The allowed dependencies between crates, as in docs/design.md.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

/// The crates in order of dependency. Each can depend only on the named crates, which come before it.
/// Every crate can depend on `redaction`.
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

/// Crates without I/O, and dependencies that would add I/O.
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

/// The direct dependencies of each workspace crate, with kind and features.
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
fn dependencies_only_point_up() {
    let all = dependencies();
    for (name, dependencies) in &all {
        let (_, allowed) = MAY_DEPEND_ON
            .iter()
            .find(|(known, _)| known == name)
            .unwrap_or_else(|| panic!("{name} is new: add it to this list"));
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
            assert!(!DOES_IO.contains(&target), "{name} does no I/O: it must not use {target}");
            let client = target == "kube"
                && dependency["features"].as_array().unwrap().iter().any(|f| f == "client");
            assert!(!client, "{name} does no I/O: it must not use kube's client");
        }
    }
}
