//! DeleteVolume.
//!
//! It needs no operation record. CNS finds the volume by its id, and an id is never used again, so a repeated call
//! deletes the same volume or finds nothing. CNS may refuse a call while the task of a killed controller deletes the
//! volume; the caller repeats it, and then the volume is gone. A create record of the volume can outlive it: CreateVolume
//! asks CNS before it trusts a record.

use snafu::{ResultExt as _, Snafu, ensure};
use tonic::Code;
use vsphere::{FaultKind, cns::VolumeId};

use super::{
    Driver,
    failure::{self, CnsError},
    locate::{self, LocateError},
    locks::Busy,
    status_of,
};
use crate::{
    proto::csi::{DeleteVolumeRequest, DeleteVolumeResponse},
    vcenters::{Connection, Refused},
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
    require_no_snapshots(&connection, volume).await?;
    let ids = [VolumeId::from(volume.as_str())];
    let what = || "delete the disk".to_owned();
    driver.require_mandate().context(CnsSnafu { volume })?;
    let started = connection.client.delete_volumes(&ids, true);
    match failure::run(&connection, "delete-volume", what, started).await {
        Ok(_) => {}
        Err(error) if error.fault().is_some_and(failure::is_volume_missing) => {}
        Err(error) => return Err(explain(&connection, volume, error)),
    }
    connection.volumes.remove(volume);
    Ok(DeleteVolumeResponse {})
}

async fn require_no_snapshots(connection: &Connection, volume: &str) -> Result<(), DeleteError> {
    let snapshots = match connection.snapshots.list(volume).await {
        Ok(snapshots) => snapshots,
        // This vCenter is too old to have snapshots.
        Err(Refused::Call(vsphere::Error::Unsupported { .. })) => return Ok(()),
        Err(refused) => {
            let what = "list the snapshots of the volume".to_owned();
            let source = CnsError::from_refusal(what, refused);
            return Err(DeleteError::Cns { volume: volume.to_owned(), source });
        }
    };
    if snapshots.is_empty() {
        return Ok(());
    }
    let shown = snapshots.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    HasSnapshotsSnafu { volume, count: snapshots.len(), shown }.fail()
}

/// Names the VM that has the volume.
fn explain(connection: &Connection, volume: &str, error: CnsError) -> DeleteError {
    let in_use = error.fault().is_some_and(|fault| {
        fault.chain().any(|fault| matches!(fault.kind, FaultKind::ResourceInUse { .. }))
    });
    if in_use && let Some(vm) = locate::holders(connection, volume).first() {
        let title = locate::title(&connection.inventory().view(), vm);
        let holder = format!("the VM {title}");
        return DeleteError::Attached { volume: volume.to_owned(), holder };
    }
    DeleteError::Cns { volume: volume.to_owned(), source: error }
}
