//! NodeExpandVolume: the file system grows to the size of its disk.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use snafu::{OptionExt as _, ResultExt as _, Snafu};
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::{Volumes, device_of, file_system_of};
use crate::node::{
    device::{Device, DeviceError},
    filesystem::FileSystemError,
    mounting::resolved,
    mounts::{MountTableError, Mounts},
    request::Expand,
};

/// How long the kernel can take to see the new size.
const SIZE_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Snafu)]
pub enum ExpandError {
    #[snafu(display("no volume is mounted at {}", path.display()))]
    NotFound { path: PathBuf },
    #[snafu(display("cannot determine what is mounted"))]
    Table { source: MountTableError },
    #[snafu(display("the disk mounted at {} is gone", path.display()))]
    DiskGone { path: PathBuf },
    #[snafu(display("{} is mounted with the file system {name}, which the driver cannot grow", path.display()))]
    FileSystemKind { path: PathBuf, name: String },
    #[snafu(display("cannot determine the size of the disk"))]
    Size { source: DeviceError },
    #[snafu(display("{} has {size} bytes, but {required} are required: the disk has not grown yet, or ControllerExpandVolume failed", device.display()))]
    TooSmall { device: PathBuf, size: u64, required: u64 },
    #[snafu(display("cannot grow the file system of the volume"))]
    Grow { source: FileSystemError },
}

impl ExpandError {
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::TooSmall { .. } => Code::Unavailable,
            Self::FileSystemKind { .. } => Code::FailedPrecondition,
            Self::Grow { source } => source.code(),
            Self::Size { source } if source.is_hung() => Code::DeadlineExceeded,
            Self::Table { .. } | Self::DiskGone { .. } | Self::Size { .. } => Code::Internal,
        }
    }
}

impl Volumes {
    /// Returns the size of the disk.
    pub async fn expand(&self, request: &Expand) -> Result<u64, ExpandError> {
        let path = resolved(&request.volume_path);
        let mounts = Mounts::read().context(TableSnafu)?;
        let mount = mounts.at(&path).context(NotFoundSnafu { path: &path })?;
        // The target of a raw block volume is the device itself.
        if mount.root != Path::new("/")
            && let Some(device) = Device::at(&path)
        {
            return self.wait_for_size(&device, request.required).await;
        }
        let device = device_of(mount).context(DiskGoneSnafu { path: &path })?;
        let kind = file_system_of(mount)
            .context(FileSystemKindSnafu { path: &path, name: &mount.file_system })?;
        let size = self.wait_for_size(&device, request.required).await?;
        // A pod can have the volume read-only; the staging mount grows it nevertheless.
        let staging = request.staging_path.as_deref().map(resolved);
        let staged = staging.and_then(|staging| mounts.at(&staging));
        let writable = staged.filter(|staged| staged.is_of(device.number)).unwrap_or(mount);
        self.file_systems.grow(&device, kind, Some(&writable.point)).await.context(GrowSnafu)?;
        Ok(size)
    }

    async fn wait_for_size(
        &self,
        device: &Device,
        required: Option<u64>,
    ) -> Result<u64, ExpandError> {
        let end = Instant::now() + SIZE_TIMEOUT;
        self.devices.rescan(device).await.context(SizeSnafu)?;
        loop {
            let size = device.size().await.context(SizeSnafu)?;
            let Some(required) = required.filter(|required| size < *required) else {
                return Ok(size);
            };
            if Instant::now() > end {
                return TooSmallSnafu { device: &device.path, size, required }.fail();
            }
            sleep(PAUSE).await;
            self.devices.rescan(device).await.context(SizeSnafu)?;
        }
    }
}
