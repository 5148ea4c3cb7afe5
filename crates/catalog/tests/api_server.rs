//! Applies every release for every profile to a real API server with pod-security admission.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::assigning_clones,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

mod support;

use std::collections::BTreeMap;

use catalog::{
    Driver, embedded,
    manifest::{Object, Rendered, crds, render},
};
use futures::{StreamExt as _, stream};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use serde_json::{Value, json};
use support::{
    cluster::{api, apply, as_operator, message_of},
    full, profiles, release,
};
use testkit::{ControlPlane, eventually};
use tokio::sync::OnceCell;

/// One cluster for all tests: no test reads another test's objects.
async fn cluster() -> &'static ControlPlane {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    PLANE.get_or_init(ControlPlane::start).await
}

/// Creates the objects that others depend on: namespaces, CRDs, ServiceAccounts.
async fn prepare(client: &Client, rendered: &Rendered) {
    let params = as_operator();
    for object in &rendered.objects {
        if matches!(object.kind(), "Namespace" | "ServiceAccount" | "CustomResourceDefinition") {
            apply(client, object, &params).await.unwrap();
        }
        if object.kind() == "CustomResourceDefinition" {
            is_served(client, object).await;
        }
    }
}

/// Waits until the API server serves a CRD.
async fn is_served(client: &Client, definition: &Object) {
    let spec = &definition.0["spec"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (group, kind) = (text(&spec["group"]), text(&spec["names"]["kind"]));
    for version in spec["versions"].as_array().unwrap().iter().filter(|v| v["served"] == true) {
        let kind = GroupVersionKind::gvk(&group, &text(&version["name"]), &kind);
        let plural = text(&spec["names"]["plural"]);
        let resource = ApiResource::from_gvk_with_plural(&kind, &plural);
        let all = Api::<DynamicObject>::all_with(client.clone(), &resource);
        eventually(&format!("{plural} are served"), 30, async || {
            all.list(&ListParams::default().limit(1)).await.map(drop)
        })
        .await;
    }
}

/// The pod that the controller of a workload would create.
fn pod_of(object: &Object, namespace: &str) -> Option<Object> {
    let template = object.pod_template()?;
    let mut pod = template.clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(format!("{}-x", object.name()));
    pod["metadata"]["namespace"] = json!(namespace);
    Some(Object(pod))
}

async fn create_pod(client: &Client, pod: &Object) -> Result<(), String> {
    let mut params = PostParams { dry_run: true, ..PostParams::default() };
    params.field_manager = Some("vdo".to_owned());
    let object: DynamicObject = serde_json::from_value(pod.0.clone()).unwrap();
    let made = api(client, pod).create(&params, &object).await;
    made.map(drop).map_err(|error| format!("pod of {}: {}", pod.name(), message_of(error)))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_release_for_every_cluster_is_accepted() {
    let plane = cluster().await;
    let client = plane.client();
    // One entry per distinct object, because many releases and profiles share objects.
    let mut objects: BTreeMap<String, (String, Object)> = BTreeMap::new();
    let mut prepared: BTreeMap<String, Rendered> = BTreeMap::new();
    let mut rendered_count = 0;
    for release in &embedded().releases {
        for (name, profile) in profiles() {
            let rendered = render(release, &profile).unwrap();
            rendered_count += 1;
            let at = format!("{} {} for {name}", release.driver, release.version);
            for object in &rendered.objects {
                objects.entry(object.0.to_string()).or_insert_with(|| (at.clone(), object.clone()));
            }
            prepared.insert(format!("{} {name}", release.driver), rendered);
        }
    }
    for rendered in prepared.values() {
        prepare(&client, rendered).await;
    }
    let params = as_operator().dry_run();
    let refusals: Vec<String> = stream::iter(objects.values())
        .map(|(at, object)| {
            let (client, params) = (client.clone(), params.clone());
            async move {
                let mut refused: Vec<_> =
                    apply(&client, object, &params).await.err().into_iter().collect();
                if let Some(pod) = pod_of(object, object.namespace()) {
                    refused.extend(create_pod(&client, &pod).await.err());
                }
                refused.into_iter().map(|text| format!("{at}: {text}")).collect::<Vec<_>>()
            }
        })
        .buffer_unordered(16)
        .concat()
        .await;
    assert!(
        refusals.is_empty(),
        "{} refusals, such as\n{}",
        refusals.len(),
        refusals[..refusals.len().min(5)].join("\n")
    );
    assert_eq!(rendered_count, embedded().releases.len() * profiles().len());
    assert!(objects.len() > 1_000, "only {} distinct objects", objects.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_pass_the_restricted_pod_security_level_and_the_node_driver_does_not() {
    let plane = cluster().await;
    let client = plane.client();
    let strict = Object(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": "strict", "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    }));
    let params = as_operator();
    apply(&client, &strict, &params).await.unwrap();
    for (driver, version) in
        [(Driver::Csi, "3.1.2"), (Driver::Csi, "3.8.0"), (Driver::Cpi, "1.36.0")]
    {
        let rendered = render(release(driver, version), &full()).unwrap();
        for object in &rendered.objects {
            if object.kind() == "ServiceAccount" {
                let mut account = object.clone();
                account.0["metadata"]["namespace"] = json!("strict");
                apply(&client, &account, &params).await.unwrap();
            }
        }
        for object in &rendered.objects {
            let Some(mut pod) = pod_of(object, "strict") else { continue };
            // Some clusters restrict critical priorities to some namespaces by quota; this test ignores that.
            pod.0["spec"].as_object_mut().unwrap().remove("priorityClassName");
            let outcome = create_pod(&client, &pod).await;
            match object.name() {
                "vsphere-csi-node" | "vsphere-csi-node-windows" => {
                    let error = outcome.unwrap_err();
                    assert!(error.contains("violates PodSecurity"), "{error}");
                }
                "vsphere-cloud-controller-manager" => {
                    // It needs the host network, and nothing else.
                    let error = outcome.unwrap_err();
                    let after =
                        error.split("violates PodSecurity \"restricted:latest\": ").nth(1).unwrap();
                    let faults: Vec<_> =
                        after.split("), ").map(|fault| fault.split(" (").next().unwrap()).collect();
                    assert_eq!(faults, ["host namespaces", "hostPort"], "{error}");
                }
                name => outcome.unwrap_or_else(|error| panic!("{version} {name}: {error}")),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_snapshot_crds_accept_snapshots_and_refuse_invalid_ones() {
    let plane = cluster().await;
    let client = plane.client();
    let params = as_operator();
    for crd in crds::snapshots() {
        apply(&client, &Object(crd), &params).await.unwrap();
    }
    let snapshot = |source: Value| {
        Object(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": { "name": "s", "namespace": "default" },
            "spec": { "volumeSnapshotClassName": "c", "source": source },
        }))
    };
    let good = snapshot(json!({ "persistentVolumeClaimName": "data" }));
    eventually("the definition is served", 30, async || apply(&client, &good, &params).await).await;
    let both =
        snapshot(json!({ "persistentVolumeClaimName": "data", "volumeSnapshotContentName": "x" }));
    let error = apply(&client, &both, &params).await.unwrap_err();
    assert!(error.contains("exactly one of"), "{error}");
    let moved = snapshot(json!({ "persistentVolumeClaimName": "other" }));
    let error = apply(&client, &moved, &params).await.unwrap_err();
    assert!(error.contains("persistentVolumeClaimName is immutable"), "{error}");
    let content = Object(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": { "name": "c" },
        "spec": {
            "deletionPolicy": "Delete", "driver": "csi.vsphere.vmware.com",
            "source": { "volumeHandle": "v" }, "volumeSnapshotRef": { "name": "s", "namespace": "default" },
        },
    }));
    eventually("the definition is served", 30, async || apply(&client, &content, &params).await)
        .await;
}
