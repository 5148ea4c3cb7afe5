//! The cases of the framework's lifecycle controller: 12 deletions and 9 shutdowns.

use serde_json::json;
use testkit::{Node, Process, Vm, eventually};

use super::{APART, common::*, hide, ready};

/// Who initialised the node.
#[derive(Clone, Copy, PartialEq)]
enum InitialisedBy {
    /// By our controller: its VM is recorded.
    Ours,
    /// By another controller: a provider id, and no record.
    Theirs,
    /// Not initialised: no provider id, no taint.
    Nobody,
}

#[derive(Clone, Copy, PartialEq)]
enum VmFate {
    On,
    /// Powered off.
    Off,
    /// Hidden from the user, then powered off.
    Hidden,
    /// Destroyed: before its kubelet stops if another controller initialised the node, otherwise after.
    Gone,
    /// Powered off, and destroyed after the node was tainted.
    OffAndGone,
    /// The VM never existed.
    Never,
}

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

pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) result: &'static str,
    name: &'static str,
    initialised_by: InitialisedBy,
    vm: VmFate,
    kubelet: Kubelet,
    end: End,
    /// Text of the event `VMUncertain`.
    event: Option<&'static str>,
}

impl Row {
    pub(crate) fn vm(&self) -> Option<Vm> {
        let folder = if self.vm == VmFate::Hidden { APART } else { "" };
        let vm = Vm { folder: folder.into(), ..Vm::named(self.name) };
        (self.vm != VmFate::Never).then_some(vm)
    }

    pub(crate) fn node(&self) -> Node {
        let uuid = Vm::named(self.name).uuid;
        let node = Node::named(self.name).system_uuid(&uuid);
        match self.initialised_by {
            InitialisedBy::Ours => node.uninitialized(),
            InitialisedBy::Theirs => node.provider_id(&format!("vsphere://{uuid}")),
            InitialisedBy::Nobody => node,
        }
    }

    fn path(&self) -> String {
        let folder = if self.vm == VmFate::Hidden { "apart/" } else { "" };
        format!("/DC0/vm/{folder}{}", self.name)
    }
}

const HIDDEN: &str = "is no longer visible";
const DELETED: &str = "deleted";
const STAYS: &str = "stays unchanged";
const UNSEEN: &str = "stays; an event reports that its VM is not visible";
const READY: &str = "stays; an event reports that its VM is not visible although it is Ready";

/// All cases, in the framework's order.
pub(crate) fn all() -> Vec<Row> {
    let mut all = deletions(InitialisedBy::Ours, FIRST);
    all.extend(deletions(InitialisedBy::Theirs, SECOND));
    all.extend(shutdowns());
    all
}

type Titles = [(&'static str, &'static str); 6];

const FIRST: Titles = [
    ("not Ready, the VM is gone", "gone"),
    ("not Ready, the provider answers with an error", "error"),
    ("not Ready, the VM exists", "there"),
    ("Ready is Unknown, the VM is gone", "silent-gone"),
    ("Ready is Unknown, the VM exists", "silent-there"),
    ("Ready, the provider reports that the VM is gone", "ready-gone"),
];
const SECOND: Titles = [
    ("not Ready, the VM is gone; initialised by another controller", "gone-2"),
    ("not Ready, the provider answers with an error; initialised by another controller", "error-2"),
    ("not Ready, the VM exists; initialised by another controller", "there-2"),
    ("Ready is Unknown, the VM is gone; initialised by another controller", "silent-gone-2"),
    ("Ready is Unknown, the VM exists; initialised by another controller", "silent-there-2"),
    (
        "Ready, the provider reports that the VM is gone; initialised by another controller",
        "ready-gone-2",
    ),
];

fn deletions(initialised_by: InitialisedBy, titles: Titles) -> Vec<Row> {
    use {End::*, Kubelet::*, VmFate::*};
    let results = [
        (Gone, NotReady, Deleted, DELETED, None),
        (Hidden, NotReady, Stays, UNSEEN, Some(HIDDEN)),
        (On, NotReady, Stays, STAYS, None),
        (Gone, Silent, Deleted, DELETED, None),
        (On, Silent, Stays, STAYS, None),
        (Gone, Ready, Stays, READY, Some("although the node is Ready")),
    ];
    let rows = titles.into_iter().zip(results);
    rows.map(|((case, name), (vm, kubelet, end, result, event))| Row {
        case,
        result,
        name,
        initialised_by,
        vm,
        kubelet,
        end,
        event,
    })
    .collect()
}

fn shutdowns() -> Vec<Row> {
    use {End::*, InitialisedBy::*, Kubelet::*, VmFate::*};
    let row = |name, case, (initialised_by, vm, kubelet), (end, result)| {
        let event = (vm == Hidden).then_some(HIDDEN);
        Row { case, result, name, initialised_by, vm, kubelet, end, event }
    };
    let tainted = (Tainted, "tainted `shutdown`");
    let deleted = (Deleted, DELETED);
    vec![
        row("off", "not Ready, the VM is off", (Ours, Off, NotReady), tainted),
        row("off-2", "no provider id, not Ready, the VM is off", (Nobody, Off, NotReady), tainted),
        row(
            "never",
            "no provider id, and the provider never had one for it",
            (Nobody, Never, NotReady),
            (
                Stays,
                "stays: no vCenter ever knew it, so it is possibly not a VM; the framework deletes it",
            ),
        ),
        row(
            "unclear",
            "no provider id, and the query for it fails; the VM is off",
            (Nobody, Hidden, NotReady),
            (Stays, "stays without the taint; an event reports that its VM is not visible"),
        ),
        row(
            "missing",
            "no provider id, and the provider reports that there is no such VM",
            (Nobody, Gone, NotReady),
            (Deleted, "deleted: its VM was recorded when the node became NotReady"),
        ),
        row(
            "off-gone",
            "not Ready, gone, and the power state cannot be queried",
            (Theirs, OffAndGone, NotReady),
            deleted,
        ),
        row("on-gone", "not Ready, gone, and not off", (Nobody, Gone, Silent), deleted),
        row(
            "ready-off",
            "Ready, the provider reports that the VM is off",
            (Ours, Off, Ready),
            (Stays, STAYS),
        ),
        row(
            "silent-off-gone",
            "Ready is Unknown, off, and the provider reports that it is gone",
            (Ours, OffAndGone, Silent),
            deleted,
        ),
    ]
}

/// Applies the changes of all rows, and waits until each node has its expected result.
pub(crate) async fn check(stage: &Stage, rows: &[Row], ccm: &Process) {
    for row in rows.iter().filter(|row| row.initialised_by == InitialisedBy::Ours) {
        stage.initialised(row.name, ccm).await;
    }
    stage.all_ready().await;
    vms_stop(stage, rows).await;
    kubelets_stop(stage, rows).await;
    vms_vanish(stage, rows).await;
    for row in rows {
        if let Some(text) = row.event {
            stage.event_containing(row.name, "VMUncertain", text).await;
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
            VmFate::Off | VmFate::OffAndGone => {
                stage.vcenter.patch_vm(&row.path(), json!({"power": "off"})).await;
            }
            VmFate::Gone if row.initialised_by == InitialisedBy::Theirs => {
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
            VmFate::Gone if row.initialised_by == InitialisedBy::Theirs => {}
            VmFate::Off | VmFate::OffAndGone => {
                stage
                    .until("the node is tainted", row.name, |node| has_taint(node, SHUTDOWN))
                    .await;
            }
            VmFate::Never => {
                stage.until("the node is not Ready", row.name, |node| ready(node) != "True").await;
            }
            _ => {
                stage.until("the VM is recorded", row.name, |n| record(n).is_some()).await;
            }
        }
    }
}

async fn vms_vanish(stage: &Stage, rows: &[Row]) {
    for row in rows {
        match row.vm {
            VmFate::Hidden => {
                hide(stage, row.name).await;
                stage.vcenter.patch_vm(&row.path(), json!({"power": "off"})).await;
            }
            VmFate::Gone if row.initialised_by != InitialisedBy::Theirs => {
                stage.vcenter.destroy_vm(&row.path()).await;
            }
            VmFate::OffAndGone => stage.vcenter.destroy_vm(&row.path()).await,
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
