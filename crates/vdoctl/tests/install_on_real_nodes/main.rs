//! VDO as its user gets it: images from a registry, pods on real kubelets.
//!
//! ```text
//!   cluster   a control plane, a registry, a vCenter with disks, nodes; vdoctl
//!   storage   volumes of our storage driver in pods
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a failed unwrap fails the test"
)]

mod cluster;
mod storage;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::PostParams};
use serde_json::json;
use testkit::eventually;
use tokio::time::Instant;

use cluster::{Cluster, NAMESPACE, text};

/// How long an operator that vanished is taken to lead.
const LEASE: Duration = Duration::from_secs(15);

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().map(|taint| taint.key.clone()).collect()
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn vdo_is_installed_from_a_registry_and_its_pods_initialise_real_nodes() {
    let cluster = Cluster::with_nodes(1).await;
    let uninitialized = "node.cloudprovider.kubernetes.io/uninitialized".to_owned();
    assert!(taints(&cluster.node("node-1").await).contains(&uninitialized));
    let image = cluster.install().await;

    // Pods of ours, in images of ours.
    let operators = cluster.pods(NAMESPACE, "app.kubernetes.io/name=vdo").await;
    assert_eq!(operators.len(), 2);
    let digest = image.split_once('@').unwrap().1;
    for pod in &operators {
        let status = pod.status.clone().unwrap().container_statuses.unwrap();
        assert!(status[0].image_id.ends_with(digest), "{status:?}");
        assert_eq!(status[0].restart_count, 0, "{status:?}");
    }

    // The node is what its VM is, and takes pods.
    let node = cluster.node("node-1").await;
    assert!(!taints(&node).contains(&uninitialized), "{node:?}");
    let provider = node.spec.unwrap().provider_id.unwrap();
    assert_eq!(provider, format!("vsphere://{}", cluster.vms[0].uuid));
    let addresses = node.status.unwrap().addresses.unwrap();
    let internal: Vec<_> = addresses.iter().filter(|a| a.type_ == "InternalIP").collect();
    assert_eq!(internal.len(), 1, "{addresses:?}");
    assert_eq!(internal[0].address, cluster.nodes[0].address().to_string());
    let pods = Api::<Pod>::default_namespaced(cluster.plane.client());
    let pod = json!({
        "metadata": {"name": "pause"},
        "spec": {
            "containers": [{"name": "pause", "image": "registry.test/pause:1"}],
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    eventually("an ordinary pod runs on the node", 60, async || {
        let status = pods.get("pause").await.unwrap().status.unwrap_or_default();
        if status.phase.as_deref() == Some("Running") { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    for program in ["vdo", "vsphere-cloud-controller-manager"] {
        let used = cluster.nodes[0].working_set(program).unwrap();
        println!("{program}: working set {:.1} MiB", used as f64 / 1_048_576.0);
    }
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn an_image_that_cannot_be_pulled_is_reported_and_a_node_goes_with_its_vm() {
    let mut cluster = Cluster::with_nodes(2).await;
    let (began, missing) = (Instant::now(), "registry.test/vmware-tanzu/vdo:9.9.9");
    let refused = cluster.vdoctl(&["deploy", "--image", missing]).await;
    let shown = text(&refused);
    assert!(!refused.status.success(), "{shown}");
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}: {shown}", began.elapsed());
    assert!(shown.contains("ErrImagePull") || shown.contains("ImagePullBackOff"), "{shown}");
    assert!(shown.contains(missing), "{shown}");
    cluster.install().await;

    // Powered off and deleted in vCenter: the Node has nothing to come back to.
    drop(cluster.nodes.pop());
    cluster.vcenter.destroy_vm("/DC0/vm/node-2").await;
    let nodes = Api::<Node>::all(cluster.plane.client());
    eventually("the Node is deleted", 90, async || match nodes.get_opt("node-2").await.unwrap() {
        None => Ok(()),
        Some(node) => Err(format!("{:?}", node.status.unwrap_or_default().conditions)),
    })
    .await;
    assert!(nodes.get_opt("node-1").await.unwrap().is_some());
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn the_operator_is_upgraded_and_rolled_back_on_one_two_and_three_nodes() {
    let mut cluster = Cluster::with_nodes(1).await;
    let old = cluster.install().await;
    let drivers = cluster.cloud_controllers().await;
    assert!(!drivers.is_empty());
    let mut nodes = 1;
    loop {
        let new = cluster.registry.push_variant("vdo", &format!("0.7.{nodes}"));
        for image in [&new, &old] {
            let gap = cluster.upgrade(image).await;
            println!("{nodes} nodes: {gap:.1?} without a renewal of the lease");
            assert!(gap < LEASE, "{nodes} nodes: nobody led for {gap:?}");
            assert_eq!(cluster.operator_images().await, [image.clone(), image.clone()]);
        }
        assert_eq!(cluster.cloud_controllers().await, drivers, "the drivers are untouched");
        if nodes == 3 {
            break;
        }
        cluster.add_node().await;
        nodes += 1;
    }
}
