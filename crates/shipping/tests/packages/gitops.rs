//! Health checks of Argo CD run in the Lua interpreter that Argo CD uses. Neither Argo CD nor Flux runs.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{checkout, documents};

/// The answer of the health check of a kind about an object with this status.
fn health(kind: &str, status: &Value) -> String {
    let workdir = checkout();
    let config = &documents(&workdir.path().join("deploy/gitops/argo-cd.yaml"))[0];
    let script =
        config["data"][format!("resource.customizations.health.vdo.vmware.com_{kind}")].as_str();
    let script = workdir.write("health.lua", script.unwrap()).unwrap();
    let object =
        json!({"kind": kind, "metadata": {"name": "vdo", "generation": 3}, "status": status});
    let mut check = Command::new(testkit::peer("lua-check"));
    let check = check.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut check = check.unwrap();
    check.stdin.take().unwrap().write_all(object.to_string().as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(output.status.success(), "{kind}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn conditions(pairs: &[(&str, &str)]) -> Value {
    let condition = |(kind, status): &(&str, &str)| json!({"type": kind, "status": status, "message": format!("{kind} is {status}")});
    json!(pairs.iter().map(condition).collect::<Vec<_>>())
}

#[test]
fn argo_cd_shows_the_health_that_the_conditions_report() {
    let status =
        |pairs: &[(&str, &str)]| json!({"observedGeneration": 3, "conditions": conditions(pairs)});
    let cases = [
        (Value::Null, "Progressing VDO has not reported about this object yet"),
        (json!({"conditions": null}), "Progressing VDO has not reported about this object yet"),
        (status(&[("Ready", "True"), ("Degraded", "False")]), "Healthy Ready is True"),
        (status(&[("Ready", "True"), ("Degraded", "True")]), "Degraded Degraded is True"),
        (status(&[("Ready", "False"), ("Progressing", "True")]), "Progressing Progressing is True"),
        (status(&[("Ready", "False"), ("Progressing", "False")]), "Degraded Ready is False"),
        (
            json!({"observedGeneration": 2, "conditions": conditions(&[("Ready", "True")])}),
            "Progressing VDO has not seen the last change yet",
        ),
    ];
    for (status, expected) in cases {
        for kind in ["VDOConfig", "VsphereCloudConfig", "CompatibilityConfig"] {
            assert_eq!(health(kind, &status), expected, "{kind} {status}");
        }
    }
}

#[test]
fn the_example_for_flux_installs_what_the_repository_has() {
    let workdir = checkout();
    let objects = documents(&workdir.path().join("deploy/gitops/flux.yaml"));
    let operator = objects
        .iter()
        .find(|object| object["metadata"]["name"] == "vdo" && object["kind"] == "Kustomization");
    let path = operator.unwrap()["spec"]["path"].as_str().unwrap();
    let base = workdir.path().join(path.trim_start_matches("./"));
    assert!(fs::exists(base.join("kustomization.yaml")).unwrap(), "{path}");
    let tag = &objects[0]["spec"]["ref"]["tag"];
    assert_eq!(tag, concat!("v", env!("CARGO_PKG_VERSION")));
    // Flux never deletes the definitions, and with them every object of their kinds.
    for object in objects.iter().filter(|object| object["kind"] == "Kustomization") {
        assert_eq!(object["spec"]["prune"], false, "{object}");
    }
}
