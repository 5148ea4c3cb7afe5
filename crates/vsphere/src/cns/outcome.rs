//! What became of each volume of a task.

use super::query::{OperationResult, SnapshotInfo, VolumeInfo};
use super::types::VolumeId;
use crate::moref::MoRef;
use crate::soap::Fault;

/// What became of one volume.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeOutcome<T> {
    /// The volume, where vCenter names it.
    pub volume: Option<VolumeId>,
    /// What a success brought, or why it failed.
    pub result: Result<T, Fault>,
}

/// Something that a success brings.
pub trait Outcome: Sized + sealed::Sealed {}

mod sealed {
    /// Reads an outcome; only the types here do.
    pub trait Sealed {
        #[doc(hidden)]
        fn from_result(result: super::OperationResult) -> Self;
    }
}

/// Nothing but success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done;

/// A volume that was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Its name.
    pub name: Option<String>,
    /// Where it was put, where vCenter tells.
    pub datastore: Option<MoRef>,
}

/// A volume that was attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The id under which the guest sees the disk.
    pub disk_uuid: String,
}

/// A snapshot that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotMade {
    /// The snapshot.
    pub snapshot: Option<SnapshotInfo>,
}

impl Outcome for Done {}
impl sealed::Sealed for Done {
    fn from_result(_: OperationResult) -> Self {
        Self
    }
}

impl Outcome for Created {}
impl sealed::Sealed for Created {
    fn from_result(result: OperationResult) -> Self {
        let datastore = result.placements.into_iter().find_map(|placement| placement.datastore);
        Self { name: result.name, datastore }
    }
}

impl Outcome for Attached {}
impl sealed::Sealed for Attached {
    fn from_result(result: OperationResult) -> Self {
        Self { disk_uuid: result.disk_uuid.unwrap_or_default() }
    }
}

impl Outcome for SnapshotMade {}
impl sealed::Sealed for SnapshotMade {
    fn from_result(result: OperationResult) -> Self {
        Self { snapshot: result.snapshot }
    }
}

impl Outcome for VolumeInfo {}
impl sealed::Sealed for VolumeInfo {
    fn from_result(result: OperationResult) -> Self {
        Self::from(result.info)
    }
}

impl<T: Outcome> From<OperationResult> for VolumeOutcome<T> {
    fn from(mut result: OperationResult) -> Self {
        let volume = result.volume.take();
        let result = match result.fault.take() {
            Some(fault) => Err(fault),
            None => Ok(T::from_result(result)),
        };
        Self { volume, result }
    }
}
