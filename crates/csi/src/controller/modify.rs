//! ControllerModifyVolume: changes the storage policy of a volume.
//!
//! It needs no operation record: the policy is absolute, so a repeated call ends with the same policy. The caller
//! repeats a call without a final answer with the same policy (CSI and VolumeAttributesClass demand it).

use snafu::{OptionExt as _, ResultExt as _, Snafu, ensure};
use tonic::Code;
use vsphere::cns::{PolicyChange, PolicyProfile, VolumeId};

use super::{
    Driver,
    failure::{self, CnsError, code_of},
    locate::{self, LocateError},
    locks::Busy,
    parameters::{self, ParameterError},
    status_of,
};
use crate::{
    proto::csi::{ControllerModifyVolumeRequest, ControllerModifyVolumeResponse},
    vcenters::{PolicyError, Purpose},
};

#[derive(Debug, Snafu)]
pub(super) enum ModifyError {
    #[snafu(display("the request has no volume id"))]
    NoVolume,
    #[snafu(display("the request for the volume {volume} changes nothing: set storagepolicyname"))]
    Nothing { volume: String },
    #[snafu(transparent)]
    Parameter { source: ParameterError },
    #[snafu(transparent)]
    Busy { source: Busy },
    #[snafu(transparent)]
    Locate { source: LocateError },
    #[snafu(display("cannot change the storage policy of the volume {volume}"))]
    Policy { volume: String, source: PolicyError },
    #[snafu(display("cannot change the storage policy of the volume {volume}"))]
    Cns { volume: String, source: CnsError },
}

impl ModifyError {
    fn code(&self) -> Code {
        match self {
            Self::NoVolume
            | Self::Nothing { .. }
            | Self::Parameter { .. }
            | Self::Policy { source: PolicyError::Unknown { .. }, .. } => Code::InvalidArgument,
            Self::Busy { .. } => Code::Aborted,
            Self::Locate { source } => source.code(),
            Self::Policy { source: PolicyError::Read { source }, .. } => code_of(source),
            Self::Cns { source, .. } => source.code(),
        }
    }
}
status_of!(ModifyError);

pub(super) async fn modify(
    driver: &Driver,
    request: &ControllerModifyVolumeRequest,
) -> Result<ControllerModifyVolumeResponse, ModifyError> {
    let volume = &request.volume_id;
    ensure!(!volume.is_empty(), NoVolumeSnafu);
    let policy = parameters::mutable_policy(&request.mutable_parameters)?;
    let _lock = driver.locks.volume(volume)?;
    let (connection, _) = locate::volume(driver, volume).await?;
    let policy = policy.context(NothingSnafu { volume })?;
    let id = connection
        .policies
        .id(&policy, Purpose::Placement)
        .await
        .context(PolicySnafu { volume })?;
    let change =
        PolicyChange { volume: VolumeId::from(volume.as_str()), policy: PolicyProfile { id } };
    let what = || format!("apply the storage policy \"{policy}\"");
    let changes = [change];
    driver.require_mandate().context(CnsSnafu { volume })?;
    let started = connection.client.change_volume_policies(&changes);
    let modified = failure::run(&connection, "modify-volume", what, started).await;
    modified.context(CnsSnafu { volume })?;
    Ok(ControllerModifyVolumeResponse {})
}
