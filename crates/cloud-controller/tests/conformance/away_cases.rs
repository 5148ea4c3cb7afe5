//! The framework's cases of a provider that answers with an error, once more, with a vCenter that is really
//! away: every connection to it is reset, and the controller that meets it so has never seen its inventory.

use serde_json::json;
use testkit::{FaultProxy, Node, Process, Vm};

use super::{common::*, until_shown};

/// Text of the event that tells why nothing is done.
const AWAY: &str = "is not followed at present";

/// One case.
pub(crate) struct Row {
    /// What it is about.
    pub(crate) case: &'static str,
    /// What becomes of the node.
    pub(crate) means: &'static str,
    name: &'static str,
    /// Reason of the event while vCenter is away.
    told: Option<&'static str>,
    /// How the node ends once vCenter is back, in words that it is recognised by.
    end: &'static str,
}

/// All cases: one of the node controller, three of the lifecycle controller.
pub(crate) fn all() -> Vec<Row> {
    vec![
        Row {
            case: "vCenter is away: a fresh node",
            means: "waits, and is told; initialised when vCenter is back",
            name: "away-fresh",
            told: Some("MachineNotFound"),
            end: "initialised",
        },
        Row {
            case: "vCenter is away: not Ready, the machine is gone",
            means: "stays, and is told; deleted when vCenter is back",
            name: "away-gone",
            told: Some("MachineUncertain"),
            end: "deleted",
        },
        Row {
            case: "vCenter is away: not Ready, the machine is gone; initialised by another controller",
            means: "stays, and is told; deleted when vCenter is back",
            name: "away-gone-2",
            told: Some("MachineUncertain"),
            end: "deleted",
        },
        Row {
            case: "vCenter is away: no provider id, not Ready, the machine is off",
            means: "stays without the taint; tainted `shutdown` when vCenter is back",
            name: "away-off",
            told: None,
            end: "tainted",
        },
    ]
}

fn path(name: &str) -> String {
    format!("/DC0/vm/{name}")
}

/// Lets vCenter go away, then all the rest happen, then a new controller begin; then vCenter come back.
pub(crate) async fn check(
    stage: &Stage,
    proxy: &FaultProxy,
    last: Process,
    start: impl Fn() -> Process,
) {
    let rows = all();
    let vm = |row: &Row| Vm::named(row.name);
    stage.vcenter.add_vms("DC0", rows.iter().map(vm)).await;
    let known = |name: &str| Node::named(name).system_uuid(&Vm::named(name).uuid);
    stage.nodes.add(known("away-gone").uninitialized()).await;
    let theirs = known("away-gone-2");
    stage
        .nodes
        .add(theirs.provider_id(&format!("vsphere://{}", Vm::named("away-gone-2").uuid)))
        .await;
    stage.nodes.add(known("away-off")).await;
    stage.initialised("away-gone", &last).await;
    for name in ["away-gone", "away-gone-2"] {
        stage.nodes.set_ready(name, false).await;
        stage.until("its machine is on record", name, |node| record(node).is_some()).await;
    }
    proxy.reset();
    drop(last);
    for name in ["away-gone", "away-gone-2"] {
        stage.vcenter.destroy_vm(&path(name)).await;
    }
    stage.vcenter.patch_vm(&path("away-off"), json!({"power": "off"})).await;
    stage.nodes.set_ready("away-off", false).await;
    stage.nodes.add(known("away-fresh").uninitialized()).await;
    let before = stage.shown(&rows).await;
    let ccm = start();
    for row in &rows {
        if let Some(reason) = row.told {
            stage.event_saying(row.name, reason, AWAY).await;
        }
        until_shown(stage, row.case, row.name, &ccm, &before[row.name]).await;
    }
    proxy.heal();
    for row in &rows {
        match row.end {
            "deleted" => stage.until_deleted(row.name).await,
            "tainted" => {
                stage.until("it is tainted", row.name, |node| has_taint(node, SHUTDOWN)).await;
            }
            _ => drop(stage.initialised(row.name, &ccm).await),
        }
    }
}

impl Stage {
    /// Each node in words.
    async fn shown(&self, rows: &[Row]) -> std::collections::BTreeMap<&'static str, String> {
        let mut all = std::collections::BTreeMap::new();
        for row in rows {
            all.insert(row.name, super::in_words(&self.node(row.name).await));
        }
        all
    }
}
