//! One look at one node.

use runtime::error_chain::error_chain;
use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Next, Shared, Slot};
use crate::{
    events::{Source, Weight},
    identity::{self, Match},
    initialise::{self, NotYet},
    lifecycle::{Action, Policy, Standing},
    model::{Node, Power, VirtualMachine},
    nodes::{is_conflict, is_gone},
    pooled_vcenter::PooledVcenter,
    record::{ANNOTATION, Record},
    zones::Zones,
};

/// What is awaited without being announced is looked for again after this long.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(20);

impl Shared {
    pub(super) async fn look_at(&self, name: &Arc<str>, slot: Option<Slot>) -> Next {
        let Some(node) = self.nodes.get(name) else { return Next::OnChange };
        if node.deleting {
            return Next::OnChange;
        }
        self.note_first_look(&node);
        match identity::identify(&node, &self.pool).outcome {
            Match::Foreign => {
                self.memory().unplace(name);
                Next::OnChange
            }
            Match::Found(vm, _) => self.with_found(&node, &vm, slot).await,
            Match::Several(vms, rule) => {
                let listed: Vec<String> = vms.iter().map(VirtualMachine::title).collect();
                let text = format!(
                    "{} machines answer to {rule}: {}; give each its own uuid, or the node the name or \
                     address of one",
                    vms.len(),
                    listed.join(", ")
                );
                self.say(&node, Weight::Warning, "AmbiguousMachine", text);
                let mut memory = self.memory();
                memory.lost.insert(name.clone());
                memory.deletions.forget(&node.uid);
                Next::Retry
            }
            Match::NotFound => self.without_vm(&node, slot).await,
        }
    }

    fn note_first_look(&self, node: &Node) {
        if self.memory().seen.insert(node.uid.clone()) && node.is_uninitialized() {
            self.metrics.initial_sync_delay.observe(age(node));
        }
    }

    pub(super) async fn with_vm(&self, node: &Node, vm: &VirtualMachine) -> Next {
        let twin = {
            let mut memory = self.memory();
            match node.record {
                Some(_) => drop(memory.met.remove(&node.uid)),
                None => drop(memory.met.insert(node.uid.clone(), Record::of(vm))),
            }
            memory.place(&node.name, &vm.place)
        };
        if let Some(twin) = twin
            && self.nodes.get(&twin).is_some()
        {
            let text = format!("the node {twin} is the same machine, {}", vm.title());
            self.say(node, Weight::Warning, "DuplicateNode", text);
        }
        self.note_replaced(node, vm);
        if node.is_uninitialized() && self.options.node_controller {
            return self.initialise(node, vm).await;
        }
        self.keep(node, vm).await
    }

    /// A node that waits for us.
    async fn initialise(&self, node: &Node, vm: &VirtualMachine) -> Next {
        let Some(configuration) = self.pool.configuration() else { return Next::Retry };
        let Some(pooled) = self.pool.pooled(&vm.place.vcenter) else { return Next::Retry };
        let families = &pooled.settings.families;
        let (addresses, selected) = initialise::addresses(node, vm, &configuration.rules, families);
        if let Some(error) = &selected.metadata {
            let text = format!("{}; the order of its interfaces is used", error_chain(error));
            self.say(node, Weight::Warning, "MetadataIgnored", text);
        }
        let addresses = match addresses {
            Ok(addresses) => addresses,
            Err(why) => return self.not_yet(node, vm, &why).await,
        };
        let Some(zones) = self.pool.zones(vm) else {
            return self.wait_for_tags(node, &pooled);
        };
        self.note_zones(node, &zones);
        if let (true, Some(missing)) = (self.options.require_zones, zones.missing.first()) {
            let why = NotYet::NoZones { why: missing.to_string() };
            return self.not_yet(node, vm, &why).await;
        }
        let plan = initialise::plan(node, vm, addresses, &zones, &self.options.extra_labels);
        match plan {
            Ok(plan) => self.write_initialisation(node, vm, plan).await,
            Err(why) => self.not_yet(node, vm, &why).await,
        }
    }

    /// Tags that were never read, or cannot be read now, are told of; those of a machine that was just asked
    /// for are on their way.
    fn wait_for_tags(&self, node: &Node, pooled: &PooledVcenter) -> Next {
        let trouble = pooled.tags_trouble();
        let unread = pooled.tags().is_none();
        if !unread && trouble.is_none() {
            // Told again when they are read.
            return Next::At(Instant::now() + ASK_AGAIN);
        }
        let why = trouble.map(|why| format!(": {why}")).unwrap_or_default();
        let text = format!(
            "zone and region are not known: the tags of {} have not been read yet{why}",
            pooled.name()
        );
        self.say(node, Weight::Normal, "WaitingForTags", text);
        if unread { Next::Retry } else { Next::At(Instant::now() + ASK_AGAIN) }
    }

    async fn write_initialisation(
        &self,
        node: &Node,
        vm: &VirtualMachine,
        plan: initialise::Initialisation,
    ) -> Next {
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
                self.metrics.wrote("initialise");
                self.metrics.taint_removal_delay.observe(age(node));
                tracing::info!(node = &*node.name, vm = vm.title(), "initialised");
                self.say(node, Weight::Normal, "Synced", "Node synced successfully".into());
                Next::OnChange
            }
            Err(error) => write_failed(node, "initialise", &error),
        }
    }

    /// A node that cannot be initialised yet is still tainted when its machine is off.
    async fn not_yet(&self, node: &Node, vm: &VirtualMachine, why: &NotYet) -> Next {
        let off = matches!(vm.power, Some(Power::Off | Power::Suspended));
        let text = match (off, vm.power) {
            (true, Some(power)) => format!("{} is {power}; {}", vm.title(), error_chain(why)),
            _ => error_chain(why),
        };
        self.say(node, Weight::Warning, "NotInitialized", text);
        match self.keep(node, vm).await {
            Next::OnChange => Next::Retry,
            next => next,
        }
    }

    /// A node that has its machine: labels, addresses, taints and the record, as far as they differ.
    async fn keep(&self, node: &Node, vm: &VirtualMachine) -> Next {
        let mut patch = json!({});
        let mut kinds = Vec::new();
        if self.options.node_controller
            && !node.is_uninitialized()
            && let Some(labels) = self.labels(node, vm)
        {
            patch["metadata"]["labels"] = json!(labels);
            kinds.push("labels");
        }
        let record = Record::of(vm).to_text();
        let stale = node.record.as_deref().is_some_and(|old| old != record);
        let wanted = (stale && is_other_vm(node, vm)) || (node.record.is_none() && !node.ready);
        if wanted && !identity::is_other_computer(node, vm) {
            patch["metadata"]["annotations"] = json!({ ANNOTATION: record });
            kinds.push("record");
        }
        if self.options.lifecycle_controller {
            let present = Standing::Present(vm.power);
            // Volumes leave at once for that taint: the word of a vCenter that is out of touch, which
            // may have started the machine since, is not enough; nor is the power of a machine on which the
            // kubelet may not run.
            let pooled = self.pool.pooled(&vm.place.vcenter);
            let in_touch = pooled.is_some_and(|pooled| pooled.trouble().is_none());
            let mut policy = self.options.policy;
            policy.out_of_service &= in_touch && !identity::is_other_computer(node, vm);
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
        self.keep_addresses(&current, vm).await
    }

    fn labels(
        &self,
        node: &Node,
        vm: &VirtualMachine,
    ) -> Option<std::collections::BTreeMap<String, String>> {
        let zones = if self.options.refresh_labels { self.pool.zones(vm) } else { None };
        if let Some(zones) = &zones {
            self.note_zones(node, zones);
        }
        initialise::label_changes(node, zones.as_ref().map(|zones| (vm, zones)))
    }

    /// A machine that is off, or whose tools are silent, keeps the addresses its node has.
    async fn keep_addresses(&self, node: &Node, vm: &VirtualMachine) -> Next {
        let applies = self.options.node_controller && !node.is_uninitialized();
        if !applies || vm.power != Some(Power::On) {
            return Next::OnChange;
        }
        let Some(configuration) = self.pool.configuration() else { return Next::OnChange };
        let Some(pooled) = self.pool.pooled(&vm.place.vcenter) else { return Next::OnChange };
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
        if let Some(error) = &selected.metadata {
            let text = format!("{}; addresses that still fit stay as they are", error_chain(error));
            self.say(node, Weight::Warning, "MetadataIgnored", text);
        }
        let Some(wanted) = wanted else { return Next::OnChange };
        match self.nodes.set_addresses(node, &wanted).await {
            Ok(_) => {
                self.metrics.wrote("addresses");
                let listed: Vec<String> = wanted.iter().map(ToString::to_string).collect();
                let text = format!("addresses are now {}", listed.join(", "));
                self.say(node, Weight::Normal, "AddressesChanged", text);
                Next::OnChange
            }
            Err(error) => write_failed(node, "addresses", &error),
        }
    }

    pub(super) fn decide(&self, node: &Node, standing: &Standing) -> Action {
        self.decide_by(node, standing, &self.options.policy)
    }

    pub(super) fn decide_by(&self, node: &Node, standing: &Standing, policy: &Policy) -> Action {
        let counts = match standing {
            Standing::Gone(_) => self.census().counts,
            Standing::Present(_) | Standing::Uncertain(_) => (0, 0),
        };
        let mut memory = self.memory();
        let action = memory.deletions.decide(node, standing, counts, policy, Instant::now());
        self.count(&memory);
        action
    }

    pub(super) async fn write(
        &self,
        node: &Node,
        patch: Value,
        kinds: &[&'static str],
    ) -> Result<Node, Next> {
        match self.nodes.patch(node, patch).await {
            Ok(written) => {
                for kind in kinds {
                    self.metrics.wrote(kind);
                }
                tracing::info!(node = &*node.name, what = kinds.join(", "), "written");
                Ok(written)
            }
            Err(error) => Err(write_failed(node, &kinds.join(", "), &error)),
        }
    }

    fn note_zones(&self, node: &Node, zones: &Zones) {
        {
            let mut memory = self.memory();
            if zones.missing.is_empty() {
                memory.zoneless.remove(&node.name);
            } else {
                memory.zoneless.insert(node.name.clone());
            }
            self.count(&memory);
        }
        if !zones.missing.is_empty() {
            let listed: Vec<String> = zones.missing.iter().map(ToString::to_string).collect();
            self.say(node, Weight::Warning, "ZoneMissing", listed.join("; "));
        }
    }

    pub(super) fn say(&self, node: &Node, weight: Weight, reason: &'static str, text: String) {
        self.events.say(node, Source::Node, weight, reason, text);
    }

    pub(super) fn say_lifecycle(
        &self,
        node: &Node,
        weight: Weight,
        reason: &'static str,
        text: String,
    ) {
        self.events.say(node, Source::Lifecycle, weight, reason, text);
    }
}

/// Whether the record names another place than the machine's, or another instance uuid: it was registered
/// anew. What vCenter does not know at present stays on record.
pub(super) fn is_other_vm(node: &Node, vm: &VirtualMachine) -> bool {
    identity::record_of(node).is_none_or(|record| {
        record.place() != vm.place
            || record.folder() != vm.folder
            || record.vcenter_uuid != *vm.vcenter_uuid
            || vm
                .instance_uuid
                .is_some_and(|uuid| !uuid.is_nil() && record.instance_uuid() != Some(uuid))
    })
}

pub(super) fn write_failed(node: &Node, what: &str, error: &kube::Error) -> Next {
    if is_gone(error) {
        return Next::OnChange;
    }
    if is_conflict(error) {
        tracing::debug!(node = &*node.name, what, "somebody else wrote first");
    } else {
        tracing::warn!(node = &*node.name, what, error = error_chain(error), "cannot write");
    }
    Next::Retry
}

/// Seconds since a node was created.
#[expect(clippy::cast_precision_loss, reason = "an age in seconds is far below 2^52")]
fn age(node: &Node) -> f64 {
    (jiff::Timestamp::now().as_second() - node.created).max(0) as f64
}
