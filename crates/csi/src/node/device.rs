//! Finds the block device of an attached disk by the disk's uuid, never by its name or position.

mod sysfs;

use std::{
    collections::BTreeSet,
    fmt,
    io::{Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use snafu::{ResultExt as _, Snafu};
use tokio::time::{Instant, sleep};

use self::sysfs::Sysfs;
use super::{
    answering::{self, NoAnswer},
    mounts::block_device,
};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long the kernel can take to open or rescan a disk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Snafu)]
pub enum DeviceError {
    #[snafu(display(
        "no device with the disk uuid {uuid} appeared on this node within {} s{}. Check that the volume is attached to \
         this node's VM, and that the VM has disk.EnableUUID=TRUE (VDO-1203)",
        waited.as_secs_f32(),
        refused.iter().map(|reason| format!("; {reason}")).collect::<String>()
    ))]
    Absent { uuid: DiskUuid, waited: Duration, refused: Vec<String> },
    #[snafu(display("cannot determine the size of {}", path.display()))]
    Size { path: PathBuf, source: std::io::Error },
    #[snafu(display("the disk may be gone or hang"))]
    Hung { source: NoAnswer },
}

impl DeviceError {
    /// Whether the disk did not answer in time.
    pub fn is_hung(&self) -> bool {
        matches!(self, Self::Hung { .. })
    }
}

/// The uuid of a virtual disk: 32 lower-case hexadecimal digits, as in `publish_context`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskUuid(String);

impl DiskUuid {
    /// Accepts upper-case digits and hyphens.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String =
            text.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
        let valid = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        valid.then_some(Self(digits))
    }
}

impl fmt::Display for DiskUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The major and minor number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    major: u32,
    minor: u32,
}

impl DeviceNumber {
    pub fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    pub fn from_raw(device: u64) -> Self {
        Self { major: rustix::fs::major(device), minor: rustix::fs::minor(device) }
    }

    /// Whether it belongs to a file system instead of a device.
    pub fn is_anonymous(self) -> bool {
        self.major == 0
    }

    /// Parses `8:16`.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A block device that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub path: PathBuf,
    pub number: DeviceNumber,
}

impl Device {
    /// The device at this path, `None` if there is none.
    pub fn at(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), number: block_device(path)? })
    }

    pub async fn size(&self) -> Result<u64, DeviceError> {
        let path = self.path.clone();
        let reading = answering::within(ANSWER_TIMEOUT, &self.path, move || {
            std::fs::File::open(path)?.seek(SeekFrom::End(0))
        });
        reading.await.context(HungSnafu)?.context(SizeSnafu { path: &self.path })
    }
}

/// The devices of this node.
#[derive(Clone, Debug)]
pub struct Devices {
    dev: PathBuf,
    sysfs: Sysfs,
    /// How long a device can take to appear after the disk was attached.
    timeout: Duration,
}

/// The result of one search.
#[derive(Debug, Default)]
struct Search {
    found: Option<Device>,
    /// Why devices with the right name were not taken.
    refused: Vec<String>,
}

impl Devices {
    pub fn new(dev: &Path, sys: &Path, timeout: Duration) -> Self {
        Self { dev: dev.to_owned(), sysfs: Sysfs::new(sys), timeout }
    }

    /// Waits until the device appears.
    pub async fn wait_for(&self, uuid: &DiskUuid) -> Result<Device, DeviceError> {
        self.find_within(uuid, self.timeout).await
    }

    /// The device, if it exists now.
    pub async fn find(&self, uuid: &DiskUuid) -> Result<Device, DeviceError> {
        self.find_within(uuid, Duration::ZERO).await
    }

    async fn find_within(&self, uuid: &DiskUuid, limit: Duration) -> Result<Device, DeviceError> {
        let end = Instant::now() + limit;
        let mut pause = FIRST_PAUSE;
        loop {
            let search = self.search(uuid);
            if let Some(device) = search.found {
                return Ok(device);
            }
            if Instant::now() + pause > end {
                let (uuid, refused) = (uuid.clone(), search.refused);
                return AbsentSnafu { uuid, waited: limit, refused }.fail();
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn search(&self, uuid: &DiskUuid) -> Search {
        let mut search = Search::default();
        let by_id = self.dev.join("disk/by-id");
        for name in link_names(uuid) {
            let link = by_id.join(name);
            let Some(path) = std::fs::canonicalize(&link).ok() else { continue };
            let Some(device) = Device::at(&path) else { continue };
            match self.verify(&device, uuid) {
                Ok(()) => {
                    search.found = Some(self.through_multipath(device));
                    return search;
                }
                Err(reason) => {
                    search.refused.push(format!("{} is not used: {reason}", link.display()));
                }
            }
        }
        search.found = self.search_sysfs(uuid);
        search
    }

    /// A link can be stale: udev is late, or the disk was replaced.
    fn verify(&self, device: &Device, uuid: &DiskUuid) -> Result<(), String> {
        let path = device.path.display();
        match self.sysfs.disk_id(device.number) {
            Some(id) if id == uuid.0 => return Ok(()),
            Some(id) => return Err(format!("{path} is the disk {id}")),
            // Not every kind of device has an id.
            None => {}
        }
        let others: Vec<String> =
            self.ids_of(device).into_iter().filter(|id| *id != uuid.0).collect();
        match others.first() {
            Some(id) => Err(format!("another link says that {path} is the disk {id}")),
            None => Ok(()),
        }
    }

    /// The disk ids of all links to the device.
    fn ids_of(&self, device: &Device) -> BTreeSet<String> {
        let links = std::fs::read_dir(self.dev.join("disk/by-id")).into_iter().flatten().flatten();
        let id = |link: std::fs::DirEntry| {
            let name = link.file_name().into_string().ok()?;
            let id = name.strip_prefix("wwn-0x").or_else(|| name.strip_prefix("scsi-3"))?;
            let id = DiskUuid::parse(id)?;
            (block_device(&link.path())? == device.number).then_some(id.0)
        };
        links.filter_map(id).collect()
    }

    /// The multipath device of a path, or the device itself. A path in use by multipath cannot be mounted.
    fn through_multipath(&self, device: Device) -> Device {
        let multipath = self.sysfs.multipath_of(device.number);
        multipath.and_then(|(name, number)| self.node(&name, number)).unwrap_or(device)
    }

    fn search_sysfs(&self, uuid: &DiskUuid) -> Option<Device> {
        let (name, number) = self.sysfs.find(&uuid.0)?;
        self.node(&name, number).map(|device| self.through_multipath(device))
    }

    /// The node of a device in `/dev`, if it belongs to that device.
    fn node(&self, name: &str, number: DeviceNumber) -> Option<Device> {
        Device::at(&self.dev.join(name)).filter(|device| device.number == number)
    }

    /// The node of the device with this number.
    pub fn with_number(&self, number: DeviceNumber) -> Option<Device> {
        let nodes = std::fs::read_dir(&self.dev).ok()?.flatten();
        nodes.filter_map(|node| Device::at(&node.path())).find(|device| device.number == number)
    }

    /// Whether the kernel still has the device.
    pub fn exists(&self, number: DeviceNumber) -> bool {
        self.sysfs.exists(number)
    }

    /// Makes the kernel read the size of the disk again.
    pub async fn rescan(&self, device: &Device) -> Result<(), DeviceError> {
        let (sysfs, number) = (self.sysfs.clone(), device.number);
        let scanning =
            answering::within(ANSWER_TIMEOUT, &device.path, move || sysfs.rescan(number));
        scanning.await.context(HungSnafu)
    }

    /// Checks that the device at this path still has this number, and that the kernel still knows it as this disk.
    pub fn check(&self, device: &Device, uuid: &DiskUuid) -> Result<(), String> {
        let path = device.path.display();
        match Device::at(&device.path) {
            Some(now) if now.number == device.number => self.verify(device, uuid),
            Some(now) => {
                Err(format!("{path} was the device {} and is {}", device.number, now.number))
            }
            None => Err(format!("{path} is gone")),
        }
    }
}

/// The links that udev makes for a SCSI disk with this id.
fn link_names(uuid: &DiskUuid) -> [String; 4] {
    [
        format!("dm-uuid-mpath-3{uuid}"),
        format!("wwn-0x{uuid}"),
        format!("scsi-3{uuid}"),
        format!("scsi-{uuid}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_uuid_is_accepted_in_every_notation() {
        let plain = DiskUuid::parse("6000c298595bf4575739e9105b2c0c2d").unwrap();
        assert_eq!(DiskUuid::parse("6000C298-595b-f457-5739-e9105b2c0c2d"), Some(plain));
        for wrong in ["", "6000c298", "6000c298595bf4575739e9105b2c0c2z", "../../sda"] {
            assert_eq!(DiskUuid::parse(wrong), None, "{wrong}");
        }
    }
}
