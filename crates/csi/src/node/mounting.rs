//! Mounts and unmounts, with the tools of util-linux: a tool that hangs can be given up, a system call cannot.

use std::path::{Path, PathBuf};

use snafu::{ResultExt as _, Snafu};
use tonic::Code;

use super::{
    device::Devices,
    mounts::{Mount, MountTableError, Mounts},
    tool::{ToolError, Tools},
};

/// Mounts on top of each other at one path; more than this is a fault.
const MOST_LAYERS: usize = 16;

#[derive(Debug, Snafu)]
pub enum MountError {
    #[snafu(display("cannot mount {} at {}", source_path.display(), point.display()))]
    Mount { source_path: PathBuf, point: PathBuf, source: ToolError },
    #[snafu(display("cannot unmount {}", point.display()))]
    Unmount { point: PathBuf, source: ToolError },
    #[snafu(display("{} is still mounted after it was unmounted {MOST_LAYERS} times", point.display()))]
    Layers { point: PathBuf },
    #[snafu(display("cannot determine what is mounted at {}", point.display()))]
    Table { point: PathBuf, source: MountTableError },
}

impl MountError {
    pub fn code(&self) -> Code {
        match self {
            Self::Mount { source, .. } | Self::Unmount { source, .. } if source.is_timeout() => {
                Code::DeadlineExceeded
            }
            _ => Code::Internal,
        }
    }
}

/// The path with its parent folder resolved: the mount table has no symbolic links. The last component stays: a look
/// at a mount point can hang.
pub fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| std::fs::canonicalize(parent).ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// Whether the disk of a mount is gone, or its name belongs to another disk now.
pub fn is_stale(mount: &Mount, devices: &Devices) -> bool {
    match mount.source_number() {
        None => true,
        Some(number) if mount.number.is_anonymous() => !devices.exists(number),
        Some(number) => number != mount.number || !devices.exists(number),
    }
}

/// Mounts a file system. `-w` keeps mount from falling back to a read-only mount.
pub async fn mount(
    tools: &Tools,
    device: &Path,
    point: &Path,
    file_system: &str,
    options: &[String],
    read_only: bool,
) -> Result<(), MountError> {
    let access = if read_only { "-r" } else { "-w" };
    let mut tool = tools.tool("mount").arg(access).args(["-t", file_system]);
    if !options.is_empty() {
        tool = tool.arg("-o").arg(options.join(","));
    }
    let mounted = tool.arg("--").arg(device).arg(point).run().await;
    mounted.map(drop).context(MountSnafu { source_path: device, point })
}

/// Makes a folder or a file visible at a second path.
pub async fn bind(
    tools: &Tools,
    from: &Path,
    point: &Path,
    read_only: bool,
) -> Result<(), MountError> {
    let options = if read_only { "bind,ro" } else { "bind" };
    let mounted = tools.tool("mount").args(["-o", options, "--"]).arg(from).arg(point).run().await;
    mounted.map(drop).context(MountSnafu { source_path: from, point })
}

/// Makes an existing bind mount read-only.
pub async fn make_read_only(tools: &Tools, point: &Path) -> Result<(), MountError> {
    let mounted = tools.tool("mount").args(["-o", "remount,bind,ro", "--"]).arg(point).run().await;
    mounted.map(drop).context(MountSnafu { source_path: point, point })
}

/// Removes every mount at this path. A mount whose disk is gone is removed in any case.
pub async fn unmount(tools: &Tools, devices: &Devices, point: &Path) -> Result<(), MountError> {
    for _ in 0..MOST_LAYERS {
        let mounts = Mounts::read().context(TableSnafu { point })?;
        let Some(mount) = mounts.at(point) else { return Ok(()) };
        let stale = mount.source.is_absolute() && is_stale(mount, devices);
        let Err(error) = tools.tool("umount").args(["-c", "--"]).arg(point).run().await else {
            continue;
        };
        if !stale {
            return Err(error).context(UnmountSnafu { point });
        }
        tracing::warn!(point = %point.display(), error = %error, "the disk is gone; detaching its mount");
        let detached = tools.tool("umount").args(["-c", "-l", "--"]).arg(point).run().await;
        detached.context(UnmountSnafu { point })?;
    }
    LayersSnafu { point }.fail()
}
