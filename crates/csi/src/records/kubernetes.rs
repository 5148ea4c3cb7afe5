//! Operation records as `cnsvolumeoperationrequests.cns.vmware.com`, readable and writable by the Go driver too.
//!
//! The records of the namespace are watched, so that a call reads them from memory.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, PostParams, Preconditions},
    core::{Object, gvk::GroupVersionKind},
    runtime::{WatchStreamExt as _, watcher},
};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use snafu::ResultExt as _;
use tokio::sync::watch;
use vsphere::MoRef;

use super::{
    ConflictSnafu, Operation, OperationRecords, OperationState, RecordError, StoreSnafu,
    cache::Cache, object_name,
};
use crate::metrics::Metrics;

const FIELD_MANAGER: &str = "vsphere-csi";
/// Our own keys next to upstream's fields: what a new volume is made from, its PersistentVolume,
/// and the process that wrote the record.
const SOURCE: &str = "vdo.vmware.com/volume-source";
const PLANNED: &str = "vdo.vmware.com/persistent-volume";
const WRITER: &str = "vdo.vmware.com/writer";
/// Upstream's age of a record that is removed.
const KEEP: Duration = Duration::from_mins(15);
const PURGE_PERIOD: Duration = Duration::from_mins(5);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spec {
    name: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RecordStatus {
    #[serde(rename = "volumeID", skip_serializing_if = "String::is_empty")]
    volume_id: String,
    #[serde(rename = "snapshotID", skip_serializing_if = "String::is_empty")]
    snapshot_id: String,
    #[serde(skip_serializing_if = "is_zero")]
    capacity: i64,
    #[serde(skip_serializing_if = "is_zero")]
    error_count: i64,
    first_operation_details: Option<Details>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    latest_operation_details: Vec<Details>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape serde asks for")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    task_invocation_timestamp: Timestamp,
    #[serde(default)]
    task_id: String,
    #[serde(default, rename = "vCenterServer", skip_serializing_if = "String::is_empty")]
    vcenter_server: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    task_status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    error: String,
}

type Record = Object<Spec, RecordStatus>;

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("cns.vmware.com", "v1alpha1", "CnsVolumeOperationRequest");
    ApiResource::from_gvk_with_plural(&kind, "cnsvolumeoperationrequests")
}

/// Applies the definition of the records, unless it exists: an existing one may be upstream's.
pub async fn install_definition(client: &Client) -> Result<(), kube::Error> {
    crate::definitions::install(client, include_str!("kubernetes/definition.json")).await
}

#[derive(Debug)]
pub struct KubernetesRecords {
    api: Api<Record>,
    metrics: Metrics,
    cache: Mutex<Cache>,
    ready: watch::Sender<bool>,
    /// This process, in the records that it writes.
    writer: String,
    foreign_changes: AtomicU64,
}

impl KubernetesRecords {
    pub fn new(client: Client, namespace: &str, metrics: Metrics) -> Arc<Self> {
        let api = Api::namespaced_with(client, namespace, &resource());
        let writer = format!("{:016x}", rand::rng().random::<u64>());
        Arc::new(Self {
            api,
            metrics,
            cache: Mutex::default(),
            ready: watch::Sender::new(false),
            writer,
            foreign_changes: AtomicU64::new(0),
        })
    }

    /// Watches the records and removes old ones, for as long as the process runs.
    pub async fn run(self: Arc<Self>) {
        tokio::join!(self.watch(), self.purge());
    }

    /// Waits until all records are known.
    pub async fn ready(&self) {
        let mut ready = self.ready.subscribe();
        // The sender lives as long as `self`.
        let _ = ready.wait_for(|ready| *ready).await;
    }

    fn require_ready(&self) -> Result<(), RecordError> {
        if *self.ready.borrow() { Ok(()) } else { Err(RecordError::NotReady) }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn watch(&self) {
        let events = watcher(self.api.clone(), watcher::Config::default()).default_backoff();
        let mut events = pin!(events);
        let mut listing = Vec::new();
        loop {
            match events.try_next().await {
                Ok(Some(event)) => self.follow(event, &mut listing),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(
                        error = runtime::error_chain::error_chain(&error),
                        "cannot watch the operation records"
                    );
                }
            }
        }
    }

    fn follow(&self, event: watcher::Event<Record>, listing: &mut Vec<Record>) {
        match event {
            watcher::Event::Init => {
                listing.clear();
                self.cache().listing_begins();
            }
            watcher::Event::InitApply(record) => listing.push(record),
            watcher::Event::InitDone => {
                let records = listing.drain(..).filter_map(|record| versioned(&record)).collect();
                self.cache().listed(records);
                // After a gap, records may have come and gone unseen.
                self.foreign_changes.fetch_add(1, Ordering::Relaxed);
                self.ready.send_replace(true);
            }
            watcher::Event::Apply(record) => {
                let annotations = record.metadata.annotations.as_ref();
                if annotations.and_then(|all| all.get(WRITER)) != Some(&self.writer) {
                    self.foreign_changes.fetch_add(1, Ordering::Relaxed);
                }
                if let Some((name, version, operation)) = versioned(&record) {
                    self.cache().applied(name, version, operation);
                }
            }
            watcher::Event::Delete(record) => {
                let version = record.metadata.resource_version.as_deref();
                self.cache().deleted(&record.metadata.name.unwrap_or_default(), version);
            }
        }
    }

    /// Removes records of operations that ended long ago, as upstream does.
    async fn purge(&self) {
        loop {
            tokio::time::sleep(PURGE_PERIOD).await;
            let now = Timestamp::now();
            let is_old = |operation: &Operation| {
                let age = Duration::try_from(now.duration_since(operation.started));
                operation.state != OperationState::InProgress && age.is_ok_and(|age| age > KEEP)
            };
            let old = self.cache().matching(is_old);
            for (name, version) in old {
                // Another operation of the same name may have begun meanwhile.
                if let Err(error) = self.delete(&name, version).await {
                    tracing::debug!(error = %error, "an old operation record stays");
                }
            }
        }
    }

    /// Learns what another process wrote, so that the next call does not wait for the watch.
    async fn reread(&self, object: &str) {
        self.foreign_changes.fetch_add(1, Ordering::Relaxed);
        if let Ok(Some(record)) = self.api.get_opt(object).await
            && let Some((name, version, operation)) = versioned(&record)
        {
            self.cache().reread(&name, version, operation);
        }
    }

    /// Deletes the object if it is still at this version.
    async fn delete(&self, object: &str, version: String) -> Result<(), RecordError> {
        self.metrics.record_writes.inc();
        let preconditions =
            Preconditions { resource_version: Some(version), ..Preconditions::default() };
        let parameters =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.api.delete(object, &parameters).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.reread(object).await;
                ConflictSnafu { name: object }.fail()
            }
            other => other.map(drop).context(StoreSnafu { what: "remove", name: object }),
        }
    }

    /// Replaces this version of the record; creates the record without one.
    async fn write(
        &self,
        operation: &Operation,
        version: Option<String>,
    ) -> Result<(), RecordError> {
        let name = &operation.name;
        let object = object_name(name);
        let mut record = record(&object, operation, &self.writer);
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        self.metrics.record_writes.inc();
        let written = if version.is_some() {
            record.metadata.resource_version = version;
            match self.api.replace(&object, &parameters, &record).await {
                // Somebody removed it.
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    record.metadata.resource_version = None;
                    self.api.create(&parameters, &record).await
                }
                other => other,
            }
        } else {
            self.api.create(&parameters, &record).await
        };
        match written {
            Ok(written) => {
                let version = written.metadata.resource_version.unwrap_or_default();
                self.cache().wrote(&object, version, operation.clone());
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.reread(&object).await;
                ConflictSnafu { name }.fail()
            }
            Err(source) => Err(source).context(StoreSnafu { what: "write", name }),
        }
    }
}

#[tonic::async_trait]
impl OperationRecords for KubernetesRecords {
    async fn find(&self, name: &str) -> Result<Option<Operation>, RecordError> {
        self.require_ready()?;
        Ok(self.cache().current(&object_name(name)).cloned())
    }

    async fn all(&self) -> Result<Vec<Operation>, RecordError> {
        self.require_ready()?;
        Ok(self.cache().all())
    }

    async fn store(&self, operation: &Operation) -> Result<(), RecordError> {
        let version = self.cache().version(&object_name(&operation.name));
        self.write(operation, version).await
    }

    async fn begin(
        &self,
        found: Option<&Operation>,
        operation: &Operation,
    ) -> Result<(), RecordError> {
        let (name, object) = (&operation.name, object_name(&operation.name));
        let version = {
            let cache = self.cache();
            // The watch can have brought the record of another controller since.
            snafu::ensure!(cache.current(&object) == found, ConflictSnafu { name });
            cache.version(&object)
        };
        self.write(operation, version).await
    }

    async fn remove(&self, name: &str) -> Result<(), RecordError> {
        let object = object_name(name);
        let (version, before) = {
            let mut cache = self.cache();
            (cache.version(&object), cache.removes(&object))
        };
        // Without a version, the object does not exist.
        let Some(version) = version else { return Ok(()) };
        let removed = self.delete(&object, version).await;
        if removed.is_err() {
            self.cache().keeps(&object, before);
        }
        removed
    }

    fn foreign_changes(&self) -> u64 {
        self.foreign_changes.load(Ordering::Relaxed)
    }
}

fn record(object: &str, operation: &Operation, writer: &str) -> Record {
    let task_status = match operation.state {
        OperationState::InProgress => "InProgress",
        OperationState::Success => "Success",
        OperationState::Error => "Error",
    };
    let details = Details {
        task_invocation_timestamp: operation.started,
        task_id: operation.task.as_ref().map(|task| task.id.to_string()).unwrap_or_default(),
        vcenter_server: operation.vcenter.clone(),
        task_status: task_status.to_owned(),
        error: operation.error.clone().unwrap_or_default(),
    };
    let status = RecordStatus {
        volume_id: operation.volume_id.clone().unwrap_or_default(),
        snapshot_id: operation.snapshot_id.clone().unwrap_or_default(),
        capacity: operation.capacity_mib.unwrap_or_default(),
        error_count: i64::from(operation.error.is_some()),
        first_operation_details: Some(details.clone()),
        latest_operation_details: vec![details],
    };
    let mut record = Record::new(object, &resource(), Spec { name: operation.name.clone() });
    let mut annotations = BTreeMap::from([(WRITER.to_owned(), writer.to_owned())]);
    let own = [(SOURCE, &operation.source), (PLANNED, &operation.planned)];
    let own = own.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text.clone()?)));
    annotations.extend(own);
    record.metadata.annotations = Some(annotations);
    record.status = Some(status);
    record
}

/// The object's name, version and operation.
fn versioned(record: &Record) -> Option<(String, String, Operation)> {
    let (name, operation) = named(record)?;
    Some((name, record.metadata.resource_version.clone().unwrap_or_default(), operation))
}

/// The object's name and its operation. The last entry of the details is current.
fn named(record: &Record) -> Option<(String, Operation)> {
    let name = record.metadata.name.clone()?;
    let status = record.status.clone().unwrap_or_default();
    let details =
        status.latest_operation_details.last().or(status.first_operation_details.as_ref());
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let (task, vcenter, state, error, started) = match details {
        Some(details) => (
            text(&details.task_id).map(|id| MoRef::new("Task", id)),
            details.vcenter_server.clone(),
            details.task_status.as_str(),
            text(&details.error),
            details.task_invocation_timestamp,
        ),
        None => (None, String::new(), "InProgress", None, Timestamp::UNIX_EPOCH),
    };
    let state = match state {
        "Success" | "Successful" => OperationState::Success,
        "Error" | "Failed" | "PartiallyFailed" => OperationState::Error,
        _ => OperationState::InProgress,
    };
    let annotation =
        |key: &str| record.metadata.annotations.as_ref().and_then(|all| all.get(key).cloned());
    let operation = Operation {
        name: record.spec.name.clone(),
        state,
        vcenter,
        task,
        started,
        volume_id: text(&status.volume_id),
        snapshot_id: text(&status.snapshot_id),
        capacity_mib: (status.capacity > 0).then_some(status.capacity),
        source: annotation(SOURCE),
        planned: annotation(PLANNED),
        error,
    };
    Some((name, operation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_equal() {
        let operation = Operation {
            task: Some(MoRef::new("Task", "task-7")),
            volume_id: Some("v1".into()),
            capacity_mib: Some(1024),
            source: Some("v0+s0".into()),
            planned: Some("{}".into()),
            started: "2026-01-02T03:04:05Z".parse().unwrap(),
            ..Operation::begin("pvc-1", "vc.example.com")
        };
        let written = serde_json::to_value(record("pvc-1", &operation, "me")).unwrap();
        let record: Record = serde_json::from_value(written).unwrap();
        assert_eq!(named(&record), Some(("pvc-1".to_owned(), operation)));
    }

    #[test]
    fn a_record_of_the_go_driver_is_understood() {
        let record: Record = serde_json::from_value(serde_json::json!({
            "apiVersion": "cns.vmware.com/v1alpha1", "kind": "CnsVolumeOperationRequest",
            "metadata": {"name": "pvc-1"}, "spec": {"name": "pvc-1"},
            "status": {
                "firstOperationDetails": {"taskInvocationTimestamp": "2026-01-02T03:04:05Z", "taskId": "task-1", "taskStatus": "Error", "error": "x"},
                "latestOperationDetails": [
                    {"taskInvocationTimestamp": "2026-01-02T03:04:05Z", "taskId": "task-1", "taskStatus": "Error", "error": "x"},
                    {"taskInvocationTimestamp": "2026-01-02T03:05:05Z", "taskId": "task-2", "opId": "1f", "taskStatus": "InProgress"}
                ]
            }
        }))
        .unwrap();
        let (_, operation) = named(&record).unwrap();
        assert_eq!(operation.state, OperationState::InProgress);
        assert_eq!(operation.task, Some(MoRef::new("Task", "task-2")));
    }
}
