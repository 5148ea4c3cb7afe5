//! Operation records: what the driver asked CNS to do, written before it asks.
//!
//! CNS does not enforce unique names. A record makes "create the volume pvc-1" repeatable after a crash: the next
//! attempt finds the task of the first one. The real store is Kubernetes (`kubernetes`); tests without a cluster use
//! [`MemoryRecords`].

mod cache;
mod kubernetes;

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use aws_lc_rs::digest;
use jiff::Timestamp;
use snafu::Snafu;
use vsphere::MoRef;

pub use self::kubernetes::{KubernetesRecords, install_definition};

#[derive(Debug, Snafu)]
#[snafu(visibility(pub(crate)))]
pub enum RecordError {
    #[snafu(display(
        "cannot {what} the operation record {name}; without it a crash could create a volume twice"
    ))]
    Store {
        what: &'static str,
        name: String,
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("the operation records are not read yet"))]
    NotReady,
    #[snafu(display(
        "another controller works on the same operation: its record {name} changed. Repeat the call"
    ))]
    Conflict { name: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// CNS may have been asked. With a task, it certainly was.
    InProgress,
    Success,
    /// CNS refused, for good.
    Error,
}

/// The source of a new volume that is empty. No volume has such an id.
pub const NO_SOURCE: &str = "none";

/// One operation on CNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The record's name: for a volume that is created, its name.
    pub name: String,
    pub state: OperationState,
    /// The vCenter that was asked.
    pub vcenter: String,
    pub task: Option<MoRef>,
    /// When CNS was asked, or when a call without an answer was given up.
    pub started: Timestamp,
    pub volume_id: Option<String>,
    pub snapshot_id: Option<String>,
    /// The size that was asked for.
    pub capacity_mib: Option<i64>,
    /// The volume or snapshot that the new volume is made from, or [`NO_SOURCE`]. `None` in records of the Go driver: it
    /// is unknown.
    pub source: Option<String>,
    /// The PersistentVolume of a new volume, as JSON and without what CNS decides. The loops create it even if the
    /// claim is deleted meanwhile.
    pub planned: Option<String>,
    pub error: Option<String>,
}

/// The extension of a CreateVolume request that comes from the loops: [`Operation::planned`].
#[derive(Clone, Debug)]
pub struct PlannedVolume(pub String);

impl Operation {
    /// An operation that CNS has not been asked for yet.
    pub fn begin(name: &str, vcenter: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: OperationState::InProgress,
            vcenter: vcenter.to_owned(),
            task: None,
            started: Timestamp::now(),
            volume_id: None,
            snapshot_id: None,
            capacity_mib: None,
            source: None,
            planned: None,
            error: None,
        }
    }
}

/// The store of operation records.
#[tonic::async_trait]
pub trait OperationRecords: Send + Sync + std::fmt::Debug {
    async fn find(&self, name: &str) -> Result<Option<Operation>, RecordError>;

    /// All records, in no order.
    async fn all(&self) -> Result<Vec<Operation>, RecordError>;

    /// Creates or replaces the record. It is durable on return. Fails if another process changed it.
    async fn store(&self, operation: &Operation) -> Result<(), RecordError>;

    /// Like [`Self::store`], for an operation that begins. Fails if the record is no longer the one that was `found`:
    /// another controller has begun the operation since.
    async fn begin(
        &self,
        found: Option<&Operation>,
        operation: &Operation,
    ) -> Result<(), RecordError>;

    /// Removes the record. A missing record is fine.
    async fn remove(&self, name: &str) -> Result<(), RecordError>;

    /// Grows when another process may have written records. What this process remembers of the volumes is then
    /// outdated.
    fn foreign_changes(&self) -> u64 {
        0
    }
}

impl RecordError {
    pub fn code(&self) -> tonic::Code {
        match self {
            Self::Store { .. } | Self::NotReady => tonic::Code::Unavailable,
            Self::Conflict { .. } => tonic::Code::Aborted,
        }
    }
}

/// Records that end with the process.
#[derive(Debug, Default)]
pub struct MemoryRecords {
    all: Mutex<HashMap<String, Operation>>,
}

impl MemoryRecords {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Operation>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl OperationRecords for MemoryRecords {
    async fn find(&self, name: &str) -> Result<Option<Operation>, RecordError> {
        Ok(self.lock().get(name).cloned())
    }

    async fn all(&self) -> Result<Vec<Operation>, RecordError> {
        Ok(self.lock().values().cloned().collect())
    }

    async fn store(&self, operation: &Operation) -> Result<(), RecordError> {
        self.lock().insert(operation.name.clone(), operation.clone());
        Ok(())
    }

    async fn begin(
        &self,
        found: Option<&Operation>,
        operation: &Operation,
    ) -> Result<(), RecordError> {
        let mut all = self.lock();
        if all.get(&operation.name) != found {
            return ConflictSnafu { name: &operation.name }.fail();
        }
        all.insert(operation.name.clone(), operation.clone());
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<(), RecordError> {
        self.lock().remove(name);
        Ok(())
    }
}

/// The first half of the SHA-256 digest of a text, in hexadecimal digits.
pub fn short_digest(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A text as the name of a Kubernetes object: itself if possible, as upstream names its records. Other names, such
/// as those with capitals, get a digest so that two of them never share a record.
pub fn object_name(text: &str) -> String {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends = [text.bytes().next(), text.bytes().next_back()];
    let valid = text.len() <= 253
        && text.bytes().all(inner)
        && ends.iter().all(|end| end.is_some_and(|b| b != b'-'));
    if valid { text.to_owned() } else { format!("name-{}", short_digest(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_operation_that_another_controller_began_meanwhile_does_not_begin_again() {
        let records = MemoryRecords::default();
        let found = records.find("pvc-1").await.unwrap();
        let other = Operation::begin("pvc-1", "vc-1");
        records.begin(None, &other).await.unwrap();
        let own = Operation::begin("pvc-1", "vc-1");
        let refused = records.begin(found.as_ref(), &own).await.unwrap_err();
        assert!(matches!(refused, RecordError::Conflict { .. }), "{refused}");
        let found = records.find("pvc-1").await.unwrap();
        records.begin(found.as_ref(), &own).await.unwrap();
    }

    #[test]
    fn names_that_kubernetes_refuses_get_a_digest() {
        let pv = "pvc-0d3c8a1e-2b1f-4c55-9f0e-3f8f3a1d2c4b";
        assert_eq!(object_name(pv), pv);
        let (one, two) = (object_name("Sanity-1"), object_name("sanity-1_"));
        assert!(one.starts_with("name-") && two.starts_with("name-") && one != two);
        assert_eq!(one, object_name("Sanity-1"), "the same name in every process");
    }
}
