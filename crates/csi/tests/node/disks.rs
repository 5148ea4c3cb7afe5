//! Which disk is used, and what is never formatted.

use std::{fs, os::unix::fs::FileExt as _, path::Path, time::Duration};

use tonic::Code;

use crate::plugin::{MIB, SMALL, TestNode, Volume, is_blank, same};

/// Writes to the file of a disk.
fn write(node: &TestNode, volume: &Volume, offset: u64, bytes: &[u8]) {
    let path = node.disks.file(&volume.uuid);
    let file = fs::File::options().create(true).write(true).truncate(false).open(path);
    let file = file.unwrap();
    file.set_len(SMALL).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_with_data_is_never_formatted() {
    let node = TestNode::start().await;
    let long = vec![7; 1 << 20];
    for (offset, bytes, what) in [
        (510, &b"\x55\xaa"[..], "partition table"),
        (512, b"EFI PART", "partition table"),
        (0, b"LUKS\xba\xbe", "LUKS"),
        (512, b"LABELONE", "LVM"),
        (5 * MIB + 4096 * 3, &long, "unknown data"),
        (SMALL - 1, b"x", "unknown data"),
        (7, b"x", "unknown data"),
        (SMALL / 2, b"x", "unknown data"),
    ] {
        let volume = Volume::with("ext4");
        write(&node, &volume, offset, bytes);
        let before = format!("before-{}", volume.uuid);
        node.disks.copy(&volume.uuid, &before);
        node.attach_small(&volume);
        let error = node.stage(&volume).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(error.message().contains(what), "{what}: {error}");
        assert!(error.message().contains("is not formatted"), "{error}");
        node.disks.detach(&volume.uuid);
        let (before, after) = (node.disks.file(&before), node.disks.file(&volume.uuid));
        assert!(same(&before, &after), "{what}: the disk has changed");
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn what_other_tools_have_made_is_not_formatted() {
    let node = TestNode::start().await;
    for command in ["mkswap -q $0", "mkfs.ext2 -q $0", "mkfs.btrfs -q $0"] {
        let volume = Volume::with("ext4");
        let device = node.attach(&volume);
        let line = command.replace("$0", &device.display().to_string());
        node.command(&line);
        let error = node.stage(&volume).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{line}: {error}");
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn another_file_system_than_the_requested_one_is_an_error_with_both_names() {
    let node = TestNode::start().await;
    let volume = Volume::with("xfs");
    node.attach(&volume);
    node.mount(&volume).await;
    node.unmount(&volume).await;
    let wrong = Volume { capability: Volume::with("ext4").capability, ..volume.clone() };
    let error = node.stage(&wrong).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(error.message().contains("carries a file system xfs"), "{error}");
    assert!(error.message().contains("asks for ext4"), "{error}");
    // Without a request, the file system that is there will do.
    let any = Volume { capability: Volume::with("").capability, ..volume };
    node.mount(&any).await;
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn an_empty_disk_is_not_formatted_for_readers() {
    use csi::proto::csi::volume_capability::access_mode::Mode;
    let node = TestNode::start().await;
    let volume = Volume::with("ext4").mode(Mode::SingleNodeReaderOnly);
    node.attach(&volume);
    let error = node.stage(&volume).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(error.message().contains("mount it once for writing"), "{error}");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_that_appears_late_is_waited_for() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    let late = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        node.attach(&volume);
    };
    let (staged, ()) = tokio::join!(node.stage(&volume), late);
    staged.unwrap();
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_that_never_appears_is_an_error_that_names_the_remedy() {
    let disks = std::sync::Arc::new(testkit::Disks::start());
    let node = TestNode::start_with(disks, &["--device-timeout-seconds=1"]).await;
    let volume = Volume::with("ext4");
    let error = node.stage(&volume).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains(&volume.uuid), "{error}");
    assert!(error.message().contains("disk.EnableUUID=TRUE"), "{error}");
}

/// The kernel's number of a disk, `7:3`.
pub(crate) fn number(node: &TestNode, device: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let raw = fs::metadata(node.inside(device)).unwrap().rdev();
    format!("{}:{}", rustix::fs::major(raw), rustix::fs::minor(raw))
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_link_to_another_disk_is_not_followed() {
    let disks = std::sync::Arc::new(testkit::Disks::start());
    let node = TestNode::start_with(disks, &["--device-timeout-seconds=1"]).await;
    let (right, wrong) = (Volume::with("ext4"), Volume::with("ext4"));
    let device = node.attach_small(&wrong);
    let by_id = node.inside("/dev/disk/by-id");
    let link = by_id.join(format!("wwn-0x{}", right.uuid));
    let name = device.file_name().unwrap().to_str().unwrap().to_owned();
    std::os::unix::fs::symlink(format!("../../{name}"), &link).unwrap();
    // Another link knows better.
    let error = node.stage(&right).await.unwrap_err();
    assert!(error.message().contains(&format!("is the disk {}", wrong.uuid)), "{error}");
    // The kernel knows better. The tree in the test stands for /sys: loop devices have no ids.
    for kind in ["wwn-0x", "scsi-3"] {
        fs::remove_file(by_id.join(format!("{kind}{}", wrong.uuid))).unwrap();
    }
    let block = node.path("sys/dev/block").join(number(&node, &device));
    fs::create_dir_all(block.join("device")).unwrap();
    fs::write(block.join("device/wwid"), format!("naa.{}\n", wrong.uuid)).unwrap();
    let error = node.stage(&right).await.unwrap_err();
    assert!(error.message().contains(&format!("is the disk {}", wrong.uuid)), "{error}");
    assert!(is_blank(&node, &wrong), "the other disk has been written to");

    // The disk without any link is found through the kernel.
    let class = node.path("sys/class/block").join(&name);
    fs::create_dir_all(class.join("device")).unwrap();
    fs::write(class.join("device/wwid"), format!("naa.{}\n", wrong.uuid)).unwrap();
    fs::write(class.join("dev"), number(&node, &device)).unwrap();
    node.stage(&wrong).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_with_several_paths_is_used_through_multipath() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    let path = node.attach(&volume);
    // A second node of the same disk stands for the multipath device: this kernel has no device mapper.
    let number = number(&node, &path);
    node.command(&format!("mknod /dev/dm-0 b {}", number.replace(':', " ")));
    let holders = node.path("sys/dev/block").join(&number).join("holders/dm-0");
    fs::create_dir_all(holders).unwrap();
    let class = node.path("sys/class/block/dm-0");
    fs::create_dir_all(class.join("dm")).unwrap();
    fs::write(class.join("dm/uuid"), format!("mpath-3{}\n", volume.uuid)).unwrap();
    fs::write(class.join("dev"), &number).unwrap();
    node.stage(&volume).await.unwrap();
    let mounts = node.command("cat /proc/self/mountinfo");
    assert!(mounts.contains(" - ext4 /dev/dm-0 "), "{mounts}");
}
