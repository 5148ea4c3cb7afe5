//! The framework's cases of a provider that fails, with an unreachable vCenter: every connection is
//! reset, and the controller has never read the inventory.

use serde_json::json;
use testkit::{FaultProxy, Node, Process, Vm};

use super::{common::*, until_described};

/// Text of the event that reports the reason.
const UNAVAILABLE: &str = "is unavailable";

pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) result: &'static str,
    name: &'static str,
    /// Reason of the event while vCenter is unreachable.
    event: Option<&'static str>,
    /// The state of the node after vCenter is back.
    end: &'static str,
}

/// All cases: one of the node controller, three of the lifecycle controller.
pub(crate) fn all() -> Vec<Row> {
    vec![
        Row {
            case: "vCenter is unreachable: a new node",
            result: "waits; an event reports why; initialised when vCenter is back",
            name: "unreachable-fresh",
            event: Some("VMNotFound"),
            end: "initialised",
        },
        Row {
            case: "vCenter is unreachable: not Ready, the VM is gone",
            result: "stays; an event reports why; deleted when vCenter is back",
            name: "unreachable-gone",
            event: Some("VMUncertain"),
            end: "deleted",
        },
        Row {
            case: "vCenter is unreachable: not Ready, the VM is gone; initialised by another controller",
            result: "stays; an event reports why; deleted when vCenter is back",
            name: "unreachable-gone-2",
            event: Some("VMUncertain"),
            end: "deleted",
        },
        Row {
            case: "vCenter is unreachable: no provider id, not Ready, the VM is off",
            result: "stays without the taint; tainted `shutdown` when vCenter is back",
            name: "unreachable-off",
            event: None,
            end: "tainted",
        },
    ]
}

fn path(name: &str) -> String {
    format!("/DC0/vm/{name}")
}

/// Disconnects vCenter, changes nodes and VMs, starts a new controller, and reconnects vCenter.
pub(crate) async fn check(
    stage: &Stage,
    proxy: &FaultProxy,
    last: Process,
    start: impl Fn() -> Process,
) {
    let rows = all();
    let vm = |row: &Row| Vm::named(row.name);
    stage.vcenter.add_vms("DC0", rows.iter().map(vm)).await;
    let node = |name: &str| Node::named(name).system_uuid(&Vm::named(name).uuid);
    stage.nodes.add(node("unreachable-gone").uninitialized()).await;
    let other_controllers = node("unreachable-gone-2");
    stage
        .nodes
        .add(
            other_controllers
                .provider_id(&format!("vsphere://{}", Vm::named("unreachable-gone-2").uuid)),
        )
        .await;
    stage.nodes.add(node("unreachable-off")).await;
    stage.initialised("unreachable-gone", &last).await;
    for name in ["unreachable-gone", "unreachable-gone-2"] {
        stage.nodes.set_ready(name, false).await;
        stage.until("the VM is recorded", name, |node| record(node).is_some()).await;
    }
    proxy.reset();
    drop(last);
    for name in ["unreachable-gone", "unreachable-gone-2"] {
        stage.vcenter.destroy_vm(&path(name)).await;
    }
    stage.vcenter.patch_vm(&path("unreachable-off"), json!({"power": "off"})).await;
    stage.nodes.set_ready("unreachable-off", false).await;
    stage.nodes.add(node("unreachable-fresh").uninitialized()).await;
    let before = stage.described(&rows).await;
    let ccm = start();
    for row in &rows {
        if let Some(reason) = row.event {
            stage.event_containing(row.name, reason, UNAVAILABLE).await;
        }
        until_described(stage, row.case, row.name, &ccm, &before[row.name]).await;
    }
    proxy.heal();
    for row in &rows {
        match row.end {
            "deleted" => stage.until_deleted(row.name).await,
            "tainted" => {
                stage
                    .until("the node is tainted", row.name, |node| has_taint(node, SHUTDOWN))
                    .await;
            }
            _ => drop(stage.initialised(row.name, &ccm).await),
        }
    }
}

impl Stage {
    async fn described(&self, rows: &[Row]) -> std::collections::BTreeMap<&'static str, String> {
        let mut all = std::collections::BTreeMap::new();
        for row in rows {
            all.insert(row.name, super::describe(&self.node(row.name).await));
        }
        all
    }
}
