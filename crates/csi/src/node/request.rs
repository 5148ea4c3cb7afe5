//! The requests of the kubelet, validated.

use std::{
    collections::HashMap,
    path::{Component, Path, PathBuf},
};

use snafu::{OptionExt as _, Snafu};
use tonic::Code;

use super::{device::DiskUuid, filesystem::FileSystem};
use crate::proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
    volume_capability::{AccessType, access_mode::Mode},
};

/// The key of the disk's uuid in `publish_context`.
const DISK_UUID: &str = "diskUUID";
const TYPE: &str = "type";
const FILE_VOLUME: &str = "vSphere CNS File Volume";
/// Options that would change what is mounted instead of how.
const FORBIDDEN_OPTIONS: [&str; 9] =
    ["bind", "rbind", "move", "remount", "loop", "shared", "rshared", "slave", "private"];

#[derive(Debug, Snafu)]
pub enum RequestError {
    #[snafu(display("{field} is missing in the request"))]
    Missing { field: &'static str },
    #[snafu(display("{field} is not an absolute path without `..`: {path}"))]
    Path { field: &'static str, path: String },
    #[snafu(display(
        "`{DISK_UUID}` is missing in publish_context: ControllerPublishVolume returns it"
    ))]
    NoDisk,
    #[snafu(display(
        "`{DISK_UUID}` in publish_context is not a disk uuid of 32 hexadecimal digits: {text}"
    ))]
    Disk { text: String },
    #[snafu(display("the volume capability has no access mode"))]
    NoAccessMode,
    #[snafu(display(
        "the access mode {mode} is not supported for block volumes: use one for a single node, or read-only"
    ))]
    AccessMode { mode: String },
    #[snafu(display("the file system {name} is not supported: use ext4, ext3, xfs or btrfs"))]
    FileSystem { name: String },
    #[snafu(display("the mount option `{option}` is not allowed"))]
    MountOption { option: String },
    #[snafu(display("file volumes are not supported"))]
    FileVolume,
    #[snafu(display("the capacity range {required} to {limit} is not valid"))]
    Range { required: i64, limit: i64 },
    #[snafu(display(
        "staging_target_path is missing in the request: the volume must be staged first"
    ))]
    NotStaged,
}

impl RequestError {
    pub fn code(&self) -> Code {
        match self {
            Self::NotStaged => Code::FailedPrecondition,
            _ => Code::InvalidArgument,
        }
    }
}

/// How a volume is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// As a raw block device.
    Block,
    Mount {
        /// `None`: any file system will do.
        file_system: Option<FileSystem>,
        options: Vec<String>,
    },
}

#[derive(Clone, Debug)]
pub struct Stage {
    pub disk: DiskUuid,
    pub staging_path: PathBuf,
    pub access: Access,
    pub read_only: bool,
}

#[derive(Clone, Debug)]
pub struct Publish {
    pub disk: DiskUuid,
    pub staging_path: PathBuf,
    pub target_path: PathBuf,
    pub access: Access,
    pub read_only: bool,
    /// No second target on this node.
    pub single_writer: bool,
}

/// A request for a path where a volume should be.
#[derive(Clone, Debug)]
pub struct Expand {
    pub volume_path: PathBuf,
    pub staging_path: Option<PathBuf>,
    pub required: Option<u64>,
}

impl Stage {
    pub fn read(request: &NodeStageVolumeRequest) -> Result<Self, RequestError> {
        required("volume_id", &request.volume_id)?;
        let staging_path = path("staging_target_path", &request.staging_target_path)?;
        let (access, mode) = access(request.volume_capability.as_ref())?;
        let disk = disk(&request.publish_context, &request.volume_context)?;
        let read_only = is_reader(mode) || is_read_only(&access);
        Ok(Self { disk, staging_path, access, read_only })
    }
}

impl Publish {
    pub fn read(request: &NodePublishVolumeRequest) -> Result<Self, RequestError> {
        required("volume_id", &request.volume_id)?;
        let target_path = path("target_path", &request.target_path)?;
        let (access, mode) = access(request.volume_capability.as_ref())?;
        if request.staging_target_path.is_empty() {
            return NotStagedSnafu.fail();
        }
        let staging_path = path("staging_target_path", &request.staging_target_path)?;
        let disk = disk(&request.publish_context, &request.volume_context)?;
        let read_only = request.readonly || is_reader(mode) || is_read_only(&access);
        let single_writer = mode == Mode::SingleNodeSingleWriter;
        Ok(Self { disk, staging_path, target_path, access, read_only, single_writer })
    }
}

impl Expand {
    pub fn read(request: &NodeExpandVolumeRequest) -> Result<Self, RequestError> {
        required("volume_id", &request.volume_id)?;
        required("volume_path", &request.volume_path)?;
        let required = request.capacity_range.as_ref().map(required_bytes).transpose()?.flatten();
        let staging_path = Some(&request.staging_target_path).filter(|path| !path.is_empty());
        Ok(Self {
            volume_path: PathBuf::from(&request.volume_path),
            staging_path: staging_path.map(PathBuf::from),
            required,
        })
    }
}

/// The path of a NodeUnstageVolume request.
pub fn unstaged_path(request: &NodeUnstageVolumeRequest) -> Result<PathBuf, RequestError> {
    required("volume_id", &request.volume_id)?;
    path("staging_target_path", &request.staging_target_path)
}

/// The path of a NodeUnpublishVolume request.
pub fn unpublished_path(request: &NodeUnpublishVolumeRequest) -> Result<PathBuf, RequestError> {
    required("volume_id", &request.volume_id)?;
    path("target_path", &request.target_path)
}

/// The path of a NodeGetVolumeStats request. A path where no volume can be is not found, as the specification says.
pub fn measured_path(request: &NodeGetVolumeStatsRequest) -> Result<PathBuf, RequestError> {
    required("volume_id", &request.volume_id)?;
    required("volume_path", &request.volume_path)?;
    Ok(PathBuf::from(&request.volume_path))
}

fn required(field: &'static str, text: &str) -> Result<(), RequestError> {
    if text.is_empty() { MissingSnafu { field }.fail() } else { Ok(()) }
}

fn path(field: &'static str, text: &str) -> Result<PathBuf, RequestError> {
    required(field, text)?;
    let path = Path::new(text);
    let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    // The root folder is never a target.
    if path.is_absolute()
        && path.components().all(plain)
        && path.file_name().is_some()
        && !text.contains('\0')
    {
        Ok(path.components().collect())
    } else {
        PathSnafu { field, path: text }.fail()
    }
}

fn disk(
    publish_context: &HashMap<String, String>,
    volume_context: &HashMap<String, String>,
) -> Result<DiskUuid, RequestError> {
    let kind = publish_context.get(TYPE).or_else(|| volume_context.get(TYPE));
    if kind.is_some_and(|kind| kind == FILE_VOLUME) {
        return FileVolumeSnafu.fail();
    }
    let text =
        publish_context.get(DISK_UUID).filter(|text| !text.is_empty()).context(NoDiskSnafu)?;
    DiskUuid::parse(text).context(DiskSnafu { text })
}

fn access(capability: Option<&VolumeCapability>) -> Result<(Access, Mode), RequestError> {
    let capability = capability.context(MissingSnafu { field: "volume_capability" })?;
    let access_type = capability.access_type.as_ref();
    let access_type =
        access_type.context(MissingSnafu { field: "volume_capability.access_type" })?;
    let mode = capability.access_mode.as_ref().context(NoAccessModeSnafu)?.mode;
    let mode = match Mode::try_from(mode) {
        Ok(Mode::Unknown) | Err(_) => return NoAccessModeSnafu.fail(),
        // One disk that several VMs write to destroys the file system.
        Ok(mode @ (Mode::MultiNodeMultiWriter | Mode::MultiNodeSingleWriter)) => {
            return AccessModeSnafu { mode: mode.as_str_name() }.fail();
        }
        Ok(mode) => mode,
    };
    let access = match access_type {
        AccessType::Block(_) => Access::Block,
        AccessType::Mount(mount) => {
            let name = mount.fs_type.as_str();
            let file_system = FileSystem::parse(name);
            if file_system.is_none() && !name.is_empty() {
                return FileSystemSnafu { name }.fail();
            }
            Access::Mount { file_system, options: options(&mount.mount_flags)? }
        }
    };
    Ok((access, mode))
}

fn options(flags: &[String]) -> Result<Vec<String>, RequestError> {
    let flags = flags.iter().map(|flag| flag.trim()).filter(|flag| !flag.is_empty());
    flags
        .map(|option| {
            let forbidden = option.contains(['\0', '\n'])
                || option.split(',').any(|part| FORBIDDEN_OPTIONS.contains(&part));
            if forbidden { MountOptionSnafu { option }.fail() } else { Ok(option.to_owned()) }
        })
        .collect()
}

fn is_reader(mode: Mode) -> bool {
    matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
}

fn is_read_only(access: &Access) -> bool {
    match access {
        Access::Block => false,
        Access::Mount { options, .. } => {
            options.iter().flat_map(|option| option.split(',')).any(|option| option == "ro")
        }
    }
}

fn required_bytes(range: &CapacityRange) -> Result<Option<u64>, RequestError> {
    let (required, limit) = (range.required_bytes, range.limit_bytes);
    if required < 0 || limit < 0 || (limit > 0 && required > limit) {
        return RangeSnafu { required, limit }.fail();
    }
    Ok(u64::try_from(required).ok().filter(|bytes| *bytes > 0))
}
