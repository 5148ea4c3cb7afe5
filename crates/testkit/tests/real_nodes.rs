//! Real nodes and disks on this computer. `make test-nodes` runs these tests.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{fs::File, os::unix::fs::FileExt as _, path::Path, process::Command};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::json;
use testkit::{ControlPlane, Disks, RealNode, Registry, Workdir, eventually};

const UUID: &str = "6000c2931415926535897932384626aa";

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn a_real_kubelet_runs_a_pod_from_the_registry() {
    let plane = ControlPlane::builder().with_controllers().start().await;
    let registry = Registry::start().await;
    let node = RealNode::builder("node-1", 1).start(&plane, &registry).await;
    let pods = Api::<Pod>::default_namespaced(plane.client());
    let pod = json!({
        "metadata": {"name": "pause"},
        "spec": {"containers": [{"name": "pause", "image": "registry.test/pause:1"}], "nodeName": node.name()},
    });
    eventually("the default service account is there", 30, async || {
        pods.create(&PostParams::default(), &serde_json::from_value(pod.clone()).unwrap()).await
    })
    .await;
    let running = eventually("the pod runs", 60, async || {
        let pod = pods.get("pause").await.unwrap();
        let status = pod.status.unwrap();
        if status.phase.as_deref() == Some("Running") {
            Ok(status)
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    assert!(
        running.pod_ip.unwrap().starts_with("10.78.1."),
        "the address comes from the node's CNI"
    );
    assert!(node.working_set("/pause").unwrap() > 0);
}

#[test]
#[ignore = "needs the images for tests: make test-nodes"]
fn the_same_programs_give_the_same_images() {
    let folders = [Workdir::new("images-one").unwrap(), Workdir::new("images-two").unwrap()];
    let built = folders.each_ref().map(|folder| {
        let mut images = Command::new(testkit::repository().join("scripts/images"));
        let target = testkit::programs().parent().unwrap();
        let output = images.arg("--test").arg(folder.path()).env("CARGO_TARGET_DIR", target);
        let output = output.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // Name and digest of each image.
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.contains("sha256:")).map(str::to_owned).collect()
    });
    let [first, second]: [Vec<String>; 2] = built;
    assert_eq!(first.len(), 3, "{first:?}");
    assert_eq!(first, second);
}

/// The backing files of all loop devices.
fn loops() -> String {
    let all = Command::new("losetup").args(["-l", "-n", "-O", "BACK-FILE"]).output().unwrap();
    String::from_utf8_lossy(&all.stdout).into_owned()
}

#[tokio::test]
#[ignore = "needs root and loop devices: make test-nodes"]
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
    eventually("the loop device is freed", 5, async || {
        if loops().contains(&file) { Err(loops()) } else { Ok(()) }
    })
    .await;
}
