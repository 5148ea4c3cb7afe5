//! ControllerExpandVolume.
//!
//! It needs no operation record. The size is absolute and CNS never shrinks a volume, so a repeated call ends with
//! the same size. CNS refuses a call for a size that the volume has already, for example because the task of a killed
//! controller grew it: then the size in CNS decides, not the refusal.

use snafu::{ResultExt as _, Snafu, ensure};
use tonic::Code;
use vsphere::{
    ApiVersion,
    cns::{ExtendSpec, SnapshotQuerySpec, VolumeId},
};

use super::{
    Driver, TASK_TIMEOUT, capabilities,
    failure::{self, CnsError, is_volume_missing},
    locate::{self, LocateError},
    locks::Busy,
    size::{self, SizeError},
    status_of,
};
use crate::{
    proto::csi::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse},
    vcenters::{Connection, KnownVolume},
};

#[derive(Debug, Snafu)]
pub(super) enum ExpandError {
    #[snafu(display("the request has no volume id"))]
    NoVolume,
    #[snafu(display("the request for the volume {volume} has no size"))]
    NoSize { volume: String },
    #[snafu(transparent)]
    Size { source: SizeError },
    #[snafu(transparent)]
    Busy { source: Busy },
    #[snafu(transparent)]
    Locate { source: LocateError },
    #[snafu(display(
        "the volume {volume} has {count} snapshots, and vSphere cannot expand a volume with snapshots. Delete them first"
    ))]
    HasSnapshots { volume: String, count: usize },
    #[snafu(display(
        "the volume {volume} is attached, and only vSphere 7.0 Update 2 and later expands an attached volume. Stop the pods that use it, or upgrade vCenter and the hosts"
    ))]
    Online { volume: String },
    #[snafu(display("cannot expand the volume {volume}"))]
    Cns { volume: String, source: CnsError },
}

impl ExpandError {
    fn code(&self) -> Code {
        match self {
            Self::NoVolume | Self::NoSize { .. } => Code::InvalidArgument,
            Self::Size { source } => source.code(),
            Self::Busy { .. } => Code::Aborted,
            Self::Locate { source } => source.code(),
            Self::HasSnapshots { .. } | Self::Online { .. } => Code::FailedPrecondition,
            Self::Cns { source, .. } => source.code(),
        }
    }
}
status_of!(ExpandError);

pub(super) async fn expand(
    driver: &Driver,
    request: &ControllerExpandVolumeRequest,
) -> Result<ControllerExpandVolumeResponse, ExpandError> {
    let volume = &request.volume_id;
    ensure!(!volume.is_empty(), NoVolumeSnafu);
    let range = request.capacity_range.as_ref();
    ensure!(
        range.is_some_and(|r| r.required_bytes != 0 || r.limit_bytes != 0),
        NoSizeSnafu { volume }
    );
    let wanted_mib = size::wanted_mib(range)?;
    let _lock = driver.locks.volume(volume)?;
    let (connection, known) = locate::volume(driver, volume).await?;
    let node_expansion_required = !capabilities::is_raw_block(request.volume_capability.as_ref());
    let answer = |mib: i64| ControllerExpandVolumeResponse {
        capacity_bytes: size::bytes(mib),
        node_expansion_required,
    };
    if known.capacity_mib >= wanted_mib {
        return Ok(answer(known.capacity_mib));
    }
    if is_attached(&connection, volume)
        && connection.client.api_version().is_ok_and(|version| version < ApiVersion::V7_0U2)
    {
        return OnlineSnafu { volume }.fail();
    }
    let id = VolumeId::from(volume.as_str());
    let specs = [ExtendSpec { volume: id, capacity_mib: wanted_mib }];
    let what = || format!("grow the disk to {wanted_mib} MiB");
    driver.require_mandate().context(CnsSnafu { volume })?;
    let started = connection.client.extend_volumes(&specs);
    if let Err(error) = failure::run(&connection, "expand-volume", what, started).await {
        return match current_size(&connection, volume, &error).await {
            Some(mib) if mib >= wanted_mib => Ok(answer(mib)),
            _ => Err(explain(&connection, volume, error).await),
        };
    }
    let grown = KnownVolume { capacity_mib: wanted_mib, ..KnownVolume::clone(&known) };
    connection.volumes.set(grown);
    Ok(answer(wanted_mib))
}

/// The size in CNS after a refusal.
async fn current_size(connection: &Connection, volume: &str, error: &CnsError) -> Option<i64> {
    error.fault()?;
    let found = locate::in_cns(connection, volume).await.ok()??;
    let known = connection.volumes.set(found.into());
    Some(known.capacity_mib)
}

fn is_attached(connection: &Connection, volume: &str) -> bool {
    !locate::holders(connection, volume).is_empty()
}

/// The usual reason of a refusal is that the volume has snapshots.
async fn explain(connection: &Connection, volume: &str, error: CnsError) -> ExpandError {
    let Some(fault) = error.fault() else {
        return ExpandError::Cns { volume: volume.to_owned(), source: error };
    };
    if is_volume_missing(fault) {
        connection.volumes.remove(volume);
        return LocateError::NotFound { volume: volume.to_owned() }.into();
    }
    let specs = [SnapshotQuerySpec { volume: VolumeId::from(volume), snapshot: None }];
    let snapshots = connection.client.query_volume_snapshots(&specs, TASK_TIMEOUT).await;
    let count = snapshots.map_or(0, |all| all.iter().filter(|e| e.snapshot.is_some()).count());
    match count {
        0 => ExpandError::Cns { volume: volume.to_owned(), source: error },
        count => ExpandError::HasSnapshots { volume: volume.to_owned(), count },
    }
}
