//! Nodes whose machine stops or is lost. A Node is deleted on proof, and on nothing else.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use common::*;
use serde_json::json;
use testkit::{Fault, Inventory, Permission, Process, Vm, eventually};

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

fn vms(names: &[&str]) -> Vec<Vm> {
    names.iter().map(|name| Vm::named(name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shutdown_taint_comes_with_power_off_and_goes_with_the_kubelets_return() {
    let (stage, _ccm) = started(&vms(&["off", "asleep", "on"]), &[]).await;
    for (vm, power) in [("off", "off"), ("asleep", "suspended")] {
        stage.vcenter.patch_vm(&format!("/DC0/vm/{vm}"), json!({ "power": power })).await;
    }
    for name in ["off", "asleep", "on"] {
        stage.nodes.set_ready(name, false).await;
    }
    for name in ["off", "asleep"] {
        stage.until("the taint is there", name, |node| has_taint(node, SHUTDOWN)).await;
    }
    assert!(!has_taint(&stage.node("on").await, SHUTDOWN), "its machine is on");
    let before = addresses(&stage.node("off").await);
    assert!(before.len() > 1, "a machine that is off keeps its addresses: {before:?}");
    stage.vcenter.patch_vm("/DC0/vm/off", json!({"power": "on"})).await;
    stage.nodes.set_ready("off", true).await;
    stage.until("the taint is gone", "off", |node| !has_taint(node, SHUTDOWN)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destroyed_machines_node_goes_once_it_is_not_ready() {
    let (stage, ccm) = started(&vms(&["gone", "ready", "stays"]), QUICK).await;
    stage.vcenter.destroy_vm("/DC0/vm/gone").await;
    stage.vcenter.destroy_vm("/DC0/vm/ready").await;
    stage.nodes.set_ready("gone", false).await;
    stage.nodes.set_ready("stays", false).await;
    stage.until_deleted("gone").await;
    let text = stage.event("gone", "DeletingNode").await;
    assert!(text.contains("does not exist in the cloud provider"), "{text}");
    stage.settle(&ccm, "marker").await;
    stage.node("ready").await;
    stage.node("stays").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_between_loses_nothing() {
    let (stage, ccm) = started(&vms(&["gone"]), QUICK).await;
    ccm.kill();
    stage.vcenter.destroy_vm("/DC0/vm/gone").await;
    stage.nodes.set_ready("gone", false).await;
    let _next = stage.controller("", &["--node-deletion-delay=1s", "--leader-elect=false"]);
    stage.until_deleted("gone").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_may_no_longer_be_seen_is_not_gone() {
    let (stage, ccm) = started(&vms(&["hidden"]), QUICK).await;
    stage.vcenter.permit(&Permission::new(USER, "NoAccess", "/DC0/vm/hidden")).await;
    stage.nodes.set_ready("hidden", false).await;
    let text = stage.event("hidden", "MachineUncertain").await;
    assert!(text.contains("may not be seen"), "{text}");
    stage.settle(&ccm, "marker").await;
    stage.node("hidden").await;
    // Hidden by its folder, and registered anew there: gone by its reference, alive all the same.
    stage.vcenter.forbid("/DC0/vm/hidden", USER).await;
    // A machine gets rights from its folder and from its resource pool.
    for way in ["/DC0/host", "/DC0/vm"] {
        stage.vcenter.permit(&Permission::new(USER, "NoAccess", way)).await;
    }
    stage.vcenter.reregister_vm("/DC0/vm/hidden").await;
    eventually("it is said once more", 30, async || {
        let log = ccm.log();
        if log.contains("the folder of its machine") { Ok(()) } else { Err(log) }
    })
    .await;
    stage.node("hidden").await;
    for way in ["/DC0/host", "/DC0/vm"] {
        stage.vcenter.forbid(way, USER).await;
    }
    stage.vcenter.destroy_vm("/DC0/vm/hidden").await;
    stage.until_deleted("hidden").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_registered_anew_keeps_its_node_which_learns_the_new_reference() {
    let (stage, _ccm) = started(&vms(&["node-1"]), QUICK).await;
    let before = record(&stage.node("node-1").await).unwrap();
    stage.nodes.set_ready("node-1", false).await;
    stage.vcenter.reregister_vm("/DC0/vm/node-1").await;
    let changed = |node: &k8s_openapi::api::core::v1::Node| {
        record(node).unwrap()["machine"] != before["machine"]
    };
    stage.until("the record names the new reference", "node-1", changed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_vcenter_is_away_nothing_is_deleted() {
    let (stage, ccm) = started(&vms(&["gone", "node-2"]), QUICK).await;
    stage.vcenter.fault(Fault::on("*").status(503)).await;
    stage.vcenter.expire_sessions("").await;
    stage.vcenter.destroy_vm("/DC0/vm/gone").await;
    stage.nodes.set_ready("gone", false).await;
    stage.nodes.set_ready("node-2", false).await;
    eventually("the outage is noticed", 60, async || {
        if ccm.log().contains("not followed") { Ok(()) } else { Err(ccm.tail()) }
    })
    .await;
    stage.node("gone").await;
    // A process that starts during the outage has never seen the machine, and knows no better.
    drop(ccm);
    let next = stage.controller("", &["--node-deletion-delay=1s", "--leader-elect=false"]);
    let text = stage.event("gone", "MachineUncertain").await;
    assert!(text.contains("is not followed at present"), "{text}");
    stage.node("gone").await;
    stage.vcenter.clear_faults().await;
    stage.until_deleted("gone").await;
    stage.settle(&next, "marker").await;
    stage.node("node-2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mass_disappearance_and_an_order_to_skip_delete_nothing() {
    let names = ["n-1", "n-2", "n-3", "n-4", "n-5", "n-6"];
    let (stage, ccm) = started(&vms(&names), QUICK).await;
    for name in &names[..5] {
        stage.nodes.set_ready(name, false).await;
        stage.vcenter.destroy_vm(&format!("/DC0/vm/{name}")).await;
    }
    // The delay of the first may be over before the last is seen gone: three may always go.
    let left =
        async || stage.api().list(&kube::api::ListParams::default()).await.unwrap().items.len();
    eventually("the rest is held", 30, async || {
        let log = ccm.log();
        let held = log.contains("DeletionHeld");
        if held || left().await <= 3 { Ok(()) } else { Err(ccm.tail()) }
    })
    .await;
    drop(ccm);
    let before = left().await;
    let configuration = stage.configuration("");
    let flags = ["--node-deletion-delay=1s", "--leader-elect=false", "--node-deletion-share=100"];
    let skip = [("SKIP_NODE_DELETION", "")];
    let skipping = stage.controller_named("skipping", &configuration, &flags, &skip);
    eventually("the order is followed", 30, async || {
        if skipping.log().contains("followed") { Ok(()) } else { Err(skipping.tail()) }
    })
    .await;
    for name in &names[..5] {
        if stage.api().get_opt(name).await.unwrap().is_some() {
            let text = stage.event(name, "DeletionHeld").await;
            assert!(!text.is_empty());
        }
    }
    stage.settle(&skipping, "marker").await;
    assert_eq!(left().await, before + 1);
    drop(skipping);
    let _going = stage.controller("", &flags);
    for name in &names[..5] {
        stage.until_deleted(name).await;
    }
    stage.node("n-6").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_registered_anew_and_hidden_while_nobody_looked_keeps_its_node() {
    let all = [Vm::named("node-1"), Vm::named("node-2")];
    let stage = Stage::with(Inventory::small().vms(all.clone())).await;
    stage.add_nodes(&all).await;
    let flags = ["--leader-elect=false", "--node-deletion-delay=100ms"];
    let ccm = stage.controller("", &flags);
    stage.initialised("node-1", &ccm).await;
    stage.initialised("node-2", &ccm).await;
    drop(ccm);
    let old = record(&stage.node("node-1").await);
    // Its old reference is gone for good, its new one may not be seen: no uuid says that it exists.
    stage.vcenter.reregister_vm("/DC0/vm/node-1").await;
    stage.vcenter.permit(&Permission::new(USER, "NoAccess", "/DC0/vm/node-1")).await;
    stage.vcenter.destroy_vm("/DC0/vm/node-2").await;
    for name in ["node-1", "node-2"] {
        stage.nodes.set_ready(name, false).await;
    }
    let ccm = stage.controller("", &flags);
    let text = stage.event("node-1", "MachineUncertain").await;
    assert!(text.contains("holds one that the controller's user may not see"), "{text}");
    stage.settle(&ccm, "marker").await;
    assert!(stage.api().get_opt("node-1").await.unwrap().is_some());
    // Seen again and really destroyed, both go.
    stage.vcenter.permit(&Permission::new(USER, "reader", "/DC0/vm/node-1")).await;
    stage.until("its new reference is on record", "node-1", |node| record(node) != old).await;
    stage.vcenter.destroy_vm("/DC0/vm/node-1").await;
    stage.until_deleted("node-1").await;
    stage.until_deleted("node-2").await;
}
