//! The cases of the framework's lifecycle controller: twelve of deletion, nine of shutdown.

use serde_json::json;
use testkit::{Node, Process, Vm, eventually};

use super::{APART, common::*, hide, ready};

/// How the node came to be known.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    /// Initialised by ours: its machine is on record.
    Ours,
    /// Initialised by another controller: a provider id, and no record.
    Theirs,
    /// By nobody: no provider id, no taint.
    Nobodys,
}

/// What becomes of the machine.
#[derive(Clone, Copy, PartialEq)]
enum VirtualMachine {
    /// It stays on.
    On,
    /// It is switched off.
    Off,
    /// It may not be seen any more, and is switched off then.
    Hidden,
    /// It is destroyed: of a node of another controller before its kubelet stops, of others after that.
    Gone,
    /// It is switched off, and destroyed after the node was tainted.
    OffAndGone,
    /// There never was one.
    Never,
}

/// What the kubelet says.
#[derive(Clone, Copy, PartialEq)]
enum Kubelet {
    Ready,
    NotReady,
    Silent,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Deleted,
    Stays,
    Tainted,
}

/// One case.
pub(crate) struct Row {
    /// What it is about.
    pub(crate) case: &'static str,
    /// What becomes of the node.
    pub(crate) means: &'static str,
    name: &'static str,
    known: Known,
    vm: VirtualMachine,
    kubelet: Kubelet,
    end: End,
    /// Text of the event `MachineUncertain` that tells why the node stays.
    told: Option<&'static str>,
}

impl Row {
    pub(crate) fn vm(&self) -> Option<Vm> {
        let folder = if self.vm == VirtualMachine::Hidden { APART } else { "" };
        let vm = Vm { folder: folder.into(), ..Vm::named(self.name) };
        (self.vm != VirtualMachine::Never).then_some(vm)
    }

    pub(crate) fn node(&self) -> Node {
        let uuid = Vm::named(self.name).uuid;
        let node = Node::named(self.name).system_uuid(&uuid);
        match self.known {
            Known::Ours => node.uninitialized(),
            Known::Theirs => node.provider_id(&format!("vsphere://{uuid}")),
            Known::Nobodys => node,
        }
    }

    fn path(&self) -> String {
        let folder = if self.vm == VirtualMachine::Hidden { "apart/" } else { "" };
        format!("/DC0/vm/{folder}{}", self.name)
    }
}

const HIDDEN: &str = "may not be seen";
const DELETED: &str = "deleted";
const STAYS: &str = "stays as it is";
const UNSEEN: &str = "stays, and is told that its machine may not be seen";
const READY: &str = "stays, and is told that its machine is not in view though it is Ready";

/// All cases, in the framework's order.
pub(crate) fn all() -> Vec<Row> {
    let mut all = deletions(Known::Ours, FIRST);
    all.extend(deletions(Known::Theirs, SECOND));
    all.extend(shutdowns());
    all
}

/// Case and name of each row of [`deletions`].
type Titles = [(&'static str, &'static str); 6];

const FIRST: Titles = [
    ("not Ready, the machine is gone", "gone"),
    ("not Ready, the provider answers with an error", "error"),
    ("not Ready, the machine is there", "there"),
    ("Ready is Unknown, the machine is gone", "silent-gone"),
    ("Ready is Unknown, the machine is there", "silent-there"),
    ("Ready, the provider says that the machine is gone", "ready-gone"),
];
const SECOND: Titles = [
    ("not Ready, the machine is gone; initialised by another controller", "gone-2"),
    ("not Ready, the provider answers with an error; initialised by another controller", "error-2"),
    ("not Ready, the machine is there; initialised by another controller", "there-2"),
    ("Ready is Unknown, the machine is gone; initialised by another controller", "silent-gone-2"),
    ("Ready is Unknown, the machine is there; initialised by another controller", "silent-there-2"),
    (
        "Ready, the provider says that the machine is gone; initialised by another controller",
        "ready-gone-2",
    ),
];

fn deletions(known: Known, titles: Titles) -> Vec<Row> {
    use {End::*, Kubelet::*, VirtualMachine::*};
    let fates = [
        (Gone, NotReady, Deleted, DELETED, None),
        (Hidden, NotReady, Stays, UNSEEN, Some(HIDDEN)),
        (On, NotReady, Stays, STAYS, None),
        (Gone, Silent, Deleted, DELETED, None),
        (On, Silent, Stays, STAYS, None),
        (Gone, Ready, Stays, READY, Some("though the node is Ready")),
    ];
    let rows = titles.into_iter().zip(fates);
    rows.map(|((case, name), (vm, kubelet, end, means, told))| Row {
        case,
        means,
        name,
        known,
        vm,
        kubelet,
        end,
        told,
    })
    .collect()
}

fn shutdowns() -> Vec<Row> {
    use {End::*, Known::*, Kubelet::*, VirtualMachine::*};
    let row = |name, case, (known, vm, kubelet), (end, means)| {
        let told = (vm == Hidden).then_some(HIDDEN);
        Row { case, means, name, known, vm, kubelet, end, told }
    };
    let tainted = (Tainted, "tainted `shutdown`");
    let deleted = (Deleted, DELETED);
    vec![
        row("off", "not Ready, the machine is off", (Ours, Off, NotReady), tainted),
        row(
            "off-2",
            "no provider id, not Ready, the machine is off",
            (Nobodys, Off, NotReady),
            tainted,
        ),
        row(
            "never",
            "no provider id, and the provider never had one for it",
            (Nobodys, Never, NotReady),
            (
                Stays,
                "stays: no vCenter ever knew it, so it may be no virtual machine at all; the framework deletes it",
            ),
        ),
        row(
            "unclear",
            "no provider id, and asking for it gives an error; the machine is off",
            (Nobodys, Hidden, NotReady),
            (Stays, "stays without the taint, and is told that its machine may not be seen"),
        ),
        row(
            "missing",
            "no provider id, and the provider says that there is no such machine",
            (Nobodys, Gone, NotReady),
            (Deleted, "deleted: its machine is on record since the node was not Ready"),
        ),
        row(
            "off-gone",
            "not Ready, gone, and whether it is off cannot be asked",
            (Theirs, OffAndGone, NotReady),
            deleted,
        ),
        row("on-gone", "not Ready, gone, and not off", (Nobodys, Gone, Silent), deleted),
        row(
            "ready-off",
            "Ready, the provider says that the machine is off",
            (Ours, Off, Ready),
            (Stays, STAYS),
        ),
        row(
            "silent-off-gone",
            "Ready is Unknown, off, and the provider says that it is gone",
            (Ours, OffAndGone, Silent),
            deleted,
        ),
    ]
}

/// Lets happen what the rows say, and waits until each node has ended as it should.
pub(crate) async fn check(stage: &Stage, rows: &[Row], ccm: &Process) {
    for row in rows.iter().filter(|row| row.known == Known::Ours) {
        stage.initialised(row.name, ccm).await;
    }
    stage.all_ready().await;
    vms_stop(stage, rows).await;
    kubelets_stop(stage, rows).await;
    vms_vanish(stage, rows).await;
    for row in rows {
        if let Some(text) = row.told {
            stage.event_saying(row.name, "MachineUncertain", text).await;
        }
        until(stage, row, ccm).await;
    }
    stage.settle(ccm, "lifecycle-marker").await;
    for row in rows {
        until(stage, row, ccm).await;
    }
}

async fn vms_stop(stage: &Stage, rows: &[Row]) {
    for row in rows {
        match row.vm {
            VirtualMachine::Off | VirtualMachine::OffAndGone => {
                stage.vcenter.patch_vm(&row.path(), json!({"power": "off"})).await;
            }
            VirtualMachine::Gone if row.known == Known::Theirs => {
                stage.vcenter.destroy_vm(&row.path()).await;
            }
            _ => {}
        }
    }
}

async fn kubelets_stop(stage: &Stage, rows: &[Row]) {
    for row in rows {
        match row.kubelet {
            Kubelet::Ready => {}
            Kubelet::NotReady => stage.nodes.set_ready(row.name, false).await,
            Kubelet::Silent => stage.nodes.silence(row.name).await,
        }
    }
    for row in rows.iter().filter(|row| row.kubelet != Kubelet::Ready) {
        match row.vm {
            VirtualMachine::Gone if row.known == Known::Theirs => {}
            VirtualMachine::Off | VirtualMachine::OffAndGone => {
                stage.until("it is tainted", row.name, |node| has_taint(node, SHUTDOWN)).await;
            }
            VirtualMachine::Never => {
                stage.until("it is not Ready", row.name, |node| ready(node) != "True").await;
            }
            _ => {
                stage.until("its machine is on record", row.name, |n| record(n).is_some()).await;
            }
        }
    }
}

async fn vms_vanish(stage: &Stage, rows: &[Row]) {
    for row in rows {
        match row.vm {
            VirtualMachine::Hidden => {
                hide(stage, row.name).await;
                stage.vcenter.patch_vm(&row.path(), json!({"power": "off"})).await;
            }
            VirtualMachine::Gone if row.known != Known::Theirs => {
                stage.vcenter.destroy_vm(&row.path()).await;
            }
            VirtualMachine::OffAndGone => stage.vcenter.destroy_vm(&row.path()).await,
            _ => {}
        }
    }
}

async fn until(stage: &Stage, row: &Row, ccm: &Process) {
    eventually(row.case, 60, async || {
        assert!(ccm.ended().is_none(), "the controller ended:\n{}", ccm.tail());
        let found = stage.api().get_opt(row.name).await.map_err(|e| e.to_string())?;
        let end = match &found {
            None => End::Deleted,
            Some(node) if has_taint(node, SHUTDOWN) => End::Tainted,
            Some(_) => End::Stays,
        };
        if end == row.end {
            return Ok(());
        }
        let spec = found.and_then(|node| node.spec);
        Err(format!("{}: {end:?}, not {:?}: {spec:?}\n{}", row.name, row.end, ccm.tail()))
    })
    .await;
}
