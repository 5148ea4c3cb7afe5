//! File systems that grow with their disks.

use std::fs;

use tonic::Code;

use crate::plugin::{MIB, SIZE, TestNode, Volume};

async fn total(node: &TestNode, volume: &Volume) -> u64 {
    let stats = node.stats(volume, &node.target(volume, "a")).await.unwrap();
    stats.usage[0].total.cast_unsigned()
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_mounted_volume_grows() {
    let node = TestNode::start().await;
    // ext4 grows online only with CAP_SYS_RESOURCE, which this kind of computer does not have: see the next test.
    for file_system in ["xfs", "btrfs"] {
        let volume = Volume::with(file_system);
        node.attach(&volume);
        node.mount(&volume).await;
        let before = total(&node, &volume).await;
        let error = node.expand(&volume, "b", 2 * SIZE).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
        node.disks.extend(&volume.uuid, 2 * SIZE);
        assert_eq!(node.expand(&volume, "a", 2 * SIZE).await.unwrap(), 2 * SIZE);
        let after = total(&node, &volume).await;
        assert!(after > before + SIZE / 2, "{file_system}: {before} before, {after} after");
        assert_eq!(node.expand(&volume, "a", 2 * SIZE).await.unwrap(), 2 * SIZE, "again");
        node.unmount(&volume).await;
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn an_unmounted_ext_file_system_grows_when_it_is_staged() {
    let node = TestNode::start().await;
    for file_system in ["ext4", "ext3"] {
        let volume = Volume::with(file_system);
        node.attach(&volume);
        let target = node.mount(&volume).await;
        fs::write(target.join("file"), "data").unwrap();
        let before = total(&node, &volume).await;
        node.unmount(&volume).await;
        node.disks.extend(&volume.uuid, 2 * SIZE);
        let target = node.mount(&volume).await;
        let after = total(&node, &volume).await;
        assert!(after > before + SIZE / 2, "{before} before, {after} after");
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "data");
        node.unmount(&volume).await;
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_that_has_not_grown_yet_is_an_error_that_is_tried_again() {
    let node = TestNode::start().await;
    let volume = Volume::with("xfs");
    node.attach(&volume);
    node.mount(&volume).await;
    let late = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        node.disks.extend(&volume.uuid, SIZE + 64 * MIB);
    };
    let (grown, ()) = tokio::join!(node.expand(&volume, "a", SIZE + 64 * MIB), late);
    grown.unwrap();
    let error = node.expand(&volume, "a", 4 * SIZE).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains("the disk has not grown yet"), "{error}");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_raw_block_volume_reports_its_new_size() {
    let node = TestNode::start().await;
    let volume = Volume::block();
    node.attach(&volume);
    node.mount(&volume).await;
    assert_eq!(total(&node, &volume).await, SIZE);
    node.disks.extend(&volume.uuid, 2 * SIZE);
    assert_eq!(node.expand(&volume, "a", 2 * SIZE).await.unwrap(), 2 * SIZE);
    assert_eq!(total(&node, &volume).await, 2 * SIZE);
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_snapshot_restored_to_a_larger_volume_fills_it() {
    let node = TestNode::start().await;
    for file_system in ["ext4", "xfs", "btrfs"] {
        let source = Volume::with(file_system);
        node.attach(&source);
        let target = node.mount(&source).await;
        fs::write(target.join("file"), "data").unwrap();
        let before = total(&node, &source).await;
        // btrfs does not mount two disks with the same id at the same time, xfs does.
        if file_system == "xfs" {
            node.command("sync");
        } else {
            node.unmount(&source).await;
        }
        let restored = Volume::with(file_system);
        node.disks.copy(&source.uuid, &restored.uuid);
        node.disks.attach(&node.name, &restored.uuid, 2 * SIZE);
        let target = node.mount(&restored).await;
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "data", "{file_system}");
        let after = total(&node, &restored).await;
        assert!(after > before + SIZE / 2, "{file_system}: {before} before, {after} after");
        node.unmount(&restored).await;
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn usage_is_reported_in_bytes_and_inodes() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    node.attach(&volume);
    let target = node.mount(&volume).await;
    fs::write(target.join("file"), vec![1; 10 << 20]).unwrap();
    node.command("sync");
    let stats = node.stats(&volume, &node.target(&volume, "a")).await.unwrap();
    let [bytes, inodes] = stats.usage.as_slice() else { panic!("{stats:?}") };
    assert!(bytes.used >= 10 << 20, "{bytes:?}");
    assert!(bytes.available > 0 && bytes.available < bytes.total, "{bytes:?}");
    assert!(inodes.used >= 12 && inodes.total > inodes.used, "{inodes:?}");
    assert!(!stats.volume_condition.unwrap().abnormal);
    let elsewhere = node.path("no-volume");
    fs::create_dir_all(&elsewhere).unwrap();
    for path in [elsewhere.as_path(), "/no/such/path".as_ref(), "relative".as_ref()] {
        let error = node.stats(&volume, path).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
    }
}
