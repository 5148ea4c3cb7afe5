//! Carries out the repairs that `spec.remediation` allows. None of them can lose data, each is told by
//! an event, and one that failed is not tried again at once.

use runtime::story::story;
use std::{collections::BTreeMap, time::Duration};

use health::repair::{Proposal, Repair};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder},
};
use serde_json::json;
use snafu::{ResultExt, Snafu};
use tokio::time::Instant;
use vsphere::{MoRef, vm::VmChange};

use crate::{facts::Facts, names, vcenters::Vcenters};

/// A repair that did not help, or could not be made, is tried again after this time.
const AGAIN: Duration = Duration::from_mins(10);
/// How long vCenter may take to change a machine.
const WITHIN: Duration = Duration::from_secs(30);
/// Repairs in one round: a change that goes wrong shall not go wrong everywhere at once.
const AT_ONCE: usize = 5;

/// Why a repair could not be made.
#[derive(Debug, Snafu)]
enum Error {
    #[snafu(display("the API server did not take it"))]
    Kubernetes {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("the vCenter did not take it"))]
    Vcenter {
        #[snafu(source(from(vsphere::Error, Box::new)))]
        source: Box<vsphere::Error>,
    },
    #[snafu(display("the vCenter is not connected"))]
    Away,
}

/// What was repaired, and when.
#[derive(Debug, Default)]
pub struct Mending {
    tried: BTreeMap<Repair, Instant>,
    /// When `disk.EnableUUID` was set, by vCenter and machine: until the machine was off since, the
    /// setting waits. Also kept in a ConfigMap, for whoever runs next. None before that was read.
    set: Option<BTreeMap<String, Timestamp>>,
}

impl Mending {
    /// The machines whose `disk.EnableUUID` VDO has set, as `vcenter.machine`, and when.
    pub async fn set(
        &mut self,
        client: &Client,
        home: &str,
    ) -> Result<BTreeMap<String, Timestamp>, kube::Error> {
        if self.set.is_none() {
            let maps = Api::<ConfigMap>::namespaced(client.clone(), home);
            let map = maps.get_opt(names::REPAIRS).await?;
            let data = map.and_then(|map| map.data).unwrap_or_default();
            let read = data.into_iter().filter_map(|(key, time)| Some((key, time.parse().ok()?)));
            self.set = Some(read.collect());
        }
        Ok(self.set.clone().unwrap_or_default())
    }

    /// Makes the repairs that are allowed and due.
    pub async fn mend(
        &mut self,
        client: &Client,
        recorder: &Recorder,
        facts: &Facts,
        vcenters: &Vcenters,
    ) {
        self.tried.retain(|_, when| when.elapsed() < AGAIN);
        let due = facts.health.repairs.iter().filter(|proposal| {
            proposal.automatic
                && is_known(&proposal.repair)
                && !self.tried.contains_key(&proposal.repair)
        });
        let due: Vec<Proposal> = due.take(AT_ONCE).cloned().collect();
        for proposal in due {
            self.tried.insert(proposal.repair.clone(), Instant::now());
            let made = self.make(client, facts, vcenters, &proposal.repair).await;
            let event = told(&proposal, made.as_ref().err());
            tracing::info!(code = proposal.code, note = ?event.note, "a repair");
            // That it was made does not depend on whether it can be told.
            let _ = recorder.publish(&event, &facts.config.object_ref(&())).await;
        }
    }

    async fn make(
        &mut self,
        client: &Client,
        facts: &Facts,
        vcenters: &Vcenters,
        repair: &Repair,
    ) -> Result<(), Error> {
        match repair {
            Repair::SetDiskUuid { vcenter, vm, .. } => {
                let home = facts.config.metadata.namespace.as_deref().unwrap_or_default();
                let known = vcenters.known(&format!("{home}/{vcenter}"));
                let session = known.and_then(|known| known.client).ok_or(Error::Away)?;
                // First what will be needed to tell that a power cycle is due, then the change.
                self.remember(client, &facts.home, &key(vcenter, vm)).await?;
                let machine = MoRef::new("VirtualMachine", vm.as_str());
                let change = VmChange::default().show_disk_uuids(true);
                let task = session.reconfigure(&machine, &change).await.context(VcenterSnafu)?;
                task.wait(WITHIN).await.context(VcenterSnafu)?;
                Ok(())
            }
            Repair::TaintNode { node } => {
                let nodes = Api::<Node>::all(client.clone());
                let taint = json!([{
                    "op": "add", "path": "/spec/taints/-",
                    "value": {"key": names::UNINITIALIZED, "value": "true", "effect": "NoSchedule"},
                }]);
                let first = json!([{
                    "op": "add", "path": "/spec/taints",
                    "value": [{"key": names::UNINITIALIZED, "value": "true", "effect": "NoSchedule"}],
                }]);
                let seen = nodes.get(node).await.context(KubernetesSnafu)?;
                let none =
                    seen.spec.and_then(|spec| spec.taints).is_none_or(|taints| taints.is_empty());
                let patch = serde_json::from_value(if none { first } else { taint });
                let patch = patch.map_err(kube::Error::SerdeError).context(KubernetesSnafu)?;
                let parameters = PatchParams::default();
                nodes
                    .patch(node, &parameters, &Patch::Json::<()>(patch))
                    .await
                    .context(KubernetesSnafu)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn remember(&mut self, client: &Client, home: &str, key: &str) -> Result<(), Error> {
        self.set(client, home).await.context(KubernetesSnafu)?;
        let set = self.set.get_or_insert_default();
        set.insert(key.to_owned(), Timestamp::now());
        let data: BTreeMap<&String, String> =
            set.iter().map(|(key, time)| (key, time.to_string())).collect();
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": names::REPAIRS}, "data": data,
        });
        let maps = Api::<ConfigMap>::namespaced(client.clone(), home);
        let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
        let written = maps.patch(names::REPAIRS, &parameters, &Patch::Apply(body)).await;
        written.map(drop).context(KubernetesSnafu)
    }
}

/// The key of a machine in the list of those that were changed.
pub(crate) fn key(vcenter: &str, vm: &str) -> String {
    format!("{vcenter}.{vm}")
}

/// Whether a repair is made here. What belongs to the drivers VDO installs is put right when they are
/// applied, and the drivers of others are not touched.
fn is_known(repair: &Repair) -> bool {
    matches!(repair, Repair::SetDiskUuid { .. } | Repair::TaintNode { .. })
}

fn told(proposal: &Proposal, error: Option<&Error>) -> Event {
    let note = match error {
        None => {
            let then = proposal.then.iter().map(|then| format!(". Left to do: {then}"));
            format!("{}: {}{}", proposal.code, proposal.says, then.collect::<String>())
        }
        Some(error) => {
            format!("{}: {}: {}", proposal.code, proposal.says, story(error))
        }
    };
    Event {
        type_: if error.is_none() { EventType::Normal } else { EventType::Warning },
        reason: if error.is_none() { "Repaired".into() } else { "RepairFailed".into() },
        note: Some(note.chars().take(1000).collect()),
        action: "Repair".into(),
        secondary: None,
    }
}
