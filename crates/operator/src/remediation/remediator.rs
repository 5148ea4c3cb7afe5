//! Selects the repairs that the operator makes by itself: which, when, and how many at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    VDOConfigSpec,
    vdo_config::{Remedy, Repair as Kind},
};
use health::{
    facts::AccessReview,
    repair::{Proposal, Repair},
};
use jiff::Timestamp;
use kube::{
    Client, Resource, ResourceExt,
    runtime::events::{Event, EventType, Recorder},
};
use plan::{facts::Facts, names};
use runtime::{error_chain::error_chain, lease::Mandate};
use tokio::{task::JoinSet, time::Instant};

use super::{Error, History, Outcome, RecordedRepair, RepairClients, carry_out, undo};
use crate::{cluster::access::is_allowed, vcenters::Vcenters};

/// The pause before VDO retries a repair that failed or did not help.
const AGAIN: Duration = Duration::from_mins(10);
/// The pause before VDO asks again for a permission that its service account lacked.
const DENIED_AGAIN: Duration = Duration::from_secs(20);
/// Limit of repairs in one round, so that a harmful change does not spread everywhere at once.
const AT_ONCE: usize = 5;

/// The repairs that the operator made or tried, and when.
///
/// Repairs run next to the rounds: a vCenter that is slow must not delay the passwords of another one.
#[derive(Debug, Default)]
pub struct Remediator {
    /// The time of each attempt, by id.
    tried: Tried,
    /// The current batch of repairs. At most one at a time.
    running: JoinSet<()>,
    /// Codes for which VDO already reported that it does not repair them.
    reported: BTreeSet<String>,
    /// The recorded repairs, and the version of the ConfigMap they were read from.
    made: BTreeMap<String, RecordedRepair>,
    version: Option<String>,
    /// Whether the service account has permission to change CSINodes, and the time of that answer.
    csi_nodes: Option<(bool, Instant)>,
}

impl Remediator {
    /// The VMs on which VDO set `disk.EnableUUID`, as `vcenter.vm`, and when. The setting has no effect until
    /// the VM was powered off. `version` is the version of the ConfigMap, or `None` without a ConfigMap.
    pub async fn set(
        &mut self,
        client: &Client,
        namespace: &str,
        version: Option<String>,
    ) -> Result<BTreeMap<String, Timestamp>, kube::Error> {
        if self.version != version {
            self.made = History::in_namespace(client, namespace).read().await?;
            self.version = version;
        }
        let set = self.made.values().filter(|entry| entry.undone.is_none());
        let set = set.filter_map(|entry| match &entry.repair {
            Repair::SetDiskUuid { vcenter, vm, .. } => Some((key(vcenter, vm), entry.at)),
            _ => None,
        });
        Ok(set.collect())
    }

    /// The permissions that a remediation of the VDOConfig needs and the service account lacks. The manifest
    /// binds none of them: an admin who wants the remediation binds them.
    pub async fn denied(&mut self, client: &Client, spec: &VDOConfigSpec) -> Vec<AccessReview> {
        if spec.remedy(Kind::CsiNodes) != Remedy::Fix {
            self.csi_nodes = None;
            return Vec::new();
        }
        let review = AccessReview {
            group: "storage.k8s.io".into(),
            resource: "csinodes".into(),
            verb: "patch".into(),
            needed_for: "spec.remediation.csiNodes".into(),
            ..AccessReview::default()
        };
        let fresh = |(allowed, when): &(bool, Instant)| {
            when.elapsed() < if *allowed { AGAIN } else { DENIED_AGAIN }
        };
        if !self.csi_nodes.as_ref().is_some_and(fresh) {
            // If the access review fails, the remediation itself shows the missing permission.
            let allowed = is_allowed(client, &review).await.unwrap_or(true);
            self.csi_nodes = Some((allowed, Instant::now()));
        }
        let denied = self.csi_nodes.is_some_and(|(allowed, _)| !allowed);
        denied.then_some(review).into_iter().collect()
    }

    /// Starts to roll back the repairs that the admin wants undone, and to make the repairs that are allowed and due.
    /// Does nothing while earlier ones run.
    pub fn remediate(
        &mut self,
        client: &Client,
        recorder: &Recorder,
        facts: &Facts,
        vcenters: &Vcenters,
        mandate: &Mandate,
    ) {
        while self.running.try_join_next().is_some() {}
        if !self.running.is_empty() {
            return;
        }
        let requested = Requested::from_annotation(facts);
        // VDO rolls back again if the admin asks again later.
        self.tried.retain(|id, when| {
            when.elapsed() < AGAIN && id.strip_prefix(UNDOING).is_none_or(|id| requested.names(id))
        });
        let batch = Batch {
            undo: self.to_undo(&requested),
            repair: self.due(facts, &requested),
            events: self.refuse(facts),
        };
        if batch.is_empty() {
            return;
        }
        let clients = repair_clients(client, facts, vcenters);
        let (recorder, about) = (recorder.clone(), facts.config.object_ref(&()));
        let (tried, mandate) = (self.tried.clone(), mandate.clone());
        self.running.spawn(async move {
            let work = async {
                for event in batch.run(&clients, &tried).await {
                    tracing::info!(reason = event.reason, note = ?event.note, "a repair");
                    // The repair stands even if the event cannot be published.
                    let _ = recorder.publish(&event, &about).await;
                }
            };
            mandate.while_it_holds(work).await;
        });
    }

    fn due(&self, facts: &Facts, requested: &Requested) -> Vec<Proposal> {
        let denied = |repair: &Repair| {
            matches!(repair, Repair::RemoveCsiEntry { .. })
                && self.csi_nodes.is_some_and(|(allowed, _)| !allowed)
        };
        let due = facts.health.repairs.iter().filter(|proposal| {
            let id = proposal.id();
            proposal.automatic
                && !is_of_platform(facts, &proposal.repair)
                && !requested.names(&id)
                && !self.tried.contains(&id)
                && !denied(&proposal.repair)
        });
        due.take(AT_ONCE).cloned().collect()
    }

    fn to_undo(&self, requested: &Requested) -> Vec<String> {
        let made =
            self.made.iter().filter(|(id, entry)| entry.undone.is_none() && requested.names(id));
        let ids = made.map(|(id, _)| id.clone()).take(AT_ONCE);
        ids.filter(|id| !self.tried.contains(&undoing(id))).collect()
    }

    /// Reports once that VDO does not make a repair, if the spec asks for it.
    fn refuse(&mut self, facts: &Facts) -> Vec<Event> {
        let mut events = Vec::new();
        for proposal in &facts.health.repairs {
            let Some(reason) = &proposal.refused else { continue };
            let rule = proposal.repair.kind().map(|kind| facts.config.spec.remedy(kind));
            let asked = rule == Some(Remedy::Fix);
            if asked && self.reported.insert(proposal.code.clone()) {
                let note = format!("{}: not repaired: {reason}", proposal.code);
                events.push(event(&proposal.code, "RepairNotPossible", EventType::Warning, &note));
            }
        }
        let open: BTreeSet<&str> = facts.health.repairs.iter().map(|p| p.code.as_str()).collect();
        self.reported.retain(|code| open.contains(code.as_str()));
        events
    }
}

/// The repairs of one batch.
struct Batch {
    undo: Vec<String>,
    repair: Vec<Proposal>,
    /// About repairs that VDO does not make.
    events: Vec<Event>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.undo.is_empty() && self.repair.is_empty() && self.events.is_empty()
    }

    /// Undoes first, then repairs. Returns an event for each result.
    async fn run(self, clients: &RepairClients, tried: &Tried) -> Vec<Event> {
        let mut events = Vec::new();
        for id in self.undo {
            let result = undo(clients, &id).await;
            tried.insert(undoing(&id));
            match result {
                Ok(()) => {
                    tried.remove(&id);
                    let note = format!("{id} was undone");
                    events.push(event(&id, "RepairUndone", EventType::Normal, &note));
                }
                Err(error) => {
                    let note = format!("{id} could not be undone: {}", error_chain(&error));
                    events.push(event(&id, "UndoFailed", EventType::Warning, &note));
                }
            }
        }
        events.extend(self.events);
        for proposal in self.repair {
            tried.insert(proposal.id());
            let made = Box::pin(carry_out(clients, &proposal)).await;
            events.extend(repair_event(&proposal, made));
        }
        events
    }
}

/// The time of each attempt, by id. Clones share it.
#[derive(Clone, Debug, Default)]
struct Tried(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Tried {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contains(&self, id: &str) -> bool {
        self.lock().contains_key(id)
    }

    fn insert(&self, id: String) {
        self.lock().insert(id, Instant::now());
    }

    fn remove(&self, id: &str) {
        self.lock().remove(id);
    }

    fn retain(&self, mut keep: impl FnMut(&str, &Instant) -> bool) {
        self.lock().retain(|id, when| keep(id, when));
    }
}

const UNDOING: &str = "undo ";

fn undoing(id: &str) -> String {
    format!("{UNDOING}{id}")
}

/// The key of a VM in the list of changed VMs.
pub(crate) fn key(vcenter: &str, vm: &str) -> String {
    format!("{vcenter}.{vm}")
}

/// The repairs that VDO rolls back, and does not make as long as the annotation names them.
struct Requested(BTreeSet<String>);

impl Requested {
    fn from_annotation(facts: &Facts) -> Self {
        let text = facts.config.annotations().get(names::UNDO).cloned().unwrap_or_default();
        let names = text.split([',', ' ']).map(str::trim).filter(|name| !name.is_empty());
        Self(names.map(str::to_owned).collect())
    }

    /// An id matches one repair, a code matches all repairs of that code.
    fn names(&self, id: &str) -> bool {
        self.0.contains(id) || id.split_once('.').is_some_and(|(code, _)| self.0.contains(code))
    }
}

fn repair_clients(client: &Client, facts: &Facts, vcenters: &Vcenters) -> RepairClients {
    let namespace = facts.config.namespace().unwrap_or_default();
    let sessions = facts.vcenters.keys().filter_map(|name| {
        Some((name.clone(), vcenters.known(&format!("{namespace}/{name}"))?.client?))
    });
    RepairClients {
        cluster: client.clone(),
        namespace: Some(facts.operator_namespace.clone()),
        vcenters: sessions.collect(),
    }
}

/// Whether the repair changes a driver that the platform manages. The platform would revert the change.
fn is_of_platform(facts: &Facts, repair: &Repair) -> bool {
    let driver = matches!(
        repair,
        Repair::ReplaceImages { .. }
            | Repair::RenewWebhookCertificate { .. }
            | Repair::SetFeatures { .. }
    );
    driver && facts.cluster.owns_drivers
}

/// The event about an attempt; `None` if there was nothing left to do.
fn repair_event(proposal: &Proposal, made: Result<Outcome, Error>) -> Option<Event> {
    let Proposal { code, says, then, .. } = proposal;
    let id = proposal.id();
    match made {
        Ok(Outcome::AlreadyMade) => None,
        Ok(Outcome::Made) => {
            let then = then.iter().map(|then| format!(". Left to do: {then}"));
            let note = format!("{code}: {says}{}", then.collect::<String>());
            Some(event(&id, "Repaired", EventType::Normal, &note))
        }
        Err(error) => {
            let note = format!("{code}: {says}: {}", error_chain(&error));
            Some(event(&id, "RepairFailed", EventType::Warning, &note))
        }
    }
}

/// The recorder combines events that differ only in their text. The action names the subject of each event,
/// so that they stay separate.
fn event(about: &str, reason: &str, type_: EventType, note: &str) -> Event {
    Event {
        type_,
        reason: reason.into(),
        note: Some(note.chars().take(1000).collect()),
        action: about.chars().take(128).collect(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repair_with_nothing_left_to_do_is_no_success() {
        let proposal = Proposal {
            code: "VDO-1217".into(),
            repair: Repair::TaintNode { node: "late".into() },
            automatic: true,
            says: "VDO taints late".into(),
            then: None,
            undo: None,
            refused: None,
        };
        let reason = |made| repair_event(&proposal, made).map(|event| event.reason);
        assert_eq!(reason(Ok(Outcome::AlreadyMade)), None);
        assert_eq!(reason(Ok(Outcome::Made)).as_deref(), Some("Repaired"));
        let failed = Err(Error::Refused { reason: String::new() });
        assert_eq!(reason(failed).as_deref(), Some("RepairFailed"));
    }
}
