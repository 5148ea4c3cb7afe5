//! Workloads that look like drivers: those of a tenant change nothing, and VDO finds an admin's driver in an unusual
//! namespace.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::{Severity, VDOConfigStatus};
use common::{TENANT, Testbed, admin_objects_at_rest};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

const ELSEWHERE: &str = "elsewhere";

/// A storage driver that an admin installed in its own namespace.
fn driver() -> [Value; 3] {
    let labels = json!({"app": "storage"});
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "their-storage"},
        "rules": [{
            "apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments", "volumeattachments/status"],
            "verbs": ["get", "list", "watch", "patch"],
        }],
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "storage", "namespace": ELSEWHERE},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [
                    {"name": "driver", "image": "registry.k8s.io/csi-vsphere/driver:v3.7.0"},
                ]},
            },
        },
    });
    [namespace, role, deployment]
}

/// Only a cluster admin can create this.
fn binding() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "their-storage"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "their-storage",
        },
        "subjects": [{"kind": "ServiceAccount", "namespace": ELSEWHERE, "name": "default"}],
    })
}

#[tokio::test]
async fn a_lookalike_changes_nothing_and_an_admins_driver_in_another_namespace_is_found() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    let finding = testbed.finding_about("VDO-1914", 60, &[TENANT]).await;
    assert_eq!(finding.severity, Severity::Info, "a tenant must not raise an alert: {finding:?}");
    assert!(finding.count >= 7, "all workloads of the tenant: {finding:?}");

    testbed.create("kubectl-create", driver()).await;
    let without = |status: &VDOConfigStatus| status.findings.iter().all(|f| f.code != "VDO-1617");
    testbed
        .status("VDO reports another lookalike", 60, |status| {
            let mut all = status.findings.iter();
            without(status) && all.any(|f| f.code == "VDO-1914" && f.count == finding.count + 1)
        })
        .await;

    testbed.create("kubectl-create", [binding()]).await;
    testbed.finding_about("VDO-1617", 60, &[ELSEWHERE]).await;
    let bindings = Api::<ClusterRoleBinding>::all(testbed.client());
    bindings.delete("their-storage", &DeleteParams::default()).await.unwrap();
    testbed.status("VDO reports a lookalike again", 60, without).await;
    testbed.ready(&operator, 60).await;
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn an_attack_on_running_drivers_changes_no_object_of_the_admin() {
    let (testbed, operator) = Testbed::with_storage(&[]).await;
    testbed.finding_about("VDO-1914", 60, &[TENANT]).await;
    let before = admin_objects_at_rest(&testbed.client()).await;
    for part in
        ["VDOConfig", "Secret vmware-system-vdo/", "DaemonSet vmware-system-csi/", "ClusterRole"]
    {
        assert!(before.keys().any(|id| id.starts_with(part)), "{part} in {:?}", before.keys());
    }

    testbed.adversary.attack_again(&testbed.plane).await;
    testbed.adversary.until_reported(&testbed.client()).await;
    // A new round that checks everything.
    let again = json!({"metadata": {"annotations": {plan::names::CHECK_NOW: "again"}}});
    testbed.change(again).await;
    testbed.ready(&operator, 60).await;
    let mut after = admin_objects_at_rest(&testbed.client()).await;
    let annotations = "/metadata/annotations";
    let mut own = before.clone();
    for all in [&mut own, &mut after] {
        for (_, config) in all.iter_mut().filter(|(id, _)| id.starts_with("VDOConfig ")) {
            // The test itself wrote the annotation.
            if let Some(annotations) = config.pointer_mut(annotations) {
                *annotations = Value::Null;
            } else {
                config["metadata"]["annotations"] = Value::Null;
            }
        }
    }
    for (id, object) in &own {
        assert_eq!(Some(object), after.get(id), "{id} has changed");
    }
    let new: Vec<&String> = after.keys().filter(|id| !own.contains_key(*id)).collect();
    assert_eq!(new, Vec::<&String>::new());
}
