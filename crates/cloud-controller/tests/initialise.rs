//! Initialisation on a real API server and a simulated vCenter, with the RBAC of the manifest.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use common::*;
use testkit::{Fault, Inventory, Nic, Node, Vm};

const ZONES: &str = "labels: {zone: k8s-zone, region: k8s-region}";

fn zoned(vms: Vec<Vm>) -> Inventory {
    Inventory::small()
        .vms(vms)
        .category(
            "k8s-zone",
            &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
        )
        .category("k8s-region", &[("eu", &["/DC0"])])
}

fn nic(network: &str, addresses: &[&str]) -> Nic {
    let addresses = addresses.iter().map(ToString::to_string).collect();
    Nic { network: network.into(), connected: true, addresses }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_node_gets_everything_from_its_vm() {
    let vm = Vm {
        cluster: "cluster-b".into(),
        nics: vec![nic("VM Network", &["10.0.0.9/24", "fd00::9/64", "fe80::1/64"])],
        host_name: "node-1.example.com".into(),
        ..Vm::named("node-1")
    };
    let stage = Stage::with(zoned(vec![vm.clone()])).await;
    let ccm = stage.controller(ZONES, &["--node-labels=site=lab"]);
    stage.add_nodes(std::slice::from_ref(&vm)).await;
    let node = stage.initialised("node-1", &ccm).await;
    assert_eq!(provider_id(&node), format!("vsphere://{}", vm.uuid));
    assert_eq!(
        addresses(&node),
        ["Hostname=node-1.example.com", "InternalIP=10.0.0.9", "ExternalIP=10.0.0.9"]
    );
    for (key, value) in [
        ("topology.kubernetes.io/zone", "zone-b"),
        ("failure-domain.beta.kubernetes.io/zone", "zone-b"),
        ("topology.kubernetes.io/region", "eu"),
        ("failure-domain.beta.kubernetes.io/region", "eu"),
        ("site", "lab"),
    ] {
        assert_eq!(label(&node, key), Some(value), "{key}");
    }
    let kind = label(&node, "node.kubernetes.io/instance-type").unwrap();
    assert!(kind.starts_with("vsphere-vm.cpu-"), "{kind}");
    assert_eq!(label(&node, "beta.kubernetes.io/instance-type"), Some(kind));
    let record = record(&node).unwrap();
    assert_eq!(record["instanceUuid"], vm.instance_uuid.as_str());
    assert!(record["vcenter"].as_str().unwrap().starts_with("127.0.0.1:"), "{record}");
    assert_eq!(stage.event("node-1", "Synced").await, "Node synced successfully");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_identified_by_uuid_name_or_address() {
    let swapped = "56492e42-22ad-3911-6d72-59cc8f26bc90";
    let vm = |name: &str| Vm::named(name);
    let vms = vec![
        Vm { uuid: "422e4956-ad22-1139-6d72-59cc8f26bc90".into(), ..vm("swapped") },
        vm("upper"),
        Vm { host_name: "WIN-1.corp.example".into(), ..vm("windows-vm") },
        Vm {
            nics: vec![nic("VM Network", &["10.9.9.9/24"])],
            host_name: "unlike".into(),
            ..vm("by-address")
        },
    ];
    let stage = Stage::with(Inventory::small().vms(vms.clone())).await;
    stage.nodes.add(Node::named("a-swapped").system_uuid(swapped).uninitialized()).await;
    let upper = vms[1].uuid.to_uppercase();
    stage.nodes.add(Node::named("a-upper").system_uuid(&upper).uninitialized()).await;
    stage.nodes.add(Node::named("win-1").windows().uninitialized()).await;
    stage.nodes.add(Node::named("by-ip").internal_ip("10.9.9.9").uninitialized()).await;
    let ccm = stage.controller("", &[]);
    for (node, vm) in ["a-swapped", "a-upper", "win-1", "by-ip"].iter().zip(&vms) {
        let node = stage.initialised(node, &ccm).await;
        assert_eq!(provider_id(&node), format!("vsphere://{}", vm.uuid), "{}", vm.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecidable_node_is_reported_and_initialised_later() {
    let uuid = Vm::named("twin").uuid;
    let twin = |name: &str| Vm { uuid: uuid.clone(), ..Vm::named(name) };
    let stage =
        Stage::with(Inventory::small().vms([twin("twin-1"), twin("twin-2"), Vm::named("silent")]))
            .await;
    stage.vcenter.patch_vm("/DC0/vm/silent", serde_json::json!({"nics": []})).await;
    stage.nodes.add(Node::named("copy").system_uuid(&uuid).uninitialized()).await;
    stage.add_nodes(&[Vm::named("silent"), Vm::named("not-there")]).await;
    let foreign =
        Node::named("elsewhere").provider_id("aws:///eu/i-1").system_uuid(&uuid).uninitialized();
    stage.nodes.add(foreign).await;
    let ccm = stage.controller("", &[]);
    stage.event_containing_all("copy", "AmbiguousVM", &["/DC0/vm/twin-1", "/DC0/vm/twin-2"]).await;
    stage.event_containing("silent", "NotInitialized", "VMware Tools").await;
    stage.event_containing("not-there", "VMNotFound", "no VM").await;

    stage
        .vcenter
        .patch_vm("/DC0/vm/twin-2", serde_json::json!({"uuid": Vm::named("x").uuid}))
        .await;
    let back = serde_json::json!({"nics": [nic("VM Network", &["10.1.1.1/24"])]});
    stage.vcenter.patch_vm("/DC0/vm/silent", back).await;
    stage.vcenter.add_vms("DC0", [Vm::named("not-there")]).await;
    for name in ["copy", "silent", "not-there"] {
        stage.initialised(name, &ccm).await;
    }
    let foreign = stage.node("elsewhere").await;
    assert!(has_taint(&foreign, UNINITIALIZED), "the node of another provider was changed");
    assert_eq!(provider_id(&foreign), "aws:///eu/i-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelets_node_ip_is_used() {
    let vm = Vm {
        nics: vec![nic("VM Network", &["10.0.0.100/24", "10.0.0.1/24"])],
        ..Vm::named("node-1")
    };
    let other = Vm { nics: vec![nic("VM Network", &["10.0.0.2/24"])], ..Vm::named("node-2") };
    let stage = Stage::with(Inventory::small().vms([vm.clone(), other.clone()])).await;
    let provided_ip = "alpha.kubernetes.io/provided-node-ip";
    let node = |vm: &Vm| Node::named(&vm.name).system_uuid(&vm.uuid).uninitialized();
    stage.nodes.add(node(&vm).annotation(provided_ip, "10.0.0.1")).await;
    stage.nodes.add(node(&other).annotation(provided_ip, "10.0.0.77")).await;
    let ccm = stage.controller("", &[]);
    let node = stage.initialised("node-1", &ccm).await;
    assert_eq!(addresses(&node), ["InternalIP=10.0.0.1", "ExternalIP=10.0.0.1", "Hostname=node-1"]);
    stage
        .event_containing(
            "node-2",
            "NotInitialized",
            "--node-ip 10.0.0.77 is none of the addresses",
        )
        .await;
    assert!(has_taint(&stage.node("node-2").await, UNINITIALIZED));
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_follow_the_vm_and_stay_when_it_stops_reporting() {
    let vm = Vm { nics: vec![nic("VM Network", &["10.0.0.1/24"])], ..Vm::named("node-1") };
    let stage = Stage::with(Inventory::small().vms([vm.clone()])).await;
    stage.add_nodes(&[vm]).await;
    let ccm = stage.controller("", &[]);
    stage.initialised("node-1", &ccm).await;
    let change =
        serde_json::json!({"nics": [nic("VM Network", &["10.0.0.7/24"])], "hostName": "renamed"});
    stage.vcenter.patch_vm("/DC0/vm/node-1", change).await;
    let expected = ["Hostname=renamed", "InternalIP=10.0.0.7", "ExternalIP=10.0.0.7"];
    stage.until("the new address is there", "node-1", |node| addresses(node) == expected).await;
    let silent = serde_json::json!({"nics": [], "tools": "notRunning"});
    stage.vcenter.patch_vm("/DC0/vm/node-1", silent).await;
    stage.settle(&ccm, "marker").await;
    assert_eq!(addresses(&stage.node("node-1").await), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_ip_that_moves_to_a_vm_and_is_listed_first_does_not_become_the_nodes_address() {
    let vm = Vm { nics: vec![nic("VM Network", &["10.0.0.1/24"])], ..Vm::named("node-1") };
    let stage = Stage::with(Inventory::small().vms([vm.clone()])).await;
    stage.add_nodes(&[vm]).await;
    let ccm = stage.controller("", &[]);
    stage.initialised("node-1", &ccm).await;
    // The new host name shows that the controller has seen the new addresses.
    let with_vip = serde_json::json!({
        "nics": [nic("VM Network", &["10.0.0.100/24", "10.0.0.1/24"])], "hostName": "with-vip",
    });
    stage.vcenter.patch_vm("/DC0/vm/node-1", with_vip).await;
    let expected = ["Hostname=with-vip", "InternalIP=10.0.0.1", "ExternalIP=10.0.0.1"];
    let seen = |node: &k8s_openapi::api::core::v1::Node| addresses(node)[0] == expected[0];
    stage.until("the controller has seen the change", "node-1", seen).await;
    assert_eq!(addresses(&stage.node("node-1").await), expected);
    // The address is gone: only now the node gets another one.
    let left = serde_json::json!({"nics": [nic("VM Network", &["10.0.0.100/24"])]});
    stage.vcenter.patch_vm("/DC0/vm/node-1", left).await;
    let moved = ["Hostname=with-vip", "InternalIP=10.0.0.100", "ExternalIP=10.0.0.100"];
    stage.until("it has the address that is left", "node-1", |node| addresses(node) == moved).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_tag_is_reported_and_blocks_a_node_only_with_require_zones() {
    let vms = [
        Vm::named("node-1"),
        Vm { host: "esx-b1".into(), cluster: "cluster-b".into(), ..Vm::named("node-2") },
    ];
    let tagged = Inventory::small()
        .vms(vms.clone())
        .category("k8s-zone", &[("zone-a", &["/DC0/host/cluster-a"])])
        .category("k8s-region", &[("eu", &["/DC0"])]);
    let stage = Stage::with(tagged).await;
    stage.add_nodes(&vms).await;
    // While tags cannot be read, an event reports the reason.
    for login in ["POST /api/session", "POST /rest/com/vmware/cis/session"] {
        stage.vcenter.fault(Fault::on(login).status(503)).await;
    }
    let strict = stage.controller(ZONES, &["--require-zones", "--tag-refresh-period=1s"]);
    stage.event_containing("node-1", "WaitingForTags", "503").await;
    stage.vcenter.clear_faults().await;
    stage.event_containing("node-2", "ZoneMissing", "no tag of the category \"k8s-zone\"").await;
    stage.initialised("node-1", &strict).await;
    assert!(has_taint(&stage.node("node-2").await, UNINITIALIZED));
    // The VM's own tags count too.
    stage.vcenter.attach_tag("k8s-zone", "zone-own", &["/DC0/vm/node-2"]).await;
    stage.vcenter.attach_tag("k8s-region", "eu", &["/DC0/vm/node-2"]).await;
    let node = stage.initialised("node-2", &strict).await;
    assert_eq!(label(&node, "topology.kubernetes.io/zone"), Some("zone-own"));
    drop(strict);

    let vm = Vm { host: "esx-b2".into(), cluster: "cluster-b".into(), ..Vm::named("node-3") };
    stage.vcenter.add_vms("DC0", [vm.clone()]).await;
    stage.add_nodes(&[vm]).await;
    let lenient = stage.controller(ZONES, &["--leader-elect=false"]);
    let node = stage.initialised("node-3", &lenient).await;
    assert_eq!(label(&node, "topology.kubernetes.io/zone"), None);
    assert_eq!(label(&node, "topology.kubernetes.io/region"), Some("eu"));
    stage.event("node-3", "ZoneMissing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_follow_a_vmotion_only_with_refresh_labels() {
    let vm = Vm { cluster: "cluster-a".into(), host: "esx-a1".into(), ..Vm::named("node-1") };
    let stage = Stage::with(zoned(vec![vm.clone()])).await;
    stage.add_nodes(&[vm]).await;
    let zone = "topology.kubernetes.io/zone";
    let still = stage.controller(ZONES, &["--leader-elect=false"]);
    let node = stage.initialised("node-1", &still).await;
    assert_eq!(label(&node, zone), Some("zone-a"));
    stage.vcenter.patch_vm("/DC0/vm/node-1", serde_json::json!({"host": "esx-b1"})).await;
    stage.settle(&still, "marker").await;
    assert_eq!(label(&stage.node("node-1").await, zone), Some("zone-a"));
    drop(still);
    let _following = stage.controller(ZONES, &["--leader-elect=false", "--refresh-labels"]);
    stage.until("the zone follows", "node-1", |node| label(node, zone) == Some("zone-b")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_vms_in_the_configured_folders_and_clusters_are_nodes() {
    let vm = |name: &str, folder: &str, cluster: &str| Vm {
        folder: folder.into(),
        cluster: cluster.into(),
        ..Vm::named(name)
    };
    let all = vec![
        vm("both", "k8s", "cluster-a"),
        vm("below", "k8s/workers", "cluster-a"),
        vm("elsewhere", "", "cluster-a"),
        vm("next-to", "k8s-old", "cluster-a"),
        vm("other-cluster", "k8s", "cluster-b"),
    ];
    let mut inventory = Inventory::small().vms(all.clone());
    inventory.datacenters[0].folders =
        ["k8s", "k8s/workers", "k8s-old"].map(str::to_owned).to_vec();
    let stage = Stage::with(inventory).await;
    stage.add_nodes(&all).await;
    let flags = ["--vm-folders=/DC0/vm/k8s/", "--vm-clusters=cluster-a"];
    let ccm = stage.controller("", &flags);
    for name in ["both", "below"] {
        stage.initialised(name, &ccm).await;
    }
    for name in ["elsewhere", "next-to", "other-cluster"] {
        stage.event(name, "VMNotFound").await;
        assert!(has_taint(&stage.node(name).await, UNINITIALIZED), "{name}");
    }
}
