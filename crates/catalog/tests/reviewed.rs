//! Snapshots for review: three manifests in full, and the differences between neighbouring releases and
//! between profiles.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::assigning_clones,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use catalog::{
    Driver, Implementation, embedded,
    manifest::{Object, Rendered, render},
};
use serde_json::Value;
use support::{full, openshift, plain, release};

fn yaml(rendered: &Rendered) -> String {
    let documents: Vec<_> =
        rendered.objects.iter().map(|object| serde_saphyr::to_string(&object.0).unwrap()).collect();
    documents.join("---\n")
}

#[test]
fn the_newest_storage_driver_with_everything() {
    insta::assert_snapshot!(yaml(&render(release(Driver::Csi, "3.8.0"), &full()).unwrap()));
}

#[test]
fn the_oldest_storage_driver() {
    insta::assert_snapshot!(yaml(&render(release(Driver::Csi, "2.7.0"), &plain()).unwrap()));
}

#[test]
fn the_newest_cloud_controller() {
    insta::assert_snapshot!(yaml(&render(release(Driver::Cpi, "1.36.0"), &plain()).unwrap()));
}

/// The fields in which two renderings differ: containers and volumes by name, variables and flags one by
/// one. Images and version labels always differ between releases, so they are left out.
fn differences(old: &Rendered, new: &Rendered) -> BTreeSet<String> {
    let (old, new) = (facts(old), facts(new));
    let mut all = BTreeSet::new();
    for name in old.keys().chain(new.keys()) {
        match (old.get(name), new.get(name)) {
            (Some(old), Some(new)) => {
                all.extend(old.difference(new).map(|fact| format!("{name}: - {fact}")));
                all.extend(new.difference(old).map(|fact| format!("{name}: + {fact}")));
            }
            (None, _) => drop(all.insert(format!("{name} is new"))),
            (_, None) => drop(all.insert(format!("{name} is gone"))),
        }
    }
    all
}

fn facts(rendered: &Rendered) -> BTreeMap<String, BTreeSet<String>> {
    let facts = |object: &Object| {
        let mut all = BTreeSet::new();
        collect("", &object.0, &mut all);
        (format!("{} {}", object.kind(), object.name()), all)
    };
    rendered.objects.iter().map(facts).collect()
}

fn collect(path: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if fields.is_empty() => drop(into.insert(format!("{path} = {{}}"))),
        Value::Object(fields) => {
            for (key, value) in fields {
                if !["image", "app.kubernetes.io/version"].contains(&key.as_str()) {
                    collect(format!("{path} {key}").trim_start(), value, into);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                let name = match item.get("name").and_then(Value::as_str) {
                    Some(name) => name.to_owned(),
                    // Rules and terms have no name; each is one fact.
                    None if item.is_object() => {
                        into.insert(format!("{path} {item}"));
                        continue;
                    }
                    None => String::new(),
                };
                collect(format!("{path} {name}").trim_end(), item, into);
            }
        }
        leaf => drop(into.insert(format!("{path} = {leaf}"))),
    }
}

#[test]
fn neighbours_differ_only_where_the_releases_do() {
    let mut report = String::new();
    for driver in [Driver::Cpi, Driver::Csi] {
        let releases: Vec<_> = embedded().releases_of(driver, Implementation::Upstream).collect();
        for pair in releases.windows(2) {
            let [old, new] = pair else { continue };
            let found = differences(&render(old, &full()).unwrap(), &render(new, &full()).unwrap());
            // Patch releases change images only, except the one that moved the volume limit.
            if old.line() == new.line() && new.version.to_string() != "3.7.1" {
                assert!(found.is_empty(), "{} to {}: {found:#?}", old.version, new.version);
            }
            if !found.is_empty() {
                writeln!(report, "{driver} {} -> {}", old.version, new.version).unwrap();
                for line in &found {
                    writeln!(report, "  {line}").unwrap();
                }
            }
        }
    }
    insta::assert_snapshot!(report);
}

#[test]
fn on_openshift_the_objects_differ_only_in_what_openshift_demands() {
    let mut ours = full();
    ours.placement = openshift().placement;
    let mut report = String::new();
    for (driver, version) in [(Driver::Cpi, "1.36.0"), (Driver::Csi, "3.8.0")] {
        let release = release(driver, version);
        let found =
            differences(&render(release, &ours).unwrap(), &render(release, &openshift()).unwrap());
        writeln!(report, "{driver} {version}").unwrap();
        for line in &found {
            writeln!(report, "  {line}").unwrap();
        }
    }
    insta::assert_snapshot!(report);
}
