//! The labels with the ESXi host and the cluster of a node: they follow vMotion, and pods spread by them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::*;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::json;
use testkit::{ControlPlane, Inventory, Vm, eventually};
use tokio::time::Instant;

const HOST: &str = "vdo.vmware.com/esxi-host";
const CLUSTER: &str = "vdo.vmware.com/cluster";
const FLAGS: [&str; 2] = ["--leader-elect=false", "--host-labels"];

fn vm(name: &str, cluster: &str, host: &str) -> Vm {
    Vm { cluster: cluster.into(), host: host.into(), ..Vm::named(name) }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_labels_follow_a_vmotion_within_two_seconds_and_end_with_the_flag() {
    let vms = vec![vm("node-1", "cluster-a", "esx-a1"), vm("node-2", "cluster-b", "esx-b1")];
    let stage = Stage::with(Inventory::small().vms(vms.clone())).await;
    stage.add_nodes(&vms).await;
    let following = stage.controller("", &FLAGS);
    let node = stage.initialised("node-1", &following).await;
    assert_eq!((label(&node, HOST), label(&node, CLUSTER)), (Some("esx-a1"), Some("cluster-a")));
    let mut slowest = Duration::ZERO;
    for (host, cluster) in [
        ("esx-a2", "cluster-a"),
        ("esx-b2", "cluster-b"),
        ("esx-b1", "cluster-b"),
        ("esx-a3", "cluster-a"),
    ] {
        stage.vcenter.patch_vm("/DC0/vm/node-1", json!({"host": host})).await;
        let moved = Instant::now();
        let at =
            |node: &_| label(node, HOST) == Some(host) && label(node, CLUSTER) == Some(cluster);
        stage.until("the labels follow the VM", "node-1", at).await;
        slowest = slowest.max(moved.elapsed());
    }
    println!("slowest update of the labels after vMotion: {slowest:?}");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    let other = stage.node("node-2").await;
    assert_eq!(label(&other, HOST), Some("esx-b1"), "another node keeps its labels");
    drop(following);
    let _without = stage.controller("", &["--leader-elect=false"]);
    let unlabelled = |node: &_| label(node, HOST).is_none() && label(node, CLUSTER).is_none();
    stage.until("nobody updates the labels, so they are removed", "node-1", unlabelled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_spread_over_esxi_hosts() {
    // Two nodes on each of three hosts.
    let hosts = ["esx-a1", "esx-a2", "esx-a3"];
    let vms: Vec<Vm> =
        (0..6).map(|n| vm(&format!("node-{n}"), "cluster-a", hosts[n / 2])).collect();
    let inventory = Inventory::small().vms(vms.clone());
    let stage = Stage::on(ControlPlane::builder().with_controllers(), inventory).await;
    stage.add_nodes(&vms).await;
    let ccm = stage.controller("", &FLAGS);
    let mut host_of = BTreeMap::new();
    for vm in &vms {
        let node = stage.initialised(&vm.name, &ccm).await;
        host_of.insert(vm.name.clone(), label(&node, HOST).unwrap().to_owned());
    }
    let spread: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "spread"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "spread"}},
            "template": {
                "metadata": {"labels": {"app": "spread"}},
                "spec": {
                    "containers": [{"name": "app", "image": "app"}],
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": HOST,
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"app": "spread"}},
                    }],
                },
            },
        },
    }))
    .unwrap();
    let client = stage.plane.client();
    let deployments = Api::<Deployment>::namespaced(client.clone(), "default");
    eventually("the Deployment is created", 60, async || {
        let created = deployments.create(&PostParams::default(), &spread).await;
        created.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let pods = Api::<Pod>::namespaced(client, "default");
    let used = eventually("three pods have a node", 60, async || {
        let listed = pods.list(&ListParams::default().labels("app=spread")).await;
        let listed = listed.map_err(|error| error.to_string())?.items;
        let nodes = listed.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
        let nodes: Vec<String> = nodes.collect();
        let names: Vec<String> = listed.iter().map(ResourceExt::name_any).collect();
        if nodes.len() == 3 { Ok(nodes) } else { Err(format!("{names:?} on {nodes:?}")) }
    })
    .await;
    let used: BTreeSet<&str> = used.iter().map(|node| host_of[node].as_str()).collect();
    assert_eq!(used, hosts.into(), "one pod on each host");
}
