//! Decides about a node whose VM is off or gone. Pure: facts and the time in, a decision out.
//!
//! ```text
//!   Ready                        remove the taints of a stopped VM
//!   not Ready, VM on             nothing
//!   not Ready, VM stopped        taint `shutdown`, and `out-of-service` if configured
//!   not Ready, VM state unclear  nothing, and report why
//!   not Ready, VM proven gone    wait for the delay ─► within the limits? ─► delete
//! ```
//!
//! A node is deleted only with a [`Proof`]. Only the queries to every vCenter can create one, never
//! the inventory in memory.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::model::{Node, OUT_OF_SERVICE, Power, SHUTDOWN, Taint};

/// Proof that a node's VM is gone: its vCenter reported that the reference does not exist, and no
/// configured vCenter knows any of the node's uuids. All vCenters were available and complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    evidence: String,
    at: Instant,
}

/// Counts from vCenter's first answer. It is this long because listing all VMs of a large vCenter
/// takes a while.
const PROOF_VALIDITY: Duration = Duration::from_mins(1);

impl Proof {
    /// Only for [`crate::absence`]. `at` is the time of vCenter's answer.
    pub(crate) fn new(_answer: &vsphere::inventory::Gone, evidence: String, at: Instant) -> Self {
        Self { evidence, at }
    }

    /// Whether the proof is too old to act on, so that vCenter must be asked again.
    pub(crate) fn is_stale(&self) -> bool {
        self.at.elapsed() > PROOF_VALIDITY
    }

    /// The answers, for the event and the log.
    pub fn evidence(&self) -> &str {
        &self.evidence
    }

    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self { evidence: "from a test".into(), at: Instant::now() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmState {
    Present(Option<Power>),
    /// Not visible, and not proven gone; with the reason for the event.
    Uncertain(String),
    Gone(Proof),
}

#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Never delete a node.
    pub skip_deletion: bool,
    /// How long a VM must be gone before its node is deleted.
    pub delay: Duration,
    /// The most deletions within `window`.
    pub limit: usize,
    pub window: Duration,
    /// If more than this percentage of all nodes lose their VM at once, none is deleted.
    pub share: usize,
    /// Also set the taint `out-of-service` on the node of a powered-off VM.
    pub out_of_service: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            skip_deletion: false,
            delay: Duration::from_secs(30),
            limit: 20,
            window: Duration::from_mins(10),
            share: 30,
            out_of_service: false,
        }
    }
}

/// This many VMs can be gone at once in a cluster of any size.
const ALWAYS_ALLOWED: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Leave,
    SetTaints(Vec<Taint>),
    /// Sync again at this time.
    Wait(Instant),
    /// Do not delete, for this reason; sync again at this time.
    Hold(String, Option<Instant>),
    Delete(Proof),
}

/// The taints to write, or `None` if they do not differ.
pub fn taints(node: &Node, power: Option<Power>, policy: &Policy) -> Option<Vec<Taint>> {
    let mut wanted: Vec<Taint> = node.taints.to_vec();
    if node.ready {
        let ours = |t: &Taint| {
            (&*t.key == SHUTDOWN && &*t.effect == "NoSchedule")
                || (&*t.key == OUT_OF_SERVICE && t.value.as_deref() == Some(OUT_OF_SERVICE_VALUE))
        };
        wanted.retain(|taint| !ours(taint));
    } else if matches!(power, Some(Power::Off | Power::Suspended)) {
        if !node.taints.iter().any(|t| &*t.key == SHUTDOWN && &*t.effect == "NoSchedule") {
            wanted.push(Taint::new(SHUTDOWN, None, "NoSchedule"));
        }
        // A suspended VM keeps its memory: its pods can resume.
        if policy.out_of_service && power == Some(Power::Off) && !node.has_taint(OUT_OF_SERVICE) {
            wanted.push(Taint::new(OUT_OF_SERVICE, Some(OUT_OF_SERVICE_VALUE), "NoExecute"));
        }
    }
    (*wanted != *node.taints).then_some(wanted)
}

/// Marks the taint as ours. The controller never removes a taint with another value, often
/// `nodeshutdown`.
const OUT_OF_SERVICE_VALUE: &str = "vdo-powered-off";

/// Since when VMs are gone, and recent deletions.
#[derive(Debug, Default)]
pub struct Deletions {
    /// By the uid of the node.
    gone_since: HashMap<Box<str>, Instant>,
    /// Uids of nodes that were deleted or are being deleted, oldest first.
    recent: VecDeque<(Box<str>, Instant)>,
}

impl Deletions {
    /// Decides about a node. `nodes` is the number of nodes that have or had a VM. `without_vm` counts
    /// those without a visible VM, Ready or not, proven or not: VMs that disappear together are
    /// judged together, however long each proof takes.
    ///
    /// [`Action::Delete`] counts as a deletion at once, so that concurrent decisions stay within the
    /// limits together. A caller that then deletes nothing calls [`Deletions::not_deleted`].
    pub fn decide(
        &mut self,
        node: &Node,
        vm_state: &VmState,
        (nodes, without_vm): (usize, usize),
        policy: &Policy,
        now: Instant,
    ) -> Action {
        let proof = match vm_state {
            VmState::Gone(proof) if !node.ready && !node.deleting => proof,
            VmState::Present(power) => {
                self.gone_since.remove(&node.uid);
                return taints(node, *power, policy).map_or(Action::Leave, Action::SetTaints);
            }
            VmState::Gone(_) | VmState::Uncertain(_) => {
                self.gone_since.remove(&node.uid);
                return taints(node, None, policy).map_or(Action::Leave, Action::SetTaints);
            }
        };
        if policy.skip_deletion {
            return Action::Hold("SKIP_NODE_DELETION is set".into(), None);
        }
        let since = *self.gone_since.entry(node.uid.clone()).or_insert(now);
        let due = since + policy.delay;
        if now < due {
            return Action::Wait(due);
        }
        // A second attempt at one node is one deletion.
        let earlier = self.recent.iter().position(|(deleted, _)| *deleted == node.uid);
        let earlier = earlier.and_then(|at| self.recent.remove(at));
        match self.within_limits((nodes, without_vm), policy, now) {
            Ok(()) => {
                self.recent.push_back((node.uid.clone(), now));
                Action::Delete(proof.clone())
            }
            Err(still_held) => {
                if let Some(earlier) = earlier {
                    let after = self.recent.partition_point(|(_, at)| *at <= earlier.1);
                    self.recent.insert(after, earlier);
                }
                still_held
            }
        }
    }

    /// [`Action::Hold`] for a node whose VM was proven gone and whose delay is over. While it applies,
    /// no new proof is needed.
    pub fn still_held(
        &mut self,
        node: &Node,
        counts: (usize, usize),
        policy: &Policy,
        now: Instant,
    ) -> Option<Action> {
        let since = *self.gone_since.get(&node.uid)?;
        // A second attempt at one node is one deletion.
        if now < since + policy.delay || self.recent.iter().any(|(uid, _)| *uid == node.uid) {
            return None;
        }
        self.within_limits(counts, policy, now).err()
    }

    pub fn deleted(&mut self, uid: &str) {
        self.gone_since.remove(uid);
    }

    /// Reverts [`Action::Delete`], if the node was certainly not deleted.
    pub fn not_deleted(&mut self, uid: &str) {
        self.recent.retain(|(decided, _)| &**decided != uid);
    }

    pub fn forget(&mut self, uid: &str) {
        self.gone_since.remove(uid);
    }

    /// Number of nodes whose VM is proven gone and that still exist.
    pub fn gone_count(&self) -> usize {
        self.gone_since.len()
    }

    fn within_limits(
        &mut self,
        (nodes, without_vm): (usize, usize),
        policy: &Policy,
        now: Instant,
    ) -> Result<(), Action> {
        let most_gone = ALWAYS_ALLOWED.max(nodes.saturating_mul(policy.share) / 100);
        let gone = self.gone_since.len().max(without_vm);
        if gone > most_gone {
            let why = format!(
                "the VMs of {gone} of {nodes} nodes are gone at once, which is probably an accident, so the controller \
                 deletes none of them: delete Nodes by hand, or raise --node-deletion-share above {}",
                policy.share
            );
            return Err(Action::Hold(why, Some(now + policy.delay.max(Duration::from_secs(5)))));
        }
        while self.recent.front().is_some_and(|(_, at)| now >= *at + policy.window) {
            self.recent.pop_front();
        }
        match self.recent.front() {
            Some((_, oldest)) if self.recent.len() >= policy.limit => {
                let why = format!(
                    "{} nodes were deleted within {:?}, which is the limit (--node-deletion-limit): deletion continues \
                     after that",
                    policy.limit, policy.window
                );
                Err(Action::Hold(why, Some(*oldest + policy.window)))
            }
            None if policy.limit == 0 => {
                Err(Action::Hold("--node-deletion-limit is 0".into(), None))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
