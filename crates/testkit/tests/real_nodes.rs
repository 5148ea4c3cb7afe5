//! A real kubelet registers, pulls an image from the registry and runs a pod. `make test-nodes` runs it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::json;
use testkit::{ControlPlane, RealNode, Registry, eventually};

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn a_real_kubelet_runs_a_pod_from_the_registry() {
    let plane = ControlPlane::builder().with_controllers().start().await;
    let registry = Registry::start().await;
    let node = RealNode::builder("node-1", 1).start(&plane, &registry).await;
    let pods = Api::<Pod>::default_namespaced(plane.client());
    let pod = json!({
        "metadata": {"name": "pause"},
        "spec": {"containers": [{"name": "pause", "image": "registry.test/pause:1"}], "nodeName": node.name()},
    });
    eventually("the default service account is there", 30, async || {
        pods.create(&PostParams::default(), &serde_json::from_value(pod.clone()).unwrap()).await
    })
    .await;
    let running = eventually("the pod runs", 60, async || {
        let pod = pods.get("pause").await.unwrap();
        let status = pod.status.unwrap();
        if status.phase.as_deref() == Some("Running") {
            Ok(status)
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    assert!(
        running.pod_ip.unwrap().starts_with("10.78.1."),
        "the address comes from the node's CNI"
    );
    assert!(node.working_set("/pause").unwrap() > 0);
}
