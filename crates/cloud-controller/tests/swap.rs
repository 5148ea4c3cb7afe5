//! Migration from the Go controller and back: neither controller writes to a node that the other
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

/// VMs with one or several network cards, both families, addresses on configured networks, in configured
/// and excluded subnets, names with domains, and cloud-init's order.
fn vms() -> Vec<Vm> {
    let document = "network: {ethernets: {eth0: {addresses: [10.1.0.44/16]}}}";
    let metadata = BTreeMap::from([
        ("guestinfo.metadata".to_owned(), STANDARD.encode(document)),
        ("guestinfo.metadata.encoding".to_owned(), "base64".to_owned()),
    ]);
    // The Go controller finds only nodes with the host name of their guest.
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
        let (letter, folder) = match n % 4 {
            1 => ("b", "racked"),
            3 => ("b", "halls/hall"),
            _ => ("a", ""),
        };
        all.push(Vm { cluster: format!("cluster-{letter}"), folder: folder.into(), ..vm });
    }
    all
}

/// The VM for which the controllers choose different zones under [`NAMES`]: the VM and its folder have a
/// zone, and the region is farther up. The Go controller overwrites the zone until it finds a region; ours
/// takes the nearest zone.
const DISPUTED: &str = "node-19";

const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Two families, subnets for one side, a network for the other, an exclusion; zones from the clusters.
const DUAL: &str = "    ipFamily: [ipv4, ipv6]
labels: {zone: k8s-zone, region: k8s-region}
nodes: {internalNetworkSubnetCidr: '10.1.0.0/16,fd00:1::/64', externalVmNetworkName: second, excludeInternalNetworkSubnetCidr: 10.9.0.0/16}";

/// One family, a network for each side, an exclusion on each; zones from clusters, folders and VMs.
const NAMES: &str = "    ipFamily: [ipv4]
labels: {zone: rack, region: site}
nodes: {internalVmNetworkName: second, externalVmNetworkName: VM Network, excludeInternalNetworkSubnetCidr: 192.168.7.0/24, excludeExternalNetworkSubnetCidr: 172.16.0.0/24}";

/// Attaches the tags of [`NAMES`]: one cluster leads to both; the other leads only to a zone, and the tags of
/// the VM or its folders take precedence.
fn tagged(inventory: Inventory, all: &[Vm]) -> Inventory {
    let path = |vm: &Vm| format!("/DC0/vm/{}/{}", vm.folder, vm.name);
    let own = all.iter().filter(|vm| vm.folder == "racked" || vm.name == DISPUTED).map(path);
    let own: Vec<String> = own.collect();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    assert_eq!(own.len(), 6);
    inventory
        .category(
            "rack",
            &[
                ("rack-a", &["/DC0/host/cluster-a"]),
                ("rack-b", &["/DC0/host/cluster-b"]),
                ("rack-own", &own),
                ("rack-hall", &["/DC0/vm/halls/hall"]),
            ],
        )
        .category(
            "site",
            &[
                ("site-a", &["/DC0/host/cluster-a"]),
                ("site-b", &["/DC0/vm/racked"]),
                ("site-c", &["/DC0/vm/halls"]),
            ],
        )
}

/// The expected `InternalIP` and `ExternalIP` under [`NAMES`].
fn by_names(vm: &Vm) -> (Option<String>, Option<String>) {
    let n: usize = vm.name["node-".len()..].parse().unwrap();
    match n % 5 {
        // Its other address is excluded for the external side.
        1 => (Some(format!("10.1.0.{n}")), None),
        2 | 0 => (None, Some(format!("10.1.0.{n}"))),
        3 => (None, Some(format!("10.9.0.{n}"))),
        // The address from cloud-init comes first.
        _ => (None, Some("10.1.0.44".into())),
    }
}

/// Zone and region under [`NAMES`], by the nearest tag.
fn nearest(vm: &Vm) -> (&'static str, &'static str) {
    match vm.folder.as_str() {
        "" => ("rack-a", "site-a"),
        "racked" => ("rack-own", "site-b"),
        _ if vm.name == DISPUTED => ("rack-own", "site-c"),
        _ => ("rack-hall", "site-c"),
    }
}

async fn stage() -> (Stage, Vec<Vm>) {
    let all = vms();
    let mut inventory = Inventory::small()
        .vms(all.clone())
        .category(
            "k8s-zone",
            &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
        )
        .category("k8s-region", &[("eu", &["/DC0"])]);
    let datacenter = &mut inventory.datacenters[0];
    datacenter.networks.push("second".into());
    datacenter.folders = ["racked", "halls", "halls/hall"].map(str::to_owned).to_vec();
    let inventory = tagged(inventory, &all);
    let stage = Stage::on(ControlPlane::builder().with_audit(), inventory).await;
    for (n, vm) in all.iter().enumerate() {
        stage.nodes.add(fresh(n, vm)).await;
    }
    (stage, all)
}

/// The uninitialised node of the VM with this index.
fn fresh(n: usize, vm: &Vm) -> Node {
    let node = Node::named(&vm.host_name).system_uuid(&vm.uuid).uninitialized();
    // Some kubelets have a --node-ip.
    if n % 5 == 4 { node.annotation(PROVIDED_IP, &format!("10.1.0.{}", n + 1)) } else { node }
}

/// Deletes and re-creates every node, uninitialised.
async fn recreate_nodes(stage: &Stage, all: &[Vm]) {
    let _ = stage.api().delete("marker", &kube::api::DeleteParams::default()).await;
    for (n, vm) in all.iter().enumerate() {
        stage.api().delete(&vm.host_name, &kube::api::DeleteParams::default()).await.unwrap();
        // The CSINode of the deleted node still exists.
        let csi = kube::Api::<k8s_openapi::api::storage::v1::CSINode>::all(stage.plane.client());
        let _ = csi.delete(&vm.host_name, &kube::api::DeleteParams::default()).await;
        stage.nodes.add(fresh(n, vm)).await;
    }
}

async fn all_initialised(stage: &Stage, all: &[Vm], by: &Process, under: &str) -> Vec<KubeNode> {
    let mut nodes = Vec::new();
    for vm in all {
        stage.initialised(&vm.host_name, by).await;
        // The Go controller writes addresses after it removed the taint.
        let written = |node: &KubeNode| {
            let has_node_ip = node.metadata.annotations.iter().any(|a| a.contains_key(PROVIDED_IP));
            let expected = if under == DUAL { "fd00" } else { "IP=10." };
            has_node_ip || addresses(node).iter().any(|a| a.contains(expected))
        };
        nodes.push(stage.until("the addresses are there", &vm.host_name, written).await);
    }
    nodes
}

/// The provider id, addresses and labels that a cloud controller sets.
fn decisions(node: &KubeNode) -> (String, Vec<String>, BTreeMap<String, String>) {
    let labels = node.metadata.labels.clone().unwrap_or_default().into_iter();
    let ours = |key: &str| {
        key.contains("topology") || key.contains("failure-domain") || key.contains("instance-type")
    };
    (provider_id(node).to_owned(), addresses(node), labels.filter(|(key, _)| ours(key)).collect())
}

fn go(stage: &Stage, under: &str) -> Process {
    let go = CloudController::on(&stage.configuration(under))
        .set("node-status-update-frequency", "1s")
        .set("concurrent-node-syncs", "4")
        // The Go controller needs this for two families.
        .environment("ENABLE_ALPHA_DUAL_STACK", "1");
    go.upstream("go-cpi", &stage.plane, &stage.workdir).unwrap()
}

const OURS: &str = "vsphere-cloud-controller-manager/0";
const THEIRS: &str = "vsphere-cloud-controller-manager/v";

/// Adds a node and waits until it is initialised. By then the controller has handled all earlier changes.
async fn marker(stage: &Stage, name: &str, by: &Process) {
    let vm = Vm {
        nics: vec![nic("second", &["10.1.9.9/16", "fd00:1::9999/64"])],
        cluster: "cluster-a".into(),
        ..Vm::named(name)
    };
    stage.vcenter.add_vms("DC0", [vm.clone()]).await;
    stage.add_nodes(&[vm]).await;
    stage.initialised(name, by).await;
}

/// A controller's writes to nodes other than the marker since this time, by its user agent. Waits for the
/// writes to the marker, which show that the audit log is complete.
async fn writes_except(
    stage: &Stage,
    marker: &str,
    agent: &str,
    since: jiff::Timestamp,
) -> Vec<String> {
    eventually("the audit log has the writes to the marker", 30, async || {
        let writes = stage.node_writes_since(since, agent).into_iter();
        let own = |write: &String| write.contains(&format!("/nodes/{marker}"));
        let (own, others): (Vec<_>, Vec<_>) = writes.partition(own);
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
async fn our_controller_replaces_the_go_controller_without_a_write_and_decides_the_same() {
    let (stage, all) = stage().await;
    for (under, mark) in [(DUAL, "marker"), (NAMES, "marker-2")] {
        if under == NAMES {
            recreate_nodes(&stage, &all).await;
        }
        let theirs = go(&stage, under);
        let before = all_initialised(&stage, &all, &theirs, under).await;
        drop(theirs);
        // One node is not Ready and can lose its VM at any time: only that node gets a record.
        let down = before[6].metadata.name.clone().unwrap();
        stage.nodes.set_ready(&down, false).await;
        stage.until("the kubelet stopped", &down, |node| !is_ready(node)).await;
        let since = jiff::Timestamp::now();
        let ours = stage.controller(under, &["--leader-elect=false"]);
        marker(&stage, mark, &ours).await;
        stage.until("the VM is recorded", &down, |node| record(node).is_some()).await;
        let writes = writes_except(&stage, mark, OURS, since).await;
        let node_path = format!("/nodes/{down}?");
        let is_record =
            |write: &String| write.starts_with("\"patch\"") && write.contains(&node_path);
        assert!(writes.len() == 1 && is_record(&writes[0]), "{writes:?}");
        for node in &before {
            let after = stage.node(node.metadata.name.as_deref().unwrap()).await;
            assert_eq!(decisions(&after), decisions(node));
        }
        // Re-created and initialised by our controller: every decision but one is the same.
        recreate_nodes(&stage, &all).await;
        let again = all_initialised(&stage, &all, &ours, under).await;
        for (vm, (theirs, ours)) in all.iter().zip(before.iter().zip(&again)) {
            let mut decided = decisions(theirs);
            if under == NAMES && vm.name == DISPUTED {
                let zones = decided.2.iter_mut().filter(|(key, _)| key.ends_with("/zone"));
                let changed = zones.map(|(_, zone)| std::mem::replace(zone, "rack-own".into()));
                assert_eq!(changed.collect::<Vec<_>>(), ["rack-hall", "rack-hall"]);
            }
            assert_eq!(decisions(ours), decided, "{}", vm.name);
            if under == NAMES {
                check_names(ours, vm);
            }
        }
        drop(ours);
    }
}

/// Checks the expected result, not only that both controllers agree.
fn check_names(node: &KubeNode, vm: &Vm) {
    let (internal, external) = by_names(vm);
    let kept = |kind: &str, address: Option<String>| address.map(|a| format!("{kind}={a}"));
    let expected = [kept("InternalIP", internal), kept("ExternalIP", external)];
    let found: Vec<String> =
        addresses(node).into_iter().filter(|a| !a.starts_with("Hostname=")).collect();
    assert_eq!(found, expected.into_iter().flatten().collect::<Vec<_>>(), "{}", vm.name);
    let (zone, region) = nearest(vm);
    for (kind, value) in [("zone", zone), ("region", region)] {
        for domain in ["topology.kubernetes.io", "failure-domain.beta.kubernetes.io"] {
            assert_eq!(label(node, &format!("{domain}/{kind}")), Some(value), "{}", vm.name);
        }
    }
}

fn is_ready(node: &KubeNode) -> bool {
    let mut all = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    all.any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The managed fields of both controllers, which have the same field manager.
fn managed(node: &KubeNode) -> Vec<ManagedFieldsEntry> {
    let mut all = node.metadata.managed_fields.clone().unwrap_or_default();
    all.retain(|e| e.manager.as_deref() == Some("vsphere-cloud-controller-manager"));
    all
}

fn has_node_ip(node: &KubeNode) -> bool {
    node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(PROVIDED_IP))
}

/// The number of address writes to each of these nodes.
fn sent(writes: &[String], nodes: &[&KubeNode]) -> Vec<usize> {
    let path = |node: &KubeNode| format!("/nodes/{}/status", node.metadata.name.as_ref().unwrap());
    let times = |node: &&KubeNode| {
        let is_this =
            |write: &&String| write.starts_with("\"patch\"") && write.contains(&path(node));
        writes.iter().filter(is_this).count()
    };
    nodes.iter().map(times).collect()
}

/// The minimum number of status update rounds of the Go controller, which are sequential.
///
/// With two families it sends the addresses of a node with both again in every round. With one family it
/// sends none, but it logs in for tags once for each path upwards from a VM.
async fn rounds(stage: &Stage, under: &str, both: &[&KubeNode], since: jiff::Timestamp) -> usize {
    if under == DUAL {
        let writes = stage.node_writes_since(since, THEIRS);
        return sent(&writes, both).into_iter().min().unwrap();
    }
    // One path for each of ten VMs and the marker, three for each of the other ten.
    let logins = stage.vcenter.calls().await.count("POST /rest/com/vmware/cis/session");
    usize::try_from(logins).unwrap() / (11 + 3 * 10)
}

/// Waits until the Go controller completed a round in which it found the VM of every node. In its first round
/// it does not find all. Returns the time from which it found all of them.
async fn wait_for_rounds(
    stage: &Stage,
    under: &str,
    nodes: &[KubeNode],
    since: jiff::Timestamp,
    go: &Process,
) -> jiff::Timestamp {
    let both: Vec<_> = nodes.iter().filter(|node| !has_node_ip(node)).collect();
    let (mut read, mut base, mut found) = (0, 0, since);
    eventually("a round of status updates is over", 120, async || {
        let log = go.log();
        let done = rounds(stage, under, &both, since).await;
        if log[read..].contains("Error getting instance metadata") {
            (read, base, found) = (log.len(), done, jiff::Timestamp::now());
        }
        // One round can have been running already, and the audit log can lack a part of the last.
        if done >= base + 3 { Ok(()) } else { Err(format!("{done} {base}\n{}", go.tail())) }
    })
    .await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_go_controller_does_not_change_nodes_that_ours_initialised() {
    let (stage, all) = stage().await;
    for (under, mark) in [(DUAL, "marker"), (NAMES, "marker-2")] {
        if under == NAMES {
            recreate_nodes(&stage, &all).await;
        }
        let ours = stage.controller(under, &["--leader-elect=false"]);
        let before = all_initialised(&stage, &all, &ours, under).await;
        drop(ours);
        let since = jiff::Timestamp::now();
        stage.vcenter.forget_calls().await;
        let theirs = go(&stage, under);
        // The marker, and then status update rounds, one per second.
        marker(&stage, mark, &theirs).await;
        let found = wait_for_rounds(&stage, under, &before, since, &theirs).await;
        drop(theirs);
        for node in &before {
            let name = node.metadata.name.clone().unwrap();
            let after = stage.node(&name).await;
            assert_eq!(decisions(&after), decisions(node), "{name}");
            assert_eq!(after.spec, node.spec, "{name}");
            assert_eq!(after.metadata.labels, node.metadata.labels, "{name}");
            assert_eq!(after.metadata.annotations, node.metadata.annotations, "{name}");
            assert!(record(&after).is_some(), "{name}");
            // Unchanged managed fields show that no request changed the node.
            assert_eq!(managed(&after), managed(node), "{name}");
            assert!(!managed(&after).is_empty(), "{name}");
        }
        // It changed nothing. With two families it sent the addresses of each node with both, once per round;
        // the first and the last round can be incomplete.
        let (with_node_ip, both): (Vec<_>, Vec<_>) =
            before.iter().partition(|node| has_node_ip(node));
        let writes = writes_except(&stage, mark, THEIRS, since).await;
        let times = sent(&writes, &both);
        assert_eq!(writes.len(), times.iter().sum::<usize>(), "{writes:?}");
        assert_eq!(sent(&writes, &with_node_ip), [0; 4]);
        let times = sent(&stage.node_writes_since(found, THEIRS), &both);
        let (least, most) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
        let expected = if under == DUAL { least >= 1 && most - least <= 2 } else { most == 0 };
        assert!(expected, "{times:?}");
    }
}
