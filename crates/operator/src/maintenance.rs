//! Changes the VM of a node while it is off: drains the node, shuts the VM down, changes it, powers it on and waits for
//! the node. Only `vdoctl fix` does this, one node at a time.
//!
//! ```text
//!   begin ─► drain ─► shut down ─► change ─► power on ─► wait until Ready ─► finish
//!     │                                                                        │
//!     └── annotation on the Node: what to change, whether it was cordoned ─────┘
//! ```
//!
//! The process can be killed at any instant: the annotation remains, and the next run continues. Every step checks first
//! whether it is done. Evictions respect PodDisruptionBudgets.

mod drain;

use std::time::Duration;

use health::repair::{Proposal, Repair};
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use plan::names;
use serde::{Deserialize, Serialize};
use serde_json::json;
use snafu::{OptionExt, ResultExt, Snafu};
use tokio::time::{Instant, sleep};
use vsphere::{
    Client, MoRef, Task,
    inventory::PowerState,
    vm::{VmChange, VmState},
};

pub use self::drain::{DrainOptions, Obstacle, obstacles};
use crate::remediation::RepairClients;

/// The interval of checks whether something has happened.
const PACE: Duration = Duration::from_secs(1);
/// How long a guest can take to shut down before VDO powers its VM off.
const SHUTDOWN: Duration = Duration::from_mins(3);
/// The timeout for a task in vCenter.
const TASK: Duration = Duration::from_mins(5);
/// How long a node can take to become Ready after its VM was powered on.
const READY: Duration = Duration::from_mins(15);

/// The reason why maintenance stopped. The next run continues.
#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("the API server rejected a request about {object}"))]
    Kubernetes {
        object: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("vCenter rejected a change of the VM of {node}"))]
    Vcenter {
        node: String,
        #[snafu(source(from(vsphere::Error, Box::new)))]
        source: Box<vsphere::Error>,
    },
    #[snafu(display("the vCenter {vcenter} is not connected"))]
    Unreachable { vcenter: String },
    #[snafu(display("{node} is not drained after {} minutes: {left}", minutes(*within)))]
    NotDrained { node: String, within: Duration, left: String },
    #[snafu(display("{node} is not Ready {} minutes after its VM was powered on", minutes(READY)))]
    NotReady { node: String },
    #[snafu(display("the VM of {node} is {power} and not {expected}"))]
    Power { node: String, power: String, expected: &'static str },
    #[snafu(display("the repair does not change the VM of a node"))]
    NoVm,
}

fn minutes(duration: Duration) -> u64 {
    duration.as_secs().div_ceil(60)
}

/// The change that `vdoctl fix` makes on the VM of a node. It is an annotation of the node until the work is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Work {
    /// The finding.
    pub code: String,
    pub repair: Repair,
    pub started: Timestamp,
    /// Whether somebody else had cordoned the node before.
    #[serde(default)]
    pub was_cordoned: bool,
}

impl Work {
    /// The node.
    pub fn node(&self) -> &str {
        self.repair.drained_node().unwrap_or_default()
    }
}

/// The work that earlier runs did not finish. Check that each is about the VM of its node: see
/// [`health::repair::is_of_its_node`].
///
/// # Errors
/// Fails if the nodes cannot be listed.
pub async fn unfinished(client: &kube::Client) -> Result<Vec<Work>, kube::Error> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    let work = nodes.iter().filter_map(|node| work_of(node).map(|work| (node.name_any(), work)));
    // A record names its own node.
    Ok(work.filter(|(node, work)| work.node() == node).map(|(_, work)| work).collect())
}

fn work_of(node: &Node) -> Option<Work> {
    serde_json::from_str(node.annotations().get(names::MAINTENANCE)?).ok()
}

/// A step, in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Drain,
    ShutDown,
    Change,
    PowerOn,
    BecomeReady,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 5] =
        [Self::Drain, Self::ShutDown, Self::Change, Self::PowerOn, Self::BecomeReady];

    /// The step in words.
    pub fn title(self, node: &str) -> String {
        match self {
            Self::Drain => format!("Drain {node}"),
            Self::ShutDown => format!("Shut down the VM of {node}"),
            Self::Change => format!("Change the VM of {node}"),
            Self::PowerOn => format!("Power on the VM of {node}"),
            Self::BecomeReady => format!("Wait for {node}"),
        }
    }
}

/// The work on one node.
pub struct Maintenance<'a> {
    clients: &'a RepairClients,
    session: &'a Client,
    vm: MoRef,
    work: Work,
    options: DrainOptions,
    /// The last sign of life of the kubelet before its VM was powered on.
    last_seen: Option<Timestamp>,
}

impl<'a> Maintenance<'a> {
    /// Records the work on the node, and cordons it. Continues the work if it was recorded before.
    ///
    /// # Errors
    /// Fails if the node or its vCenter is unreachable, or if the API server refuses the change.
    pub async fn begin(
        clients: &'a RepairClients,
        code: &str,
        repair: &Repair,
        options: DrainOptions,
    ) -> Result<Self, Error> {
        let (Repair::PowerCycle { vcenter, vm, node }
        | Repair::UpgradeHardware { vcenter, vm, node, .. }
        | Repair::ReplaceControllers { vcenter, vm, node }
        | Repair::SetBlockTracking { vcenter, vm, node, .. }) = repair
        else {
            return NoVmSnafu.fail();
        };
        let session = clients.vcenters.get(vcenter).context(UnreachableSnafu { vcenter })?;
        let nodes = Api::<Node>::all(clients.cluster.clone());
        let object = || format!("Node {node}");
        let before = nodes.get(node).await.context(KubernetesSnafu { object: object() })?;
        let cordoned = before.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        let recorded = work_of(&before);
        let same = recorded.filter(|work| work.code == code && work.repair == *repair);
        let work = same.unwrap_or_else(|| Work {
            code: code.to_owned(),
            repair: repair.clone(),
            started: Timestamp::now(),
            // Work on another finding that was not finished has cordoned it.
            was_cordoned: work_of(&before).map_or(cordoned, |earlier| earlier.was_cordoned),
        });
        let text = json!(work).to_string();
        let change = json!({
            "metadata": {"annotations": {names::MAINTENANCE: text}},
            "spec": {"unschedulable": true},
        });
        let written = nodes.patch(node, &parameters(), &Patch::Merge(change)).await;
        written.context(KubernetesSnafu { object: object() })?;
        let vm = MoRef::new("VirtualMachine", vm.as_str());
        Ok(Self { clients, session, vm, work, options, last_seen: None })
    }

    /// The steps that are left. The VM stays on if the change is made already.
    ///
    /// # Errors
    /// Fails if vCenter does not show the VM.
    pub async fn steps(&self) -> Result<&'static [Step], Error> {
        let state = self.state().await?;
        let left = if is_made(&self.work, &state) { 3 } else { 0 };
        Ok(&Step::ALL[left..])
    }

    /// Makes one step. `waits` gets the thing that the step waits for.
    ///
    /// # Errors
    /// Fails if the API server or vCenter refuses something, or after a timeout.
    pub async fn make(&mut self, step: Step, waits: impl FnMut(&str)) -> Result<(), Error> {
        match step {
            Step::Drain => {
                drain::drain(&self.clients.cluster, self.work.node(), self.options, waits).await
            }
            Step::ShutDown => self.shut_down(waits).await,
            Step::Change => self.change().await,
            Step::PowerOn => self.power_on().await,
            Step::BecomeReady => self.become_ready(waits).await,
        }
    }

    /// Uncordons the node, unless somebody else had cordoned it, and removes the record.
    ///
    /// # Errors
    /// Fails if the API server refuses the change.
    pub async fn finish(self) -> Result<(), Error> {
        let mut change = json!({"metadata": {"annotations": {names::MAINTENANCE: null}}});
        if !self.work.was_cordoned {
            change["spec"] = json!({"unschedulable": null});
        }
        let nodes = Api::<Node>::all(self.clients.cluster.clone());
        let written = nodes.patch(self.work.node(), &parameters(), &Patch::Merge(change)).await;
        written.map(drop).context(KubernetesSnafu { object: format!("Node {}", self.work.node()) })
    }

    async fn state(&self) -> Result<VmState, Error> {
        self.session.vm_state(&self.vm).await.context(VcenterSnafu { node: self.work.node() })
    }

    /// Shuts the guest down. Powers the VM off if VMware Tools does not run or the guest takes too long: the node is
    /// drained.
    async fn shut_down(&self, mut waits: impl FnMut(&str)) -> Result<(), Error> {
        let state = self.state().await?;
        if state.power == PowerState::Off {
            return Ok(());
        }
        let asked = state.tools_run && self.session.shut_down_guest(&self.vm).await.is_ok();
        let end = Instant::now() + SHUTDOWN;
        while asked && Instant::now() < end {
            if self.state().await?.power == PowerState::Off {
                return Ok(());
            }
            waits("the guest shuts down");
            sleep(PACE).await;
        }
        let done = self.ended(self.session.power_off(&self.vm).await).await;
        self.unless(done, |state| state.power == PowerState::Off).await
    }

    /// Waits for a task in vCenter.
    async fn ended(&self, task: Result<Task, vsphere::Error>) -> Result<(), Error> {
        let node = self.work.node();
        task.context(VcenterSnafu { node })?
            .wait(TASK)
            .await
            .map(drop)
            .context(VcenterSnafu { node })
    }

    /// Ignores a failure if the VM is as it should be: the task of an earlier run may have ended only now.
    async fn unless(
        &self,
        done: Result<(), Error>,
        is_right: impl Fn(&VmState) -> bool,
    ) -> Result<(), Error> {
        match done {
            Err(_) if self.state().await.is_ok_and(|state| is_right(&state)) => Ok(()),
            done => done,
        }
    }

    async fn change(&self) -> Result<(), Error> {
        let node = self.work.node();
        let state = self.state().await?;
        if state.power != PowerState::Off {
            let power = state.power.to_string();
            return PowerSnafu { node, power, expected: "off" }.fail();
        }
        if is_made(&self.work, &state) {
            return Ok(());
        }
        let change = match &self.work.repair {
            Repair::UpgradeHardware { version, .. } => {
                let upgrade = self.session.upgrade_hardware(&self.vm, *version).await;
                let done = self.ended(upgrade).await;
                return self.unless(done, |state| is_made(&self.work, state)).await;
            }
            Repair::ReplaceControllers { .. } => {
                let old: Vec<_> = replaceable(&state).cloned().collect();
                VmChange::default().replace_controllers(&old)
            }
            Repair::SetBlockTracking { on, .. } => {
                VmChange { track_blocks: Some(*on), ..VmChange::default() }
            }
            _ => return Ok(()),
        };
        let done = self.ended(self.session.reconfigure(&self.vm, &change).await).await;
        self.unless(done, |state| is_made(&self.work, state)).await
    }

    async fn power_on(&mut self) -> Result<(), Error> {
        if self.state().await?.power == PowerState::On {
            return Ok(());
        }
        self.last_seen = self.seen().await.ok().flatten();
        let done = self.ended(self.session.power_on(&self.vm).await).await;
        self.unless(done, |state| state.power == PowerState::On).await
    }

    /// Waits for a sign of life of the kubelet since the VM was powered on. The Ready condition alone can be old.
    async fn become_ready(&self, mut waits: impl FnMut(&str)) -> Result<(), Error> {
        let node = self.work.node();
        let nodes = Api::<Node>::all(self.clients.cluster.clone());
        let end = Instant::now() + READY;
        let mut last_seen = self.last_seen;
        loop {
            // The API server may run on this node.
            let found = nodes.get(node).await.ok();
            let ready = found.as_ref().is_some_and(is_ready);
            let seen = self.seen().await.ok();
            // An earlier run may have powered the VM on: the first answer is no proof either.
            last_seen = last_seen.or(seen.flatten());
            let fresh = seen.is_some_and(|seen| seen.is_none() || seen != last_seen);
            if ready && fresh {
                return Ok(());
            }
            if Instant::now() >= end {
                return NotReadySnafu { node }.fail();
            }
            let what = if found.is_some() { "its kubelet" } else { "the API server" };
            waits(what);
            sleep(PACE).await;
        }
    }

    /// When the kubelet last renewed its lease.
    async fn seen(&self) -> Result<Option<Timestamp>, kube::Error> {
        let leases = Api::<Lease>::namespaced(self.clients.cluster.clone(), "kube-node-lease");
        let lease = leases.get_opt(self.work.node()).await?;
        Ok(lease.and_then(|lease| lease.spec?.renew_time).map(|time| time.0))
    }
}

fn parameters() -> PatchParams {
    PatchParams { field_manager: Some("vdoctl".into()), ..PatchParams::default() }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether the VM is as the repair makes it.
fn is_made(work: &Work, state: &VmState) -> bool {
    match &work.repair {
        Repair::UpgradeHardware { version, .. } => {
            state.hardware_version.is_some_and(|now| now >= *version)
        }
        Repair::ReplaceControllers { .. } => replaceable(state).next().is_none(),
        Repair::SetBlockTracking { on, .. } => state.tracks_blocks == Some(*on),
        Repair::PowerCycle { .. } => {
            state.power == PowerState::Off || state.boot_time.is_some_and(|at| at > work.started)
        }
        _ => true,
    }
}

/// The controllers without disks that volumes cannot use.
fn replaceable(state: &VmState) -> impl Iterator<Item = &vsphere::vm::ScsiController> {
    state.controllers.iter().filter(|c| !c.is_paravirtual() && c.disks == 0)
}

/// The proposals that need a VM to be off.
pub fn needs_power_off(proposal: &Proposal) -> bool {
    proposal.repair.drained_node().is_some()
}

#[cfg(test)]
mod tests {
    use vsphere::vm::ScsiController;

    use super::*;

    fn work(repair: Repair) -> Work {
        let started = Timestamp::UNIX_EPOCH;
        Work { code: "VDO-1204".into(), repair, started, was_cordoned: false }
    }

    fn place() -> (String, String, String) {
        ("vc".into(), "vm-1".into(), "worker-1".into())
    }

    fn state() -> VmState {
        VmState {
            power: PowerState::On,
            boot_time: Some(Timestamp::UNIX_EPOCH),
            hardware_version: Some(13),
            tracks_blocks: Some(false),
            tools_run: true,
            controllers: Vec::new(),
        }
    }

    #[test]
    fn a_change_that_is_made_needs_no_second_power_cycle() {
        let (vcenter, vm, node) = place();
        let upgrade = work(Repair::UpgradeHardware { vcenter, vm, node, version: 15 });
        assert!(!is_made(&upgrade, &state()));
        assert!(is_made(&upgrade, &VmState { hardware_version: Some(19), ..state() }));
        let unknown = VmState { hardware_version: None, ..state() };
        assert!(!is_made(&upgrade, &unknown), "what VDO cannot read is not made");
        let (vcenter, vm, node) = place();
        let cycle = work(Repair::PowerCycle { vcenter, vm, node });
        assert!(!is_made(&cycle, &state()), "it runs since before");
        let later = cycle.started + jiff::SignedDuration::from_secs(1);
        assert!(is_made(&cycle, &VmState { boot_time: Some(later), ..state() }));
        assert!(is_made(&cycle, &VmState { power: PowerState::Off, boot_time: None, ..state() }));
    }

    #[test]
    fn only_controllers_without_disks_are_replaced() {
        let controller = |type_name: &str, disks| ScsiController {
            key: 1000,
            bus: 0,
            type_name: type_name.into(),
            disks,
        };
        let with = |controllers| VmState { controllers, ..state() };
        let lsi = "VirtualLsiLogicController";
        let boot = with(vec![controller(lsi, 1), controller("ParaVirtualSCSIController", 0)]);
        assert_eq!(replaceable(&boot).count(), 0);
        assert_eq!(replaceable(&with(vec![controller(lsi, 0)])).count(), 1);
    }

    #[test]
    fn the_record_on_a_node_is_read_again() {
        let (vcenter, vm, node) = place();
        let work = work(Repair::SetBlockTracking { vcenter, vm, node, on: true });
        let text = json!(work).to_string();
        let annotated = |text: &str| {
            let annotations = [(names::MAINTENANCE.to_owned(), text.to_owned())].into();
            let mut node = Node::default();
            node.metadata.annotations = Some(annotations);
            node
        };
        assert_eq!(work_of(&annotated(&text)), Some(work));
        assert_eq!(work_of(&annotated("scribbled")), None);
    }
}
