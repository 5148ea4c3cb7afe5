//! Nodes whose VM is not visible: events, reasons to keep them, deletion.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{
    NextSync, NodeSummary, Shared, WorkerPermit,
    sync::{POLL_INTERVAL, write_failed},
};
use crate::{
    absence::{self, LastSeen},
    events::EventType,
    identity::{self, Match},
    lifecycle::{Action, Proof, VmState},
    model::Node,
    nodes::{is_conflict, is_gone},
};

/// A summary of all nodes is reused for this long.
const SUMMARY_MAX_AGE: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) async fn sync_without_vm(
        &self,
        node: &Node,
        permit: Option<WorkerPermit>,
    ) -> NextSync {
        {
            let mut state = self.state();
            state.without_vm.insert(node.name.clone());
            state.unassign(&node.name);
        }
        if self.pool.is_starting() {
            // A signal comes when every vCenter is either watched or unavailable.
            self.state().deletions.forget(&node.uid);
            return NextSync::OnChange;
        }
        let had_vm = had_vm(node);
        let policy = &self.options.policy;
        let may_be_deleted = had_vm && self.options.lifecycle_controller && !policy.skip_deletion;
        if node.is_uninitialized() {
            self.report_not_found(node);
            if node.ready || !may_be_deleted {
                self.state().deletions.forget(&node.uid);
                return NextSync::Retry;
            }
        }
        if !had_vm || !self.options.lifecycle_controller {
            return NextSync::OnChange;
        }
        if node.ready {
            return self.sync_ready_without_vm(node).await;
        }
        if policy.skip_deletion {
            let text = "the VM is not visible; the Node stays because SKIP_NODE_DELETION is set";
            self.report_lifecycle(node, EventType::Normal, "DeletionHeld", text.into());
            return NextSync::OnChange;
        }
        self.query_and_delete(node, permit).await
    }

    fn report_not_found(&self, node: &Node) {
        if !self.options.node_controller {
            return;
        }
        let why = match self.pool.problems().first() {
            Some((vcenter, problem)) => format!("{vcenter} is unavailable: {problem}"),
            None => "no VM in the configured vCenters and datacenters has the node's uuid, name or address".into(),
        };
        self.report(node, EventType::Warning, "VMNotFound", why);
    }

    async fn sync_ready_without_vm(&self, node: &Node) -> NextSync {
        self.report_missing_vm(node);
        let uncertain = VmState::Uncertain(String::new());
        let Action::SetTaints(taints) = self.decide(node, &uncertain) else {
            return NextSync::OnChange;
        };
        let patch = json!({"spec": {"taints": taints}});
        let written = self.write(node, patch, &["taints"]).await;
        written.map_or_else(|next| next, |_| NextSync::OnChange)
    }

    /// Deletes a node that is not Ready if all vCenters prove that its VM is gone.
    async fn query_and_delete(&self, node: &Node, permit: Option<WorkerPermit>) -> NextSync {
        let (counts, policy) = (self.summary().counts, &self.options.policy);
        let still_held = self.state().deletions.still_held(node, counts, policy, Instant::now());
        if let Some(Action::Hold(why, at)) = still_held {
            return self.hold(node, why, at);
        }
        let query = async { absence::check(&self.pool, node, &self.summary().last_seen).await };
        let is_missing = |now: &Node| {
            !now.ready && identity::identify(now, &self.pool).outcome == Match::NotFound
        };
        let Some(vm_state) = self.query_vcenters(node, permit, query, is_missing).await else {
            return NextSync::OnChange;
        };
        if let VmState::Uncertain(why) = &vm_state {
            self.report_lifecycle(node, EventType::Warning, "VMUncertain", why.clone());
        }
        match self.decide(node, &vm_state) {
            Action::Delete(proof) => self.delete(node, &proof).await,
            Action::Wait(at) => NextSync::At(at),
            Action::Hold(why, at) => self.hold(node, why, at),
            Action::Leave | Action::SetTaints(_) => NextSync::Uncertain,
        }
    }

    fn hold(&self, node: &Node, why: String, until: Option<Instant>) -> NextSync {
        self.report_lifecycle(node, EventType::Warning, "DeletionHeld", why);
        NextSync::At(until.unwrap_or_else(|| Instant::now() + POLL_INTERVAL))
    }

    /// Reports a Ready node whose VM is in no inventory although all vCenters are available: the list
    /// of datacenters is wrong, or the user lost privileges.
    fn report_missing_vm(&self, node: &Node) {
        if self.pool.problems().is_empty() {
            let text = "the VM is no longer visible although the node is Ready: check the datacenters, folders \
                        and clusters in the configuration, and the privileges of the controller's user";
            self.report_lifecycle(node, EventType::Warning, "VMUncertain", text.into());
        }
    }

    /// Nodes of other providers and nodes that never had a VM do not count: they would hide a mass
    /// disappearance among the others.
    pub(super) fn summary(&self) -> NodeSummary {
        let cached = self.state().summary.clone().filter(|(at, _)| at.elapsed() < SUMMARY_MAX_AGE);
        if let Some((_, summary)) = cached {
            return summary;
        }
        let ours = self.nodes.count(|n| had_vm(n) && !identity::is_foreign(&n.provider_id));
        let without_vm = self.nodes.count(|n| {
            had_vm(n) && !n.deleting && identity::identify(n, &self.pool).outcome == Match::NotFound
        });
        let mut last_seen = LastSeen::default();
        for node in self.nodes.all() {
            if let Some(record) = identity::record_of(&node) {
                let is_visible =
                    || identity::identify(&node, &self.pool).outcome != Match::NotFound;
                last_seen.add(&node.name, record, is_visible);
            }
        }
        let summary = NodeSummary { counts: (ours, without_vm), last_seen: Arc::new(last_seen) };
        self.state().summary = Some((Instant::now(), summary.clone()));
        summary
    }

    /// Reads the Node again from the API server and looks for its VM once more, because it can have
    /// come back during the query. The delete request applies only to the version read here.
    async fn delete(&self, node: &Node, proof: &Proof) -> NextSync {
        let not_deleted = || self.state().deletions.not_deleted(&node.uid);
        let fresh = match self.nodes.fetch(&node.name).await {
            Ok(Some(fresh)) => fresh,
            Ok(None) => {
                not_deleted();
                return NextSync::OnChange;
            }
            Err(error) => {
                not_deleted();
                return write_failed(node, "delete", &error);
            }
        };
        let has_changed = fresh.uid != node.uid
            || fresh.provider_id != node.provider_id
            || fresh.record != node.record;
        let has_vm = identity::identify(&fresh, &self.pool).outcome != Match::NotFound;
        if fresh.ready || has_changed || has_vm || proof.is_stale() {
            not_deleted();
            return NextSync::Retry;
        }
        match self.nodes.delete(&fresh).await {
            Ok(()) => {
                self.state().deletions.deleted(&node.uid);
                self.metrics.count_write("delete");
                tracing::info!(node = &*node.name, evidence = proof.evidence(), "node deleted");
                let text = format!(
                    "Deleting node {} because it does not exist in the cloud provider: {}",
                    node.name,
                    proof.evidence()
                );
                self.report_lifecycle(node, EventType::Normal, "DeletingNode", text);
                NextSync::OnChange
            }
            Err(error) => {
                // Without an answer, the Node can be deleted already: it counts.
                if matches!(error, kube::Error::Api(_)) {
                    not_deleted();
                }
                if is_gone(&error) {
                    return NextSync::OnChange;
                }
                if !is_conflict(&error) {
                    let text = format!("the Node cannot be deleted: {error}");
                    self.report_lifecycle(node, EventType::Warning, "DeletingNodeFailed", text);
                }
                NextSync::Retry
            }
        }
    }
}

fn had_vm(node: &Node) -> bool {
    !node.provider_id.is_empty() || node.record.is_some()
}
