//! NodePublishVolume and NodeUnpublishVolume: one bind mount per pod.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use snafu::{OptionExt as _, ResultExt as _, Snafu, ensure};
use tonic::Code;

use super::{Volumes, block_targets};
use crate::node::{
    device::{Device, DeviceError, DeviceNumber},
    mounting::{self, MountError, is_stale, resolved},
    mounts::{Mount, MountTableError, Mounts, block_device},
    request::{Access, Publish},
    tool::ToolError,
};

#[derive(Debug, Snafu)]
pub enum PublishError {
    #[snafu(display("the disk of the volume is not on this node"))]
    Device { source: DeviceError },
    #[snafu(display("cannot determine what is mounted"))]
    Table { source: MountTableError },
    #[snafu(display("the volume is not staged at {}: stage it first", staging.display()))]
    NotStaged { staging: PathBuf },
    #[snafu(display("{} is mounted at {} instead of the volume's disk {}", other.display(), staging.display(), device.display()))]
    OtherDisk { other: PathBuf, staging: PathBuf, device: PathBuf },
    #[snafu(display("the volume is published at {} for a single writer: unpublish it there first", other.display()))]
    SecondWriter { other: PathBuf },
    #[snafu(display("{} is already mounted with other arguments: {difference}", target.display()))]
    Conflict { target: PathBuf, difference: String },
    #[snafu(display("the volume is staged read-only and cannot be published for writing"))]
    StagedReadOnly,
    #[snafu(display("cannot create the target {}", target.display()))]
    Create { target: PathBuf, source: std::io::Error },
    #[snafu(display("cannot remove the target {}: only an empty folder or a file is removed", target.display()))]
    Remove { target: PathBuf, source: std::io::Error },
    #[snafu(display("cannot make {} {}", device.display(), if *read_only { "read-only" } else { "writable" }))]
    Protect { device: PathBuf, read_only: bool, source: ToolError },
    #[snafu(display("cannot mount the volume"))]
    Mount { source: MountError },
}

impl PublishError {
    pub fn code(&self) -> Code {
        match self {
            Self::Device { .. } => Code::Unavailable,
            Self::NotStaged { .. }
            | Self::OtherDisk { .. }
            | Self::SecondWriter { .. }
            | Self::StagedReadOnly => Code::FailedPrecondition,
            Self::Conflict { .. } => Code::AlreadyExists,
            Self::Mount { source } => source.code(),
            Self::Protect { source, .. } if source.is_timeout() => Code::DeadlineExceeded,
            _ => Code::Internal,
        }
    }
}

impl Volumes {
    pub async fn publish(&self, request: &Publish) -> Result<(), PublishError> {
        let device = self.devices.find(&request.disk).await.context(DeviceSnafu)?;
        let target = resolved(&request.target_path);
        match request.access {
            Access::Block => self.publish_block(request, &device, &target).await,
            Access::Mount { .. } => self.publish_file_system(request, &device, &target).await,
        }
    }

    async fn publish_file_system(
        &self,
        request: &Publish,
        device: &Device,
        target: &Path,
    ) -> Result<(), PublishError> {
        let staging = resolved(&request.staging_path);
        let mounts = Mounts::read().context(TableSnafu)?;
        let staged = mounts.at(&staging).context(NotStagedSnafu { staging: &staging })?;
        ensure!(
            staged.is_of(device.number),
            OtherDiskSnafu { other: &staged.source, staging: &staging, device: &device.path }
        );
        // Binds of subfolders belong to the pod of another target and have another root.
        let is_target = |mount: &&Mount| {
            mount.is_of(device.number) && mount.root == staged.root && mount.point != staging
        };
        let published: Vec<&Mount> = mounts.iter().filter(is_target).collect();
        check_single_writer(request, target, &published)?;
        if let Some(mount) = mounts.at(target) {
            let same = mount.is_of(device.number) && mount.root == staged.root;
            if self.complete(mount, target, same, request.read_only).await? {
                return Ok(());
            }
        }
        let errors_made_it_read_only = staged.became_read_only();
        ensure!(
            request.read_only || !staged.is_read_only() || errors_made_it_read_only,
            StagedReadOnlySnafu
        );
        fs::create_dir_all(target).context(CreateSnafu { target })?;
        let bound = mounting::bind(&self.tools, &staging, target, request.read_only).await;
        self.cleaned_up(bound, target).await
    }

    async fn publish_block(
        &self,
        request: &Publish,
        device: &Device,
        target: &Path,
    ) -> Result<(), PublishError> {
        let mounts = Mounts::read().context(TableSnafu)?;
        let published: Vec<&Mount> = block_targets(&mounts, device.number).collect();
        check_single_writer(request, target, &published)?;
        let others_read_only = published
            .iter()
            .filter(|mount| mount.point != target)
            .all(|mount| mount.is_read_only());
        if let Some(mount) = mounts.at(target) {
            let same = mount.is_node_of(device.number);
            if self.complete(mount, target, same, request.read_only).await? {
                return self.protect(device, request.read_only && others_read_only).await;
            }
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).context(CreateSnafu { target })?;
        }
        File::options().create(true).append(true).open(target).context(CreateSnafu { target })?;
        // A read-only mount of a device node does not protect the device, so the device itself becomes read-only.
        self.protect(device, request.read_only && others_read_only).await?;
        let bound = mounting::bind(&self.tools, &device.path, target, request.read_only).await;
        self.cleaned_up(bound, target).await
    }

    /// Whether the target is published already. A stale mount is removed. An earlier attempt can have ended between
    /// the mount and its switch to read-only: that switch is done now.
    async fn complete(
        &self,
        mount: &Mount,
        target: &Path,
        same: bool,
        read_only: bool,
    ) -> Result<bool, PublishError> {
        if !same {
            let disk = mount.source.is_absolute() && is_stale(mount, &self.devices);
            if disk {
                tracing::warn!(target = %target.display(), "removing the mount of a disk that is gone");
                mounting::unmount(&self.tools, &self.devices, target).await.context(MountSnafu)?;
                return Ok(false);
            }
            let difference = format!("{} is mounted there", mount.source.display());
            return ConflictSnafu { target, difference }.fail();
        }
        match (read_only, mount.is_read_only()) {
            (true, false) => {
                mounting::make_read_only(&self.tools, target).await.context(MountSnafu)?;
            }
            (false, true) if !mount.became_read_only() => {
                return ConflictSnafu { target, difference: "it is read-only" }.fail();
            }
            _ => {}
        }
        Ok(true)
    }

    /// The kubelet treats the volume as not published after an error: leave nothing behind.
    async fn cleaned_up(
        &self,
        bound: Result<(), MountError>,
        target: &Path,
    ) -> Result<(), PublishError> {
        if let Err(error) = bound {
            if let Err(error) = self.unpublish(target).await {
                tracing::warn!(%error, "the target of a failed publish stays");
            }
            return Err(error).context(MountSnafu);
        }
        Ok(())
    }

    async fn protect(&self, device: &Device, read_only: bool) -> Result<(), PublishError> {
        let option = if read_only { "--setro" } else { "--setrw" };
        let done = self.tools.tool("blockdev").arg(option).arg(&device.path).run().await;
        done.map(drop).context(ProtectSnafu { device: &device.path, read_only })
    }

    /// Unmounts and removes the target.
    pub async fn unpublish(&self, target_path: &Path) -> Result<(), PublishError> {
        let target = resolved(target_path);
        let mounts = Mounts::read().context(TableSnafu)?;
        let device = mounts.at(&target).filter(|mount| mount.root != Path::new("/"));
        let device = device.and_then(|mount| block_device(&mount.point));
        mounting::unmount(&self.tools, &self.devices, &target).await.context(MountSnafu)?;
        remove(&target).context(RemoveSnafu { target: &target })?;
        if let Some(number) = device {
            let mounts = Mounts::read().context(TableSnafu)?;
            if block_targets(&mounts, number).next().is_none() {
                self.unprotect(number).await;
            }
        }
        Ok(())
    }

    /// After the last target is gone. The disk may be detached already.
    async fn unprotect(&self, number: DeviceNumber) {
        let Some(device) = self.devices.with_number(number) else { return };
        if let Err(error) = self.protect(&device, false).await {
            tracing::warn!(error = %runtime::error_chain::error_chain(&error), "a disk stays read-only");
        }
    }
}

fn check_single_writer(
    request: &Publish,
    target: &Path,
    published: &[&Mount],
) -> Result<(), PublishError> {
    let other = published.iter().find(|mount| mount.point != target);
    match other.filter(|_| request.single_writer) {
        Some(other) => SecondWriterSnafu { other: &other.point }.fail(),
        None => Ok(()),
    }
}

/// Never removes a folder with contents: they could be a volume's.
fn remove(target: &Path) -> std::io::Result<()> {
    let removed = match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
