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

/// The result of a repair that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Made,
    /// Somebody else made it since the check, or VDO did in an earlier attempt that got no answer.
    AlreadyMade,
}

/// Lists the possible repairs, of one code or of all. Changes nothing.
pub fn propose(facts: Facts, code: Option<&str>) -> Vec<Proposal> {
    let examination = Examination::run(facts);
    let mut proposals = health::repair::propose(&examination, &Remediation::default());
    proposals.retain(|proposal| code.is_none_or(|code| proposal.code == code));
    proposals
}

/// Makes one repair. It is idempotent. VDO makes and records only what nobody else has done since the check.
///
/// # Errors
/// Fails if VDO does not make this kind of repair, if its preconditions no longer hold, or if the API server
/// or vCenter refuses it. Nothing has changed then, with two exceptions: a webhook can already trust a
/// certificate that does not exist yet, and the answer to a change can be lost.
pub async fn carry_out(clients: &RepairClients, proposal: &Proposal) -> Result<Outcome, Error> {
    if let Some(reason) = &proposal.refused {
        return RefusedSnafu { reason }.fail();
    }
    let needed = Box::pin(still_needed(&clients.cluster, &proposal.repair));
    let Some(repair) = needed.await? else { return Ok(Outcome::AlreadyMade) };
    let proposal = &Proposal { repair, ..proposal.clone() };
    let history = History::new(clients);
    let earlier = history.earlier(&proposal.id()).await?;
    let keep = async |before: Value| history.keep(proposal, before, earlier.as_ref()).await;
    let made = match &proposal.repair {
        Repair::SetDiskUuid { vcenter, vm, node } => {
            let vm = vm::VmRepair::new(clients, vcenter, vm, node)?;
            // Somebody else may have set it since the check. Then there is nothing to record or to undo.
            let Some(before) = vm.disk_uuid_to_change().await? else {
                return Ok(Outcome::AlreadyMade);
            };
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
    if made.as_ref().is_err_and(is_unchanged) {
        history.forget(proposal, earlier).await?;
    }
    made.map(|()| Outcome::Made)
}

/// Whether a failed repair certainly changed nothing, so that it leaves no record. Without an answer, the API server or
/// vCenter may have made the change after all.
fn is_unchanged(error: &Error) -> bool {
    match error {
        Error::Kubernetes { source } => {
            matches!(&**source, kube::Error::Api(status) if (400..500).contains(&status.code))
        }
        Error::Vcenter { source } => vm::is_unchanged(source),
        _ => true,
    }
}

/// The part of a repair that nobody else has made since the check; `None` if nothing is left. An undo must not revert
/// what VDO did not do.
async fn still_needed(cluster: &Client, repair: &Repair) -> Result<Option<Repair>, Error> {
    let mut part = repair.clone();
    let is_needed = match &mut part {
        Repair::TaintNode { node } => !node::is_tainted(cluster, node).await?,
        Repair::ReplaceImages { namespace, workload, images } => {
            *images = workload::replaceable(cluster, namespace, workload, images).await?;
            !images.is_empty()
        }
        Repair::SetFeatures { namespace, features } => {
            *features = features::missing(cluster, namespace, features).await?;
            !features.is_empty()
        }
        // These record the previous state, or cannot be undone.
        Repair::SetDiskUuid { .. }
        | Repair::RemoveCsiEntry { .. }
        | Repair::RenewWebhookCertificate { .. }
        | Repair::PowerCycle { .. }
        | Repair::UpgradeHardware { .. }
        | Repair::ReplaceControllers { .. }
        | Repair::SetBlockTracking { .. }
        | Repair::Grant { .. } => true,
    };
    Ok(is_needed.then_some(part))
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
            workload::restore(cluster, namespace, workload, &back.collect()).await?;
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use health::repair::Moved;

    use super::*;
    use crate::fake_api::serving;

    /// Makes a repair of an object in this state. Returns the writes, each with its body.
    async fn writes_of(repair: Repair, path: &'static str, object: Value) -> Vec<String> {
        let (made, writes) = attempt(repair, path, object, json!({}), 200).await;
        let expected = if writes.is_empty() { Outcome::AlreadyMade } else { Outcome::Made };
        assert_eq!(made.unwrap(), expected);
        writes
    }

    /// The same with these records, and an API server that answers a change of the object with this status.
    async fn attempt(
        repair: Repair,
        path: &'static str,
        object: Value,
        records: Value,
        status: u16,
    ) -> (Result<Outcome, Error>, Vec<String>) {
        let writes = Arc::new(Mutex::new(Vec::new()));
        let seen = writes.clone();
        let (cluster, _server) = serving(move |request: String| {
            let writes = !request.starts_with("GET ");
            if writes {
                seen.lock().unwrap().push(request.clone());
            }
            let records =
                json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}, "data": records});
            std::future::ready(match request.contains(path) {
                true if writes && status != 200 => (status, json!({"code": status})),
                true => (200, object.clone()),
                false => (200, records),
            })
        })
        .await;
        let clients =
            RepairClients { cluster, namespace: Some("vdo".into()), vcenters: BTreeMap::new() };
        let proposal = Proposal {
            code: "VDO-1".into(),
            repair,
            automatic: false,
            says: String::new(),
            then: None,
            undo: None,
            refused: None,
        };
        let made = carry_out(&clients, &proposal).await;
        let writes = writes.lock().unwrap();
        (made, writes.clone())
    }

    fn late_node(taints: &Value) -> (Repair, &'static str, Value) {
        let node = json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {"name": "late", "resourceVersion": "7"}, "spec": {"taints": taints},
        });
        (Repair::TaintNode { node: "late".into() }, "/api/v1/nodes/late", node)
    }

    async fn taint(taints: Value) -> Vec<String> {
        let (repair, path, node) = late_node(&taints);
        writes_of(repair, path, node).await
    }

    #[tokio::test]
    async fn a_record_stays_unless_the_change_was_certainly_rejected() {
        for (status, is_kept) in [(403, false), (500, true)] {
            let (repair, path, node) = late_node(&json!([]));
            let (made, writes) = attempt(repair, path, node, json!({}), status).await;
            assert!(matches!(made, Err(Error::Kubernetes { .. })), "{made:?}");
            let records = writes.iter().filter(|write| write.contains(plan::names::REPAIRS));
            let forgotten = records.filter(|write| write.contains("null")).count();
            assert_eq!(forgotten == 0, is_kept, "{status}: {writes:?}");
        }
    }

    #[tokio::test]
    async fn a_taint_of_somebody_else_is_not_recorded() {
        let theirs = json!([{"key": plan::names::UNINITIALIZED, "effect": "NoSchedule"}]);
        assert_eq!(taint(theirs).await, Vec::<String>::new());
        let own = taint(json!([])).await;
        assert_eq!(own.len(), 2, "{own:?}");
        assert!(own[0].contains(plan::names::REPAIRS) && own[1].contains("/nodes/late"), "{own:?}");
    }

    fn features_to_add(present: &Value) -> (Repair, &'static str, Value) {
        let map = json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": plan::names::CSI_FEATURES, "resourceVersion": "7"}, "data": present,
        });
        let features = ["first", "second"].map(|name| (name.to_owned(), "true".to_owned()));
        let repair = Repair::SetFeatures { namespace: "drivers".into(), features: features.into() };
        (repair, "/namespaces/drivers/configmaps/", map)
    }

    async fn add_features(present: Value) -> Vec<String> {
        let (repair, path, map) = features_to_add(&present);
        writes_of(repair, path, map).await
    }

    #[tokio::test]
    async fn only_the_switches_that_vdo_adds_are_recorded() {
        assert_eq!(add_features(json!({"first": "true", "second": "false"})).await, [""; 0]);
        let one = add_features(json!({"first": "true"})).await;
        assert_eq!(one.len(), 2, "{one:?}");
        assert!(one.iter().all(|w| w.contains("second") && !w.contains("first")), "{one:?}");
    }

    /// VDO added the first switch earlier. It adds the second one now.
    #[tokio::test]
    async fn a_partial_repair_keeps_the_record_of_the_earlier_one() {
        let recorded = |undone: Value| {
            let features = [("first".to_owned(), "true".to_owned())].into();
            let repair = Repair::SetFeatures { namespace: "drivers".into(), features };
            let at = "2026-01-01T00:00:00Z";
            let record = json!({"at": at, "repair": repair, "undone": undone});
            json!({"VDO-1.drivers": record.to_string()})
        };
        for (undone, status, expected) in [
            (Value::Null, 200, [true, true]),
            (Value::Null, 403, [true, false]),
            (json!("2026-01-02T00:00:00Z"), 200, [false, true]),
            (json!("2026-01-02T00:00:00Z"), 403, [false, false]),
        ] {
            let (repair, path, map) = features_to_add(&json!({"first": "true"}));
            let (made, writes) = attempt(repair, path, map, recorded(undone), status).await;
            assert_eq!(made.is_ok(), status == 200, "{made:?}");
            let record = writes.iter().rfind(|w| w.contains(plan::names::REPAIRS)).unwrap();
            assert_eq!(["first", "second"].map(|name| record.contains(name)), expected, "{record}");
        }
    }

    async fn replace_images(present: [&str; 2]) -> Vec<String> {
        let [a, b] = present;
        let deployment = json!({
            "kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": {"name": "controller", "namespace": "drivers", "resourceVersion": "7"},
            "spec": {"template": {"spec": {"containers": [
                {"name": "first", "image": a}, {"name": "second", "image": b},
            ]}}},
        });
        let moved = || Moved { from: "old/image".into(), to: "new/image".into() };
        let repair = Repair::ReplaceImages {
            namespace: "drivers".into(),
            workload: "deployment/controller".into(),
            images: [("first".to_owned(), moved()), ("second".to_owned(), moved())].into(),
        };
        writes_of(repair, "/namespaces/drivers/deployments/controller", deployment).await
    }

    #[tokio::test]
    async fn only_the_images_that_vdo_replaces_are_recorded() {
        assert_eq!(replace_images(["new/image", "theirs"]).await, [""; 0]);
        let one = replace_images(["new/image", "old/image"]).await;
        assert_eq!(one.len(), 2, "{one:?}");
        assert!(one[0].contains("second") && !one[0].contains("first"), "{one:?}");
        assert!(one[1].contains("/containers/1/image"), "{one:?}");
    }
}
