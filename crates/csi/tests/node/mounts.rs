//! Volumes of pods: mounted, shared, moved, unmounted.

use std::{fs, sync::Arc};

use csi::proto::csi::volume_capability::access_mode::Mode;
use testkit::Disks;
use tonic::Code;

use crate::plugin::{TestNode, Volume};

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_pod_finds_its_data_again_on_another_node() {
    let disks = Arc::new(Disks::start());
    let one = TestNode::start_with(disks.clone(), &[]).await;
    let two = TestNode::start_with(disks.clone(), &[]).await;
    for file_system in ["ext4", "ext3", "xfs", "btrfs", ""] {
        let volume = Volume::with(file_system);
        one.attach(&volume);
        let target = one.mount(&volume).await;
        fs::write(target.join("file"), file_system).unwrap();
        one.unmount(&volume).await;
        disks.detach(&volume.uuid);
        two.attach(&volume);
        let target = two.mount(&volume).await;
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), file_system);
        let mounts = two.command("cat /proc/self/mountinfo");
        let line = mounts.lines().find(|line| line.contains(&volume.id)).unwrap().to_owned();
        let expected = if file_system.is_empty() { "ext4" } else { file_system };
        assert!(line.contains(&format!(" - {expected} /dev/sd")), "{line}");
        two.unmount(&volume).await;
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn repeated_calls_succeed_and_change_nothing() {
    let node = TestNode::start().await;
    for volume in [Volume::with("ext4"), Volume::with("btrfs"), Volume::block()] {
        node.attach(&volume);
        for _ in 0..3 {
            node.stage(&volume).await.unwrap();
        }
        for _ in 0..3 {
            node.publish(&volume, "a").await.unwrap();
        }
        let mounts = node.command("cat /proc/self/mountinfo");
        let target = node.target(&volume, "a").display().to_string();
        assert_eq!(mounts.matches(&target).count(), 1, "{mounts}");
        for _ in 0..3 {
            node.unpublish(&volume, "a").await.unwrap();
        }
        assert!(!node.inside(node.target(&volume, "a")).exists(), "the target is removed");
        for _ in 0..3 {
            node.unstage(&volume).await.unwrap();
        }
        assert!(!node.command("cat /proc/self/mountinfo").contains(&volume.id));
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn mount_options_reach_the_mount() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4").options(&["noatime", "nodiratime,nosuid"]);
    node.attach(&volume);
    node.mount(&volume).await;
    let mounts = node.command("cat /proc/self/mountinfo");
    let target = node.target(&volume, "a").display().to_string();
    let line = mounts.lines().find(|line| line.contains(&target)).unwrap();
    assert!(line.contains("noatime") && line.contains("nosuid"), "{line}");
    let error = node.stage(&Volume::with("ext4").options(&["remount"])).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_read_only_volume_cannot_be_written() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    node.attach(&volume);
    let target = node.mount(&volume).await;
    fs::write(target.join("file"), "data").unwrap();

    let second = node.publish_with(&volume, "b", true).await.unwrap();
    assert_eq!(fs::read_to_string(second.join("file")).unwrap(), "data");
    let error = fs::write(second.join("file"), "other").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    fs::write(target.join("file"), "still written").unwrap();
    let error = node.publish_with(&volume, "b", false).await.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists, "{error}");
    node.unpublish(&volume, "b").await.unwrap();
    node.unmount(&volume).await;

    // A volume for readers is mounted read-only from the start.
    let readers = Volume { ..volume.clone() }.mode(Mode::MultiNodeReaderOnly);
    let target = node.mount(&readers).await;
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "still written");
    assert!(fs::write(target.join("file"), "other").is_err());
    let error = node.stage(&volume).await.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists, "{error}");
    assert!(error.message().contains("it is read-only, not writable"), "{error}");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_raw_block_volume_is_the_disk_itself() {
    use std::os::unix::fs::FileExt as _;
    let node = TestNode::start().await;
    let volume = Volume::block();
    node.attach(&volume);
    let target = node.mount(&volume).await;
    let device = fs::File::options().read(true).write(true).open(&target).unwrap();
    device.write_all_at(b"raw data", 1 << 20).unwrap();
    device.sync_all().unwrap();
    drop(device);
    node.unmount(&volume).await;
    let target = node.mount(&volume).await;
    let mut read = [0; 8];
    fs::File::open(&target).unwrap().read_exact_at(&mut read, 1 << 20).unwrap();
    assert_eq!(&read, b"raw data");
    node.unpublish(&volume, "a").await.unwrap();

    let target = node.publish_with(&volume, "b", true).await.unwrap();
    fs::File::open(&target).unwrap().read_exact_at(&mut read, 1 << 20).unwrap();
    let device = fs::File::options().write(true).open(&target);
    let written = device.and_then(|device| device.write_all_at(b"other", 1 << 20));
    assert!(written.is_err(), "a read-only raw block volume can be written");
    node.unpublish(&volume, "b").await.unwrap();

    // It is writable for the next pod.
    let target = node.publish(&volume, "c").await.unwrap();
    let device = fs::File::options().write(true).open(&target).unwrap();
    device.write_all_at(b"new data", 1 << 20).unwrap();
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_volume_of_a_single_pod_is_not_published_to_a_second() {
    let node = TestNode::start().await;
    let single =
        [Volume::with("xfs"), Volume::block()].map(|v| v.mode(Mode::SingleNodeSingleWriter));
    for volume in single {
        node.attach(&volume);
        node.mount(&volume).await;
        node.publish(&volume, "a").await.unwrap();
        let error = node.publish(&volume, "b").await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(error.message().contains("pods-a-"), "the error names the other target: {error}");
        node.unpublish(&volume, "a").await.unwrap();
        node.publish(&volume, "b").await.unwrap();
    }
    let shared = Volume::with("ext4").mode(Mode::SingleNodeMultiWriter);
    node.attach(&shared);
    node.mount(&shared).await;
    node.publish(&shared, "b").await.unwrap();
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_target_with_files_is_never_emptied() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    let target = node.target(&volume, "a");
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("file"), "of somebody else").unwrap();
    node.unpublish(&volume, "a").await.unwrap_err();
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "of somebody else");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_volume_is_published_only_after_it_was_staged() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    node.attach(&volume);
    let error = node.publish(&volume, "a").await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(!node.target(&volume, "a").exists());
}
