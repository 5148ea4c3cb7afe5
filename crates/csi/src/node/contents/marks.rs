//! Marks on a disk while mkfs runs.
//!
//! If mkfs is killed halfway, the disk carries something, and nobody could tell it from data. So the driver marks a
//! blank disk before mkfs, in places that mkfs leaves free, and erases the marks after it. The marks are on the disk
//! because the next attempt can be on another node.
//!
//! A mark never makes a used file system formattable: see `assess`. No mark is left on a disk that is used: the driver
//! erases them before it mounts the disk for writing or hands it to a pod.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use snafu::{ResultExt as _, Snafu};

use crate::node::device::{Device, DeviceError, DiskUuid};

const TEXT: &[u8] = b"vsphere-csi: mkfs is running on disk ";
const LENGTH: usize = 512;
/// Sixteenths of the disk. mkfs writes to both ends, and places logs in the middle.
const PLACES: [u64; 5] = [3, 5, 7, 11, 13];
const ALIGNMENT: u64 = 4096;
/// Smaller disks have no free places.
const SMALLEST: u64 = 1 << 20;

#[derive(Debug, Snafu)]
#[snafu(display("cannot write the marks of an mkfs to {}", path.display()))]
pub struct MarkError {
    path: PathBuf,
    source: io::Error,
}

/// The places of the marks on a disk.
#[derive(Clone, Debug)]
pub struct Marks {
    path: PathBuf,
    places: Vec<u64>,
    mark: [u8; LENGTH],
}

impl Marks {
    pub async fn read(device: &Device, uuid: &DiskUuid) -> Result<Self, DeviceError> {
        Ok(Self::on(&device.path, device.size().await?, uuid))
    }

    pub(super) fn on(path: &Path, size: u64, uuid: &DiskUuid) -> Self {
        let mut mark = [0; LENGTH];
        let text = TEXT.iter().copied().chain(uuid.to_string().into_bytes());
        mark.iter_mut().zip(text).for_each(|(to, from)| *to = from);
        let places = PLACES.iter().map(|place| (size / 16 * place) & !(ALIGNMENT - 1));
        let places = if size < SMALLEST { Vec::new() } else { places.collect() };
        Self { path: path.to_owned(), places, mark }
    }

    pub(super) fn present(&self, file: &File) -> io::Result<bool> {
        for place in &self.places {
            if self.is_at(file, *place)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_at(&self, file: &File, place: u64) -> io::Result<bool> {
        let mut bytes = [0; LENGTH];
        file.read_exact_at(&mut bytes, place)?;
        Ok(bytes == self.mark)
    }

    /// Marks a blank disk, or the rest of an unfinished mkfs.
    pub fn write(&self) -> Result<(), MarkError> {
        let write = || {
            let file = File::options().write(true).open(&self.path)?;
            for place in &self.places {
                file.write_all_at(&self.mark, *place)?;
            }
            file.sync_all()
        };
        write().context(MarkSnafu { path: &self.path })
    }

    /// Erases the marks that mkfs left. Those places were zero before, and nothing else is written: a place with any
    /// other byte keeps its contents.
    pub fn erase(&self) -> Result<(), MarkError> {
        let erase = || {
            let file = File::open(&self.path)?;
            let mut left = Vec::new();
            for place in &self.places {
                if self.is_at(&file, *place)? {
                    left.push(*place);
                }
            }
            // A write-protected disk cannot be opened for writing.
            if left.is_empty() {
                return Ok(());
            }
            let file = File::options().write(true).open(&self.path)?;
            for place in left {
                file.write_all_at(&[0; LENGTH], place)?;
            }
            file.sync_all()
        };
        erase().context(MarkSnafu { path: &self.path })
    }
}
