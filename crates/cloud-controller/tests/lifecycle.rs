//! Nodes whose VM stops or disappears. The controller deletes a Node only with proof.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use common::*;
use serde_json::json;
use testkit::{Fault, Inventory, Node, Permission, Process, Vcenter, Vm, eventually};

const QUICK: &[&str] = &["--node-deletion-delay=1s"];

async fn started(vms: &[Vm], flags: &[&str]) -> (Stage, Process) {
    let stage = Stage::with(Inventory::small().vms(vms.to_vec())).await;
    stage.add_nodes(vms).await;
    let ccm = stage.controller("", flags);
    for vm in vms {
        stage.initialised(&vm.name, &ccm).await;
    }
    (stage, ccm)
}

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

fn vms(names: &[&str]) -> Vec<Vm> {
    names.iter().map(|name| Vm::named(name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn taints_are_set_at_power_off_and_removed_when_the_node_is_ready() {
    let all = vms(&["off", "asleep", "on", "late"]);
    let (stage, ccm) = started(&all, &["--out-of-service-taint"]).await;
    for (vm, power) in [("off", "off"), ("asleep", "suspended")] {
        stage.vcenter.patch_vm(&format!("/DC0/vm/{vm}"), json!({ "power": power })).await;
    }
    for name in ["off", "asleep", "on"] {
        stage.nodes.set_ready(name, false).await;
    }
    for name in ["off", "asleep"] {
        stage.until("the taint is there", name, |node| has_taint(node, SHUTDOWN)).await;
    }
    assert!(!has_taint(&stage.node("on").await, SHUTDOWN), "its VM is on");
    let before = addresses(&stage.node("off").await);
    assert!(before.len() > 1, "the node keeps its addresses: {before:?}");
    stage.vcenter.patch_vm("/DC0/vm/off", json!({"power": "on"})).await;
    stage.nodes.set_ready("off", true).await;
    stage.until("the taint is gone", "off", |node| !has_taint(node, SHUTDOWN)).await;
    // The VM was off when last seen; an unreachable vCenter cannot confirm it.
    stage.vcenter.patch_vm("/DC0/vm/late", json!({"power": "off"})).await;
    stage.settle(&ccm, "marker").await;
    stage.vcenter.fault(Fault::on("*").status(503)).await;
    stage.vcenter.expire_sessions("").await;
    until_logged(&ccm, "the vCenter is unavailable").await;
    stage.nodes.set_ready("late", false).await;
    let late = stage.until("the taint is there", "late", |node| has_taint(node, SHUTDOWN)).await;
    assert!(!has_taint(&late, OUT_OF_SERVICE), "{:?}", late.spec);
    stage.vcenter.clear_faults().await;
    stage
        .until("the power state is confirmed", "late", |node| has_taint(node, OUT_OF_SERVICE))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_destroyed_vm_is_deleted_when_it_is_not_ready() {
    let (stage, ccm) = started(&vms(&["gone", "ready", "stays"]), QUICK).await;
    stage.vcenter.destroy_vm("/DC0/vm/gone").await;
    stage.vcenter.destroy_vm("/DC0/vm/ready").await;
    stage.nodes.set_ready("gone", false).await;
    stage.nodes.set_ready("stays", false).await;
    // Without an address the node cannot be initialised, but its VM is recorded.
    let never = Vm { nics: Vec::new(), ..Vm::named("never") };
    stage.vcenter.add_vms("DC0", [never.clone()]).await;
    stage.add_nodes(&[never]).await;
    stage.nodes.set_ready("never", false).await;
    stage.until("the VM is recorded", "never", |node| record(node).is_some()).await;
    assert!(has_taint(&stage.node("never").await, UNINITIALIZED));
    stage.vcenter.destroy_vm("/DC0/vm/never").await;
    stage.until_deleted("never").await;
    stage.until_deleted("gone").await;
    stage.event_containing("gone", "DeletingNode", "does not exist in the cloud provider").await;
    stage.settle(&ccm, "marker").await;
    stage.node("ready").await;
    stage.node("stays").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_loses_no_state() {
    let (stage, ccm) = started(&vms(&["gone"]), QUICK).await;
    ccm.kill();
    stage.vcenter.destroy_vm("/DC0/vm/gone").await;
    stage.nodes.set_ready("gone", false).await;
    let _next = stage.controller("", &["--node-deletion-delay=1s", "--leader-elect=false"]);
    stage.until_deleted("gone").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_is_no_longer_visible_is_not_gone() {
    let (stage, ccm) = started(&vms(&["hidden", "copied", "not-noted"]), QUICK).await;
    stage.nodes.set_ready("hidden", false).await;
    stage.vcenter.permit(&Permission::new(USER, "NoAccess", "/DC0/vm/hidden")).await;
    // Before the controller knows that the node is not Ready, the event has another text.
    stage.event_containing("hidden", "VMUncertain", "is no longer visible").await;
    stage.settle(&ccm, "marker").await;
    stage.node("hidden").await;
    // Hidden by its folder and registered again: the reference is gone, but the VM exists.
    stage.vcenter.forbid("/DC0/vm/hidden", USER).await;
    // A VM inherits permissions from its folder and from its resource pool.
    for way in ["/DC0/host", "/DC0/vm"] {
        stage.vcenter.permit(&Permission::new(USER, "NoAccess", way)).await;
    }
    stage.vcenter.reregister_vm("/DC0/vm/hidden").await;
    eventually("it is reported again", 60, async || {
        let log = ccm.log();
        if log.contains("the folder of the VM") { Ok(()) } else { Err(log) }
    })
    .await;
    stage.node("hidden").await;
    for way in ["/DC0/host", "/DC0/vm"] {
        stage.vcenter.forbid(way, USER).await;
    }
    stage.vcenter.destroy_vm("/DC0/vm/hidden").await;
    stage.until_deleted("hidden").await;
    // Hidden, while a powered-off copy with its uuid is visible: the copy does not count.
    stage.vcenter.permit(&Permission::new(USER, "NoAccess", "/DC0/vm/copied")).await;
    let copy = Vm { uuid: Vm::named("copied").uuid, power: "off".into(), ..Vm::named("the-copy") };
    stage.vcenter.add_vms("DC0", [copy.clone()]).await;
    stage.nodes.set_ready("copied", false).await;
    let texts = ["/DC0/vm/the-copy", "is no longer visible"];
    stage.event_containing_all("copied", "AmbiguousVM", &texts).await;
    stage.settle(&ccm, "marker-2").await;
    let node = stage.node("copied").await;
    assert!(!has_taint(&node, SHUTDOWN), "{:?}", node.spec);
    let own = Vm::named("copied").instance_uuid;
    assert_eq!(record(&node).unwrap()["instanceUuid"], own.as_str());
    // After the VM is gone, a VM with its uuid (restored from a backup, for example) is accepted.
    stage.vcenter.destroy_vm("/DC0/vm/copied").await;
    let node = stage.until("the node is tainted", "copied", |node| has_taint(node, SHUTDOWN)).await;
    assert_eq!(record(&node).unwrap()["instanceUuid"], copy.instance_uuid.as_str());
    a_copy_is_not_recorded_for_a_hidden_vm(&stage, &ccm).await;
}

/// The node has no record, as if another controller initialised it, but its VM was seen.
async fn a_copy_is_not_recorded_for_a_hidden_vm(stage: &Stage, ccm: &Process) {
    let no_record =
        json!({"metadata": {"annotations": {cloud_controller::record::ANNOTATION: null}}});
    let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(stage.plane.client());
    let patch = kube::api::Patch::Merge(no_record);
    nodes.patch("not-noted", &kube::api::PatchParams::default(), &patch).await.unwrap();
    stage.settle(ccm, "marker-3").await;
    assert!(record(&stage.node("not-noted").await).is_none(), "it is Ready");
    stage.vcenter.permit(&Permission::new(USER, "NoAccess", "/DC0/vm/not-noted")).await;
    let uuid = Vm::named("not-noted").uuid;
    let copy = Vm { uuid, power: "off".into(), ..Vm::named("its-copy") };
    stage.vcenter.add_vms("DC0", [copy]).await;
    stage.nodes.set_ready("not-noted", false).await;
    stage.event_containing_all("not-noted", "AmbiguousVM", &["/DC0/vm/its-copy"]).await;
    stage.settle(ccm, "marker-4").await;
    let node = stage.node("not-noted").await;
    // The controller can learn that the node is not Ready before it learns that the VM is hidden. It then records the VM.
    let own = Vm::named("not-noted").instance_uuid;
    let recorded = record(&node).is_none_or(|record| record["instanceUuid"] == own.as_str());
    assert!(recorded && !has_taint(&node, SHUTDOWN), "{node:?}");
    stage.vcenter.destroy_vm("/DC0/vm/its-copy").await;
    stage.settle(ccm, "marker-5").await;
    stage.node("not-noted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_registered_again_keeps_its_node_with_the_new_reference() {
    let (stage, _ccm) = started(&vms(&["node-1"]), QUICK).await;
    let before = record(&stage.node("node-1").await).unwrap();
    stage.nodes.set_ready("node-1", false).await;
    stage.vcenter.reregister_vm("/DC0/vm/node-1").await;
    let changed = |node: &k8s_openapi::api::core::v1::Node| {
        record(node).unwrap()["machine"] != before["machine"]
    };
    stage.until("the record names the new reference", "node-1", changed).await;
    // A new instance uuid under the same reference does not make it a copy.
    let renewed = "50000000-0000-4000-8000-000000000001";
    stage.vcenter.patch_vm("/DC0/vm/node-1", json!({"instanceUuid": renewed})).await;
    let changed =
        |node: &k8s_openapi::api::core::v1::Node| record(node).unwrap()["instanceUuid"] == renewed;
    stage.until("the record names the new instance uuid", "node-1", changed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_rebuilt_vm_is_kept_and_an_event_contains_the_fix() {
    let old = vms(&["gone", "kept"]);
    let flags = ["--node-deletion-delay=1s", "--out-of-service-taint"];
    let (stage, ccm) = started(&old, &flags).await;
    // One VM is removed, the other powered off; each guest continues in a new VM.
    stage.vcenter.destroy_vm("/DC0/vm/gone").await;
    stage.vcenter.patch_vm("/DC0/vm/kept", json!({"power": "off"})).await;
    let new = |name: &str| Vm { host_name: name.into(), ..Vm::named(&format!("{name}-new")) };
    stage.vcenter.add_vms("DC0", ["gone", "kept"].map(new)).await;
    for name in ["gone", "kept"] {
        let shown = json!({"status": {"nodeInfo": {"systemUUID": new(name).uuid}}});
        let patch = kube::api::Patch::Merge(&shown);
        let parameters = kube::api::PatchParams::default();
        stage.api().patch_status(name, &parameters, &patch).await.unwrap();
        let new_vm = format!("/DC0/vm/{name}-new");
        stage
            .event_containing_all(name, "VMReplaced", &[&new_vm, "drain the node, delete the Node"])
            .await;
    }
    let is_new = |node: &k8s_openapi::api::core::v1::Node| {
        record(node).is_some_and(|r| r["instanceUuid"] == new("gone").instance_uuid)
    };
    let node = stage.until("the new VM is recorded", "gone", is_new).await;
    assert_eq!(provider_id(&node), format!("vsphere://{}", old[0].uuid));
    for name in ["gone", "kept"] {
        stage.nodes.set_ready(name, false).await;
    }
    // The old VM is off, but the kubelet runs on the new one: volumes must stay.
    let kept = stage.until("the node is tainted", "kept", |node| has_taint(node, SHUTDOWN)).await;
    assert!(!has_taint(&kept, OUT_OF_SERVICE), "{:?}", kept.spec);
    stage.settle(&ccm, "marker").await;
    assert!(stage.api().get_opt("gone").await.unwrap().is_some(), "its new VM exists");
    // The Node has the uuids of two VMs: only its owner can decide that it is gone.
    stage.vcenter.destroy_vm("/DC0/vm/gone-new").await;
    stage
        .event_containing_all("gone", "VMUncertain", &[&new("gone").uuid, "delete the Node"])
        .await;
    stage.settle(&ccm, "marker-2").await;
    for name in ["gone", "kept"] {
        assert!(stage.api().get_opt(name).await.unwrap().is_some(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_vcenter_is_unreachable_nothing_is_deleted() {
    let (stage, ccm) = started(&vms(&["gone", "node-2"]), QUICK).await;
    stage.vcenter.fault(Fault::on("*").status(503)).await;
    stage.vcenter.expire_sessions("").await;
    stage.vcenter.destroy_vm("/DC0/vm/gone").await;
    stage.nodes.set_ready("gone", false).await;
    stage.nodes.set_ready("node-2", false).await;
    until_logged(&ccm, "the vCenter is unavailable").await;
    stage.node("gone").await;
    // A controller that starts during the outage has never seen the VM.
    drop(ccm);
    let next = stage.controller("", &["--node-deletion-delay=1s", "--leader-elect=false"]);
    stage.event_containing("gone", "VMUncertain", "is unavailable").await;
    stage.node("gone").await;
    stage.vcenter.clear_faults().await;
    stage.until_deleted("gone").await;
    stage.settle(&next, "marker").await;
    stage.node("node-2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_vcenter_at_the_same_address_is_no_proof_after_a_restart() {
    let (mut stage, ccm) = started(&vms(&["node-1", "node-2"]), QUICK).await;
    drop(ccm);
    for name in ["node-1", "node-2"] {
        stage.nodes.set_ready(name, false).await;
    }
    // It is empty and correctly does not know the recorded references and uuids.
    stage.vcenter.replace(other_vcenter(2, &[])).await;
    let ccm = stage.controller("", &["--node-deletion-delay=1s", "--leader-elect=false"]);
    for name in ["node-1", "node-2"] {
        stage
            .event_containing(name, "VMUncertain", "another vCenter than the one that answers")
            .await;
    }
    stage.settle(&ccm, "marker").await;
    for name in ["node-1", "node-2"] {
        stage.node(name).await;
    }
}

/// The inventory of another vCenter, with its own uuid.
fn other_vcenter(number: u8, vms: &[Vm]) -> Inventory {
    let mut inventory = readable(Inventory::small().vms(vms.to_vec()));
    let uuid = format!("{number:0>8}-0000-4000-8000-00000000000{number}");
    inventory.about.insert("instanceUuid".to_owned(), uuid);
    inventory
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_moved_to_a_hidden_folder_is_not_gone() {
    let mine = vms(&["node-1"]);
    let stays = vms(&["node-3"]);
    let theirs = vms(&["node-2", "node-4"]);
    let stage = Stage::with(Inventory::small().vms([mine.clone(), stays.clone()].concat())).await;
    let mut other = Vcenter::start(other_vcenter(1, &theirs)).await;
    for some in [&mine, &stays, &theirs] {
        stage.add_nodes(some).await;
    }
    let port = other.address().port();
    let more = |server: &str| {
        format!(
            "  two:\n    server: {server}\n    port: {port}\n    insecureFlag: true\n    user: {USER}\n    \
             password: {PASSWORD}"
        )
    };
    let flags = ["--node-deletion-delay=1s", "--leader-elect=false"];
    let ccm = stage.controller(&more("localhost"), &flags);
    for vm in [&mine[..], &stays, &theirs].concat() {
        stage.initialised(&vm.name, &ccm).await;
    }
    drop(ccm);
    for way in ["/DC0/host", "/DC0/vm"] {
        other.permit(&Permission::new(USER, "NoAccess", way)).await;
    }
    other.add_vms("DC0", mine).await;
    other.destroy_vm("/DC0/vm/node-4").await;
    stage.vcenter.destroy_vm("/DC0/vm/node-1").await;
    for name in ["node-1", "node-4"] {
        stage.nodes.set_ready(name, false).await;
    }
    // The vCenter has another name in the configuration now; the records still have the old one.
    let renamed = format!("127.0.0.1:{port}");
    let ccm = stage.controller(&more("127.0.0.1"), &flags);
    let text = format!("of other nodes' VMs in {renamed}");
    stage.event_containing("node-1", "VMUncertain", &text).await;
    stage.settle(&ccm, "marker").await;
    for name in ["node-1", "node-4"] {
        stage.node(name).await;
    }
    for way in ["/DC0/host", "/DC0/vm"] {
        other.permit(&Permission::new(USER, "reader", way)).await;
    }
    let there = |node: &k8s_openapi::api::core::v1::Node| {
        record(node).unwrap()["vcenter"] == renamed.as_str()
    };
    for name in ["node-1", "node-2"] {
        stage.until("the new reference is recorded", name, there).await;
    }
    // Its record has the old name, and its VM is really gone.
    stage.until_deleted("node-4").await;
    // The second vCenter is another one now, and correctly does not know VMs of the old one.
    drop(ccm);
    other.replace(other_vcenter(2, &[])).await;
    stage.vcenter.destroy_vm("/DC0/vm/node-3").await;
    stage.nodes.set_ready("node-3", false).await;
    let ccm = stage.controller(&more("127.0.0.1"), &flags);
    let text = "other nodes' VMs were in another vCenter";
    stage.event_containing("node-3", "VMUncertain", text).await;
    stage.settle(&ccm, "marker-2").await;
    stage.node("node-3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_configuration_on_disk_cannot_be_used_nothing_is_deleted() {
    let (stage, ccm) = started(&vms(&["gone"]), QUICK).await;
    // A second vCenter with a misspelt key.
    stage.configuration("  two:\n    srever: 127.0.0.2\n    datacenters: [DC0]");
    until_logged(&ccm, "the changed configuration cannot be used").await;
    stage.vcenter.destroy_vm("/DC0/vm/gone").await;
    stage.nodes.set_ready("gone", false).await;
    stage.event_containing_all("gone", "VMUncertain", &["cannot be used", "srever"]).await;
    stage.settle(&ccm, "marker").await;
    stage.node("gone").await;
    stage.configuration("");
    stage.until_deleted("gone").await;
}

/// The uuid of a physical server, and the name of one that has the name of a VM.
const SERVER: &str = "4c4c4544-0043-4b10-8050-b4c04f4d3732";
const NAMESAKE: &str = "n-1.metal.example";

#[tokio::test(flavor = "multi_thread")]
async fn after_a_mass_disappearance_or_with_skip_set_nothing_is_deleted() {
    let names: Vec<String> = (1..=10).map(|n| format!("n-{n}")).collect();
    let all: Vec<Vm> = names.iter().map(|name| Vm::named(name)).collect();
    let (stage, ccm) = started(&all, QUICK).await;
    // Nodes of another provider and physical servers must not count: 7 of 30 would be allowed, 7 of 11
    // are not.
    for n in 1..=10 {
        let foreign = Node::named(&format!("foreign-{n}")).provider_id(&format!("other://{n}"));
        stage.nodes.add(foreign).await;
        stage.nodes.add(Node::named(&format!("metal-{n}")).system_uuid(SERVER)).await;
    }
    // A physical server with the name of a VM plus a domain; the VM is destroyed later.
    stage.nodes.add(Node::named(NAMESAKE).system_uuid(SERVER)).await;
    stage.nodes.set_ready(NAMESAKE, false).await;
    stage.settle(&ccm, "marker-0").await;
    let before = stage.node(NAMESAKE).await;
    assert_eq!(record(&before), None, "it is not a VM");
    drop(ccm);
    let gone = &names[..7];
    for name in gone {
        stage.nodes.set_ready(name, false).await;
        stage.vcenter.destroy_vm(&format!("/DC0/vm/{name}")).await;
    }
    let all_exist = async |after: &str| {
        for name in &names {
            let node = stage.api().get_opt(name).await.unwrap();
            assert!(node.is_some(), "{after}: {name} was deleted");
        }
    };
    // With this delay, all disappear before the first one is due.
    let flags = ["--node-deletion-delay=10s", "--leader-elect=false"];
    let ccm = stage.controller("", &flags);
    for name in gone {
        stage.event_containing(name, "DeletionHeld", "7 of 11 nodes are gone at once").await;
    }
    all_exist("held").await;
    drop(ccm);
    let configuration = stage.configuration("");
    let flags =
        ["--node-deletion-delay=100ms", "--leader-elect=false", "--node-deletion-share=100"];
    let skip = [("SKIP_NODE_DELETION", "")];
    let skipping = stage.controller_named("skipping", &configuration, &flags, &skip);
    for name in gone {
        stage.event_containing(name, "DeletionHeld", "SKIP_NODE_DELETION is set").await;
    }
    stage.settle(&skipping, "marker").await;
    all_exist("skipped").await;
    drop(skipping);
    let _going = stage.controller("", &flags);
    for name in gone {
        stage.until_deleted(name).await;
    }
    let others = ["foreign-1", "metal-1", NAMESAKE];
    for name in names[7..].iter().map(String::as_str).chain(others) {
        stage.node(name).await;
    }
    assert_eq!(addresses(&stage.node(NAMESAKE).await), addresses(&before));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_registered_again_and_hidden_during_a_restart_keeps_its_node() {
    let all = vms(&["node-1", "node-2", "node-3"]);
    let stage = Stage::with(Inventory::small().vms(all.clone())).await;
    stage.add_nodes(&all).await;
    let flags = ["--leader-elect=false", "--node-deletion-delay=100ms"];
    let ccm = stage.controller("", &flags);
    for vm in &all {
        stage.initialised(&vm.name, &ccm).await;
    }
    drop(ccm);
    let old = record(&stage.node("node-1").await);
    // The old reference is gone and the new one is hidden: no visible uuid shows that the VM exists.
    stage.vcenter.reregister_vm("/DC0/vm/node-1").await;
    stage.vcenter.permit(&Permission::new(USER, "NoAccess", "/DC0/vm/node-1")).await;
    stage.vcenter.destroy_vm("/DC0/vm/node-2").await;
    for name in ["node-1", "node-2"] {
        stage.nodes.set_ready(name, false).await;
    }
    let ccm = stage.controller("", &flags);
    stage
        .event_containing(
            "node-1",
            "VMUncertain",
            "contains a VM that the controller's user cannot see",
        )
        .await;
    stage.settle(&ccm, "marker").await;
    assert!(stage.api().get_opt("node-1").await.unwrap().is_some());
    // Visible again and then destroyed: both Nodes are deleted.
    stage.vcenter.permit(&Permission::new(USER, "reader", "/DC0/vm/node-1")).await;
    stage.until("the new reference is recorded", "node-1", |node| record(node) != old).await;
    stage.vcenter.destroy_vm("/DC0/vm/node-1").await;
    stage.until_deleted("node-1").await;
    stage.until_deleted("node-2").await;
    // Registered again and inaccessible: no uuid shows that the VM exists.
    drop(ccm);
    let old = record(&stage.node("node-3").await);
    let nothing = "00000000-0000-0000-0000-000000000000";
    stage.vcenter.reregister_vm("/DC0/vm/node-3").await;
    let unread = json!({"uuid": nothing, "instanceUuid": nothing});
    stage.vcenter.patch_vm("/DC0/vm/node-3", unread).await;
    stage.nodes.set_ready("node-3", false).await;
    let ccm = stage.controller("", &flags);
    let texts = ["a VM without a uuid", "/DC0/vm/node-3"];
    stage.event_containing_all("node-3", "VMUncertain", &texts).await;
    stage.settle(&ccm, "marker-2").await;
    stage.node("node-3").await;
    stage.vcenter.patch_vm("/DC0/vm/node-3", json!({"uuid": all[2].uuid})).await;
    stage.until("it is found again", "node-3", |node| record(node) != old).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_list_of_datacenters_or_a_new_name_deletes_no_node() {
    let all = vms(&["node-1", "node-2"]);
    let stage = Stage::with(two_datacenters(&all, &vms(&["other"]))).await;
    stage.add_nodes(&all).await;
    let ccm = stage.controller("", QUICK);
    for vm in &all {
        stage.initialised(&vm.name, &ccm).await;
    }
    stage.nodes.set_ready("node-2", false).await;
    let path = stage.configuration("");
    let right = std::fs::read_to_string(&path).unwrap();
    // An existing datacenter without these VMs: both nodes get an event, also the Ready one.
    stage.workdir.write(CONFIGURATION, right.replace("[DC0]", "[DC1]")).unwrap();
    stage
        .event_containing("node-2", "VMUncertain", "exists, but outside the configured datacenters")
        .await;
    stage.event_containing("node-1", "VMUncertain", "check the datacenters").await;
    // A datacenter that does not exist.
    stage.workdir.write(CONFIGURATION, right.replace("[DC0]", "[DC9]")).unwrap();
    let texts = ["DC9", "the new settings are not in use yet"];
    stage.event_containing_all("node-2", "VMUncertain", &texts).await;
    stage.workdir.write(CONFIGURATION, &right).unwrap();
    eventually("the first list is in use again", 60, async || {
        let times = ccm.log().matches("the new settings are in use").count();
        if times == 2 { Ok(()) } else { Err(ccm.tail()) }
    })
    .await;
    stage.settle(&ccm, "marker").await;
    for name in ["node-1", "node-2"] {
        stage.node(name).await;
    }
    // The kubelet of the first VM registers under another name: a second Node with the same VM.
    stage.nodes.set_ready("node-1", false).await;
    stage.nodes.add(Node::named("renamed").system_uuid(&all[0].uuid).uninitialized()).await;
    let renamed = stage.initialised("renamed", &ccm).await;
    let old = stage.node("node-1").await;
    assert_eq!(provider_id(&renamed), provider_id(&old), "the same VM");
    stage.event_containing("renamed", "DuplicateNode", "the node node-1 has the same VM").await;
    stage.settle(&ccm, "marker-2").await;
    stage.node("node-1").await;
    stage.api().delete("node-1", &kube::api::DeleteParams::default()).await.unwrap();
    // The remaining Node works like any other.
    stage.vcenter.patch_vm("/DC0/vm/node-1", json!({"power": "off"})).await;
    stage.nodes.set_ready("renamed", false).await;
    stage.until("the node is tainted", "renamed", |node| has_taint(node, SHUTDOWN)).await;
    stage.vcenter.destroy_vm("/DC0/vm/node-1").await;
    stage.until_deleted("renamed").await;
    stage.node("node-2").await;
}
