//! Workloads that look like drivers: those of a tenant change nothing, and VDO finds an admin's driver in an unusual
//! namespace.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::{Severity, VDOConfigStatus};
use common::{TENANT, Testbed};
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
