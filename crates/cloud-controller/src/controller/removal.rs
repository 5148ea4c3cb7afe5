//! Nodes whose machine is not in view: what is told of them, what holds them, and their end.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{
    Census, Next, Shared, Slot,
    look::{ASK_AGAIN, write_failed},
};
use crate::{
    absence::{self, LastSeen},
    events::Weight,
    identity::{self, Match},
    lifecycle::{Action, Proof, Standing},
    model::Node,
    nodes::{is_conflict, is_gone},
};

/// So long the nodes whose machine is not in view are taken to be as many as they were.
const CENSUS: Duration = Duration::from_secs(1);

impl Shared {
    /// A node whose machine is not in view.
    pub(super) async fn without_vm(&self, node: &Node, slot: Option<Slot>) -> Next {
        {
            let mut memory = self.memory();
            memory.lost.insert(node.name.clone());
            memory.unplace(&node.name);
        }
        if self.pool.is_starting() {
            // Told as soon as it is followed, or cannot be.
            self.memory().deletions.forget(&node.uid);
            return Next::OnChange;
        }
        let was_ours = was_ours(node);
        let policy = &self.options.policy;
        let may_go = was_ours && self.options.lifecycle_controller && !policy.skip_deletion;
        if node.is_uninitialized() {
            let why = match self.pool.troubles().first() {
                Some((vcenter, trouble)) => format!("{vcenter} is not followed at present: {trouble}"),
                None => "no virtual machine in the configured vCenters and datacenters has its uuid, name or \
                         address"
                    .into(),
            };
            if self.options.node_controller {
                self.say(node, Weight::Warning, "MachineNotFound", why);
            }
            if node.ready || !may_go {
                self.memory().deletions.forget(&node.uid);
                return Next::Retry;
            }
        }
        if !was_ours || !self.options.lifecycle_controller {
            return Next::OnChange;
        }
        if node.ready {
            self.note_unseen(node);
            let unknown = Standing::Uncertain(String::new());
            if let Action::SetTaints(taints) = self.decide(node, &unknown) {
                let patch = json!({"spec": {"taints": taints}});
                return self
                    .write(node, patch, &["taints"])
                    .await
                    .map_or_else(|n| n, |_| Next::OnChange);
            }
            return Next::OnChange;
        }
        if policy.skip_deletion {
            let text = "its machine is not in view; SKIP_NODE_DELETION is set, so it stays";
            self.say_lifecycle(node, Weight::Normal, "DeletionHeld", text.into());
            return Next::OnChange;
        }
        let counts = self.census().counts;
        let held = self.memory().deletions.held(node, counts, policy, Instant::now());
        if let Some(Action::Hold(why, at)) = held {
            return self.hold(node, why, at);
        }
        let question = async { absence::ask(&self.pool, node, &self.census().last_seen).await };
        let is_missing = |now: &Node| {
            !now.ready && identity::identify(now, &self.pool).outcome == Match::NotFound
        };
        let Some(standing) = self.ask_about(node, slot, question, is_missing).await else {
            return Next::OnChange;
        };
        if let Standing::Uncertain(why) = &standing {
            self.say_lifecycle(node, Weight::Warning, "MachineUncertain", why.clone());
        }
        match self.decide(node, &standing) {
            Action::Delete(proof) => self.delete(node, &proof).await,
            Action::Wait(at) => Next::At(at),
            Action::Hold(why, at) => self.hold(node, why, at),
            Action::Leave | Action::SetTaints(_) => Next::InDoubt,
        }
    }

    /// A node that would be deleted, but for this.
    fn hold(&self, node: &Node, why: String, until: Option<Instant>) -> Next {
        self.say_lifecycle(node, Weight::Warning, "DeletionHeld", why);
        Next::At(until.unwrap_or_else(|| Instant::now() + ASK_AGAIN))
    }

    /// A Ready node whose machine no vCenter shows, although all of them are followed: a list of
    /// datacenters that is wrong, or rights that were lost.
    fn note_unseen(&self, node: &Node) {
        if self.pool.troubles().is_empty() {
            let text = "its machine is not in view any more, though the node is Ready: check the datacenters, \
                        folders and clusters in the configuration, and the rights of the controller's user";
            self.say_lifecycle(node, Weight::Warning, "MachineUncertain", text.into());
        }
    }

    /// Nodes of other providers, and those that were never a machine of ours, do not count: they would make
    /// a disaster among ours look small.
    pub(super) fn census(&self) -> Census {
        let known = self.memory().census.clone().filter(|(at, _)| at.elapsed() < CENSUS);
        if let Some((_, census)) = known {
            return census;
        }
        let ours = self.nodes.count(|n| was_ours(n) && !identity::is_foreign(&n.provider_id));
        let unseen = self.nodes.count(|n| {
            was_ours(n)
                && !n.deleting
                && identity::identify(n, &self.pool).outcome == Match::NotFound
        });
        let mut last_seen = LastSeen::default();
        for node in self.nodes.all() {
            if let Some(record) = identity::record_of(&node) {
                let in_view = || identity::identify(&node, &self.pool).outcome != Match::NotFound;
                last_seen.note(&node.name, record, in_view);
            }
        }
        let census = Census { counts: (ours, unseen), last_seen: Arc::new(last_seen) };
        self.memory().census = Some((Instant::now(), census.clone()));
        census
    }

    /// The last look before a node is deleted is at the API server itself, and once more at what is in view
    /// of its machine: that may have come back while the question was on its way. The deletion holds only
    /// for what was seen there.
    async fn delete(&self, node: &Node, proof: &Proof) -> Next {
        let not_deleted = || self.memory().deletions.not_deleted(&node.uid);
        let fresh = match self.nodes.fetch(&node.name).await {
            Ok(Some(fresh)) => fresh,
            Ok(None) => {
                not_deleted();
                return Next::OnChange;
            }
            Err(error) => {
                not_deleted();
                return write_failed(node, "delete", &error);
            }
        };
        let is_another = fresh.uid != node.uid
            || fresh.provider_id != node.provider_id
            || fresh.record != node.record;
        let is_seen = identity::identify(&fresh, &self.pool).outcome != Match::NotFound;
        if fresh.ready || is_another || is_seen || proof.is_stale() {
            not_deleted();
            return Next::Retry;
        }
        match self.nodes.delete(&fresh).await {
            Ok(()) => {
                self.memory().deletions.deleted(&node.uid);
                self.metrics.wrote("delete");
                tracing::info!(node = &*node.name, evidence = proof.evidence(), "deleted");
                let text = format!(
                    "Deleting node {} because it does not exist in the cloud provider: {}",
                    node.name,
                    proof.evidence()
                );
                self.say_lifecycle(node, Weight::Normal, "DeletingNode", text);
                Next::OnChange
            }
            Err(error) => {
                // Without an answer it may have been deleted, and counts.
                if matches!(error, kube::Error::Api(_)) {
                    not_deleted();
                }
                if is_gone(&error) {
                    return Next::OnChange;
                }
                if !is_conflict(&error) {
                    let text = format!("the node could not be deleted: {error}");
                    self.say_lifecycle(node, Weight::Warning, "DeletingNodeFailed", text);
                }
                Next::Retry
            }
        }
    }
}

/// Whether a node was found to be a machine before.
fn was_ours(node: &Node) -> bool {
    !node.provider_id.is_empty() || node.record.is_some()
}
