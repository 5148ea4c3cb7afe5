//! Determines what a disk carries, before anything is written to it.
//!
//! Two probes must agree that a disk is empty: `blkid -p`, and our own read of every known place of a superblock and
//! of samples in between. An unreadable disk, a failed probe and unknown data all mean: do not format.

mod marks;
mod signatures;

use std::{fs::File, os::unix::fs::FileExt as _, path::PathBuf, time::Duration};

use snafu::{ResultExt as _, Snafu};

pub use self::marks::{MarkError, Marks};
use self::signatures::{Found, Use, signatures};
use super::{
    answering::{self, NoAnswer},
    device::{Device, DeviceError, DiskUuid},
    tool::{ToolError, Tools},
};

/// A read of a few megabytes; a disk that takes longer does not work.
const READ_TIMEOUT: Duration = Duration::from_mins(1);
/// The start and the end of a disk are read completely.
const ENDS: u64 = 4 << 20;
const SAMPLE: u64 = 4 << 10;
const SAMPLES: u64 = 256;
/// Copies of superblocks: ext with blocks of 1 and 4 KiB, btrfs.
const COPIES: [u64; 4] = [(8 << 20) + 1024, 64 << 20, 128 << 20, 256 << 30];

#[derive(Debug, Snafu)]
pub enum ContentsError {
    #[snafu(display("{} cannot be read, so it is neither formatted nor mounted", path.display()))]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[snafu(display("the disk does not answer, so it is neither formatted nor mounted"))]
    Hung { source: NoAnswer },
    #[snafu(display("the contents of {} cannot be determined, so it is neither formatted nor mounted", path.display()))]
    Probe { path: PathBuf, source: ToolError },
    #[snafu(display("the contents of {} cannot be determined, so it is neither formatted nor mounted", path.display()))]
    Device { path: PathBuf, source: DeviceError },
}

impl ContentsError {
    /// Whether the disk did not answer in time.
    pub fn is_hung(&self) -> bool {
        match self {
            Self::Hung { .. } => true,
            Self::Device { source, .. } => source.is_hung(),
            Self::Probe { source, .. } => source.is_timeout(),
            Self::Unreadable { .. } => false,
        }
    }
}

/// The contents of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Nothing: it can be formatted.
    Blank,
    /// The rest of an mkfs of this driver that did not end: nobody has used the file system, it can be formatted. `name`
    /// is the file system whose superblock is there already.
    Unfinished { name: Option<&'static str> },
    /// A file system, by the name that `mount` knows. `bytes` is its size, if it is known.
    FileSystem { name: String, bytes: Option<u64> },
    /// Anything else. It must not be formatted.
    Data { what: String },
}

/// Reads the disk. `uuid` recognises the marks of an unfinished mkfs on this very disk.
pub async fn probe(
    device: &Device,
    uuid: &DiskUuid,
    tools: &Tools,
) -> Result<Contents, ContentsError> {
    let path = device.path.clone();
    let size = device.size().await.context(DeviceSnafu { path: &path })?;
    let marks = Marks::on(&path, size, uuid);
    let seen = {
        let read = path.clone();
        answering::within(READ_TIMEOUT, &path, move || look(&read, size, &marks)).await
    };
    let seen = seen.context(HungSnafu)?.context(UnreadableSnafu { path: &path })?;
    let blkid = blkid(device, tools).await.context(ProbeSnafu { path: &path })?;
    Ok(assess(&seen, &blkid))
}

/// The size of the file system on a disk, as its superblock says. `None` if it has none that can grow.
pub async fn file_system_size(device: &Device) -> Result<Option<u64>, ContentsError> {
    let path = device.path.clone();
    let reading = answering::within(READ_TIMEOUT, &device.path, move || superblock_size(&path));
    reading.await.context(HungSnafu)?.context(UnreadableSnafu { path: &device.path })
}

fn superblock_size(path: &std::path::Path) -> std::io::Result<Option<u64>> {
    const LENGTH: usize = 128 << 10;
    let mut start = vec![0; LENGTH];
    let read = File::open(path)?.read_at(&mut start, 0)?;
    start.truncate(read);
    let found = signatures(&start, &[], read as u64);
    Ok(found.into_iter().find(Found::is_file_system).and_then(|found| found.bytes))
}

/// The result of our own read.
#[derive(Clone, Debug, Default)]
struct Seen {
    found: Vec<Found>,
    /// The first byte that is not zero.
    data_at: Option<u64>,
    marked: bool,
}

fn look(path: &std::path::Path, size: u64, marks: &Marks) -> std::io::Result<Seen> {
    let file = File::open(path)?;
    let read = |offset: u64, length: u64| -> std::io::Result<Vec<u8>> {
        let end = offset.saturating_add(length).min(size);
        let length = usize::try_from(end.saturating_sub(offset)).unwrap_or_default();
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    };
    let (start, tail_offset) = (read(0, ENDS)?, size.saturating_sub(ENDS));
    let tail = read(tail_offset, ENDS)?;
    let mut seen = Seen { marked: marks.present(&file)?, ..Seen::default() };
    seen.found = signatures(&start, &tail, size);
    let data = |offset: u64, bytes: &[u8]| {
        let position = bytes.iter().position(|byte| *byte != 0)?;
        Some(offset + position as u64)
    };
    seen.data_at = data(0, &start).or_else(|| data(tail_offset, &tail));
    let spread = (1..SAMPLES).map(|n| (size / SAMPLES * n) & !(SAMPLE - 1));
    for offset in COPIES.into_iter().chain(spread).filter(|offset| *offset < size) {
        if seen.data_at.is_some() {
            break;
        }
        seen.data_at = data(offset, &read(offset, SAMPLE)?);
    }
    Ok(seen)
}

/// The result of `blkid -p`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Blkid {
    file_system: Option<String>,
    /// Everything else: partition tables, and signatures that contradict each other.
    other: Option<String>,
}

/// Exit codes of blkid.
const NOTHING_FOUND: i32 = 2;
const AMBIVALENT: i32 = 8;

async fn blkid(device: &Device, tools: &Tools) -> Result<Blkid, ToolError> {
    let output = tools.tool("blkid").args(["-p", "-o", "export"]).arg(&device.path).run().await;
    match output {
        Ok(output) => Ok(parse_blkid(&output)),
        Err(error) if error.code() == Some(NOTHING_FOUND) => Ok(Blkid::default()),
        Err(error) if error.code() == Some(AMBIVALENT) => Ok(Blkid {
            other: Some("several signatures that contradict each other".into()),
            ..Blkid::default()
        }),
        Err(error) => Err(error),
    }
}

fn parse_blkid(output: &str) -> Blkid {
    let value = |key: &str| {
        let mut lines = output.lines();
        lines
            .find_map(|line| line.split_once('=').filter(|(name, _)| *name == key))
            .map(|(_, value)| value.to_owned())
    };
    let table = value("PTTYPE").map(|kind| format!("a partition table ({kind})"));
    match (value("TYPE"), value("USAGE").as_deref()) {
        (Some(name), Some("filesystem") | None) => Blkid { file_system: Some(name), other: table },
        (Some(name), Some(_)) => Blkid { file_system: None, other: table.or(Some(name)) },
        (None, _) if table.is_none() && output.contains('=') => {
            // Something was found that has neither a type nor a partition table.
            let known =
                output.lines().any(|line| !line.starts_with("DEVNAME=") && line.contains('='));
            Blkid { file_system: None, other: known.then(|| "data that blkid recognises".into()) }
        }
        (None, _) => Blkid { file_system: None, other: table },
    }
}

fn assess(seen: &Seen, blkid: &Blkid) -> Contents {
    let mut file_systems = seen.found.iter().filter(|found| found.is_file_system());
    let (first, more) = (file_systems.next(), file_systems.next());
    let others: Vec<&str> =
        seen.found.iter().filter(|found| !found.is_file_system()).map(|found| found.name).collect();
    let nothing_else = more.is_none() && others.is_empty() && blkid.other.is_none();
    if seen.marked && nothing_else {
        match (first, &blkid.file_system) {
            (None, None) => return Contents::Unfinished { name: None },
            (Some(found), _) if found.usage != Use::Possible => {
                return Contents::Unfinished { name: Some(found.name) };
            }
            _ => {}
        }
    }
    // One name from blkid decides between several of ours, for mounting only.
    if let (Some(name), None) = (&blkid.file_system, &blkid.other) {
        let ours = seen.found.iter().find(|found| found.is_file_system() && found.is_like(name));
        if seen.found.is_empty() || ours.is_some() {
            return Contents::FileSystem {
                name: name.clone(),
                bytes: ours.and_then(|found| found.bytes),
            };
        }
    }
    let mut names: Vec<String> = seen.found.iter().map(|found| found.name.to_owned()).collect();
    names.extend(blkid.other.clone());
    names.extend(
        blkid
            .file_system
            .clone()
            .filter(|name| !seen.found.iter().any(|found| found.is_like(name))),
    );
    match (names.as_slice(), first) {
        ([name], Some(found)) if found.usage != Use::Unfinished => {
            Contents::FileSystem { name: name.clone(), bytes: found.bytes }
        }
        ([_], Some(found)) => Contents::Data {
            what: format!("a file system {} that mkfs did not finish", found.name),
        },
        ([], _) => match seen.data_at {
            None => Contents::Blank,
            Some(offset) => {
                Contents::Data { what: format!("unknown data (first at byte {offset})") }
            }
        },
        (names, _) => Contents::Data { what: names.join(" and ") },
    }
}

#[cfg(test)]
mod tests;
