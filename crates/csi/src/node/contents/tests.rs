use std::path::Path;

use super::*;

const DISK: u64 = 64 << 20;

fn look_at(bytes: &[(u64, &[u8])]) -> Seen {
    let path = std::env::temp_dir().join(format!(
        "contents-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let file =
        File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    file.set_len(DISK).unwrap();
    for (offset, bytes) in bytes {
        file.write_all_at(bytes, *offset).unwrap();
    }
    let seen = look(&path, DISK, &marks(&path));
    std::fs::remove_file(&path).unwrap();
    seen.unwrap()
}

fn marks(path: &Path) -> Marks {
    let uuid = DiskUuid::parse("6000c298595bf4575739e9105b2c0c2d").unwrap();
    Marks::on(path, DISK, &uuid)
}

fn assessed(bytes: &[(u64, &[u8])]) -> Contents {
    assess(&look_at(bytes), &Blkid::default())
}

#[test]
fn only_zeros_are_blank() {
    assert_eq!(assessed(&[]), Contents::Blank);
}

#[test]
fn data_is_recognised_even_if_blkid_finds_nothing() {
    for (offset, bytes, what) in [
        (510, &b"\x55\xaa"[..], "partition table (MBR)"),
        (512, b"EFI PART", "partition table (GPT)"),
        (DISK - 512, b"EFI PART", "partition table (GPT)"),
        (0, b"LUKS\xba\xbe", "LUKS"),
        (512, b"LABELONE", "LVM"),
        (4086, b"SWAPSPACE2", "swap"),
        (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "RAID"),
        (DISK - 8192, &[0xfc, 0x4e, 0x2b, 0xa9], "RAID"),
        (DISK - 65536, &[0xfc, 0x4e, 0x2b, 0xa9], "RAID"),
        (131_072, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], "ZFS"),
        (4_000_000, b"x", "unknown data (first at byte 4000000)"),
        (DISK - 1, b"x", "unknown data"),
        (DISK / 2, b"x", "unknown data"),
    ] {
        let contents = assessed(&[(offset, bytes)]);
        assert!(
            matches!(&contents, Contents::Data { what: seen } if seen.contains(what)),
            "{offset}: {contents:?}"
        );
    }
}

#[test]
fn what_blkid_finds_is_data_even_if_we_find_nothing() {
    for (output, what) in [
        ("DEVNAME=/dev/sdb\nPTUUID=1\nPTTYPE=dos\n", "partition table (dos)"),
        ("DEVNAME=/dev/sdb\nTYPE=LVM2_member\nUSAGE=raid\n", "LVM2_member"),
        ("DEVNAME=/dev/sdb\nLABEL=x\n", "blkid recognises"),
    ] {
        let contents = assess(&Seen::default(), &parse_blkid(output));
        assert!(
            matches!(&contents, Contents::Data { what: seen } if seen.contains(what)),
            "{output}: {contents:?}"
        );
    }
    let nilfs = parse_blkid("TYPE=nilfs2\nUSAGE=filesystem\n");
    assert_eq!(
        assess(&Seen::default(), &nilfs),
        Contents::FileSystem { name: "nilfs2".into(), bytes: None }
    );
}

#[test]
fn a_file_system_next_to_a_partition_table_is_data() {
    let contents = assessed(&[(0, b"XFSB"), (510, b"\x55\xaa")]);
    assert!(matches!(contents, Contents::Data { .. }), "{contents:?}");
}

#[test]
fn a_marked_disk_without_a_used_file_system_is_unfinished() {
    let place = (DISK / 16 * 7) & !4095;
    let mut mark =
        b"vsphere-csi: mkfs is running on disk 6000c298595bf4575739e9105b2c0c2d".to_vec();
    mark.resize(512, 0);
    let junk: (u64, &[u8]) = (900_000, b"inode table");
    assert_eq!(assessed(&[junk, (place, &mark)]), Contents::Unfinished { name: None });

    // An ext4 superblock: with a mount time it was used, whatever the marks say.
    let mut superblock = vec![0; 1024];
    superblock[56..58].copy_from_slice(&[0x53, 0xef]);
    superblock[96] = 0x40;
    let unfinished = Contents::Unfinished { name: Some("ext4") };
    assert_eq!(assessed(&[(1024, &superblock), (place, &mark)]), unfinished);
    superblock[44] = 1;
    let contents = assessed(&[(1024, &superblock), (place, &mark)]);
    assert!(matches!(contents, Contents::FileSystem { .. }), "{contents:?}");

    // A partition table is data, whatever the marks say.
    let contents = assessed(&[(510, b"\x55\xaa"), (place, &mark)]);
    assert!(matches!(contents, Contents::Data { .. }), "{contents:?}");

    // The mark of another disk, for example of the source of a clone, counts for nothing.
    *mark.get_mut(40).unwrap() = b'0';
    mark[50] = b'f';
    let contents = assessed(&[junk, (place, &mark)]);
    assert!(matches!(contents, Contents::Data { .. }), "{contents:?}");
}

#[test]
fn only_marks_of_this_very_disk_are_erased() {
    let path = std::env::temp_dir().join(format!("marks-{}", std::process::id()));
    let file =
        File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    file.set_len(DISK).unwrap();
    let marks = marks(&path);
    marks.write().unwrap();
    let place = |sixteenths: u64| (DISK / 16 * sixteenths) & !4095;
    let read = |at: u64| {
        let mut bytes = [0; 512];
        file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    // A file took one place, another one has the mark and more, and a third one moved a mark.
    let mark = read(place(3));
    file.write_all_at(b"data of a pod", place(5)).unwrap();
    file.write_all_at(b"x", place(7) + 511).unwrap();
    file.write_all_at(&mark, place(3) + 512).unwrap();
    let kept = [place(5), place(7), place(3) + 512].map(|at| (at, read(at)));
    marks.erase().unwrap();
    assert!(!marks.present(&file).unwrap());
    for erased in [3, 11, 13] {
        assert_eq!(read(place(erased)), [0; 512], "{erased}");
    }
    for (at, bytes) in kept {
        assert_eq!(read(at), bytes, "{at}");
    }
    std::fs::remove_file(&path).unwrap();
}
