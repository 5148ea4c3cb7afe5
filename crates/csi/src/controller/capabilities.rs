//! The capabilities of the driver and the access modes of volumes.

use std::collections::HashMap;

use snafu::{OptionExt as _, Snafu, ensure};
use tonic::Code;

use super::{Driver, locate, status_of};
use crate::proto::csi::{
    ControllerGetCapabilitiesResponse, ControllerServiceCapability,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, VolumeCapability,
    controller_service_capability::{Rpc, Type as CapabilityType, rpc::Type},
    validate_volume_capabilities_response::Confirmed,
    volume_capability::{AccessType, access_mode::Mode},
};

pub(super) const VOLUME_TYPE: &str = "type";
pub(super) const BLOCK_VOLUME: &str = "vSphere CNS Block Volume";

/// GET_SNAPSHOT works too, but is not advertised: csi-sanity up to v5.4 takes it for an unknown capability, and no
/// sidecar asks for it.
const CAPABILITIES: [Type; 13] = [
    Type::CreateDeleteVolume,
    Type::PublishUnpublishVolume,
    Type::ListVolumes,
    Type::ListVolumesPublishedNodes,
    Type::GetCapacity,
    Type::CreateDeleteSnapshot,
    Type::ListSnapshots,
    Type::CloneVolume,
    Type::ExpandVolume,
    Type::VolumeCondition,
    Type::GetVolume,
    Type::SingleNodeMultiWriter,
    Type::ModifyVolume,
];

pub(super) fn controller() -> ControllerGetCapabilitiesResponse {
    let capability = |kind: Type| ControllerServiceCapability {
        r#type: Some(CapabilityType::Rpc(Rpc { r#type: kind.into() })),
    };
    ControllerGetCapabilitiesResponse { capabilities: CAPABILITIES.map(capability).into() }
}

pub(super) fn volume_context() -> HashMap<String, String> {
    HashMap::from([(VOLUME_TYPE.to_owned(), BLOCK_VOLUME.to_owned())])
}

/// Why a volume cannot have a capability.
#[derive(Debug, Snafu)]
pub(super) enum CapabilityError {
    #[snafu(display("the request has no volume capability"))]
    Missing,
    #[snafu(display("the volume capability has no access mode"))]
    NoMode,
    #[snafu(display("the volume capability has no access type: neither mount nor block"))]
    NoType,
    #[snafu(display(
        "a block volume cannot have the access mode {mode}: vSphere attaches it to one VM at a time. Use ReadWriteOnce or ReadWriteOncePod"
    ))]
    Mode { mode: &'static str },
    #[snafu(display("the file system {fs_type} is not supported; use ext4, xfs, ext3 or btrfs"))]
    FsType { fs_type: String },
}

pub(super) fn check(capabilities: &[VolumeCapability]) -> Result<(), CapabilityError> {
    ensure!(!capabilities.is_empty(), MissingSnafu);
    capabilities.iter().try_for_each(check_one)
}

pub(super) fn check_one(capability: &VolumeCapability) -> Result<(), CapabilityError> {
    let mode = capability.access_mode.as_ref().context(NoModeSnafu)?;
    let mode = Mode::try_from(mode.mode).unwrap_or(Mode::Unknown);
    match mode {
        Mode::SingleNodeWriter
        | Mode::SingleNodeReaderOnly
        | Mode::SingleNodeSingleWriter
        | Mode::SingleNodeMultiWriter => {}
        Mode::Unknown => return NoModeSnafu.fail(),
        Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => {
            return ModeSnafu { mode: mode.as_str_name() }.fail();
        }
    }
    match capability.access_type.as_ref().context(NoTypeSnafu)? {
        AccessType::Mount(mount) => check_fs_type(&mount.fs_type),
        AccessType::Block(_) => Ok(()),
    }
}

pub(super) fn check_fs_type(fs_type: &str) -> Result<(), CapabilityError> {
    // An empty text means the default. Windows nodes use ntfs.
    let known = ["", "ext3", "ext4", "xfs", "btrfs", "ntfs"];
    ensure!(known.contains(&fs_type.to_ascii_lowercase().as_str()), FsTypeSnafu { fs_type });
    Ok(())
}

/// Whether a request is for a raw block volume.
pub(super) fn is_raw_block(capability: Option<&VolumeCapability>) -> bool {
    matches!(capability.and_then(|c| c.access_type.as_ref()), Some(AccessType::Block(_)))
}

#[derive(Debug, Snafu)]
pub(super) enum ValidateError {
    #[snafu(display("the request has no volume id"))]
    NoVolume,
    #[snafu(transparent)]
    Capability { source: CapabilityError },
    #[snafu(transparent)]
    Locate { source: locate::LocateError },
}

impl ValidateError {
    fn code(&self) -> Code {
        match self {
            Self::NoVolume | Self::Capability { .. } => Code::InvalidArgument,
            Self::Locate { source } => source.code(),
        }
    }
}
status_of!(ValidateError);

pub(super) async fn validate(
    driver: &Driver,
    request: &ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, ValidateError> {
    ensure!(!request.volume_id.is_empty(), NoVolumeSnafu);
    if request.volume_capabilities.is_empty() {
        return Err(CapabilityError::Missing.into());
    }
    locate::volume(driver, &request.volume_id).await?;
    // An unsupported capability is a negative answer, not an error.
    Ok(match check(&request.volume_capabilities) {
        Ok(()) => ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context.clone(),
                volume_capabilities: request.volume_capabilities.clone(),
                parameters: request.parameters.clone(),
                mutable_parameters: request.mutable_parameters.clone(),
            }),
            message: String::new(),
        },
        Err(error) => {
            ValidateVolumeCapabilitiesResponse { confirmed: None, message: error.to_string() }
        }
    })
}
