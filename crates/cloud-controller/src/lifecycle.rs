//! What becomes of a node whose machine is off or gone. Pure: facts and the time in, a decision out.
//!
//! ```text
//!   Ready                        the taints of a stopped machine go
//!   not Ready, machine on        nothing
//!   not Ready, machine stopped   taint `shutdown`, and `out-of-service` where that is wanted
//!   not Ready, nothing is sure   nothing, and say why
//!   not Ready, proven gone       wait out the delay ─► within the limits? ─► delete
//! ```
//!
//! A node is deleted only on a [`Proof`]. Nothing else in this program can make one than the
//! question put to every vCenter; a view in memory, however fresh, cannot.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::model::{Node, OUT_OF_SERVICE, Power, SHUTDOWN, Taint};

/// Proof that a node's machine is gone: its vCenter said that the reference does not exist, and no
/// configured vCenter, each of them reachable and seen whole, knows any of the node's uuids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    evidence: String,
    at: Instant,
}

/// How long what vCenter said may be acted on, from its first answer: to list all machines of a large one
/// takes a while.
const PROOF_LASTS: Duration = Duration::from_mins(1);

impl Proof {
    /// Called by [`crate::absence`] alone, with vCenter's own word in hand, which was given `at`.
    pub(crate) fn new(_word: &vsphere::inventory::Gone, evidence: String, at: Instant) -> Self {
        Self { evidence, at }
    }

    /// Whether it is so old that the question is to be asked again.
    pub(crate) fn is_stale(&self) -> bool {
        self.at.elapsed() > PROOF_LASTS
    }

    /// What was asked and answered, for the event and the log.
    pub fn evidence(&self) -> &str {
        &self.evidence
    }

    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self { evidence: "a test says so".into(), at: Instant::now() }
    }
}

/// What is known of a node's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is there.
    Present(Option<Power>),
    /// It is not in view, and nothing more is known; the reason is for people.
    Uncertain(String),
    /// It is gone.
    Gone(Proof),
}

/// What an administrator decided.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Nodes are never deleted.
    pub skip_deletion: bool,
    /// How long a machine must be gone.
    pub delay: Duration,
    /// At most so many deletions...
    pub most: usize,
    /// ... in this time.
    pub window: Duration,
    /// More than this share of all nodes (in percent) gone at once is an accident, not a clean-up.
    pub share: usize,
    /// Also set the `out-of-service` taint on a stopped machine's node.
    pub out_of_service: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            skip_deletion: false,
            delay: Duration::from_secs(30),
            most: 20,
            window: Duration::from_mins(10),
            share: 30,
            out_of_service: false,
        }
    }
}

/// So many may always be gone at once, however small the cluster is.
const ALWAYS: usize = 3;

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Leave,
    /// Write these taints.
    SetTaints(Vec<Taint>),
    /// Look again then.
    Wait(Instant),
    /// It would be deleted, but for this.
    Hold(String, Option<Instant>),
    /// Delete it.
    Delete(Proof),
}

/// The taints a node should have, if they differ from those it has.
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
        // A machine that sleeps still holds its memory: its pods may wake up again.
        if policy.out_of_service && power == Some(Power::Off) && !node.has_taint(OUT_OF_SERVICE) {
            wanted.push(Taint::new(OUT_OF_SERVICE, Some(OUT_OF_SERVICE_VALUE), "NoExecute"));
        }
    }
    (*wanted != *node.taints).then_some(wanted)
}

/// The value that says the taint is ours. One that somebody else set, most often as `nodeshutdown`, is not
/// ours to take away.
const OUT_OF_SERVICE_VALUE: &str = "vdo-powered-off";

/// The memory of deletions: since when machines are gone, and what was deleted of late.
#[derive(Debug, Default)]
pub struct Deletions {
    /// By the uid of the node.
    gone_since: HashMap<Box<str>, Instant>,
    /// What was deleted, or is being deleted at this moment, oldest first.
    recent: VecDeque<(Box<str>, Instant)>,
}

impl Deletions {
    /// What to do with a node. `nodes` is the number of nodes that are ours, `unseen` how many of them
    /// have no machine in view, Ready or not, proven or not: what vanishes together is judged together,
    /// however long it takes to prove each one.
    ///
    /// [`Action::Delete`] counts as a deletion from here on, so that many who decide at once stay
    /// within the limits together; who then deletes nothing says so with [`Deletions::not_deleted`].
    pub fn decide(
        &mut self,
        node: &Node,
        standing: &Standing,
        (nodes, unseen): (usize, usize),
        policy: &Policy,
        now: Instant,
    ) -> Action {
        let proof = match standing {
            Standing::Gone(proof) if !node.ready && !node.deleting => proof,
            Standing::Present(power) => {
                self.gone_since.remove(&node.uid);
                return taints(node, *power, policy).map_or(Action::Leave, Action::SetTaints);
            }
            Standing::Gone(_) | Standing::Uncertain(_) => {
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
        let mine = self.recent.iter().position(|(deleted, _)| *deleted == node.uid);
        let mine = mine.and_then(|at| self.recent.remove(at));
        match self.within_limits((nodes, unseen), policy, now) {
            Ok(()) => {
                self.recent.push_back((node.uid.clone(), now));
                Action::Delete(proof.clone())
            }
            Err(held) => {
                if let Some(mine) = mine {
                    let after = self.recent.partition_point(|(_, at)| *at <= mine.1);
                    self.recent.insert(after, mine);
                }
                held
            }
        }
    }

    /// What holds a node whose machine was proven gone, and whose delay is over: as long as it does, nobody
    /// need be asked for another proof.
    pub fn held(
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

    /// Notes that a node was deleted.
    pub fn deleted(&mut self, uid: &str) {
        self.gone_since.remove(uid);
    }

    /// Takes back a decision to delete: the node was certainly not deleted.
    pub fn not_deleted(&mut self, uid: &str) {
        self.recent.retain(|(decided, _)| &**decided != uid);
    }

    /// Forgets a node that is no more.
    pub fn forget(&mut self, uid: &str) {
        self.gone_since.remove(uid);
    }

    /// How many nodes have lost their machine and still stand.
    pub fn gone(&self) -> usize {
        self.gone_since.len()
    }

    fn within_limits(
        &mut self,
        (nodes, unseen): (usize, usize),
        policy: &Policy,
        now: Instant,
    ) -> Result<(), Action> {
        let most_gone = ALWAYS.max(nodes.saturating_mul(policy.share) / 100);
        let gone = self.gone_since.len().max(unseen);
        if gone > most_gone {
            let why = format!(
                "the machines of {gone} of {nodes} nodes are gone at once: an accident is more likely than \
                 intent, so none is deleted; delete Nodes by hand, or raise --node-deletion-share above {}",
                policy.share
            );
            return Err(Action::Hold(why, Some(now + policy.delay.max(Duration::from_secs(5)))));
        }
        while self.recent.front().is_some_and(|(_, at)| now >= *at + policy.window) {
            self.recent.pop_front();
        }
        match self.recent.front() {
            Some((_, oldest)) if self.recent.len() >= policy.most => {
                let why = format!(
                    "{} nodes were deleted within {:?}, the most allowed; it goes on after that \
                     (--node-deletion-limit)",
                    policy.most, policy.window
                );
                Err(Action::Hold(why, Some(*oldest + policy.window)))
            }
            None if policy.most == 0 => {
                Err(Action::Hold("--node-deletion-limit is 0".into(), None))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
