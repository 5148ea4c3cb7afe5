//! Real nodes and disks on this computer. `make test-nodes` runs these tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{
    fs::{File, Permissions},
    io::Read as _,
    os::unix::{
        fs::{FileExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::json;
use testkit::{ControlPlane, Disks, RealNode, Registry, Workdir, eventually};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

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

/// Answers a request with a file that never ends, one byte at a time, until the client closes the connection.
async fn trickle(mut client: TcpStream) -> std::io::Result<()> {
    let _ = client.read(&mut [0; 4096]).await?;
    client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n").await?;
    loop {
        client.write_all(b"x").await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The script that packs the tools of the storage driver's image, with a cache and a mirror of its own.
fn storage_tools(workdir: &Workdir, mirror: &str) -> Command {
    let sources = workdir.write("sources.list", format!("deb {mirror} stable main\n")).unwrap();
    let config = format!(
        "Dir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"/dev/null\";\nDir::Etc::Parts \"/dev/null\";\n\
         Dir::Etc::Main \"/dev/null\";\nAcquire::http::Proxy \"false\";\n",
        sources.display()
    );
    let config = workdir.write("apt.conf", config).unwrap();
    let mut tools = Command::new(testkit::repository().join("scripts/storage-tools"));
    tools.arg("amd64").arg(workdir.path().join("tools.tar"));
    tools.env("APT_CONFIG", config).env("VDO_CACHE", workdir.path());
    tools
}

#[test]
#[ignore = "needs apt-get: make test-nodes"]
fn a_mirror_that_cannot_be_reached_is_asked_again_by_the_next_build() {
    let workdir = Workdir::new("no-mirror").unwrap();
    let output = storage_tools(&workdir, "http://127.0.0.1:1/debian").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{shown}");
    assert!(shown.contains("the lists of packages cannot be read"), "{shown}");
    let updated = workdir.path().join("storage-tools/apt-amd64/updated");
    assert!(!updated.exists(), "for a day, no build would read the lists");
}

#[tokio::test]
#[ignore = "needs apt-get: make test-nodes"]
async fn a_mirror_that_never_finishes_does_not_stop_the_build_of_an_image_for_ever() {
    let workdir = Workdir::new("slow-mirror").unwrap();
    let mirror = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/debian", mirror.local_addr().unwrap());
    let serve = async move {
        let mut clients = JoinSet::new();
        while let Ok((client, _)) = mirror.accept().await {
            clients.spawn(trickle(client));
        }
    };
    let mut tools = storage_tools(&workdir, &url);
    tools.env("VDO_APT_SECONDS", "2");
    let output = tokio::select! {
        output = tokio::task::spawn_blocking(move || tools.output()) => output.unwrap().unwrap(),
        () = serve => panic!("the mirror ended"),
    };
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{shown}");
    assert!(shown.contains("apt-get: not done after 2 seconds"), "{shown}");
    assert!(shown.contains("the lists of packages cannot be read"), "{shown}");
}

#[tokio::test]
async fn ctrl_c_ends_a_download_of_packages() {
    let workdir = Workdir::new("slow-apt").unwrap();
    let slow = workdir.write("apt-get", "#!/bin/sh\necho started\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&slow, Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    // A shell that starts tests in the background ignores the signal, and so would the script.
    let mut download = Command::new("env");
    download.arg("--default-signal=INT").arg(testkit::repository().join("scripts/apt-get"));
    download.arg("update").env("PATH", format!("{}:{path}", workdir.path().display()));
    // A terminal sends the signal to all processes of the group.
    let mut download = download.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut started = [0; 7];
    download.stdout.take().unwrap().read_exact(&mut started).unwrap();
    let group = format!("-{}", download.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    let ended =
        eventually("it ends", 30, async || download.try_wait().unwrap().ok_or("it goes on")).await;
    assert!(!ended.success(), "{ended:?}");
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
