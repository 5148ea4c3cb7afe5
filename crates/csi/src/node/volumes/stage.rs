//! NodeStageVolume and NodeUnstageVolume: one mount of the disk per node.

use std::path::{Path, PathBuf};

use snafu::{ResultExt as _, Snafu};
use tonic::Code;

use super::{Volumes, file_system_of};
use crate::node::{
    device::{Device, DeviceError},
    filesystem::{FileSystem, FileSystemError},
    mounting::{self, MountError, is_stale, resolved},
    mounts::{Mount, MountTableError, Mounts},
    request::{Access, Stage},
};

#[derive(Debug, Snafu)]
pub enum StageError {
    #[snafu(display("the disk of the volume is not on this node"))]
    Device { source: DeviceError },
    #[snafu(display("cannot determine what is mounted"))]
    Table { source: MountTableError },
    #[snafu(display("{} is already mounted at {} with other arguments: {difference}", device.display(), point.display()))]
    Conflict { device: PathBuf, point: PathBuf, difference: String },
    #[snafu(display("another device, {}, is mounted at {}: unmount it", other.display(), point.display()))]
    Taken { other: PathBuf, point: PathBuf },
    #[snafu(display("cannot create the folder {}", path.display()))]
    Folder { path: PathBuf, source: std::io::Error },
    #[snafu(display("the file system of the volume cannot be used"))]
    FileSystem { source: FileSystemError },
    #[snafu(display("cannot mount the volume"))]
    Mount { source: MountError },
}

impl StageError {
    pub fn code(&self) -> Code {
        match self {
            // The kubelet tries again.
            Self::Device { .. } => Code::Unavailable,
            Self::Conflict { .. } => Code::AlreadyExists,
            Self::Taken { .. } => Code::FailedPrecondition,
            Self::FileSystem { source } => source.code(),
            Self::Mount { source } => source.code(),
            Self::Table { .. } | Self::Folder { .. } => Code::Internal,
        }
    }
}

impl Volumes {
    pub async fn stage(&self, request: &Stage) -> Result<(), StageError> {
        let device = self.devices.wait_for(&request.disk).await.context(DeviceSnafu)?;
        match &request.access {
            Access::Block => {
                if request.read_only {
                    return Ok(());
                }
                let forgotten = self.file_systems.forget_marks(&device, &request.disk).await;
                forgotten.context(FileSystemSnafu)
            }
            Access::Mount { file_system, options } => {
                self.stage_file_system(request, &device, *file_system, options).await
            }
        }
    }

    async fn stage_file_system(
        &self,
        request: &Stage,
        device: &Device,
        wanted: Option<FileSystem>,
        options: &[String],
    ) -> Result<(), StageError> {
        let point = resolved(&request.staging_path);
        let mounts = Mounts::read().context(TableSnafu)?;
        if let Some(mount) = mounts.at(&point) {
            if mount.is_of(device.number) {
                check_staged(mount, device, wanted, request.read_only)?;
                self.grow_staged(device, mount).await;
                return Ok(());
            }
            if !is_stale(mount, &self.devices) {
                return TakenSnafu { other: &mount.source, point }.fail();
            }
            tracing::warn!(point = %point.display(), "removing the mount of a disk that is gone");
            mounting::unmount(&self.tools, &self.devices, &point).await.context(MountSnafu)?;
        }
        std::fs::create_dir_all(&point).context(FolderSnafu { path: &point })?;
        // A file system in use is not checked, let alone formatted.
        let in_use =
            mounts.iter().find(|mount| mount.is_of(device.number)).and_then(file_system_of);
        let kind = match in_use {
            Some(kind) => kind,
            None => self
                .file_systems
                .prepare(device, &request.disk, wanted, request.read_only)
                .await
                .context(FileSystemSnafu)?,
        };
        self.mount_file_system(device, &point, kind, options, request.read_only).await
    }

    async fn mount_file_system(
        &self,
        device: &Device,
        point: &Path,
        kind: FileSystem,
        options: &[String],
        read_only: bool,
    ) -> Result<(), StageError> {
        let mut all = options.to_vec();
        for option in kind.mount_options() {
            if !all.iter().any(|each| each == option) {
                all.push((*option).to_owned());
            }
        }
        mounting::mount(&self.tools, &device.path, point, kind.name(), &all, read_only)
            .await
            .context(MountSnafu)?;
        if read_only {
            return Ok(());
        }
        let grown = self.file_systems.grow_to_disk(device, kind, point).await;
        if let Err(error) = grown {
            // The kubelet treats the volume as not staged after an error: leave nothing mounted.
            let unmounted = mounting::unmount(&self.tools, &self.devices, point).await;
            if let Err(error) = unmounted {
                tracing::warn!(%error, "the volume stays mounted after a failed growth");
            }
            return Err(error).context(FileSystemSnafu);
        }
        Ok(())
    }

    /// The driver can have died between mount and growth. If the file system cannot grow while it is mounted, it grows
    /// when it is staged the next time.
    async fn grow_staged(&self, device: &Device, mount: &Mount) {
        let Some(kind) = file_system_of(mount).filter(|_| !mount.is_read_only()) else { return };
        if let Err(error) = self.file_systems.grow_to_disk(device, kind, &mount.point).await {
            tracing::warn!(error = %runtime::error_chain::error_chain(&error), "the file system stays smaller than its disk");
        }
    }

    pub async fn unstage(&self, staging_path: &Path) -> Result<(), MountError> {
        mounting::unmount(&self.tools, &self.devices, &resolved(staging_path)).await
    }
}

fn check_staged(
    mount: &Mount,
    device: &Device,
    wanted: Option<FileSystem>,
    read_only: bool,
) -> Result<(), StageError> {
    let difference = match wanted {
        Some(kind) if kind.name() != mount.file_system => {
            format!("it is {}, not {}", mount.file_system, kind.name())
        }
        // Errors can have made the file system read-only; the volume's condition reports that.
        _ if read_only != mount.is_read_only() && !mount.became_read_only() => {
            let access = |read_only| if read_only { "read-only" } else { "writable" };
            format!("it is {}, not {}", access(mount.is_read_only()), access(read_only))
        }
        _ => return Ok(()),
    };
    ConflictSnafu { device: &device.path, point: &mount.point, difference }.fail()
}
