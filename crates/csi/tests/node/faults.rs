//! Bad days: tools that die or hang, damaged file systems, disks that vanish, a plugin that is killed.

use std::{fs, os::unix::fs::FileExt as _, path::PathBuf, sync::Arc};

use csi::proto::csi::NodeGetCapabilitiesRequest;
use testkit::{Disks, eventually};
use tonic::Code;

use crate::{
    disks::number,
    plugin::{MIB, TestNode, Volume, is_blank},
};

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_is_formatted_again_after_mkfs_was_killed_halfway() {
    let node = TestNode::start().await;
    // These fake tools leave behind what the real ones leave when they are killed.
    let junk = r#"for last; do :; done
dd if=/dev/urandom of="$last" bs=1M seek=1 count=20 conv=notrunc 2>/dev/null"#;
    let halfway = format!("{junk}\nkill -9 $$");
    let unfinished = r#"for last; do :; done
PATH=${PATH#*:} mkfs.xfs "$@" || exit 1
printf '\001' | dd of="$last" bs=1 seek=126 conv=notrunc 2>/dev/null
kill -9 $$"#;
    for (tool, file_system, script) in [
        ("mkfs.ext4", "ext4", halfway.as_str()),
        ("mkfs.xfs", "xfs", halfway.as_str()),
        ("mkfs.xfs", "xfs", unfinished),
    ] {
        node.fake_tool(tool, script);
        let volume = Volume::with(file_system);
        node.attach(&volume);
        let error = node.stage(&volume).await.unwrap_err();
        assert_eq!(error.code(), Code::Internal, "{error}");
        assert!(error.message().contains("signal: 9"), "{error}");
        node.remove_fake_tool(tool);
        let target = node.mount(&volume).await;
        fs::write(target.join("file"), "data").unwrap();
        node.unmount(&volume).await;
        let target = node.mount(&volume).await;
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "data");
        node.unmount(&volume).await;
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn no_mark_of_mkfs_stays_on_a_disk() {
    let node = TestNode::start().await;
    for file_system in ["ext4", "xfs", "btrfs"] {
        let volume = Volume::with(file_system);
        node.attach(&volume);
        node.stage(&volume).await.unwrap();
        node.unstage(&volume).await.unwrap();
        node.disks.detach(&volume.uuid);
        let mut search = std::process::Command::new("grep");
        search.args(["-qaF", "vsphere-csi: mkfs is running"]).arg(node.disks.file(&volume.uuid));
        assert_eq!(search.status().unwrap().code(), Some(1), "{file_system}");
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_that_lost_its_first_sector_after_an_interrupted_first_mount_is_not_formatted() {
    let node = TestNode::start().await;
    // mkfs ends well, but the driver cannot verify that: the marks stay on the disk.
    let formatted = "PATH=${PATH#*:} mkfs.xfs \"$@\" && touch $TMPDIR/formatted";
    node.fake_tool("mkfs.xfs", formatted);
    let fails = "if [ -e $TMPDIR/formatted ]; then echo 'Input/output error' >&2; exit 4; fi
PATH=${PATH#*:} exec blkid \"$@\"";
    node.fake_tool("blkid", fails);
    let volume = Volume::with("xfs");
    let device = node.attach(&volume);
    let error = node.stage(&volume).await.unwrap_err();
    assert!(error.message().contains("Input/output error"), "{error}");
    node.remove_fake_tool("blkid");
    node.remove_fake_tool("mkfs.xfs");

    let target = node.mount(&volume).await;
    fs::write(target.join("file"), "data").unwrap();
    node.unmount(&volume).await;
    let zeros = format!("dd if=/dev/zero of={} bs=512 count=1 conv=notrunc", device.display());
    node.command(&format!("{zeros} 2>/dev/null"));
    let error = node.stage(&volume).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(error.message().contains("is not formatted"), "{error}");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_mkfs_that_does_nothing_is_noticed() {
    let node = TestNode::start().await;
    node.fake_tool("mkfs.ext4", "exit 0");
    let volume = Volume::with("ext4");
    node.attach(&volume);
    let error = node.stage(&volume).await.unwrap_err();
    assert!(error.message().contains("mkfs ended without error, but"), "{error}");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_tool_that_hangs_times_out_and_the_plugin_goes_on() {
    let arguments = ["--format-timeout-seconds=3"];
    let node = TestNode::start_with(Arc::new(Disks::start()), &arguments).await;
    // A fake tool: a real mkfs hangs only on a broken disk.
    node.fake_tool("mkfs.ext4", "touch $TMPDIR/mkfs-hangs; sleep 600");
    let (hangs, other) = (Volume::with("ext4"), Volume::with("xfs"));
    node.attach(&hangs);
    node.attach(&other);
    let started = node.path("mkfs-hangs");
    let meanwhile = async {
        eventually("mkfs hangs", 20, async || started.exists().then_some(()).ok_or("not yet"))
            .await;
        let request = NodeGetCapabilitiesRequest {};
        node.client().await.node_get_capabilities(request).await.unwrap();
        let error = node.stage(&hangs).await.unwrap_err();
        assert_eq!(error.code(), Code::Aborted, "{error}");
        node.mount(&other).await;
    };
    let (staged, ()) = tokio::join!(node.stage(&hangs), meanwhile);
    let error = staged.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(error.message().contains("`mkfs.ext4 "), "{error}");
    node.remove_fake_tool("mkfs.ext4");
    node.mount(&hangs).await;
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_mount_that_hangs_times_out() {
    let arguments = ["--tool-timeout-seconds=3"];
    let node = TestNode::start_with(Arc::new(Disks::start()), &arguments).await;
    let volume = Volume::with("ext4");
    node.attach(&volume);
    node.fake_tool("mount", "sleep 600");
    let error = node.stage(&volume).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    node.remove_fake_tool("mount");
    node.mount(&volume).await;
}

/// A disk whose reads by the plugin do not return, until this is dropped.
struct HungDisk {
    cgroup: PathBuf,
    number: String,
}

impl HungDisk {
    fn new(node: &TestNode, device: &std::path::Path) -> Self {
        let cgroup = PathBuf::from(format!("/sys/fs/cgroup/blkio/vdo-{}", std::process::id()));
        fs::create_dir_all(&cgroup).unwrap();
        let hung = Self { cgroup, number: number(node, device) };
        // One byte in a second: a block takes an hour.
        hung.limit(1);
        fs::write(hung.cgroup.join("cgroup.procs"), node.plugin().pid().to_string()).unwrap();
        hung
    }

    fn limit(&self, bytes_per_second: u64) {
        let line = format!("{} {bytes_per_second}", self.number);
        fs::write(self.cgroup.join("blkio.throttle.read_bps_device"), line).unwrap();
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        self.limit(0);
        let procs = fs::read_to_string(self.cgroup.join("cgroup.procs")).unwrap_or_default();
        for process in procs.lines() {
            let _ = fs::write("/sys/fs/cgroup/blkio/cgroup.procs", process);
        }
        let _ = fs::remove_dir(&self.cgroup);
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_that_hangs_is_reported_and_other_volumes_go_on() {
    let arguments = ["--tool-timeout-seconds=3", "--format-timeout-seconds=3"];
    let node = TestNode::start_with(Arc::new(Disks::start()), &arguments).await;
    let (hangs, other) = (Volume::with("ext4"), Volume::with("xfs"));
    let device = node.attach(&hangs);
    node.attach(&other);
    let hung = HungDisk::new(&node, &device);
    for _ in 0..2 {
        let error = node.stage(&hangs).await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
        assert!(error.message().contains(&*device.display().to_string()), "{error}");
    }
    node.mount(&other).await;
    drop(hung);
    eventually("the disk answers again", 60, async || {
        node.stage(&hangs).await.map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_that_takes_the_name_of_the_volume_is_not_written_to() {
    let node = TestNode::start().await;
    let (volume, other) = (Volume::with("ext4"), Volume::with("ext4"));
    let device = node.attach_small(&volume);
    let other_device = node.attach_small(&other);
    let (shown, numbers) = (device.display(), number(&node, &other_device).replace(':', " "));
    // While the driver looks at the disk, its name goes to another one.
    let script = format!(
        r#"for last; do :; done
if [ "$last" = {shown} ]; then rm {shown}; mknod {shown} b {numbers}; fi
PATH=${{PATH#*:}} exec blkid "$@""#
    );
    node.fake_tool("blkid", &script);
    let error = node.stage(&volume).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains("was the device"), "{error}");
    assert!(is_blank(&node, &other), "the other disk has been written to");
    assert!(is_blank(&node, &volume), "the disk has been written to");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_failed_probe_formats_nothing() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    node.attach_small(&volume);
    node.fake_tool("blkid", "echo 'Input/output error' >&2; exit 4");
    let error = node.stage(&volume).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal, "{error}");
    assert!(error.message().contains("neither formatted nor mounted"), "{error}");
    assert!(error.message().contains("Input/output error"), "{error}");
    node.disks.detach(&volume.uuid);
    assert!(is_blank(&node, &volume), "the disk has been written to");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_damaged_file_system_is_reported_and_not_formatted() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    let device = node.attach(&volume);
    let target = node.mount(&volume).await;
    fs::write(target.join("file"), "data").unwrap();
    node.unmount(&volume).await;
    // Without the inode of the root folder: not a case for an automatic repair.
    let shown = device.display();
    node.command(&format!("debugfs -w -R 'clri <2>' {shown} 2>/dev/null; debugfs -w -R 'ssv state 2' {shown} 2>/dev/null"));
    let error = node.stage(&volume).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal, "{error}");
    assert!(error.message().contains("is damaged"), "{error}");
    assert!(error.message().contains(&format!("e2fsck -f {shown}")), "{error}");
    // Repaired by hand, it has the data.
    node.command(&format!("e2fsck -fy {shown} >/dev/null 2>&1 || true"));
    let target = node.mount(&volume).await;
    let found = node.command(&format!(
        "cat $(find {} -type f -size -10c | head -1)",
        node.target(&volume, "a").display()
    ));
    assert_eq!(found, "data", "{}", target.display());
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn small_errors_are_corrected_before_the_mount() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    let device = node.attach(&volume);
    let target = node.mount(&volume).await;
    fs::write(target.join("file"), "data").unwrap();
    node.unmount(&volume).await;
    // A wrong count of free blocks, in a file system that was not unmounted cleanly.
    let shown = device.display();
    node.command(&format!("debugfs -w -R 'ssv free_blocks_count 7' {shown} 2>/dev/null; debugfs -w -R 'ssv state 2' {shown} 2>/dev/null"));
    let target = node.mount(&volume).await;
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "data");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_killed_plugin_goes_on_where_it_was() {
    let mut node = TestNode::start().await;
    let (volume, block) = (Volume::with("ext4"), Volume::block());
    node.attach(&volume);
    node.attach(&block);
    let target = node.mount(&volume).await;
    node.mount(&block).await;
    fs::write(target.join("file"), "data").unwrap();
    node.restart_plugin().await;
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "data", "pods go on");
    // The kubelet calls again what it is not sure of.
    node.mount(&volume).await;
    node.mount(&block).await;
    let second = node.publish(&volume, "b").await.unwrap();
    assert_eq!(fs::read_to_string(second.join("file")).unwrap(), "data");
    node.restart_plugin().await;
    node.unpublish(&volume, "b").await.unwrap();
    node.unmount(&volume).await;
    node.unmount(&block).await;
    assert!(!node.command("cat /proc/self/mountinfo").contains("staging-"));
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn the_mount_of_a_disk_that_was_taken_away_is_replaced() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    node.attach(&volume);
    let target = node.mount(&volume).await;
    fs::write(target.join("file"), "data").unwrap();
    node.command("sync");
    // Detached by force: the mounts stay, their disk does not.
    node.disks.detach(&volume.uuid);
    let stats = node.stats(&volume, &node.target(&volume, "a")).await.unwrap();
    let condition = stats.volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("is gone"), "{condition:?}");
    node.attach(&volume);
    node.unpublish(&volume, "a").await.unwrap();
    let target = node.mount(&volume).await;
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "data");
    let stats = node.stats(&volume, &node.target(&volume, "a")).await.unwrap();
    let condition = stats.volume_condition.unwrap();
    assert!(!condition.abnormal, "{condition:?}");
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn folders_that_vanished_do_not_stop_the_cleanup() {
    let node = TestNode::start().await;
    let volume = Volume::with("ext4");
    node.unpublish(&volume, "a").await.unwrap();
    node.unstage(&volume).await.unwrap();
    node.attach(&volume);
    node.mount(&volume).await;
    // Somebody unmounted the staging path behind the kubelet's back.
    node.command(&format!("umount {}", node.staging(&volume).display()));
    node.stage(&volume).await.unwrap();
    node.command(&format!("umount {0}; rmdir {0}", node.staging(&volume).display()));
    node.unpublish(&volume, "a").await.unwrap();
    node.unstage(&volume).await.unwrap();
    let mut file = fs::File::open(node.disks.file(&volume.uuid)).unwrap();
    assert!(std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).unwrap() >= MIB);
    let mut magic = [0; 2];
    file.read_exact_at(&mut magic, 1024 + 56).unwrap();
    assert_eq!(magic, [0x53, 0xef], "the file system is still there");
}
