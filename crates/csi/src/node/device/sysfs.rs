//! The kernel's description of block devices in `/sys`.

use std::path::{Path, PathBuf};

use super::DeviceNumber;

#[derive(Clone, Debug)]
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn folder(&self, number: DeviceNumber) -> PathBuf {
        self.root.join("dev/block").join(number.to_string())
    }

    /// Without a list of devices, every device counts as existing.
    pub(super) fn exists(&self, number: DeviceNumber) -> bool {
        self.folder(number).exists() || !self.root.join("dev/block").exists()
    }

    /// The id of the disk, 32 hexadecimal digits. `None` if the kernel does not know it.
    pub(super) fn disk_id(&self, number: DeviceNumber) -> Option<String> {
        disk_id(&self.folder(number))
    }

    /// Name and number of the whole disk with this id.
    pub(super) fn find(&self, id: &str) -> Option<(String, DeviceNumber)> {
        let entries = std::fs::read_dir(self.root.join("class/block")).ok()?;
        entries.flatten().find_map(|entry| {
            let folder = entry.path();
            let whole = !folder.join("partition").exists();
            let matches = whole && disk_id(&folder).as_deref() == Some(id);
            matches.then(|| name_and_number(&folder)).flatten()
        })
    }

    /// Name and number of the multipath device that uses this one.
    pub(super) fn multipath_of(&self, number: DeviceNumber) -> Option<(String, DeviceNumber)> {
        let holders = std::fs::read_dir(self.folder(number).join("holders")).ok()?;
        holders.flatten().find_map(|holder| {
            let folder = self.root.join("class/block").join(holder.file_name());
            read(&folder.join("dm/uuid"))?
                .starts_with("mpath-")
                .then(|| name_and_number(&folder))?
        })
    }

    /// Disks that were attached over several paths are read again on each path.
    pub(super) fn rescan(&self, number: DeviceNumber) {
        let folder = self.folder(number);
        let paths = std::fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
        let paths = paths.map(|path| self.root.join("class/block").join(path.file_name()));
        for disk in paths.chain([folder]) {
            let file = disk.join("device/rescan");
            if file.exists()
                && let Err(error) = std::fs::write(&file, "1")
            {
                tracing::warn!(file = %file.display(), %error, "cannot rescan a disk");
            }
        }
    }
}

fn disk_id(folder: &Path) -> Option<String> {
    if let Some(uuid) = read(&folder.join("dm/uuid")) {
        return uuid.strip_prefix("mpath-3").map(str::to_owned);
    }
    let named = read(&folder.join("device/wwid"));
    let named = named.and_then(|wwid| wwid.strip_prefix("naa.").map(str::to_owned));
    named.or_else(|| naa_designator(&std::fs::read(folder.join("device/vpd_pg83")).ok()?))
}

/// The NAA id in the SCSI page "device identification": a header of four bytes, and designators with headers of
/// four bytes.
fn naa_designator(page: &[u8]) -> Option<String> {
    let mut rest = page.get(4..)?;
    while let Some((header, tail)) = rest.split_first_chunk::<4>() {
        let (designator, after) = tail.split_at_checked(usize::from(header[3]))?;
        let of_the_disk = header[1] & 0x30 == 0;
        let naa = header[1] & 0x0f == 3;
        if of_the_disk && naa && designator.len() == 16 {
            return Some(designator.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        rest = after;
    }
    None
}

fn name_and_number(folder: &Path) -> Option<(String, DeviceNumber)> {
    let name = folder.file_name()?.to_str()?.to_owned();
    Some((name, DeviceNumber::parse(&read(&folder.join("dev"))?)?))
}

fn read(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_naa_id_is_found_behind_other_designators() {
        let mut page = vec![0, 0x83, 0, 40];
        page.extend([2, 1, 0, 4, b'V', b'M', b'w', b'a']);
        page.extend([1, 3, 0, 16]);
        page.extend([0x60, 0x00, 0xc2, 0x98, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(naa_designator(&page).as_deref(), Some("6000c2980102030405060708090a0b0c"));
        for length in 0..page.len() - 1 {
            assert_eq!(naa_designator(&page[..length]), None, "cut after {length} bytes");
        }
    }
}
