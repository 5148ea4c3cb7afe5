//! Watches of a vCenter that answers some calls and not others.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{client_of, counted, holds, quick, until, watching};
use serde_json::json;
use testkit::{Fault, Inventory, Vcenter};
use tokio::time::Instant;
use vsphere::inventory::{Absence, Event, PowerState, Presence, Selection, Status, Vm};
use vsphere::{CallCounter, Limits};

fn vms() -> Selection {
    Selection::new().vms(&[Vm::IDENTITY, Vm::RUNTIME])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_check_does_not_block_other_changes() {
    let vcenter = Vcenter::start(Inventory::with_vms(3)).await;
    // No call times out during this test.
    let limits = Limits { call: Duration::from_hours(1), idle: Duration::from_hours(1), ..quick() };
    let client = client_of(&vcenter).limits(limits).connect().await.unwrap();
    let (watch, inventory, mut events) = watching(&client, vms()).await;
    let vm = inventory.view().vm_by_name("node-1").found().cloned().unwrap();

    vcenter.forget_calls().await;
    vcenter.fault(Fault::on("RetrievePropertiesEx").hangs()).await;
    vcenter.destroy_vm("/DC0/vm/node-1").await;
    testkit::eventually("the check has arrived", 60, async || {
        let asked = vcenter.calls().await.count("RetrievePropertiesEx");
        if asked > 0 { Ok(()) } else { Err("not yet") }
    })
    .await;
    vcenter.patch_vm("/DC0/vm/node-2", json!({"power": "off"})).await;
    until(&mut events, |event| match event {
        Event::Changed { after, .. } => {
            after.as_vm().is_some_and(|vm| vm.power == Some(PowerState::Off))
        }
        _ => false,
    })
    .await;
    let view = inventory.view();
    assert!(
        matches!(view.presence(&vm.reference), Presence::Departed(d) if d.absence == Absence::Unreachable),
        "the other departure is not reported before vCenter answers"
    );
    assert!(matches!(inventory.status(), Status::Live));
    drop((view, watch));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_stopped_during_an_outage_leaves_nothing_in_vcenter() {
    let vcenter = Vcenter::start(Inventory::with_vms(2)).await;
    let (client, counter) = counted(&vcenter).await;
    let (watch, _inventory, mut events) = watching(&client, vms()).await;
    // vCenter loses a reply and creates no other collector.
    vcenter.fault(Fault::on("CreatePropertyCollector").status(503)).await;
    vcenter.fault(Fault::on("WaitForUpdatesEx").dropped()).await;
    until(&mut events, |e| matches!(e, Event::Unreachable(_))).await;
    assert_eq!(counter.count("DestroyPropertyCollector"), 0);
    watch.stop().await;
    assert_eq!((counter.count("DestroyPropertyCollector"), counter.count("DestroyView")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vcenter_that_fails_after_each_snapshot_is_called_less_often() {
    let vcenter = Vcenter::start(Inventory::with_vms(2)).await;
    let counter = Arc::new(CallCounter::default());
    let limits = Limits {
        pause: Duration::from_millis(200),
        longest_pause: Duration::from_hours(1),
        ..quick()
    };
    let client = client_of(&vcenter).limits(limits).observer(counter.clone());
    let client = client.connect().await.unwrap();
    // Every second wait fails: the first wait of each collector is its snapshot.
    for nth in 0..60 {
        let fault = Fault::on("WaitForUpdatesEx").fails("RuntimeFault");
        vcenter.fault(fault.after(1 + nth).times(1)).await;
    }
    let start = Instant::now();
    let watch = client.watch(vms());
    holds("six views were created", || counter.count("CreatePropertyCollector") >= 6).await;
    // The five pauses between them are at least 0.1, 0.2, 0.4, 0.8 and 1.6 seconds, and longer on a
    // busy host.
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(3_100), "six views in {took:?}");
    drop(watch);
}
