//! The Helm chart, with the real Helm: it renders the install manifest, every value has its effect, and a release lives on a
//! real API server.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod helm;
mod lifecycle;

use std::collections::{BTreeMap, BTreeSet};

use catalog::manifest::Object;
use helm::{Helm, shown};
use operator::install::{self, Allowed};
use serde_json::{Value, json};

type Identity = (String, String, String);

fn by_identity(objects: Vec<Object>) -> BTreeMap<Identity, Object> {
    let identity = |object: &Object| {
        (object.kind().to_owned(), object.namespace().to_owned(), object.name().to_owned())
    };
    let count = objects.len();
    let map: BTreeMap<Identity, Object> =
        objects.into_iter().map(|object| (identity(&object), object)).collect();
    assert_eq!(map.len(), count, "an object twice");
    map
}

fn assert_same(rendered: Vec<Object>, expected: Vec<Object>) {
    let (rendered, expected) = (by_identity(rendered), by_identity(expected));
    let names = |map: &BTreeMap<Identity, Object>| map.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&rendered), names(&expected));
    for (identity, object) in &expected {
        assert_eq!(&rendered[identity], object, "{identity:?}");
    }
}

fn deployment(objects: &[Object]) -> &Object {
    objects.iter().find(|object| object.kind() == "Deployment").unwrap()
}

#[test]
fn the_default_values_render_the_install_manifest() {
    let helm = Helm::new(None);
    assert_same(helm.rendered(&json!({}), &[]), install::objects());

    // Helm creates the namespace of the release itself.
    let own = ["--namespace", api::NAMESPACE];
    let mut expected = install::objects();
    expected.retain(|object| object.kind() != "Namespace" || object.name() != api::NAMESPACE);
    assert_same(helm.rendered(&json!({}), &own), expected);

    // On the pod network, the objects are those of `vdoctl deploy --host-network never`.
    let mut on_pod_network = install::objects();
    install::use_pod_network(&mut on_pod_network);
    assert_same(helm.rendered(&json!({"hostNetwork": false}), &[]), on_pod_network);

    // Additional namespaces and an older Kubernetes need the same objects as with `vdoctl deploy`.
    let namespaces = BTreeSet::from(["drivers-a".to_owned(), "drivers-b".to_owned()]);
    let values = json!({"driverNamespaces": namespaces});
    let allowed = Allowed { namespaces, old_cloud_controllers: true, ..Allowed::default() };
    let rendered = helm.rendered(&values, &["--kube-version", "1.31.4"]);
    assert_same(rendered, install::objects_for(&allowed));
}

#[test]
fn the_chart_passes_lint_and_keeps_definitions_and_namespaces() {
    let helm = Helm::new(None);
    let output = helm.run(&["lint", "--strict", "deploy/chart"]);
    assert!(output.status.success(), "{}", shown(&output));

    let output = helm.template(&json!({}), &[]);
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    for object in objects.into_iter().filter(|object| !object.is_null()) {
        let kind = object["kind"].as_str().unwrap();
        let policy = &object["metadata"]["annotations"]["helm.sh/resource-policy"];
        let name = object["metadata"]["name"].as_str().unwrap();
        let is_kept = ["CustomResourceDefinition", "Namespace"].contains(&kind)
            || install::is_needed_by_drivers(name);
        assert_eq!(policy == "keep", is_kept, "{kind} {name}");
    }
}

#[test]
fn bad_values_are_refused_by_name() {
    let helm = Helm::new(None);
    let bad = [
        (json!({"imag": {}}), "imag"),
        (json!({"image": {"tagg": "1"}}), "tagg"),
        (json!({"image": {"digest": "sha256:123"}}), "digest"),
        (json!({"image": {"pullPolicy": "Sometimes"}}), "pullPolicy"),
        (json!({"replicas": "two"}), "replicas"),
        (json!({"replicas": 0}), "replicas"),
        (json!({"hostNetwork": "no"}), "hostNetwork"),
        (json!({"port": 80}), "port"),
        (json!({"port": "9443"}), "port"),
        (json!({"tolerations": [{"kex": "a"}]}), "kex"),
        (json!({"resources": {"limit": {}}}), "limit"),
        (json!({"extraEnv": [{"value": "a"}]}), "name"),
        (json!({"crds": {"install": "yes"}}), "install"),
        // VDO can adopt drivers there in any case, and the chart would render the same Role twice.
        (json!({"driverNamespaces": ["kube-system"]}), "driverNamespaces"),
        (json!({"driverNamespaces": ["vmware-system-csi"]}), "driverNamespaces"),
        (json!({"driverNamespaces": ["a", "a"]}), "driverNamespaces"),
        (json!({"driverNamespaces": ["Foo Bar"]}), "driverNamespaces"),
        // The chart sets these itself.
        (json!({"extraEnv": [{"name": "VDO_LISTEN", "value": "a"}]}), "name"),
        (json!({"extraEnv": [{"name": "HTTPS_PROXY", "value": "a"}]}), "name"),
        (json!({"podLabels": {"app.kubernetes.io/name": "mine"}}), "app.kubernetes.io/name"),
    ];
    for (values, field) in bad {
        let output = helm.template(&values, &[]);
        let text = shown(&output);
        assert!(!output.status.success() && text.contains(field), "{values}: {text}");
    }
    // A parent chart can share values with all its subcharts, and a user can unset a default.
    helm.rendered(&json!({"global": {"any": 1}, "affinity": null, "resources": null}), &[]);
}

#[test]
fn every_value_has_its_effect() {
    let helm = Helm::new(None);
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let pod = "/spec/template/spec";
    let container = "/spec/template/spec/containers/0";
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let required = json!({"nodeSelectorTerms": [{"matchExpressions": [zone]}]});
    let affinity = json!({
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
        "podAntiAffinity": null,
    });
    let manifest = install::objects();
    // A requirement of the user's keeps the preference for control-plane nodes.
    let mut merged = deployment(&manifest).0.pointer(&format!("{pod}/affinity")).unwrap().clone();
    merged["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = required;
    merged.as_object_mut().unwrap().remove("podAntiAffinity");
    let toleration =
        json!([{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute"}]);
    let from_secret = json!({"secretKeyRef": {"name": "s", "key": "k"}});
    let cases = [
        (json!({"replicas": 3}), "/spec/replicas".into(), json!(3)),
        (json!({"affinity": affinity}), format!("{pod}/affinity"), merged),
        (json!({"tolerations": toleration}), format!("{pod}/tolerations"), toleration.clone()),
        (json!({"hostNetwork": false}), format!("{pod}/hostNetwork"), json!(false)),
        (
            json!({"nodeSelector": {"a": "b"}}),
            format!("{pod}/nodeSelector"),
            json!({"a": "b", "kubernetes.io/os": "linux"}),
        ),
        (json!({"priorityClassName": "low"}), format!("{pod}/priorityClassName"), json!("low")),
        (
            json!({"imagePullSecrets": [{"name": "s"}]}),
            format!("{pod}/imagePullSecrets"),
            json!([{"name": "s"}]),
        ),
        (
            json!({"resources": {"limits": {"memory": "1Gi"}}}),
            format!("{container}/resources/limits/memory"),
            json!("1Gi"),
        ),
        (
            json!({"extraArgs": ["--log=debug"]}),
            format!("{container}/args"),
            json!(["--log=debug"]),
        ),
        (
            json!({"image": {"registry": "r.example.com/vdo", "tag": "t", "digest": digest}}),
            format!("{container}/image"),
            json!(format!("r.example.com/vdo/vmware-tanzu/vdo:t@{digest}")),
        ),
        (
            json!({"image": {"repository": "mine"}}),
            format!("{container}/image"),
            json!(concat!("ghcr.io/mine:", env!("CARGO_PKG_VERSION"))),
        ),
        (
            json!({"image": {"pullPolicy": "Always"}}),
            format!("{container}/imagePullPolicy"),
            json!("Always"),
        ),
        (
            json!({"podLabels": {"team": "x"}}),
            "/spec/template/metadata/labels/team".into(),
            json!("x"),
        ),
        (
            json!({"podAnnotations": {"note": "x"}}),
            "/spec/template/metadata/annotations/note".into(),
            json!("x"),
        ),
        (
            json!({
                "driverNamespaces": ["a", "b"],
                "proxy": {"http": "http://p:1", "https": "http://p:2", "noProxy": "10.0.0.0/8"},
                "extraEnv": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": from_secret}],
            }),
            format!("{container}/env"),
            json!([
                {"name": "VDO_DRIVER_NAMESPACES", "value": "a,b"},
                {"name": "HTTP_PROXY", "value": "http://p:1"},
                {"name": "HTTPS_PROXY", "value": "http://p:2"},
                {"name": "NO_PROXY", "value": "10.0.0.0/8"},
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": from_secret},
            ]),
        ),
    ];
    for (host_network, address) in [(true, "127.0.0.1:9443"), (false, "[::]:9443")] {
        let objects = helm.rendered(&json!({"port": 9443, "hostNetwork": host_network}), &[]);
        let variables = deployment(&objects).0.pointer(&format!("{container}/env")).unwrap();
        let listen = json!({"name": "VDO_LISTEN", "value": address});
        assert!(variables.as_array().unwrap().contains(&listen), "{variables}");
    }
    let mut seen = BTreeSet::from(["crds", "global", "monitoring", "port"].map(str::to_owned));
    for (values, pointer, expected) in cases {
        seen.extend(values.as_object().unwrap().keys().cloned());
        let objects = helm.rendered(&values, &[]);
        let found = deployment(&objects).0.pointer(&pointer).unwrap();
        // The variables of the install manifest come first.
        let added = found.as_array().filter(|_| pointer.ends_with("/env")).map(|all| {
            let own = deployment(&manifest).0.pointer(&pointer).unwrap();
            json!(all[own.as_array().unwrap().len()..])
        });
        assert_eq!(added.as_ref().unwrap_or(found), &expected, "{values}");
        let selector = &deployment(&objects).0["spec"]["selector"];
        assert_eq!(selector, &deployment(&manifest).0["spec"]["selector"]);
    }

    let without = helm.rendered(&json!({"crds": {"install": false}}), &[]);
    assert!(without.iter().all(|object| object.kind() != "CustomResourceDefinition"));
    let values = json!({"monitoring": {"alerts": true, "labels": {"release": "prometheus"}}});
    let objects = helm.rendered(&values, &[]);
    let mut rule = objects.into_iter().find(|object| object.kind() == "PrometheusRule").unwrap();
    let labels = rule.0["metadata"]["labels"].as_object_mut().unwrap();
    assert_eq!(labels.remove("release"), Some(json!("prometheus")));
    assert_eq!(rule, operator::alerts::rule(), "Helm does not evaluate the alerts' templates");

    let schema =
        std::fs::read_to_string(helm.workdir.path().join("deploy/chart/values.schema.json"));
    let schema: Value = serde_json::from_str(&schema.unwrap()).unwrap();
    let known: BTreeSet<String> =
        schema["properties"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(seen, known, "a value without a test");
}
