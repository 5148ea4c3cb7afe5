//! Creates, checks and grows file systems.

use std::{fs::File, os::unix::fs::MetadataExt as _, path::Path, sync::Arc, time::Duration};

use snafu::{ResultExt as _, Snafu};
use tonic::Code;

use super::{
    answering::{self, NoAnswer},
    contents::{self, Contents, ContentsError, MarkError, Marks},
    device::{Device, DeviceError, DeviceNumber, Devices, DiskUuid},
    metrics::Metrics,
    tool::{ToolError, Tools},
};

/// Space at the end of a disk that a file system can leave unused: mkfs leaves out a last group that is too small.
const UNUSED_TAIL: u64 = 4 << 20;
/// Exit codes of e2fsck: no errors, errors corrected, and corrected with a restart recommended.
const CORRECTED: [i32; 2] = [1, 2];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    Ext3,
    Ext4,
    Xfs,
    Btrfs,
}

impl FileSystem {
    /// For an empty `fs_type`.
    pub const DEFAULT: Self = Self::Ext4;
    pub const ALL: [Self; 4] = [Self::Ext3, Self::Ext4, Self::Xfs, Self::Btrfs];

    /// The file system of this name, in any case as in upstream's driver.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    pub fn is_ext(self) -> bool {
        matches!(self, Self::Ext3 | Self::Ext4)
    }

    /// Options that every mount of this file system needs.
    pub fn mount_options(self) -> &'static [&'static str] {
        match self {
            // A restored snapshot or a clone has the uuid of its source.
            Self::Xfs => &["nouuid"],
            Self::Ext3 | Self::Ext4 | Self::Btrfs => &[],
        }
    }
}

#[derive(Debug, Snafu)]
pub enum FileSystemError {
    #[snafu(display(
        "{device} carries {what} and is not formatted: the driver formats only empty disks. If the data is not needed, delete the volume and create a new one"
    ))]
    Occupied { device: String, what: String },
    #[snafu(display(
        "{device} carries a file system {found}, but the volume asks for {wanted}: set the volume's fsType to {found}, or use another volume"
    ))]
    Different { device: String, found: String, wanted: String },
    #[snafu(display(
        "{device} is empty, and a volume that is mounted read-only is not formatted: mount it once for writing"
    ))]
    EmptyReadOnly { device: String },
    #[snafu(display("cannot read the disk"))]
    Contents { source: ContentsError },
    #[snafu(display("cannot determine the size of the disk"))]
    Size { source: DeviceError },
    #[snafu(display("cannot prepare {device} for mkfs"))]
    Mark { device: String, source: MarkError },
    #[snafu(display("{device} may be gone or hang"))]
    Hung { device: String, source: NoAnswer },
    #[snafu(display("cannot open {device}"))]
    Open { device: String, source: std::io::Error },
    #[snafu(display("{device} is not the disk of the volume any more, and is not touched: {why}"))]
    Changed { device: String, why: String },
    #[snafu(display("cannot create the file system {kind} on {device}"))]
    Format { kind: &'static str, device: String, source: ToolError },
    #[snafu(display("mkfs ended without error, but {device} carries {found} instead of {kind}"))]
    NotCreated { kind: &'static str, device: String, found: String },
    #[snafu(display(
        "the file system {kind} on {device} is damaged and cannot be repaired automatically: repair it with `e2fsck -f {device}` on this node, or restore a snapshot"
    ))]
    Damaged { kind: &'static str, device: String, source: ToolError },
    #[snafu(display("cannot check the file system {kind} on {device}"))]
    Check { kind: &'static str, device: String, source: ToolError },
    #[snafu(display("cannot grow the file system {kind} on {device}"))]
    Grow { kind: &'static str, device: String, source: ToolError },
}

impl FileSystemError {
    pub fn code(&self) -> Code {
        match self {
            Self::Occupied { .. } | Self::Different { .. } | Self::EmptyReadOnly { .. } => {
                Code::FailedPrecondition
            }
            Self::Format { source, .. }
            | Self::Damaged { source, .. }
            | Self::Check { source, .. }
            | Self::Grow { source, .. }
                if source.is_timeout() =>
            {
                Code::DeadlineExceeded
            }
            Self::Hung { .. } => Code::DeadlineExceeded,
            Self::Contents { source } if source.is_hung() => Code::DeadlineExceeded,
            Self::Size { source } if source.is_hung() => Code::DeadlineExceeded,
            Self::Changed { .. } => Code::Unavailable,
            _ => Code::Internal,
        }
    }
}

/// Works on file systems.
#[derive(Clone, Debug)]
pub struct FileSystems {
    pub devices: Devices,
    pub tools: Tools,
    /// The timeout of mkfs, fsck and growth.
    pub limit: Duration,
    pub metrics: Arc<Metrics>,
}

impl FileSystems {
    /// Makes the file system of an unmounted disk ready to be mounted: formats an empty disk, checks any other.
    /// Without `wanted`, any file system will do.
    pub async fn prepare(
        &self,
        device: &Device,
        uuid: &DiskUuid,
        wanted: Option<FileSystem>,
        read_only: bool,
    ) -> Result<FileSystem, FileSystemError> {
        let shown = device.path.display().to_string();
        // While it is open, the kernel gives neither its number nor its name to another disk.
        let _held = self.hold(device, uuid).await?;
        let contents = contents::probe(device, uuid, &self.tools).await.context(ContentsSnafu)?;
        match contents {
            Contents::Blank | Contents::Unfinished { .. } if read_only => {
                EmptyReadOnlySnafu { device: shown }.fail()
            }
            Contents::Blank | Contents::Unfinished { .. } => {
                let kind = wanted.unwrap_or(FileSystem::DEFAULT);
                let again = contents != Contents::Blank;
                if again {
                    tracing::warn!(
                        device = shown,
                        "an earlier mkfs did not finish; formatting again"
                    );
                }
                self.format(device, uuid, kind, again).await.map(|()| kind)
            }
            Contents::Data { what } => OccupiedSnafu { device: shown, what }.fail(),
            Contents::FileSystem { name, bytes } => {
                let kind = FileSystem::parse(&name);
                let Some(kind) = kind.filter(|kind| wanted.is_none_or(|wanted| wanted == *kind))
                else {
                    let wanted = wanted.unwrap_or(FileSystem::DEFAULT).name();
                    return DifferentSnafu { device: shown, found: name, wanted }.fail();
                };
                if !read_only {
                    // Those of an mkfs whose caller died. If the first sector is lost later, they would make the data
                    // look like the rest of an mkfs.
                    self.forget_marks(device, uuid).await?;
                }
                if kind.is_ext() && !read_only {
                    let grows = is_smaller(bytes, device).await?;
                    self.check(device, kind, grows).await?;
                    if grows {
                        self.grow(device, kind, None).await?;
                    }
                }
                Ok(kind)
            }
        }
    }

    async fn format(
        &self,
        device: &Device,
        uuid: &DiskUuid,
        kind: FileSystem,
        again: bool,
    ) -> Result<(), FileSystemError> {
        let shown = device.path.display().to_string();
        let marks = Marks::read(device, uuid).await.context(SizeSnafu)?;
        self.require_unchanged(device, uuid)?;
        let all = marks.clone();
        self.mark(&shown, move || all.write()).await?;
        tracing::info!(device = shown, file_system = kind.name(), "formatting an empty disk");
        // On an empty disk no tool gets an option that makes it overwrite what it recognises. None discards blocks: the
        // disk is empty, and the marks would go too.
        let mkfs = match kind {
            FileSystem::Ext3 => {
                self.tools.tool("mkfs.ext3").args(["-q", "-m", "0", "-E", "nodiscard"])
            }
            FileSystem::Ext4 => {
                self.tools.tool("mkfs.ext4").args(["-q", "-m", "0", "-E", "nodiscard"])
            }
            FileSystem::Xfs => self.tools.tool("mkfs.xfs").args(["-q", "-K"]),
            FileSystem::Btrfs => self.tools.tool("mkfs.btrfs").args(["-q", "-K"]),
        };
        // They recognise a half-made file system.
        let overwrite = again && matches!(kind, FileSystem::Xfs | FileSystem::Btrfs);
        self.require_unchanged(device, uuid)?;
        let made =
            mkfs.args(overwrite.then_some("-f")).arg(&device.path).limit(self.limit).run().await;
        made.context(FormatSnafu { kind: kind.name(), device: &shown })?;
        self.verify(device, uuid, kind).await?;
        self.mark(&shown, move || marks.erase()).await?;
        self.metrics.disk_formatted();
        Ok(())
    }

    /// Opens the disk and checks that it is the right one.
    async fn hold(&self, device: &Device, uuid: &DiskUuid) -> Result<File, FileSystemError> {
        let shown = device.path.display().to_string();
        let path = device.path.clone();
        let open = move || -> std::io::Result<(File, DeviceNumber)> {
            let file = File::open(path)?;
            let number = DeviceNumber::from_raw(file.metadata()?.rdev());
            Ok((file, number))
        };
        let opened = answering::within(self.limit, &device.path, open).await;
        let opened = opened.context(HungSnafu { device: &shown })?;
        let (file, number) = opened.context(OpenSnafu { device: &shown })?;
        if number != device.number {
            let why = format!("it was the device {} and is {number}", device.number);
            return ChangedSnafu { device: shown, why }.fail();
        }
        self.require_unchanged(device, uuid)?;
        Ok(file)
    }

    /// Fails if another disk has the device's path now.
    fn require_unchanged(&self, device: &Device, uuid: &DiskUuid) -> Result<(), FileSystemError> {
        let checked = self.devices.check(device, uuid);
        let device = device.path.display().to_string();
        checked.map_err(|why| FileSystemError::Changed { device, why })
    }

    async fn verify(
        &self,
        device: &Device,
        uuid: &DiskUuid,
        kind: FileSystem,
    ) -> Result<(), FileSystemError> {
        let found = match contents::probe(device, uuid, &self.tools).await.context(ContentsSnafu)? {
            // The marks are still there, and nobody has mounted it yet.
            Contents::Unfinished { name } if name == Some(kind.name()) => return Ok(()),
            Contents::Unfinished { .. } => "an unfinished file system".to_owned(),
            Contents::FileSystem { name, .. } if name == kind.name() => return Ok(()),
            Contents::FileSystem { name, .. } => name,
            Contents::Data { what } => what,
            Contents::Blank => "nothing".to_owned(),
        };
        NotCreatedSnafu { kind: kind.name(), device: device.path.display().to_string(), found }
            .fail()
    }

    /// Writes or erases marks.
    async fn mark(
        &self,
        device: &str,
        write: impl FnOnce() -> Result<(), MarkError> + Send + 'static,
    ) -> Result<(), FileSystemError> {
        let written = answering::within(self.limit, Path::new(device), write).await;
        written.context(HungSnafu { device })?.context(MarkSnafu { device })
    }

    /// Erases the marks of a disk that is about to be used: from now on everything on it is data.
    pub async fn forget_marks(
        &self,
        device: &Device,
        uuid: &DiskUuid,
    ) -> Result<(), FileSystemError> {
        let marks = Marks::read(device, uuid).await.context(SizeSnafu)?;
        self.mark(&device.path.display().to_string(), move || marks.erase()).await
    }

    /// `full` checks a clean file system too: resize2fs insists on that.
    async fn check(
        &self,
        device: &Device,
        kind: FileSystem,
        full: bool,
    ) -> Result<(), FileSystemError> {
        let tool = self.tools.tool("e2fsck").arg("-p").args(full.then_some("-f"));
        let (kind, shown) = (kind.name(), device.path.display().to_string());
        match tool.arg(&device.path).limit(self.limit).run().await {
            Err(error) if error.code().is_some_and(|code| CORRECTED.contains(&code)) => {
                tracing::warn!(device = shown, file_system = kind, "fsck corrected errors");
                Ok(())
            }
            Err(error) if error.code().is_some_and(|code| code & 4 != 0) => {
                Err(error).context(DamagedSnafu { kind, device: shown })
            }
            checked => checked.map(drop).context(CheckSnafu { kind, device: shown }),
        }
    }

    /// Grows a mounted file system that is smaller than its disk, as after the restore of a snapshot to a larger
    /// volume.
    pub async fn grow_to_disk(
        &self,
        device: &Device,
        kind: FileSystem,
        mounted: &Path,
    ) -> Result<(), FileSystemError> {
        let bytes = match contents::file_system_size(device).await {
            Err(source) if source.is_hung() => return Err(FileSystemError::Contents { source }),
            bytes => bytes.ok().flatten(),
        };
        if is_smaller(bytes, device).await? {
            self.grow(device, kind, Some(mounted)).await?;
        }
        Ok(())
    }

    /// Grows a file system to the size of its disk. XFS and btrfs must be mounted.
    pub async fn grow(
        &self,
        device: &Device,
        kind: FileSystem,
        mounted: Option<&Path>,
    ) -> Result<(), FileSystemError> {
        let shown = device.path.display().to_string();
        let tool = match (kind, mounted) {
            (FileSystem::Ext3 | FileSystem::Ext4, _) => {
                self.tools.tool("resize2fs").arg(&device.path)
            }
            (FileSystem::Xfs, Some(point)) => self.tools.tool("xfs_growfs").arg("-d").arg(point),
            (FileSystem::Btrfs, Some(point)) => {
                self.tools.tool("btrfs").args(["filesystem", "resize", "max"]).arg(point)
            }
            // They grow after the mount.
            (FileSystem::Xfs | FileSystem::Btrfs, None) => return Ok(()),
        };
        tracing::info!(device = shown, file_system = kind.name(), "growing a file system");
        let grown = tool.limit(self.limit).run().await.map(drop);
        grown.context(GrowSnafu { kind: kind.name(), device: shown })
    }
}

async fn is_smaller(bytes: Option<u64>, device: &Device) -> Result<bool, FileSystemError> {
    let size = device.size().await.context(SizeSnafu)?;
    Ok(bytes.is_some_and(|bytes| bytes.saturating_add(UNUSED_TAIL) <= size))
}
