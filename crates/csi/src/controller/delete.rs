//! DeleteVolume.

use snafu::{Snafu, ensure};
use tonic::Code;
use vsphere::{
    FaultKind,
    cns::{SnapshotQuerySpec, VolumeId},
};

use super::{
    Driver, TASK_TIMEOUT,
    failure::{self, CnsError},
    locate::{self, LocateError},
    locks::Busy,
    status_of,
};
use crate::{
    proto::csi::{DeleteVolumeRequest, DeleteVolumeResponse},
    vcenters::Connection,
};

#[derive(Debug, Snafu)]
pub(super) enum DeleteError {
    #[snafu(display("the request has no volume id"))]
    NoVolume,
    #[snafu(transparent)]
    Busy { source: Busy },
    #[snafu(transparent)]
    Locate { source: LocateError },
    #[snafu(display("the volume {volume} has {count} snapshots: {shown}. Delete them first"))]
    HasSnapshots { volume: String, count: usize, shown: String },
    #[snafu(display(
        "the volume {volume} is attached to {holder}. Detach it first: delete the pods that use it"
    ))]
    Attached { volume: String, holder: String },
    #[snafu(display("cannot delete the volume {volume}"))]
    Cns { volume: String, source: CnsError },
}

impl DeleteError {
    fn code(&self) -> Code {
        match self {
            Self::NoVolume => Code::InvalidArgument,
            Self::Busy { .. } => Code::Aborted,
            Self::Locate { source } => source.code(),
            Self::HasSnapshots { .. } | Self::Attached { .. } => Code::FailedPrecondition,
            Self::Cns { source, .. } => source.code(),
        }
    }
}
status_of!(DeleteError);

pub(super) async fn delete(
    driver: &Driver,
    request: &DeleteVolumeRequest,
) -> Result<DeleteVolumeResponse, DeleteError> {
    let volume = &request.volume_id;
    ensure!(!volume.is_empty(), NoVolumeSnafu);
    let _lock = driver.locks.volume(volume)?;
    let connection = match locate::vcenter_of(driver, volume).await {
        Ok(connection) => connection,
        Err(LocateError::NotFound { .. }) => return Ok(DeleteVolumeResponse {}),
        Err(error) => return Err(error.into()),
    };
    // CNS would delete the snapshots with the volume.
    if !has_no_snapshots(&connection, volume).await? {
        return Ok(DeleteVolumeResponse {});
    }
    let ids = [VolumeId::from(volume.as_str())];
    let what = || "delete the disk".to_owned();
    let started = connection.client.delete_volumes(&ids, true).await;
    match failure::finish(what, started).await {
        Ok(_) => {}
        Err(error) if error.fault().is_some_and(failure::is_volume_missing) => {}
        Err(error) => return Err(explain(&connection, volume, error)),
    }
    connection.volumes.remove(volume);
    Ok(DeleteVolumeResponse {})
}

/// `Ok(false)` if the volume itself does not exist.
async fn has_no_snapshots(connection: &Connection, volume: &str) -> Result<bool, DeleteError> {
    let specs = [SnapshotQuerySpec { volume: VolumeId::from(volume), snapshot: None }];
    let entries = match connection.client.query_volume_snapshots(&specs, TASK_TIMEOUT).await {
        Ok(entries) => entries,
        // This vCenter is too old to have snapshots.
        Err(vsphere::Error::Unsupported { .. }) => return Ok(true),
        Err(source) => {
            let what = "list the snapshots of the volume".to_owned();
            let (volume, source) = (volume.to_owned(), CnsError::Call { what, source });
            return Err(DeleteError::Cns { volume, source });
        }
    };
    let mut snapshots = Vec::new();
    for entry in entries {
        match (entry.snapshot, entry.error) {
            (_, Some(fault)) if failure::is_volume_missing(&fault) => {
                connection.volumes.remove(volume);
                return Ok(false);
            }
            (Some(snapshot), None) => snapshots.push(snapshot.id.id),
            (_, Some(fault)) => {
                let what = "list the snapshots of the volume".to_owned();
                let source = CnsError::Refused { what, source: Box::new(fault) };
                return Err(DeleteError::Cns { volume: volume.to_owned(), source });
            }
            (None, None) => {}
        }
    }
    if snapshots.is_empty() {
        return Ok(true);
    }
    let shown = snapshots.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    HasSnapshotsSnafu { volume, count: snapshots.len(), shown }.fail()
}

/// Names the VM that has the volume.
fn explain(connection: &Connection, volume: &str, error: CnsError) -> DeleteError {
    let in_use = error.fault().is_some_and(|fault| {
        fault.chain().any(|fault| matches!(fault.kind, FaultKind::ResourceInUse { .. }))
    });
    if in_use {
        let view = connection.inventory().view();
        let holders = locate::holders(&view, volume);
        if let Some(vm) = holders.first() {
            let holder = format!("the VM {}", locate::title(&view, vm));
            return DeleteError::Attached { volume: volume.to_owned(), holder };
        }
    }
    DeleteError::Cns { volume: volume.to_owned(), source: error }
}
