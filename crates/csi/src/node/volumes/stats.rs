//! NodeGetVolumeStats: usage and condition of a published volume.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use snafu::{OptionExt as _, ResultExt as _, Snafu};
use tonic::Code;

use super::Volumes;
use crate::{
    node::{
        answering,
        device::{Device, DeviceError},
        mounting::{is_stale, resolved},
        mounts::{Mount, MountTableError, Mounts},
    },
    proto::csi::{NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage, volume_usage::Unit},
};

#[derive(Debug, Snafu)]
pub enum StatsError {
    #[snafu(display("no volume is mounted at {}", path.display()))]
    NotFound { path: PathBuf },
    #[snafu(display("cannot determine what is mounted"))]
    Table { source: MountTableError },
    #[snafu(display("cannot determine the size of the disk"))]
    Size { source: DeviceError },
    #[snafu(display("the file system at {} does not answer: its disk may be gone or hang", path.display()))]
    NoAnswer { path: PathBuf },
}

impl StatsError {
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::NoAnswer { .. } => Code::DeadlineExceeded,
            Self::Size { source } if source.is_hung() => Code::DeadlineExceeded,
            Self::Table { .. } | Self::Size { .. } => Code::Internal,
        }
    }
}

impl Volumes {
    pub async fn stats(
        &self,
        volume_path: &Path,
    ) -> Result<NodeGetVolumeStatsResponse, StatsError> {
        let path = resolved(volume_path);
        let mounts = Mounts::read().context(TableSnafu)?;
        let mount = mounts.at(&path).context(NotFoundSnafu { path: &path })?;
        if mount.root != Path::new("/")
            && let Some(device) = Device::at(&path)
        {
            let total = signed(device.size().await.context(SizeSnafu)?);
            let usage = VolumeUsage { available: 0, total, used: 0, unit: Unit::Bytes.into() };
            return Ok(NodeGetVolumeStatsResponse {
                usage: vec![usage],
                volume_condition: Some(normal()),
            });
        }
        let asked = path.clone();
        let reading =
            answering::within(self.stats_timeout, &path, move || rustix::fs::statvfs(&asked));
        let Ok(statistics) = reading.await else {
            return NoAnswerSnafu { path }.fail();
        };
        Ok(match statistics {
            Ok(statistics) => NodeGetVolumeStatsResponse {
                usage: vec![bytes(&statistics), inodes(&statistics)],
                volume_condition: Some(self.condition(mount)),
            },
            Err(error) => NodeGetVolumeStatsResponse {
                usage: Vec::new(),
                volume_condition: Some(unreadable(error)),
            },
        })
    }

    fn condition(&self, mount: &Mount) -> VolumeCondition {
        let problem = if is_stale(mount, &self.devices) {
            "the disk of the volume is gone from this node: delete the pod, so that the volume is attached again"
        } else if mount.became_read_only() {
            "the file system became read-only after errors: see the kernel log of this node, delete the pod, and check \
             the file system"
        } else {
            return normal();
        };
        VolumeCondition { abnormal: true, message: problem.to_owned() }
    }
}

fn normal() -> VolumeCondition {
    VolumeCondition { abnormal: false, message: "the volume is mounted and can be read".to_owned() }
}

fn unreadable(error: Errno) -> VolumeCondition {
    let message = format!("the file system of the volume cannot be read: {error}");
    VolumeCondition { abnormal: true, message }
}

fn bytes(statistics: &rustix::fs::StatVfs) -> VolumeUsage {
    let size = |blocks: u64| signed(blocks.saturating_mul(statistics.f_frsize));
    VolumeUsage {
        available: size(statistics.f_bavail),
        total: size(statistics.f_blocks),
        used: size(statistics.f_blocks.saturating_sub(statistics.f_bfree)),
        unit: Unit::Bytes.into(),
    }
}

fn inodes(statistics: &rustix::fs::StatVfs) -> VolumeUsage {
    VolumeUsage {
        available: signed(statistics.f_ffree),
        total: signed(statistics.f_files),
        used: signed(statistics.f_files.saturating_sub(statistics.f_ffree)),
        unit: Unit::Inodes.into(),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
