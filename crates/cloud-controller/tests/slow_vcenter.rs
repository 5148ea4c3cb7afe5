//! A slow or hanging vCenter next to a healthy one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::*;
use serde_json::json;
use testkit::{FaultProxy, Inventory, Process, Vcenter, Vm, eventually};

fn vms(names: &[&str]) -> Vec<Vm> {
    names.iter().map(|name| Vm::named(name)).collect()
}

/// Waits until the controller asks vCenter whether the VMs of these nodes are gone.
async fn until_asked(ccm: &Process, about: &[&str]) {
    eventually("the controller asks whether the VMs are gone", 60, async || {
        let log = ccm.log();
        let asked = |name: &&&str| {
            let mut lines =
                log.lines().filter(|line| line.contains("asking vCenter whether the VM"));
            lines.any(|line| line.contains(**name))
        };
        let missing: Vec<_> = about.iter().filter(|name| !asked(name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}\n{}", ccm.tail())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_vcenter_delays_no_other_deletes_nothing_and_recovers() {
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
    // One sync at a time, and a call timeout longer than the test: a sync that waits for the far vCenter
    // with the only worker permit would block all others.
    let flags = [
        "--leader-elect=false",
        "--node-deletion-delay=100ms",
        "--node-deletion-share=100",
        "--concurrent-node-syncs=1",
        "--log=info,cloud_controller=debug",
    ];
    let long_timeout = [&flags[..], &["--vcenter-call-timeout=1h"]].concat();
    let ccm = stage.controller(&more, &long_timeout);
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
    // A VM that comes back during the query does not wait for the answer.
    let before = record(&stage.node("near-back").await);
    stage.vcenter.destroy_vm("/DC0/vm/near-back").await;
    stage.nodes.set_ready("near-back", false).await;
    stage.settle(&ccm, "marker-0").await;
    stage.vcenter.add_vms("DC0", vms(&["near-back"])).await;
    stage.until("the new reference is recorded", "near-back", |node| record(node) != before).await;
    stage.settle(&ccm, "marker").await;
    stage.vcenter.patch_vm("/DC0/vm/near-off", json!({"power": "off"})).await;
    stage.nodes.set_ready("near-off", false).await;
    stage.until("the node is tainted", "near-off", |node| has_taint(node, SHUTDOWN)).await;
    for name in ["near-gone", "far-gone"] {
        stage.node(name).await;
    }
    // The vCenter answers again, slowly.
    proxy.delay(Duration::from_millis(200));
    for name in ["near-gone", "far-gone"] {
        stage.until_deleted(name).await;
    }
    stage.node("far-stays").await;

    // With a short call timeout, events name the hanging vCenter: at the start and during operation.
    proxy.black_hole();
    ccm.signal(rustix::process::Signal::TERM);
    let ended = ccm.wait(60).await.unwrap();
    assert!(ended.success(), "the shutdown does not wait for a hanging vCenter:\n{}", ccm.tail());
    stage.vcenter.destroy_vm("/DC0/vm/near-off").await;
    let late = vms(&["far-late"]);
    other.add_vms("DC0", late.clone()).await;
    stage.add_nodes(&late).await;
    let short_timeout = [&flags[..], &["--vcenter-call-timeout=3s"]].concat();
    let ccm = stage.controller(&more, &short_timeout);
    let texts = ["localhost:", "is unavailable"];
    stage.event_containing_all("near-off", "VMUncertain", &texts).await;
    stage.event_containing_all("far-late", "VMNotFound", &texts).await;
    stage.settle(&ccm, "marker-2").await;
    stage.node("near-off").await;
    proxy.heal();
    stage.until_deleted("near-off").await;
    stage.initialised("far-late", &ccm).await;
    proxy.black_hole();
    stage.vcenter.destroy_vm("/DC0/vm/near-lost").await;
    stage.nodes.set_ready("near-lost", false).await;
    stage
        .event_containing_all("near-lost", "VMUncertain", &["localhost:", "cannot be queried"])
        .await;
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
