//! Taking over from the Go controller, and giving back to it: neither writes to a node the other has
//! initialised.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use common::*;
use k8s_openapi::{
    api::core::v1::Node as KubeNode, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};
use testkit::{CloudController, ControlPlane, Inventory, Nic, Node, Process, Vm, eventually};

fn nic(network: &str, addresses: &[&str]) -> Nic {
    let addresses = addresses.iter().map(ToString::to_string).collect();
    Nic { network: network.into(), connected: true, addresses }
}

/// Machines of many shapes: one or several cards, both families, an address on a rule's network, one
/// in a rule's subnet, one that is excluded, names with domains, cloud-init's order.
fn machines() -> Vec<Vm> {
    let document = "network: {ethernets: {eth0: {addresses: [10.1.0.44/16]}}}";
    let metadata = BTreeMap::from([
        ("guestinfo.metadata".to_owned(), STANDARD.encode(document)),
        ("guestinfo.metadata.encoding".to_owned(), "base64".to_owned()),
    ]);
    // The Go controller finds only nodes that are called like their guests.
    let shape = |n: usize, nics: Vec<Nic>| Vm { nics, ..Vm::numbered("node", n) };
    let mut all = Vec::new();
    for n in 1..=20 {
        let v4 = format!("10.1.0.{n}/16");
        let v6 = format!("fd00:1::{n}/64");
        let vm = match n % 5 {
            0 => shape(n, vec![nic("VM Network", &[&v4, &v6])]),
            1 => shape(
                n,
                vec![nic("VM Network", &[&format!("172.16.0.{n}/24"), &v6]), nic("second", &[&v4])],
            ),
            2 => shape(
                n,
                vec![
                    nic("second", &[&format!("192.168.7.{n}/24"), &v6]),
                    nic("VM Network", &["fe80::1/64", &v4]),
                ],
            ),
            3 => Vm {
                host_name: format!("node-{n}.example.com"),
                ..shape(n, vec![nic("VM Network", &[&format!("10.9.0.{n}/16"), &v4, &v6])])
            },
            _ => Vm {
                extra_config: metadata.clone(),
                ..shape(
                    n,
                    vec![nic("VM Network", &[&format!("10.1.1.{n}/16"), "10.1.0.44/16", &v6])],
                )
            },
        };
        let letter = if n % 2 == 0 { "a" } else { "b" };
        all.push(Vm { cluster: format!("cluster-{letter}"), ..vm });
    }
    all
}

const WISH: &str = "alpha.kubernetes.io/provided-node-ip";

const DUAL: &str = "    ipFamily: [ipv4, ipv6]
labels: {zone: k8s-zone, region: k8s-region}
nodes: {internalNetworkSubnetCidr: '10.1.0.0/16,fd00:1::/64', externalVmNetworkName: second, excludeInternalNetworkSubnetCidr: 10.9.0.0/16}";

async fn stage() -> (Stage, Vec<Vm>) {
    let all = machines();
    let mut inventory = Inventory::small()
        .vms(all.clone())
        .category(
            "k8s-zone",
            &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
        )
        .category("k8s-region", &[("eu", &["/DC0"])]);
    inventory.datacenters[0].networks.push("second".into());
    let stage = Stage::on(ControlPlane::builder().with_audit(), inventory).await;
    for (n, vm) in all.iter().enumerate() {
        let node = Node::named(&vm.host_name).system_uuid(&vm.uuid).uninitialized();
        // Some kubelets were told their address.
        let node =
            if n % 5 == 4 { node.annotation(WISH, &format!("10.1.0.{}", n + 1)) } else { node };
        stage.nodes.add(node).await;
    }
    (stage, all)
}

async fn all_initialised(stage: &Stage, all: &[Vm], by: &Process) -> Vec<KubeNode> {
    let mut nodes = Vec::new();
    for vm in all {
        stage.initialised(&vm.host_name, by).await;
        // The Go controller writes addresses after it took the taint away.
        let written = |node: &KubeNode| {
            let told = node.metadata.annotations.iter().any(|a| a.contains_key(WISH));
            told || addresses(node).iter().any(|a| a.contains("fd00"))
        };
        nodes.push(stage.until("the addresses are there", &vm.host_name, written).await);
    }
    nodes
}

/// What a user sees of a node that a cloud controller decides.
fn shown(node: &KubeNode) -> (String, Vec<String>, BTreeMap<String, String>) {
    let labels = node.metadata.labels.clone().unwrap_or_default().into_iter();
    let ours = |key: &str| {
        key.contains("topology") || key.contains("failure-domain") || key.contains("instance-type")
    };
    (provider_id(node).to_owned(), addresses(node), labels.filter(|(key, _)| ours(key)).collect())
}

fn go(stage: &Stage) -> Process {
    let go = CloudController::on(&stage.configuration(DUAL))
        .set("node-status-update-frequency", "3s")
        .set("concurrent-node-syncs", "4")
        // The Go controller serves two families only with this switch.
        .environment("ENABLE_ALPHA_DUAL_STACK", "1");
    go.upstream("go-cpi", &stage.plane, &stage.workdir).unwrap()
}

const OURS: &str = "vsphere-cloud-controller-manager/0";
const THEIRS: &str = "vsphere-cloud-controller-manager/v";

/// What a controller wrote to nodes, by its user agent. Its writes to the marker must be among what is
/// on record, or nobody could tell that there were no others.
async fn writes_beside_the_marker(stage: &Stage, agent: &str) -> Vec<String> {
    eventually("its writes to the marker are on record", 30, async || {
        let writes = stage.node_writes(agent).into_iter();
        let (own, others): (Vec<_>, Vec<_>) = writes.partition(|write| write.contains("/marker"));
        if !own.is_empty() {
            return Ok(others);
        }
        let audit = stage.plane.audit();
        let nodes = audit.iter().filter(|r| r["objectRef"]["resource"] == "nodes");
        let agents: BTreeSet<String> = nodes.map(|r| r["userAgent"].to_string()).collect();
        Err(format!("no write by {agent}, but by {agents:?}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn ours_takes_over_from_the_go_controller_without_a_write_and_decides_the_same() {
    let (stage, all) = stage().await;
    let theirs = go(&stage);
    let before = all_initialised(&stage, &all, &theirs).await;
    drop(theirs);
    // One is not Ready, and may lose its machine at any time: that alone gets its record.
    let down = before[6].metadata.name.clone().unwrap();
    stage.nodes.set_ready(&down, false).await;
    stage.until("its kubelet stopped", &down, |node| !is_ready(node)).await;
    let ours = stage.controller(DUAL, &["--leader-elect=false"]);
    let marker = Vm {
        nics: vec![nic("second", &["10.1.9.9/16", "fd00:1::9999/64"])],
        ..Vm::named("marker")
    };
    stage.vcenter.add_vms("DC0", [marker.clone()]).await;
    stage.add_nodes(&[marker]).await;
    stage.initialised("marker", &ours).await;
    stage.until("its machine is on record", &down, |node| record(node).is_some()).await;
    let mut writes = writes_beside_the_marker(&stage, OURS).await;
    let noted = format!("/nodes/{down}?");
    writes.retain(|write| !(write.starts_with("\"patch\"") && write.contains(&noted)));
    let mut changed = Vec::new();
    for node in &before {
        let after = stage.node(node.metadata.name.as_deref().unwrap()).await;
        if shown(&after) != shown(node) {
            changed.push(format!("{:?}\n  became {:?}", shown(node), shown(&after)));
        }
    }
    assert!(writes.is_empty() && changed.is_empty(), "{writes:?}\n{}", changed.join("\n"));
    // The same nodes anew, by ours: every decision is the same.
    for (node, vm) in before.iter().zip(&all) {
        stage.api().delete(&vm.host_name, &kube::api::DeleteParams::default()).await.unwrap();
        let mut fresh = Node::named(&vm.host_name).system_uuid(&vm.uuid).uninitialized();
        if let Some(wish) = node.metadata.annotations.as_ref().and_then(|a| a.get(WISH)) {
            fresh = fresh.annotation(WISH, wish);
        }
        add_again(&stage, fresh, &vm.host_name).await;
    }
    for (node, again) in before.iter().zip(all_initialised(&stage, &all, &ours).await) {
        assert_eq!(shown(&again), shown(node));
    }
}

fn is_ready(node: &KubeNode) -> bool {
    let mut all = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    all.any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The CSINode of the node's first life is still there.
async fn add_again(stage: &Stage, node: Node, name: &str) {
    let csi = kube::Api::<k8s_openapi::api::storage::v1::CSINode>::all(stage.plane.client());
    let _ = csi.delete(name, &kube::api::DeleteParams::default()).await;
    stage.nodes.add(node).await;
}

/// What cloud controllers wrote and when: both go by the same name.
fn managed(node: &KubeNode) -> Vec<ManagedFieldsEntry> {
    let mut all = node.metadata.managed_fields.clone().unwrap_or_default();
    all.retain(|e| e.manager.as_deref() == Some("vsphere-cloud-controller-manager"));
    all
}

/// Waits until the Go controller went through all nodes. It sends the addresses of a node of two families
/// anew in every round, and rounds come one after the other: when each of these was sent twice, the first of
/// the two rounds is over, for the others too.
async fn a_whole_round(stage: &Stage, nodes: &[KubeNode], since: jiff::Timestamp, go: &Process) {
    let told = |node: &&KubeNode| {
        node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(WISH))
    };
    let sent: Vec<String> = nodes
        .iter()
        .filter(|node| !told(node))
        .map(|node| format!("/nodes/{}/status", node.metadata.name.as_deref().unwrap()))
        .collect();
    assert_eq!(sent.len(), 16);
    eventually("a round of status updates is over", 120, async || {
        let writes = stage.node_writes_since(since, THEIRS);
        let times = |of: &str| writes.iter().filter(|write| write.contains(of)).count();
        let waiting: Vec<_> = sent.iter().filter(|node| times(node) < 2).collect();
        if waiting.is_empty() { Ok(()) } else { Err(format!("{waiting:?}\n{}", go.tail())) }
    })
    .await;
    // Of the others none could not be looked up in that time.
    let log = go.log();
    for node in nodes.iter().filter(told) {
        let name = node.metadata.name.as_deref().unwrap();
        let failed = |line: &&str| line.contains(name) && line.contains("metadata for node");
        assert_eq!(log.lines().find(failed), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_go_controller_leaves_nodes_alone_that_ours_initialised() {
    let (stage, all) = stage().await;
    let ours = stage.controller(DUAL, &["--leader-elect=false"]);
    let before = all_initialised(&stage, &all, &ours).await;
    drop(ours);
    let theirs = go(&stage);
    let since = jiff::Timestamp::now();
    // Its marker, and then a whole round of its status updates, which come every 3 s.
    let marker = Vm {
        nics: vec![nic("second", &["10.1.9.9/16", "fd00:1::9999/64"])],
        ..Vm::named("marker")
    };
    stage.vcenter.add_vms("DC0", [marker.clone()]).await;
    stage.add_nodes(&[marker]).await;
    stage.initialised("marker", &theirs).await;
    a_whole_round(&stage, &before, since, &theirs).await;
    for node in before {
        let name = node.metadata.name.clone().unwrap();
        let after = stage.node(&name).await;
        assert_eq!(shown(&after), shown(&node), "{name}");
        assert_eq!(after.spec, node.spec, "{name}");
        assert_eq!(after.metadata.annotations, node.metadata.annotations, "{name}");
        assert!(record(&after).is_some(), "{name}");
        assert_eq!(managed(&after), managed(&node), "{name}");
        assert!(!managed(&after).is_empty(), "{name}");
    }
    // It sends the addresses of a node of two families anew in every round, whoever wrote them: that the
    // API server found no difference stands in the managed fields.
    let mut writes = writes_beside_the_marker(&stage, THEIRS).await;
    writes.retain(|write| !(write.starts_with("\"patch\"") && write.ends_with("/status\"")));
    assert_eq!(writes, Vec::<String>::new());
}
