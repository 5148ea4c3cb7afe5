//! Workloads that pretend to be drivers: a tenant's change nothing, an admin's driver in an unusual
//! namespace still counts.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::{Severity, VDOConfigStatus};
use common::{Stage, TENANT};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

const ELSEWHERE: &str = "elsewhere";

/// A storage driver as somebody installs it by hand in a namespace of its own.
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

/// What only a cluster admin can write.
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
async fn a_lookalike_changes_nothing_and_an_admins_driver_elsewhere_still_counts() {
    let (stage, operator) = Stage::with_storage(&[]).await;
    let finding = stage.finding_about("VDO-1914", 60, &[TENANT]).await;
    assert_eq!(finding.severity, Severity::Info, "no tenant raises an alert: {finding:?}");
    assert!(finding.count >= 7, "all of his workloads: {finding:?}");

    stage.create("kubectl-create", driver()).await;
    let without = |status: &VDOConfigStatus| status.findings.iter().all(|f| f.code != "VDO-1617");
    stage
        .status("it is one lookalike more", 60, |status| {
            let mut all = status.findings.iter();
            without(status) && all.any(|f| f.code == "VDO-1914" && f.count == finding.count + 1)
        })
        .await;

    stage.create("kubectl-create", [binding()]).await;
    stage.finding_about("VDO-1617", 60, &[ELSEWHERE]).await;
    let bindings = Api::<ClusterRoleBinding>::all(stage.client());
    bindings.delete("their-storage", &DeleteParams::default()).await.unwrap();
    stage.status("it is a lookalike again", 60, without).await;
    stage.ready(&operator, 60).await;
    assert_eq!(stage.refusals(), Vec::<String>::new());
}
