//! VDO as its user gets it: images from a registry, pods on real kubelets.
//!
//! ```text
//!   cluster   a control plane, a registry, a vCenter with disks, nodes; vdoctl
//!   air_gap   a mirror that requires credentials
//!   bad_days  faults of registry, images, nodes and API server
//!   install_paths   vdoctl, Helm, kubectl, kustomize and OLM, one after the other
//!   kubernetes_suite   Kubernetes' own storage tests
//!   quick_start   the page of the book, typed
//!   storage   volumes of our storage driver in pods
//!   tenant    a hostile tenant next to a running installation
//!   trust     certificate authorities in images
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a failed unwrap fails the test"
)]

/// The hostile tenant of the operator's tests.
#[allow(dead_code, unreachable_pub, reason = "these tests use a part of it")]
#[path = "../../../operator/tests/common/adversary.rs"]
mod adversary;
mod air_gap;
mod bad_days;
mod cluster;
mod install_paths;
mod kubernetes_suite;
mod quick_start;
mod storage;
mod tenant;
mod trust;

use std::{collections::HashMap, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, Pod},
        rbac::v1::Role,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, api::PostParams};
use serde_json::json;
use testkit::eventually;
use tokio::time::Instant;

use cluster::{Cluster, NAMESPACE, text};

/// How long an operator that vanished is taken to lead.
const LEASE: Duration = Duration::from_secs(15);

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

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

    // Pods of ours, in images of ours, on the pod network of a restricted namespace.
    let operators = cluster.operators().await;
    assert_eq!(operators.len(), 2);
    let namespaces = Api::<Namespace>::all(cluster.plane.client());
    let labels = namespaces.get(NAMESPACE).await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "restricted");
    let digest = image.split_once('@').unwrap().1;
    for pod in &operators {
        let status = pod.status.clone().unwrap().container_statuses.unwrap();
        assert!(status[0].image_id.ends_with(digest), "{status:?}");
        assert_eq!(status[0].restart_count, 0, "{status:?}");
        assert_eq!(pod.spec.as_ref().unwrap().host_network, None);
        let address = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
        assert!(address.starts_with("10.78."), "{address} is not of the pod network");
    }

    operator_is_confined(&cluster);

    // The node is what its VM is, and takes pods.
    let node = cluster.node("node-1").await;
    assert!(!taints(&node).contains(&uninitialized), "{node:?}");
    let provider = node.spec.unwrap().provider_id.unwrap();
    assert_eq!(provider, format!("vsphere://{}", cluster.vms[0].uuid));
    let addresses = node.status.unwrap().addresses.unwrap();
    let internal: Vec<_> = addresses.iter().filter(|a| a.type_ == "InternalIP").collect();
    assert_eq!(internal.len(), 1, "{addresses:?}");
    assert_eq!(internal[0].address, cluster.nodes[0].address().to_string());
    // The kubelet writes the other addresses too, but not this one.
    let external = addresses.iter().find(|a| a.type_ == "ExternalIP");
    assert_eq!(external.map(|a| &a.address), Some(&internal[0].address), "{addresses:?}");
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
    // The next version keeps the network, and a user can choose the other one.
    let next = cluster.registry.push_variant("vdo", "next");
    let steps =
        [(None, &next, None), (Some("always"), &image, Some(true)), (None, &image, Some(true))];
    for (choice, image, host) in steps {
        let choice: Vec<&str> =
            choice.into_iter().flat_map(|one| ["--host-network", one]).collect();
        let gap = cluster.upgrade(&[&["--image", image], &choice[..]].concat()).await;
        assert!(gap < LEASE, "{choice:?}: nobody led for {gap:?}");
        let operators = cluster.operators().await;
        let used = operators.iter().map(|pod| pod.spec.as_ref().unwrap().host_network);
        assert_eq!(used.collect::<Vec<_>>(), [host; 2], "{choice:?}");
    }
    for program in ["vdo", "vsphere-cloud-controller-manager"] {
        let used = cluster.nodes[0].working_set(program).unwrap();
        println!("{program}: working set {:.1} MiB", used as f64 / 1_048_576.0);
    }
    tenant::changes_nothing(&cluster).await;
}

/// The kernel enforces what the pod's security context asks for.
fn operator_is_confined(cluster: &Cluster) {
    let program = "/usr/bin/vdo";
    let processes = cluster.nodes[0].proc_files(program, "status");
    assert_eq!(processes.len(), 2, "both pods run on the only node");
    for status in processes {
        let values: HashMap<&str, &str> =
            status.lines().filter_map(|line| line.split_once(':')).collect();
        let value = |name: &str| values[name].trim();
        assert_eq!(value("Seccomp"), "2", "a filter: {status}");
        assert_eq!(value("NoNewPrivs"), "1", "{status}");
        for capabilities in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(value(capabilities), "0000000000000000", "{status}");
        }
        assert!(value("Uid").split_whitespace().all(|uid| uid != "0"), "{status}");
    }
    for mounts in cluster.nodes[0].proc_files(program, "mounts") {
        let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/")).unwrap();
        let options = root.split(' ').nth(3).unwrap();
        assert!(options.split(',').any(|option| option == "ro"), "{root}");
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

/// The tag of the earlier operator.
const EARLIER: &str = "0.6.9";
/// A field of CompatibilityConfig that the manifest of the earlier operator does not have.
const NEW_FIELD: &str =
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/pullSecret";

/// Whether the CRD has the new field, and the operator the new permission: to patch the pods of the storage driver.
async fn has_new_manifest(cluster: &Cluster) -> (bool, bool) {
    let crds = Api::<CustomResourceDefinition>::all(cluster.plane.client());
    let crd = json!(crds.get("compatibilityconfigs.vdo.vmware.com").await.unwrap());
    let role =
        Api::<Role>::namespaced(cluster.plane.client(), "vmware-system-csi").get("vdo").await;
    let patches_pods = role.unwrap().rules.unwrap_or_default().iter().any(|rule| {
        let resources = rule.resources.iter().flatten();
        rule.verbs.contains(&"patch".to_owned()) && resources.into_iter().any(|one| one == "pods")
    });
    (crd.pointer(NEW_FIELD).is_some(), patches_pods)
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn the_operator_is_upgraded_and_rolled_back_on_one_two_and_three_nodes() {
    let mut cluster = Cluster::with_nodes(1).await;
    let new = cluster.registry.push_own("vdo");
    let earlier = cluster.registry.push_earlier_operator(EARLIER);
    assert_ne!(earlier.commit, earlier.present);
    cluster.install_earlier(&earlier, EARLIER).await;
    assert_eq!(has_new_manifest(&cluster).await, (false, false));
    let drivers = cluster.cloud_controllers().await;
    assert!(!drivers.is_empty());
    let mut nodes = 1;
    loop {
        // On three nodes it moves to the pod network, and the rollback keeps that.
        let (network, is_host): (&[&str], _) =
            if nodes < 3 { (&[], Some(true)) } else { (&["--host-network", "never"], None) };
        let upgrade = [&["--image", &new], network].concat();
        let steps: [(&[&str], &str); 2] =
            [(&upgrade, &earlier.present), (&["--version", EARLIER], &earlier.commit)];
        for (version, commit) in steps {
            let gap = cluster.upgrade(version).await;
            println!("{nodes} nodes, {version:?}: {gap:.1?} without a renewal of the lease");
            assert!(gap < LEASE, "{nodes} nodes: nobody led for {gap:?}");
            assert_eq!(cluster.operator_commits().await, [commit, commit]);
            cluster.is_checked(&format!("{nodes}-nodes-{commit}")).await;
            // An earlier operator works with the objects of a later one.
            assert_eq!(has_new_manifest(&cluster).await, (true, true));
            let operators = cluster.operators().await;
            let host = operators.iter().map(|pod| pod.spec.as_ref().unwrap().host_network);
            assert_eq!(host.collect::<Vec<_>>(), [is_host; 2], "{nodes} nodes");
        }
        let images = cluster.operators().await.into_iter().map(|pod| pod.spec.unwrap());
        let images: Vec<_> = images.map(|spec| spec.containers[0].image.clone().unwrap()).collect();
        let expected = format!("registry.test/vmware-tanzu/vdo:{EARLIER}");
        assert_eq!(images, [expected.clone(), expected]);
        assert_eq!(cluster.cloud_controllers().await, drivers, "the drivers are untouched");
        if nodes == 3 {
            break;
        }
        cluster.add_node().await;
        nodes += 1;
    }
}
