//! The outcome of a task for each volume.

use super::query::{OperationResult, SnapshotInfo, VolumeInfo};
use super::types::VolumeId;
use crate::moref::MoRef;
use crate::soap::Fault;

/// The outcome of a task for one volume.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeOutcome<T> {
    /// The volume, if vCenter names it.
    pub volume: Option<VolumeId>,
    /// The result, or the fault for this volume.
    pub result: Result<T, Fault>,
}

/// The result of a successful task for one volume.
pub trait Outcome: Sized + sealed::Sealed {}

mod sealed {
    /// Only the types in this module implement it.
    pub trait Sealed {
        #[doc(hidden)]
        fn from_result(result: super::OperationResult) -> Self;
    }
}

/// Success without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    pub name: Option<String>,
    /// The chosen datastore, if vCenter reports it.
    pub datastore: Option<MoRef>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The disk's id in the guest.
    pub disk_uuid: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotMade {
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
        // The other entries are datastores that CNS tried, with the faults.
        let mut chosen =
            result.placements.into_iter().filter(|placement| placement.faults.is_empty());
        let datastore = chosen.find_map(|placement| placement.datastore);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::codec::from_xml;

    /// Hand-made data: the simulator reports only the chosen datastore.
    #[test]
    fn a_datastore_with_faults_is_not_the_chosen_one() {
        let placement = |datastore: &str, faults: &str| {
            format!(
                r#"<placementResults><datastore type="Datastore">{datastore}</datastore>{faults}</placementResults>"#
            )
        };
        let fault = r#"<placementFaults><fault xsi:type="NoDiskSpace"><datastore>a</datastore></fault>
            <localizedMessage>full</localizedMessage></placementFaults>"#;
        let created = |placements: &str| -> Option<String> {
            let xml = format!("<r><volumeId><id>v</id></volumeId>{placements}</r>");
            let outcome =
                VolumeOutcome::<Created>::from(from_xml::<OperationResult>(&xml).unwrap());
            outcome.result.unwrap().datastore.map(|datastore| datastore.id.to_string())
        };
        let (full, chosen) = (placement("datastore-1", fault), placement("datastore-2", ""));
        assert_eq!(created(&format!("{full}{chosen}")).as_deref(), Some("datastore-2"));
        assert_eq!(created(&full), None);
    }
}
