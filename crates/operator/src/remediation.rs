//! Makes repairs: VDO makes those that `spec.remediation` allows by itself, and others on request.
//!
//! ```text
//!   findings ─► health::repair ─► proposals ─► carry_out ─► node, workload, features, webhook, vm
//!                                    │             │
//!                        remediator: which,        └─► history: the previous state ─► undo
//!                           when, how many
//! ```
//!
//! No repair can lose data. VDO checks the preconditions of a repair again right before making it, and a
//! concurrent change by somebody else wins. VDO first records the previous state in a ConfigMap, reports each
//! repair with an event, and retries a failed repair only after a pause.

mod features;
mod history;
mod node;
mod patch;
mod remediator;
mod vm;
mod webhook;
mod workload;

use std::collections::BTreeMap;

use api::vdo_config::Remediation;
use health::{
    Examination,
    facts::Facts,
    repair::{Proposal, Repair},
};
use kube::Client;
use serde_json::{Value, json};
use snafu::{OptionExt, ResultExt, Snafu};

pub(crate) use self::remediator::key;
pub use self::{
    history::{History, RecordedRepair},
    remediator::Remediator,
};
use crate::webhook_certificates;

/// The reason why VDO could not make or roll back a repair.
#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display("the API server rejected the change"))]
    Kubernetes {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("vCenter rejected the change"))]
    Vcenter {
        #[snafu(source(from(vsphere::Error, Box::new)))]
        source: Box<vsphere::Error>,
    },
    #[snafu(display("the vCenter {vcenter} is not connected"))]
    Unreachable { vcenter: String },
    #[snafu(display("{object} changed in the meantime: {what}. Check again"))]
    Changed { object: String, what: String },
    #[snafu(display(
        "{volume} is attached to {node} under this entry: move its pods to another node first"
    ))]
    Attached { node: String, volume: String },
    #[snafu(display("{reason}"))]
    Refused { reason: String },
    #[snafu(display(
        "VDO manages {object} and keeps it as in its release: `vdoctl plan` shows whether another fits"
    ))]
    Ours { object: String },
    #[snafu(display("the previous state could not be recorded, so nothing was changed"))]
    Keep {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display(
        "there is no record of a repair {id}: `kubectl get configmap {map} -o yaml` lists them"
    ))]
    NoRecord { id: String, map: &'static str },
    #[snafu(display("{id} cannot be undone"))]
    NothingToUndo { id: String },
    #[snafu(display("no new certificate could be created"))]
    Certificate { source: webhook_certificates::Error },
}

/// The clients that repairs are made with.
pub struct RepairClients {
    pub cluster: Client,
    /// The operator's namespace, where VDO records the previous state. Without one, VDO records nothing and
    /// can roll back nothing.
    pub namespace: Option<String>,
    /// Sessions with vCenters, by the name of their VsphereCloudConfig.
    pub vcenters: BTreeMap<String, vsphere::Client>,
}

/// Lists the possible repairs, of one code or of all. Changes nothing.
pub fn propose(facts: Facts, code: Option<&str>) -> Vec<Proposal> {
    let examination = Examination::run(facts);
    let mut proposals = health::repair::propose(&examination, &Remediation::default());
    proposals.retain(|proposal| code.is_none_or(|code| proposal.code == code));
    proposals
}

/// Makes one repair. It is idempotent.
///
/// # Errors
/// Fails if VDO does not make this kind of repair, if its preconditions no longer hold, or if the API server
/// or vCenter refuses it. Nothing has changed then, with one exception: a webhook can already trust a
/// certificate that does not exist yet.
pub async fn carry_out(clients: &RepairClients, proposal: &Proposal) -> Result<(), Error> {
    if let Some(reason) = &proposal.refused {
        return RefusedSnafu { reason }.fail();
    }
    let history = History::new(clients);
    let keep = async |before: Value| history.keep(proposal, before).await;
    let made = match &proposal.repair {
        Repair::SetDiskUuid { vcenter, vm, node } => {
            let vm = vm::VmRepair::new(clients, vcenter, vm, node)?;
            // Somebody else may have set it since the check. Then there is nothing to record or to undo.
            let Some(before) = vm.disk_uuid_to_change().await? else { return Ok(()) };
            keep(json!(before)).await?;
            vm.show_disk_uuids().await
        }
        Repair::TaintNode { node } => {
            keep(Value::Null).await?;
            node::taint(&clients.cluster, node).await
        }
        Repair::RemoveCsiEntry { node, id, namespace } => {
            let entry = node::stale_entry(&clients.cluster, node, id).await?;
            keep(entry).await?;
            node::remove_entry(&clients.cluster, node, id).await?;
            node::restart_driver(&clients.cluster, node, namespace).await
        }
        Repair::ReplaceImages { namespace, workload, images } => {
            keep(Value::Null).await?;
            workload::replace(&clients.cluster, namespace, workload, images).await
        }
        Repair::RenewWebhookCertificate { webhook, namespace, secret } => {
            keep(Value::Null).await?;
            webhook::renew(&clients.cluster, webhook, namespace, secret).await
        }
        Repair::SetFeatures { namespace, features } => {
            keep(Value::Null).await?;
            features::add(&clients.cluster, namespace, features).await
        }
        Repair::PowerCycle { node, .. }
        | Repair::UpgradeHardware { node, .. }
        | Repair::ReplaceControllers { node, .. }
        | Repair::SetBlockTracking { node, .. } => {
            let reason =
                format!("the VM of {node} must be off for this: vdoctl fix drains the node first");
            RefusedSnafu { reason }.fail()
        }
        // `health::repair` always refuses this proposal.
        Repair::Grant { .. } => RefusedSnafu { reason: "VDO grants no permissions" }.fail(),
    };
    // A failed repair leaves no record. The exception is a VM whose vCenter did not answer: vCenter may have
    // changed it after all.
    let is_vm = matches!(proposal.repair, Repair::SetDiskUuid { .. });
    if made.as_ref().err().is_some_and(|error| !is_vm || vm::is_unchanged(error)) {
        history.forget(&proposal.id()).await?;
    }
    made
}

/// The recorded repairs, by the id of the proposal.
///
/// # Errors
/// Fails if the record cannot be read.
pub async fn made(clients: &RepairClients) -> Result<BTreeMap<String, RecordedRepair>, Error> {
    History::new(clients).read().await.context(KubernetesSnafu)
}

/// Rolls back a recorded repair. Objects that somebody else changed since then stay as they are.
///
/// # Errors
/// Fails if there is no such record, if there is nothing to roll back, or if the API server or vCenter
/// refuses the change.
pub async fn undo(clients: &RepairClients, id: &str) -> Result<(), Error> {
    let history = History::new(clients);
    let entries = history.read().await.context(KubernetesSnafu)?;
    let entry = entries.get(id).context(NoRecordSnafu { id, map: plan::names::REPAIRS })?.clone();
    let cluster = &clients.cluster;
    match &entry.repair {
        Repair::SetDiskUuid { vcenter, vm, node } => {
            let vm = vm::VmRepair::new(clients, vcenter, vm, node)?;
            vm.restore_disk_uuid(&entry.before).await?;
        }
        Repair::TaintNode { node } => node::untaint(cluster, node).await?,
        Repair::ReplaceImages { namespace, workload, images } => {
            let back = images.iter().map(|(container, image)| {
                let (from, to) = (image.to.clone(), image.from.clone());
                (container.clone(), health::repair::Moved { from, to })
            });
            workload::replace(cluster, namespace, workload, &back.collect()).await?;
        }
        Repair::SetFeatures { namespace, features } => {
            features::remove(cluster, namespace, features).await?;
        }
        Repair::RemoveCsiEntry { .. }
        | Repair::RenewWebhookCertificate { .. }
        | Repair::PowerCycle { .. }
        | Repair::UpgradeHardware { .. }
        | Repair::ReplaceControllers { .. }
        | Repair::SetBlockTracking { .. }
        | Repair::Grant { .. } => return NothingToUndoSnafu { id }.fail(),
    }
    history.undone(id, entry).await
}
