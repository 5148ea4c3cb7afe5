//! The kustomize base and overlays, with the kustomize of the real kubectl.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{fs, process::Command};

use catalog::manifest::Object;
use operator::install;
use serde_json::{Value, json};
use testkit::Workdir;

/// The objects of a kustomization, in the order of their names.
fn built(folder: &str) -> Vec<Object> {
    let workdir = Workdir::new("kustomize").unwrap();
    for file in shipping::files().unwrap() {
        let path = workdir.path().join(&file.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file.text).unwrap();
    }
    let path = workdir.path().join("deploy/kustomize").join(folder);
    let output =
        Command::new(testkit::peer("kubectl")).arg("kustomize").arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    sorted(objects.into_iter().map(Object).collect())
}

fn sorted(mut objects: Vec<Object>) -> Vec<Object> {
    let key =
        |object: &Object| format!("{} {} {}", object.kind(), object.namespace(), object.name());
    objects.sort_by_key(key);
    objects
}

fn expected(change: impl Fn(&mut Object)) -> Vec<Object> {
    let mut objects = install::objects();
    objects.iter_mut().for_each(change);
    sorted(objects)
}

/// kustomize writes `1.0` as `1`, which is the same number.
fn with_floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(list) => list.iter().map(with_floats).collect(),
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.clone(), with_floats(value))).collect()
        }
        other => other.clone(),
    }
}

fn assert_same(built: &[Object], expected: &[Object]) {
    assert_eq!(built.len(), expected.len());
    for (built, expected) in built.iter().zip(expected) {
        let name = format!("{} {}", expected.kind(), expected.name());
        assert_eq!(with_floats(&built.0), with_floats(&expected.0), "{name}");
    }
}

#[test]
fn the_base_contains_the_objects_of_the_install_manifest() {
    assert_same(&built("base"), &expected(|_| {}));
}

#[test]
fn the_overlay_for_an_air_gap_changes_only_the_image_and_its_pull_secret() {
    let changed = expected(|object| {
        if object.kind() == "Deployment" {
            let pod = &mut object.0["spec"]["template"]["spec"];
            pod["imagePullSecrets"] = json!([{"name": "registry"}]);
            pod["containers"][0]["image"] = json!(concat!(
                "registry.example.com/vsphere/vmware-tanzu/vdo:",
                env!("CARGO_PKG_VERSION")
            ));
        }
    });
    assert_same(&built("overlays/air-gap"), &changed);
}

#[test]
fn the_overlay_for_monitoring_adds_the_alerts() {
    let mut objects = expected(|_| {});
    objects.push(operator::alerts::rule());
    assert_same(&built("overlays/monitoring"), &sorted(objects));
}
