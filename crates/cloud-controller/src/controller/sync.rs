//! The sync of one node.

use runtime::error_chain::error_chain;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{NextSync, Shared, WorkerPermit};
use crate::{
    events::{EventType, Source},
    identity::{self, Match},
    initialise::{self, NotInitialised},
    lifecycle::{Action, Policy, VmState},
    model::{Node, Power, VirtualMachine},
    nodes::{is_conflict, is_gone},
    pooled_vcenter::PooledVcenter,
    record::{ANNOTATION, Record},
    zones::Zones,
};

/// Interval at which a sync checks a condition that no watch reports.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(20);

impl Shared {
    pub(super) async fn sync_node(
        &self,
        name: &Arc<str>,
        permit: Option<WorkerPermit>,
    ) -> NextSync {
        let Some(node) = self.nodes.get(name) else { return NextSync::OnChange };
        if node.deleting {
            return NextSync::OnChange;
        }
        self.observe_first_sync(&node);
        match identity::identify(&node, &self.pool).outcome {
            Match::Foreign => {
                self.state().unassign(name);
                NextSync::OnChange
            }
            Match::Found(vm, _) => self.sync_matched(&node, &vm, permit).await,
            Match::Several(vms, rule) => {
                let listed: Vec<String> = vms.iter().map(VirtualMachine::title).collect();
                let text = format!(
                    "{} VMs match {rule}: {}; give each VM its own uuid, or give the node the name or address of \
                     one of them",
                    vms.len(),
                    listed.join(", ")
                );
                self.report(&node, EventType::Warning, "AmbiguousVM", text);
                let mut state = self.state();
                state.without_vm.insert(name.clone());
                state.deletions.forget(&node.uid);
                NextSync::Retry
            }
            Match::NotFound => self.sync_without_vm(&node, permit).await,
        }
    }

    fn observe_first_sync(&self, node: &Node) {
        if self.state().synced.insert(node.uid.clone()) && node.is_uninitialized() {
            self.metrics.initial_sync_delay.observe(age(node));
        }
    }

    pub(super) async fn sync_with_vm(&self, node: &Node, vm: &VirtualMachine) -> NextSync {
        let duplicate = {
            let mut state = self.state();
            match node.record {
                Some(_) => drop(state.unrecorded.remove(&node.uid)),
                None => drop(state.unrecorded.insert(node.uid.clone(), Record::for_vm(vm))),
            }
            state.assign(&node.name, &vm.vm_ref)
        };
        if let Some(duplicate) = duplicate
            && self.nodes.get(&duplicate).is_some()
        {
            let text = format!("the node {duplicate} has the same VM, {}", vm.title());
            self.report(node, EventType::Warning, "DuplicateNode", text);
        }
        self.report_replaced(node, vm);
        if node.is_uninitialized() && self.options.node_controller {
            return self.initialise(node, vm).await;
        }
        self.update(node, vm).await
    }

    async fn initialise(&self, node: &Node, vm: &VirtualMachine) -> NextSync {
        let Some(configuration) = self.pool.configuration() else { return NextSync::Retry };
        let Some(pooled) = self.pool.pooled(&vm.vm_ref.vcenter) else { return NextSync::Retry };
        let families = &pooled.settings.families;
        let (addresses, selected) = initialise::addresses(node, vm, &configuration.rules, families);
        if let Some(error) = &selected.metadata_error {
            let text = format!(
                "{}; the addresses are used in the order of the interfaces",
                error_chain(error)
            );
            self.report(node, EventType::Warning, "MetadataIgnored", text);
        }
        let addresses = match addresses {
            Ok(addresses) => addresses,
            Err(why) => return self.postpone(node, vm, &why).await,
        };
        let Some(zones) = self.pool.zones(vm) else {
            return self.wait_for_tags(node, &pooled);
        };
        self.track_zones(node, &zones);
        if let (true, Some(missing)) = (self.options.require_zones, zones.missing.first()) {
            let why = NotInitialised::NoZones { why: missing.to_string() };
            return self.postpone(node, vm, &why).await;
        }
        let plan = initialise::plan(node, vm, addresses, &zones, &self.options.extra_labels);
        match plan {
            Ok(mut plan) => {
                let placement = initialise::placement_changes(node, vm, self.options.host_labels);
                for (key, value) in placement {
                    plan.patch["metadata"]["labels"][key] = json!(value);
                }
                self.write_initialisation(node, vm, plan).await
            }
            Err(why) => self.postpone(node, vm, &why).await,
        }
    }

    /// Reports tags that were never read or cannot be read now. Tags of a VM that were just
    /// requested are not reported: they arrive soon.
    fn wait_for_tags(&self, node: &Node, pooled: &PooledVcenter) -> NextSync {
        let problem = pooled.tags_problem();
        let unread = pooled.tags().is_none();
        if !unread && problem.is_none() {
            // A signal also comes when they are read.
            return NextSync::At(Instant::now() + POLL_INTERVAL);
        }
        let why = problem.map(|why| format!(": {why}")).unwrap_or_default();
        let text = format!(
            "zone and region are unknown: the tags of {} have not been read yet{why}",
            pooled.name()
        );
        self.report(node, EventType::Normal, "WaitingForTags", text);
        if unread { NextSync::Retry } else { NextSync::At(Instant::now() + POLL_INTERVAL) }
    }

    async fn write_initialisation(
        &self,
        node: &Node,
        vm: &VirtualMachine,
        plan: initialise::Initialisation,
    ) -> NextSync {
        let written = async {
            match &plan.addresses {
                Some(addresses) => {
                    let written = self.nodes.set_addresses(node, addresses).await?;
                    self.nodes.patch(&written, plan.patch).await
                }
                None => self.nodes.patch(node, plan.patch).await,
            }
        };
        match written.await {
            Ok(_) => {
                self.metrics.count_write("initialise");
                self.metrics.taint_removal_delay.observe(age(node));
                tracing::info!(node = &*node.name, vm = vm.title(), "node initialised");
                self.report(node, EventType::Normal, "Synced", "Node synced successfully".into());
                NextSync::OnChange
            }
            Err(error) => write_failed(node, "initialise", &error),
        }
    }

    /// Reports why the node cannot be initialised yet. It is still tainted when its VM is off.
    async fn postpone(&self, node: &Node, vm: &VirtualMachine, why: &NotInitialised) -> NextSync {
        let off = matches!(vm.power, Some(Power::Off | Power::Suspended));
        let text = match (off, vm.power) {
            (true, Some(power)) => format!("{} is {power}; {}", vm.title(), error_chain(why)),
            _ => error_chain(why),
        };
        self.report(node, EventType::Warning, "NotInitialized", text);
        match self.update(node, vm).await {
            NextSync::OnChange => NextSync::Retry,
            next => next,
        }
    }

    /// Writes labels, addresses, taints and the record of a node with a VM, if they differ.
    async fn update(&self, node: &Node, vm: &VirtualMachine) -> NextSync {
        let mut patch = json!({});
        let mut kinds = Vec::new();
        if self.options.node_controller && !node.is_uninitialized() {
            let labels = self.labels(node, vm);
            if !labels.is_empty() {
                patch["metadata"]["labels"] = json!(labels);
                kinds.push("labels");
            }
        }
        let record = Record::for_vm(vm).to_text();
        let stale = node.record.as_deref().is_some_and(|old| old != record);
        let wanted = (stale && record_differs(node, vm)) || (node.record.is_none() && !node.ready);
        if wanted && !identity::reports_other_computer(node, vm) {
            patch["metadata"]["annotations"] = json!({ ANNOTATION: record });
            kinds.push("record");
        }
        if self.options.lifecycle_controller {
            let present = VmState::Present(vm.power);
            // The out-of-service taint detaches volumes at once. It needs the current power state, so
            // not from an unavailable vCenter, and of the VM on which the kubelet runs.
            let pooled = self.pool.pooled(&vm.vm_ref.vcenter);
            let is_available = pooled.is_some_and(|pooled| pooled.problem().is_none());
            let mut policy = self.options.policy;
            policy.out_of_service &= is_available && !identity::reports_other_computer(node, vm);
            if let Action::SetTaints(taints) = self.decide_by(node, &present, &policy) {
                patch["spec"]["taints"] = json!(taints);
                kinds.push("taints");
            }
        }
        let mut current = node.clone();
        if !kinds.is_empty() {
            match self.write(node, patch, &kinds).await {
                Ok(written) => current = written,
                Err(next) => return next,
            }
        }
        self.update_addresses(&current, vm).await
    }

    /// The labels to write; `None` removes one.
    fn labels(&self, node: &Node, vm: &VirtualMachine) -> BTreeMap<String, Option<String>> {
        let zones = if self.options.refresh_labels { self.pool.zones(vm) } else { None };
        if let Some(zones) = &zones {
            self.track_zones(node, zones);
        }
        let changes = initialise::label_changes(node, zones.as_ref().map(|zones| (vm, zones)));
        let changes = changes.into_iter().flatten().map(|(key, value)| (key, Some(value)));
        let placement = initialise::placement_changes(node, vm, self.options.host_labels);
        changes.chain(placement).collect()
    }

    /// A node keeps its addresses while its VM is off or VMware Tools does not report.
    async fn update_addresses(&self, node: &Node, vm: &VirtualMachine) -> NextSync {
        let applies = self.options.node_controller && !node.is_uninitialized();
        if !applies || vm.power != Some(Power::On) {
            return NextSync::OnChange;
        }
        let Some(configuration) = self.pool.configuration() else { return NextSync::OnChange };
        let Some(pooled) = self.pool.pooled(&vm.vm_ref.vcenter) else { return NextSync::OnChange };
        let (addresses, selected) =
            initialise::addresses(node, vm, &configuration.rules, &pooled.settings.families);
        let wanted = match addresses {
            Ok(addresses) => initialise::changed_addresses(node, addresses),
            Err(why) => {
                tracing::debug!(
                    node = &*node.name,
                    why = error_chain(&why),
                    "the addresses stay as they are"
                );
                None
            }
        };
        if let Some(error) = &selected.metadata_error {
            let text = format!(
                "{}; addresses that still match the rules stay as they are",
                error_chain(error)
            );
            self.report(node, EventType::Warning, "MetadataIgnored", text);
        }
        let Some(wanted) = wanted else { return NextSync::OnChange };
        match self.nodes.set_addresses(node, &wanted).await {
            Ok(_) => {
                self.metrics.count_write("addresses");
                let listed: Vec<String> = wanted.iter().map(ToString::to_string).collect();
                let text = format!("addresses are now {}", listed.join(", "));
                self.report(node, EventType::Normal, "AddressesChanged", text);
                NextSync::OnChange
            }
            Err(error) => write_failed(node, "addresses", &error),
        }
    }

    pub(super) fn decide(&self, node: &Node, vm_state: &VmState) -> Action {
        self.decide_by(node, vm_state, &self.options.policy)
    }

    pub(super) fn decide_by(&self, node: &Node, vm_state: &VmState, policy: &Policy) -> Action {
        let counts = match vm_state {
            VmState::Gone(_) => self.summary().counts,
            VmState::Present(_) | VmState::Uncertain(_) => (0, 0),
        };
        let mut state = self.state();
        let action = state.deletions.decide(node, vm_state, counts, policy, Instant::now());
        self.update_gauges(&state);
        action
    }

    pub(super) async fn write(
        &self,
        node: &Node,
        patch: Value,
        kinds: &[&'static str],
    ) -> Result<Node, NextSync> {
        match self.nodes.patch(node, patch).await {
            Ok(written) => {
                for kind in kinds {
                    self.metrics.count_write(kind);
                }
                tracing::info!(node = &*node.name, what = kinds.join(", "), "node updated");
                Ok(written)
            }
            Err(error) => Err(write_failed(node, &kinds.join(", "), &error)),
        }
    }

    fn track_zones(&self, node: &Node, zones: &Zones) {
        {
            let mut state = self.state();
            if zones.missing.is_empty() {
                state.missing_zones.remove(&node.name);
            } else {
                state.missing_zones.insert(node.name.clone());
            }
            self.update_gauges(&state);
        }
        if !zones.missing.is_empty() {
            let listed: Vec<String> = zones.missing.iter().map(ToString::to_string).collect();
            self.report(node, EventType::Warning, "ZoneMissing", listed.join("; "));
        }
    }

    pub(super) fn report(
        &self,
        node: &Node,
        event_type: EventType,
        reason: &'static str,
        text: String,
    ) {
        self.events.publish(node, Source::Node, event_type, reason, text);
    }

    pub(super) fn report_lifecycle(
        &self,
        node: &Node,
        event_type: EventType,
        reason: &'static str,
        text: String,
    ) {
        self.events.publish(node, Source::Lifecycle, event_type, reason, text);
    }
}

/// Whether the recorded reference, folder, vCenter or instance uuid differs from the VM's. An
/// instance uuid that vCenter does not know at present stays in the record.
pub(super) fn record_differs(node: &Node, vm: &VirtualMachine) -> bool {
    identity::record_of(node).is_none_or(|record| {
        record.vm_ref() != vm.vm_ref
            || record.folder() != vm.folder
            || record.vcenter_uuid != *vm.vcenter_uuid
            || vm
                .instance_uuid
                .is_some_and(|uuid| !uuid.is_nil() && record.instance_uuid() != Some(uuid))
    })
}

pub(super) fn write_failed(node: &Node, what: &str, error: &kube::Error) -> NextSync {
    if is_gone(error) {
        return NextSync::OnChange;
    }
    if is_conflict(error) {
        tracing::debug!(node = &*node.name, what, "write conflict: the node has changed");
    } else {
        tracing::warn!(node = &*node.name, what, error = error_chain(error), "the write failed");
    }
    NextSync::Retry
}

#[expect(clippy::cast_precision_loss, reason = "an age in seconds is far below 2^52")]
fn age(node: &Node) -> f64 {
    (jiff::Timestamp::now().as_second() - node.created).max(0) as f64
}
