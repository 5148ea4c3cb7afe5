//! The capabilities of the driver and the access modes of volumes.

use std::collections::HashMap;

use snafu::{OptionExt as _, Snafu, ensure};
use tonic::Code;

use super::{Driver, locate, status_of};
use crate::{
    node::filesystem::FileSystem,
    proto::csi::{
        ControllerGetCapabilitiesResponse, ControllerServiceCapability,
        ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, VolumeCapability,
        controller_service_capability::{Rpc, Type as CapabilityType, rpc::Type},
        validate_volume_capabilities_response::Confirmed,
        volume_capability::{AccessType, access_mode::Mode},
    },
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
    #[snafu(display(
        "the file system \"{fs_type}\" is not supported: set csi.storage.k8s.io/fstype in the StorageClass to one of {known}"
    ))]
    FsType { fs_type: String, known: String },
}

/// Checks the capabilities of a new volume.
pub(super) fn check(capabilities: &[VolumeCapability]) -> Result<(), CapabilityError> {
    ensure!(!capabilities.is_empty(), MissingSnafu);
    for capability in capabilities {
        check_one(capability)?;
        if let Some(AccessType::Mount(mount)) = &capability.access_type {
            check_fs_type(&mount.fs_type)?;
        }
    }
    Ok(())
}

/// Checks a capability of an existing volume. Its file system is the node plugin's concern: the volume can come from
/// another driver.
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
    capability.access_type.as_ref().context(NoTypeSnafu).map(drop)
}

/// The file system of a new volume must be one that the node plugin can mount. An empty text means the default.
pub(super) fn check_fs_type(fs_type: &str) -> Result<(), CapabilityError> {
    if fs_type.is_empty() || FileSystem::parse(fs_type).is_some() {
        return Ok(());
    }
    let known = FileSystem::ALL.map(FileSystem::name).join(", ");
    FsTypeSnafu { fs_type, known }.fail()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::csi::volume_capability::{AccessMode, MountVolume};

    fn mounted(fs_type: &str) -> VolumeCapability {
        let mount = MountVolume { fs_type: fs_type.into(), ..MountVolume::default() };
        VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            access_type: Some(AccessType::Mount(mount)),
        }
    }

    #[test]
    fn a_new_volume_gets_only_a_file_system_that_the_node_plugin_can_mount() {
        for fs_type in ["", "ext4", "EXT4", "xfs", "Btrfs", "ext3"] {
            check(&[mounted(fs_type)]).unwrap();
            assert!(fs_type.is_empty() || FileSystem::parse(fs_type).is_some(), "{fs_type}");
        }
        for fs_type in ["ntfs", "zfs", "ext4 "] {
            let refused = check(&[mounted(fs_type)]).unwrap_err().to_string();
            for part in [fs_type, "csi.storage.k8s.io/fstype", "ext3, ext4, xfs, btrfs"] {
                assert!(refused.contains(part), "{refused}");
            }
        }
    }

    #[test]
    fn an_existing_volume_is_attached_whatever_its_file_system_is() {
        check_one(&mounted("ntfs")).unwrap();
    }
}
