//! A vCenter that takes its time, or for ever, while another one is well.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::*;
use serde_json::json;
use testkit::{FaultProxy, Inventory, Process, Vcenter, Vm, eventually};

fn vms(names: &[&str]) -> Vec<Vm> {
    names.iter().map(|name| Vm::named(name)).collect()
}

/// Waits until the controller asks whether the machines of these nodes are gone.
async fn until_asked(ccm: &Process, about: &[&str]) {
    eventually("it is asked whether their machines are gone", 60, async || {
        let log = ccm.log();
        let asked = |name: &&&str| {
            let mut lines = log.lines().filter(|line| line.contains("asking whether its machine"));
            lines.any(|line| line.contains(**name))
        };
        let missing: Vec<_> = about.iter().filter(|name| !asked(name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}\n{}", ccm.tail())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vcenter_that_hangs_delays_nobody_else_deletes_nothing_and_is_met_again() {
    let near = vms(&["near-gone", "near-off", "near-lost", "near-back"]);
    let far = vms(&["far-gone", "far-stays"]);
    let stage = Stage::with(Inventory::small().vms(near.clone())).await;
    let mut inventory = readable(Inventory::small().vms(far.clone()));
    let uuid = "11111111-0000-4000-8000-000000000001".to_owned();
    inventory.about.insert("instanceUuid".to_owned(), uuid);
    let other = Vcenter::start(inventory).await;
    let proxy = FaultProxy::before(other.address()).await;
    let more = format!(
        "  two:\n    server: localhost\n    port: {}\n    insecureFlag: true\n    user: {USER}\n    password: \
         {PASSWORD}",
        proxy.address().port()
    );
    stage.add_nodes(&near).await;
    stage.add_nodes(&far).await;
    // One look at a time, and an answer that is waited for longer than any test lasts: who waits for
    // the far vCenter with the only slot in hand would delay everybody.
    let flags = [
        "--leader-elect=false",
        "--node-deletion-delay=100ms",
        "--node-deletion-share=100",
        "--concurrent-node-syncs=1",
        "--log=info,cloud_controller=debug",
    ];
    let patient = [&flags[..], &["--vcenter-call-timeout=1h"]].concat();
    let ccm = stage.controller(&more, &patient);
    for vm in near.iter().chain(&far) {
        stage.initialised(&vm.name, &ccm).await;
    }
    proxy.black_hole();
    stage.vcenter.destroy_vm("/DC0/vm/near-gone").await;
    other.destroy_vm("/DC0/vm/far-gone").await;
    for name in ["near-gone", "far-gone", "far-stays"] {
        stage.nodes.set_ready(name, false).await;
    }
    until_asked(&ccm, &["near-gone"]).await;
    // One that is in question too and comes back does not wait for the answer.
    let before = record(&stage.node("near-back").await);
    stage.vcenter.destroy_vm("/DC0/vm/near-back").await;
    stage.nodes.set_ready("near-back", false).await;
    stage.settle(&ccm, "marker-0").await;
    stage.vcenter.add_vms("DC0", vms(&["near-back"])).await;
    stage.until("its new place is on record", "near-back", |node| record(node) != before).await;
    stage.settle(&ccm, "marker").await;
    stage.vcenter.patch_vm("/DC0/vm/near-off", json!({"power": "off"})).await;
    stage.nodes.set_ready("near-off", false).await;
    stage.until("it is tainted", "near-off", |node| has_taint(node, SHUTDOWN)).await;
    for name in ["near-gone", "far-gone"] {
        stage.node(name).await;
    }
    // It answers again, slowly.
    proxy.delay(Duration::from_millis(200));
    for name in ["near-gone", "far-gone"] {
        stage.until_deleted(name).await;
    }
    stage.node("far-stays").await;

    // One whose patience ends says on the Node what it waited for: at the start, and in the middle.
    proxy.black_hole();
    ccm.signal(rustix::process::Signal::TERM);
    let ended = ccm.wait(60).await.unwrap();
    assert!(ended.success(), "it takes no leave of one that does not answer:\n{}", ccm.tail());
    stage.vcenter.destroy_vm("/DC0/vm/near-off").await;
    let late = vms(&["far-late"]);
    other.add_vms("DC0", late.clone()).await;
    stage.add_nodes(&late).await;
    let hasty = [&flags[..], &["--vcenter-call-timeout=3s"]].concat();
    let ccm = stage.controller(&more, &hasty);
    let texts = ["localhost:", "is not followed at present"];
    stage.event_with("near-off", "MachineUncertain", &texts).await;
    stage.event_with("far-late", "MachineNotFound", &texts).await;
    stage.settle(&ccm, "marker-2").await;
    stage.node("near-off").await;
    proxy.heal();
    stage.until_deleted("near-off").await;
    stage.initialised("far-late", &ccm).await;
    proxy.black_hole();
    stage.vcenter.destroy_vm("/DC0/vm/near-lost").await;
    stage.nodes.set_ready("near-lost", false).await;
    stage.event_with("near-lost", "MachineUncertain", &["localhost:", "cannot be asked"]).await;
    stage.settle(&ccm, "marker-3").await;
    for name in ["near-lost", "far-stays", "far-late"] {
        stage.node(name).await;
    }
    proxy.heal();
    stage.until_deleted("near-lost").await;
    for name in ["far-stays", "far-late"] {
        stage.node(name).await;
    }
}
