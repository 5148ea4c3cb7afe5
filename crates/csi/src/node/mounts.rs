//! The mount table of this process, from `/proc/self/mountinfo`.

use std::{
    ffi::OsString,
    os::unix::{ffi::OsStringExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use snafu::{ResultExt as _, Snafu};

use super::device::DeviceNumber;

const TABLE: &str = "/proc/self/mountinfo";

#[derive(Debug, Snafu)]
pub enum MountTableError {
    #[snafu(display("cannot read the mount table {TABLE}"))]
    Read { source: std::io::Error },
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device of the mounted file system. Some file systems, like btrfs, have a number of their own.
    pub number: DeviceNumber,
    /// The mounted folder or file inside of the file system.
    pub root: PathBuf,
    pub point: PathBuf,
    /// The options of this mount: `rw`, `noatime`.
    pub options: Vec<String>,
    pub file_system: String,
    pub source: PathBuf,
    /// The options of the file system, the same for all its mounts.
    pub super_options: Vec<String>,
}

impl Mount {
    pub fn is_read_only(&self) -> bool {
        has(&self.options, "ro") || has(&self.super_options, "ro")
    }

    /// Whether the kernel made the file system read-only after errors: nobody asked for that.
    pub fn became_read_only(&self) -> bool {
        has(&self.options, "rw") && has(&self.super_options, "ro")
    }

    /// Whether the device's file system is mounted here. The source of a mount is only a name, and another disk can have
    /// that name now. It decides only for file systems with a number of their own.
    pub fn is_of(&self, device: DeviceNumber) -> bool {
        self.number == device
            || (self.number.is_anonymous() && self.source_number() == Some(device))
    }

    /// Whether the node of the device is mounted here, as for a raw block volume.
    pub fn is_node_of(&self, device: DeviceNumber) -> bool {
        // Only folders of device nodes are looked at: a look into a dead network file system can hang.
        matches!(self.file_system.as_str(), "devtmpfs" | "tmpfs")
            && self.root != Path::new("/")
            && block_device(&self.point) == Some(device)
    }

    /// The device of the source, if it is a block device that exists.
    pub fn source_number(&self) -> Option<DeviceNumber> {
        self.source.is_absolute().then(|| block_device(&self.source)).flatten()
    }
}

fn has(options: &[String], option: &str) -> bool {
    options.iter().any(|each| each == option)
}

/// The number of a block device, `None` for any other file.
pub fn block_device(path: &Path) -> Option<DeviceNumber> {
    let metadata = std::fs::metadata(path).ok()?;
    (metadata.mode() & 0o170_000 == 0o060_000).then(|| DeviceNumber::from_raw(metadata.rdev()))
}

/// All mounts that this process sees, in the order in which they were mounted.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Vec<Mount>);

impl Mounts {
    pub fn read() -> Result<Self, MountTableError> {
        Ok(Self::parse(&std::fs::read(TABLE).context(ReadSnafu)?))
    }

    /// Lines that are not understood are left out: they are none of ours.
    pub fn parse(table: &[u8]) -> Self {
        Self(table.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }

    /// The mount that is visible at this path: the last one of several on top of each other.
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.0.iter().rev().find(|mount| mount.point == path)
    }
}

/// `36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sdb rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    let options = |field: &[u8]| text(field).split(',').map(str::to_owned).collect();
    let number = DeviceNumber::parse(&text(fields.nth(2)?))?;
    let (root, point) = (path(fields.next()?), path(fields.next()?));
    let mount_options = options(fields.next()?);
    // Any number of optional fields, up to a dash.
    fields.find(|field| *field == b"-")?;
    let file_system = text(fields.next()?);
    let source = path(fields.next()?);
    let super_options = options(fields.next().unwrap_or_default());
    Some(Mount { number, root, point, options: mount_options, file_system, source, super_options })
}

/// The kernel writes space, tab, line feed and backslash as `\040` and so on.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits =
            tail.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        let code = digits.map(|d| d.iter().fold(0_u32, |code, d| code * 8 + u32::from(d - b'0')));
        let byte = code.and_then(|code| u8::try_from(code).ok()).filter(|_| *first == b'\\');
        plain.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[3..] } else { tail };
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINES: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
70 22 8:16 / /var/lib/kubelet/a\\040b\\011c\\134d rw,noatime shared:7 master:1 - ext4 /dev/sdb ro,errors=remount-ro
71 22 0:5 /sdc /var/lib/kubelet/dev ro,nosuid - devtmpfs udev rw,size=4k
72 22 8:32 / /twice rw - xfs /dev/sdc rw
73 22 8:48 / /twice rw - xfs /dev/sdd rw
nonsense
74 22 0:60 / /no-options rw - overlay overlay";

    #[test]
    fn mount_points_with_escapes_are_found() {
        let mounts = Mounts::parse(LINES.as_bytes());
        let mount = mounts.at(Path::new("/var/lib/kubelet/a b\tc\\d")).unwrap();
        assert_eq!(mount.number, DeviceNumber::new(8, 16));
        assert_eq!(mount.source, Path::new("/dev/sdb"));
        assert!(mount.is_read_only() && mount.became_read_only());
        assert_eq!(mounts.iter().count(), 6);
    }

    #[test]
    fn the_last_mount_at_a_path_is_the_visible_one() {
        let mounts = Mounts::parse(LINES.as_bytes());
        assert_eq!(mounts.at(Path::new("/twice")).unwrap().number, DeviceNumber::new(8, 48));
        assert_eq!(mounts.at(Path::new("/nowhere")), None);
    }

    #[test]
    fn the_own_mount_table_is_read() {
        assert!(Mounts::read().unwrap().at(Path::new("/")).is_some());
    }

    proptest! {
        #[test]
        fn any_table_is_parsed(table in prop::collection::vec(any::<u8>(), 0..400)) {
            Mounts::parse(&table);
        }

        #[test]
        fn every_path_survives_the_escapes(path in "[ -~\t]{1,40}") {
            let escaped: String = path
                .chars()
                .map(|c| match c {
                    ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", u32::from(c)),
                    c => c.to_string(),
                })
                .collect();
            prop_assert_eq!(unescape(escaped.as_bytes()), path.into_bytes());
        }
    }
}
