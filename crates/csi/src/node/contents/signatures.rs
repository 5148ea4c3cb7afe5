//! The signatures of file systems, partition tables, volume managers and encryption.

/// Whether a file system has been used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// mkfs writes the last part of the superblock at its end, and has not.
    Unfinished,
    /// It was never mounted for writing. An unfinished file system is one of these.
    Never,
    Possible,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// A file system has the name that `mount` knows.
    pub(super) name: &'static str,
    pub(super) usage: Use,
    /// The size of a file system that can be grown.
    pub(super) bytes: Option<u64>,
    file_system: bool,
}

impl Found {
    fn other(name: &'static str) -> Self {
        Self { name, usage: Use::Possible, bytes: None, file_system: false }
    }

    pub(super) fn is_file_system(&self) -> bool {
        self.file_system
    }

    /// Whether `name` is the same file system: ext2, ext3 and ext4 share a signature.
    pub(super) fn is_like(&self, name: &str) -> bool {
        self.name == name || (self.name.starts_with("ext") && name.starts_with("ext"))
    }
}

/// Signatures at a fixed offset from the start.
const FROM_START: &[(&str, usize, &[u8])] = &[
    ("a partition table (MBR)", 510, &[0x55, 0xaa]),
    ("a partition table (GPT)", 512, b"EFI PART"),
    ("a partition table (GPT)", 4096, b"EFI PART"),
    ("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("a LUKS encrypted volume", 16384, b"SKUL\xba\xbe"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("swap space", 4086, b"SWAP-SPACE"),
    ("swap space", 65526, b"SWAPSPACE2"),
    ("a member of a RAID", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a member of a RAID", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a BitLocker volume", 3, b"-FVE-FS-"),
    ("a FAT file system", 54, b"FAT"),
    ("a FAT file system", 82, b"FAT32   "),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("a ReiserFS file system", 65588, b"ReIsEr"),
    ("a JFS file system", 32768, b"JFS1"),
    ("a squashfs file system", 0, b"hsqs"),
    ("an ISO 9660 file system", 32769, b"CD001"),
    ("a Ceph OSD", 0, b"bluestore block device"),
    ("a VMFS datastore", 2 << 20, &[0x0d, 0xd0, 0x01, 0xc0]),
    ("a VMFS datastore", 1 << 20, &[0x0d, 0xd0, 0x01, 0xc0]),
];

/// `start` and `tail` are the two ends of a disk of `size` bytes.
pub(super) fn signatures(start: &[u8], tail: &[u8], size: u64) -> Vec<Found> {
    let file_systems = [ext(start), xfs(start), btrfs(start)];
    let mut found: Vec<Found> = file_systems.into_iter().flatten().collect();
    for (name, offset, magic) in FROM_START {
        if start.get(*offset..).is_some_and(|bytes| bytes.starts_with(magic)) {
            found.push(Found::other(name));
        }
    }
    if zfs(start) {
        found.push(Found::other("a ZFS pool"));
    }
    let at_end = |offset_from_end: u64, magic: &[u8]| {
        let position = (tail.len() as u64).checked_sub(offset_from_end);
        let position = position.and_then(|position| usize::try_from(position).ok());
        position
            .and_then(|position| tail.get(position..))
            .is_some_and(|bytes| bytes.starts_with(magic))
    };
    if at_end(512, b"EFI PART") || at_end(4096, b"EFI PART") {
        found.push(Found::other("a partition table (GPT)"));
    }
    // Version 1.0 at the last 4 KiB boundary that leaves 8 KiB, version 0.90 at the last 64 KiB block.
    let raid = [0xfc, 0x4e, 0x2b, 0xa9];
    if at_end(size - (size.saturating_sub(8192) & !4095), &raid)
        || at_end(size - (size.saturating_sub(65536) & !65535), &raid)
    {
        found.push(Found::other("a member of a RAID"));
    }
    found.dedup_by(|one, other| one.name == other.name);
    found
}

/// The bytes at an offset, `None` behind the end.
fn at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk::<N>().copied()
}

fn ext(start: &[u8]) -> Option<Found> {
    const SUPERBLOCK: usize = 1024;
    const JOURNAL: u32 = 0x4;
    const IS_64_BIT: u32 = 0x80;
    /// Extents, 64 bit, flexible block groups.
    const EXT4_INCOMPATIBLE: u32 = 0x40 | IS_64_BIT | 0x200;
    /// Huge files, checksums, many subfolders, large inodes.
    const EXT4_READ_ONLY: u32 = 0x8 | 0x10 | 0x20 | 0x40 | 0x400;
    let sb = start.get(SUPERBLOCK..)?;
    (at::<2>(sb, 56)? == [0x53, 0xef]).then_some(())?;
    let word = |offset| at::<4>(sb, offset).map(u32::from_le_bytes);
    let (compatible, incompatible, read_only) = (word(92)?, word(96)?, word(100)?);
    let name = if incompatible & EXT4_INCOMPATIBLE != 0 || read_only & EXT4_READ_ONLY != 0 {
        "ext4"
    } else if compatible & JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    let high = if incompatible & IS_64_BIT == 0 { 0 } else { word(336)? };
    let blocks = u64::from(high) << 32 | u64::from(word(4)?);
    let bytes = 1024_u64.checked_shl(word(24)?).and_then(|size| blocks.checked_mul(size));
    let (mounted_at, mounts) = (word(44)?, u16::from_le_bytes(at::<2>(sb, 52)?));
    let usage = if mounted_at == 0 && mounts == 0 { Use::Never } else { Use::Possible };
    Some(Found { name, usage, bytes, file_system: true })
}

fn xfs(start: &[u8]) -> Option<Found> {
    start.starts_with(b"XFSB").then_some(())?;
    let block = u64::from(u32::from_be_bytes(at::<4>(start, 4)?));
    let bytes = block.checked_mul(u64::from_be_bytes(at::<8>(start, 8)?));
    // mkfs clears `sb_inprogress` at its end, and the kernel does not mount the file system before that.
    let usage = if at::<1>(start, 126)? == [0] { Use::Possible } else { Use::Unfinished };
    Some(Found { name: "xfs", usage, bytes, file_system: true })
}

fn btrfs(start: &[u8]) -> Option<Found> {
    const SUPERBLOCK: usize = 65536;
    let usage = match &at::<8>(start, SUPERBLOCK + 64)? {
        b"_BHRfS_M" => Use::Possible,
        b"!BHRfS_M" => Use::Unfinished,
        _ => return None,
    };
    let bytes = at::<8>(start, SUPERBLOCK + 209).map(u64::from_le_bytes);
    Some(Found { name: "btrfs", usage, bytes, file_system: true })
}

/// One of the uberblocks of the first two labels.
fn zfs(start: &[u8]) -> bool {
    const MAGIC: u64 = 0x00ba_b10c;
    [128 << 10, 384 << 10].iter().any(|array: &usize| {
        (0..128).any(|number| {
            at::<8>(start, array + number * 1024).is_some_and(|word| {
                u64::from_le_bytes(word) == MAGIC || u64::from_be_bytes(word) == MAGIC
            })
        })
    })
}
