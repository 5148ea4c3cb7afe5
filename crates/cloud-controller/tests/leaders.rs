//! Leader election: only the leader writes, whatever happens to the other instances.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::*;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use rustix::process::Signal;
use serde_json::json;
use testkit::{ControlPlane, FaultProxy, Inventory, User, Vm, eventually};

fn vms(names: &[&str]) -> Vec<Vm> {
    names.iter().map(|name| Vm::named(name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_frozen_during_its_writes_sends_none_after_another_leads() {
    let all: Vec<Vm> = (1..=40).map(|n| Vm::numbered("node", n)).collect();
    let inventory = Inventory::small().vms(all.clone());
    let stage = Stage::on(ControlPlane::builder().with_audit(), inventory).await;
    let configuration = stage.configuration("");
    let proxy = FaultProxy::before(stage.plane.address()).await;
    let terms = [
        "--leader-elect-lease-duration=30s",
        "--leader-elect-renew-deadline=25s",
        "--leader-elect-retry-period=1s",
    ];
    // Its own user name in the audit log.
    let user = User::named("first").in_group("system:masters");
    let kubeconfig = stage.plane.kubeconfig_via(&user, proxy.address());
    let first = stage.controller_as("first", &kubeconfig, &configuration, &terms, &[]);
    until_logged(&first, "inventory in view").await;
    let second = stage.controller_named("second", &configuration, &terms, &[]);
    until_logged(&second, "starting").await;
    // Slow enough to freeze it during its writes.
    proxy.delay(Duration::from_millis(500));
    stage.add_nodes(&all).await;
    // Write requests to nodes since then, by the time of the request: the audit log can lag.
    let of_first = |since: Timestamp| {
        stage.writes(|request| {
            let received = request["requestReceivedTimestamp"].as_str().unwrap_or_default();
            request["impersonatedUser"]["username"] == "first"
                && request["objectRef"]["resource"] == "nodes"
                && received.parse::<Timestamp>().is_ok_and(|received| received >= since)
        })
    };
    eventually("the first instance writes", 60, async || {
        if of_first(Timestamp::MIN).is_empty() { Err(first.tail()) } else { Ok(()) }
    })
    .await;
    proxy.black_hole();
    first.until_idle().await;
    first.signal(Signal::STOP);
    // Its requests are answered; it wakes up with the answers and more writes to send.
    proxy.heal();
    until_logged(&second, "leading").await;
    let tainted = |node: &&k8s_openapi::api::core::v1::Node| has_taint(node, UNINITIALIZED);
    let nodes = stage.api().list(&kube::api::ListParams::default()).await.unwrap().items;
    assert!(nodes.iter().filter(tainted).count() > 0, "it was frozen during its work");
    for vm in &all {
        stage.initialised(&vm.name, &second).await;
    }
    let leases = kube::Api::<Lease>::namespaced(stage.plane.client(), "kube-system");
    let lease = leases.get("cloud-controller-manager").await.unwrap().spec.unwrap();
    let second_leads = lease.acquire_time.unwrap().0;
    first.signal(Signal::CONT);
    let ended = first.wait(60).await.unwrap();
    assert_eq!(ended.code(), Some(1), "{}", first.tail());
    assert!(first.log().contains("the leadership was lost"), "{}", first.tail());
    stage.settle(&second, "marker").await;
    eventually("the last write is in the audit log", 60, async || {
        let marked = |request: &serde_json::Value| request["objectRef"]["name"] == "marker";
        let writes = stage.writes(|request| {
            marked(request) && request["userAgent"].to_string().contains("cloud-controller")
        });
        if writes.len() >= 2 { Ok(()) } else { Err(format!("{writes:?}")) }
    })
    .await;
    // Not even a write that would conflict.
    let after = of_first(second_leads);
    assert!(after.is_empty(), "{after:#?}");

    // The API server restarts. An instance that cannot renew its lease exits and is started again, as by a
    // kubelet, and one instance continues.
    stage.plane.restart_api_server().await;
    let vm = Vm::named("late");
    stage.vcenter.add_vms("DC0", [vm.clone()]).await;
    stage.add_nodes(&[vm]).await;
    let mut running = second;
    eventually("the node is initialised", 120, async || {
        if running.ended().is_some() {
            running = stage.controller_named("third", &configuration, &terms, &[]);
        }
        let node = stage.api().get("late").await.map_err(|e| e.to_string())?;
        if has_taint(&node, UNINITIALIZED) { Err(running.tail()) } else { Ok(()) }
    })
    .await;
    let nodes = stage.api().list(&kube::api::ListParams::default()).await.unwrap();
    assert_eq!(nodes.items.len(), all.len() + 2, "no node was deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_leads_at_once_when_the_first_stops() {
    let all = vms(&["node-1", "node-2"]);
    let stage = Stage::with(Inventory::small().vms(all.clone())).await;
    let configuration = stage.configuration("");
    let first = stage.controller_named("first", &configuration, &[], &[]);
    stage.add_nodes(&all[..1]).await;
    stage.initialised("node-1", &first).await;
    let second = stage.controller_named("second", &configuration, &[], &[]);
    until_logged(&second, "starting").await;
    first.signal(rustix::process::Signal::TERM);
    let ended = first.wait(60).await.unwrap();
    assert!(ended.success(), "{}", first.tail());
    stage.add_nodes(&all[1..]).await;
    stage.initialised("node-2", &second).await;
    let sessions = stage.vcenter.sessions().await;
    let own = sessions.as_array().unwrap().iter().filter(|s| s.to_string().contains("ccm"));
    assert_eq!(own.count(), 1, "the first logged out: {sessions}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_exits_at_once_when_another_takes_its_lease() {
    let stage = Stage::with(Inventory::small()).await;
    let ccm = stage.controller("", &[]);
    until_logged(&ccm, "leading").await;
    let leases = kube::Api::<Lease>::namespaced(stage.plane.client(), "kube-system");
    let other_holder = json!({"spec": {"holderIdentity": "somebody else"}});
    let parameters = kube::api::PatchParams::default();
    leases
        .patch("cloud-controller-manager", &parameters, &kube::api::Patch::Merge(other_holder))
        .await
        .unwrap();
    let ended = ccm.wait(60).await.unwrap();
    assert_eq!(ended.code(), Some(1), "{}", ccm.tail());
    // The reason, and the end of the process.
    assert!(ccm.log().contains("another instance leads"), "{}", ccm.tail());
    assert!(ccm.log().contains("the leadership was lost: the log above"), "{}", ccm.tail());
    let lease = leases.get("cloud-controller-manager").await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("somebody else"));
}
