use std::os::unix::fs::FileExt as _;

use super::*;

const UUID: &str = "6000c2931415926535897932384626aa";

/// The backing files of all loop devices.
fn loops() -> String {
    let all = Command::new("losetup").args(["-l", "-n", "-O", "BACK-FILE"]).output().unwrap();
    String::from_utf8_lossy(&all.stdout).into_owned()
}

#[tokio::test]
async fn a_disk_keeps_its_data_when_it_moves_and_its_loop_device_is_freed() {
    let disks = Disks::start();
    let (one, two) = (Workdir::new("dev-one").unwrap(), Workdir::new("dev-two").unwrap());
    disks.add_vm("one", one.path());
    disks.add_vm("two", two.path());
    assert_eq!(disks.attach("one", UUID, 1 << 20), Path::new("/dev/sdb"));
    let link = |dev: &Workdir| dev.path().join(format!("disk/by-id/wwn-0x{UUID}"));
    let device = File::options().write(true).open(link(&one)).unwrap();
    device.write_all_at(b"data", 4096).unwrap();
    device.sync_all().unwrap();
    drop(device);
    disks.detach(UUID);
    assert!(link(&one).symlink_metadata().is_err());
    disks.attach("two", UUID, 2 << 20);
    let mut read = [0; 4];
    let device = File::open(link(&two)).unwrap();
    device.read_exact_at(&mut read, 4096).unwrap();
    assert_eq!(&read, b"data");
    disks.extend(UUID, 3 << 20);
    let mut device = device;
    assert_eq!(std::io::Seek::seek(&mut device, std::io::SeekFrom::End(0)).unwrap(), 3 << 20);
    drop(device);
    let file = disks.file(UUID).display().to_string();
    assert!(loops().contains(&file), "{}", loops());
    drop(disks);
    crate::eventually("the loop device is freed", 5, async || {
        if loops().contains(&file) { Err(loops()) } else { Ok(()) }
    })
    .await;
}
