//! Which crate may depend on which, and the modules inside each crate.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "architecture/graph.rs"]
mod graph;

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use graph::ModuleGraph;

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
    ("plan", &["driver-config", "api", "catalog", "health"]),
    ("runtime", &[]),
    ("oci", &[]),
    (
        "operator",
        &["vsphere", "driver-config", "api", "catalog", "health", "plan", "runtime", "oci"],
    ),
    ("cloud-controller", &["vsphere", "driver-config", "runtime"]),
    ("csi", &["vsphere", "driver-config", "runtime"]),
    (
        "vdoctl",
        &[
            "vsphere",
            "driver-config",
            "api",
            "catalog",
            "health",
            "plan",
            "runtime",
            "oci",
            "operator",
        ],
    ),
    ("shipping", &["api", "catalog", "operator"]),
    ("testkit", &[]),
    ("sandbox", &["api", "plan", "operator", "testkit"]),
];

/// Crates without I/O, and dependencies that would add I/O.
const DOES_NO_IO: &[&str] = &["redaction", "driver-config", "api", "catalog", "health", "plan"];
const DOES_IO: &[&str] = &["tokio", "reqwest", "hyper", "kube-client"];

/// The place of the module graph in `docs/design.md`.
const GRAPH: (&str, &str) =
    ("<!-- module graph: written by make graph -->\n", "<!-- end of the module graph -->\n");

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

#[test]
fn the_rules_read_no_clock() {
    let mut files = vec![sources_of("plan")];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for clock in ["Timestamp::now", "Zoned::now", "SystemTime", "Instant::now"] {
            assert!(!text.contains(clock), "{}: {clock}: the time is a fact", path.display());
        }
    }
}

fn sources_of(name: &str) -> PathBuf {
    testkit::repository().join("crates").join(name).join("src")
}

/// The crates that are there, in order of dependency, with their modules.
fn module_graphs() -> Vec<(&'static str, ModuleGraph)> {
    let crates = MAY_DEPEND_ON.iter().map(|(name, _)| *name);
    let crates = crates.filter(|name| sources_of(name).exists());
    crates.map(|name| (name, ModuleGraph::read(&sources_of(name)))).collect()
}

#[test]
fn the_modules_of_a_crate_have_no_dependency_cycle() {
    for (name, graph) in module_graphs() {
        assert_eq!(graph.cycle(), None, "{name}: each of these modules depends on the next");
    }
}

#[test]
fn the_module_graph_in_the_design_is_current() {
    let mut graph = String::from("```text\n");
    for (name, modules) in module_graphs() {
        graph.extend([name, "\n"]);
        for line in modules.lines() {
            graph.extend(["  ", &line, "\n"]);
        }
    }
    graph.push_str("```\n");
    println!("{graph}");
    let page = testkit::repository().join("docs/design.md");
    let text = fs::read_to_string(&page).unwrap();
    let start = text.find(GRAPH.0).unwrap() + GRAPH.0.len();
    let end = start + text[start..].find(GRAPH.1).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&page, format!("{}{graph}{}", &text[..start], &text[end..])).unwrap();
        return;
    }
    assert!(text[start..end] == graph, "docs/design.md is not current: make graph writes it");
}
