//! The node plugin in a virtual machine, with what neither loop devices nor namespaces have: disks that are added to a
//! running SCSI controller, links that udev makes, the uuid of the VM in its firmware, ext4 that grows while it is
//! mounted, and a kubelet on cgroup v2. `make test-vm` runs it.
//!
//! This program is also the agent in the VM, so it does not use the test harness.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed unwrap fails the test"
)]

mod plugin;

use std::time::Duration;

use serde_json::json;
use testkit::{Guest, Registry, eventually};
use tokio::time::Instant;
use tonic::Code;

use plugin::{Plugin, disk_uuid};

const VM: &str = "42208c6b-d10d-37d0-156f-435f999d94c1";
const GIB: u64 = 1 << 30;
/// The memory limit of the pod, in bytes.
const LIMIT: u64 = 256 << 20;

#[tokio::main]
async fn main() {
    if std::env::args().nth(1).as_deref() == Some("agent") {
        return testkit::serve_guest_agent().await;
    }
    let guest = step("a virtual machine boots, with cgroup v2 only", boot()).await;
    let process = step("the node plugin starts as a process", start_process(&guest)).await;
    step("the node id is the uuid in the firmware", has_node_id(&process)).await;
    step("a disk that is added is found, formatted, mounted and grown", grows(&guest, &process, 1))
        .await;
    step("a disk that is not attached is named", reports_a_missing_disk(&process)).await;
    let pod = step("a kubelet on cgroup v2 runs the node plugin as a pod", start_pod(&guest)).await;
    step("the kernel enforces the limit of the pod", is_limited(&guest)).await;
    step("the plugin in the pod does the same", grows(&guest, &pod, 2)).await;
}

async fn step<T>(name: &str, work: impl Future<Output = T>) -> T {
    let began = Instant::now();
    println!("{name} ...");
    let value = work.await;
    println!("{name}: ok after {:.1?}", began.elapsed());
    value
}

async fn boot() -> Guest {
    let guest = Guest::start(VM).await;
    let controllers = guest.run("cat /sys/fs/cgroup/cgroup.controllers").await;
    assert!(controllers.contains("memory") && controllers.contains("pids"), "{controllers}");
    assert_eq!(guest.run("grep -c ' cgroup ' /proc/mounts || true").await.trim(), "0");
    guest
}

async fn start_process(guest: &Guest) -> Plugin {
    let program = env!("CARGO_BIN_EXE_vsphere-csi");
    let options = "--node-name=guest --port=0 --topology=false --plugins-registry= \
                   --device-timeout-seconds=20 --log=debug,h2=info,tower=info";
    let command = format!("{program} node --endpoint=unix:///run/csi.sock {options}");
    guest.start_program("plugin", &command).await;
    Plugin::connect(guest, "process", "/run/csi.sock").await
}

async fn has_node_id(plugin: &Plugin) {
    assert_eq!(plugin.node_id().await, VM);
}

/// The life of a volume with ext4, as the kubelet leads it. A pod writes to it all the time.
async fn grows(guest: &Guest, plugin: &Plugin, number: u32) {
    let uuid = disk_uuid(number);
    plugin.make_folders(guest, &uuid).await;
    // The kubelet calls as soon as vCenter has attached the disk: the guest may not have noticed it yet.
    let attach = async { guest.attach(&uuid, GIB) };
    let (staged, ()) = tokio::join!(plugin.stage(&uuid), attach);
    staged.unwrap();
    let link = format!("/dev/disk/by-id/wwn-0x{uuid}");
    let device = guest.run(&format!("readlink -f {link}")).await.trim().to_owned();
    let by_udev = guest.run(&format!("/run/udevadm info --query=symlink --name={device}")).await;
    assert!(by_udev.contains(&format!("wwn-0x{uuid}")), "udev made {by_udev}");
    let target = plugin.publish(&uuid).await.unwrap();
    let mounted = mount_of(guest, &target).await;
    assert!(mounted.contains(" ext4 ") && mounted.contains(&device), "{device}: {mounted}");
    let writer = format!(
        "i=0; while [ ! -e /run/stop ]; do i=$((i + 1)); echo $i >>{target}/lines; sleep 0.01; done"
    );
    guest.run(&format!("rm -f /run/stop; ({writer}) >/run/writer.log 2>&1 &")).await;
    let before = plugin.total(&uuid).await;
    assert!(before < GIB, "{before}");

    let early = plugin.expand(&uuid, 2 * GIB).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable, "{early}");
    assert!(early.message().contains("the disk has not grown yet"), "{early}");
    guest.extend(&uuid, 2 * GIB);
    assert_eq!(plugin.expand(&uuid, 2 * GIB).await.unwrap(), 2 * GIB);
    let after = plugin.total(&uuid).await;
    assert!(after > before + GIB * 9 / 10, "{before} before, {after} after");
    assert_eq!(mount_of(guest, &target).await, mounted, "it was never unmounted");
    let kernel = guest.run("dmesg").await;
    let name = device.trim_start_matches("/dev/");
    assert!(kernel.contains(&format!("EXT4-fs ({name}): resized filesystem")), "{kernel}");

    // The pod lost no line, and none is damaged.
    let lines = format!(
        "touch /run/stop; sync {target}/lines; awk '$1 != NR {{ exit 1 }} END {{ print NR }}' {target}/lines"
    );
    let lines: u64 = guest.run(&lines).await.trim().parse().unwrap();
    assert!(lines > 0);
    plugin.unpublish(&uuid).await.unwrap();
    plugin.unstage(&uuid).await.unwrap();
    guest.run(&format!("e2fsck -fn {device}")).await;
    guest.detach(&uuid);
    eventually("udev removes the link", 20, async || {
        let (is_there, shown) = guest.try_run(&format!("ls -l {link}")).await.unwrap();
        if is_there { Err(shown) } else { Ok(()) }
    })
    .await;
    println!("  {before} bytes before, {after} after; {lines} lines written meanwhile");
}

/// The entry of a mount in the table of the kernel: its number, its place, its file system and its device. The options
/// that follow can change.
async fn mount_of(guest: &Guest, target: &str) -> String {
    let entry = guest.run(&format!("grep -F ' {target} ' /proc/self/mountinfo")).await;
    let (place, kind) = entry.split_once(" - ").unwrap();
    format!("{place} - {} ", kind.split(' ').take(2).collect::<Vec<_>>().join(" "))
}

async fn reports_a_missing_disk(plugin: &Plugin) {
    let began = Instant::now();
    let error = plugin.stage(&disk_uuid(9)).await.unwrap_err();
    assert!(began.elapsed() >= Duration::from_secs(19), "it waits: {:?}", began.elapsed());
    assert!(error.message().contains(&disk_uuid(9)), "{error}");
    assert!(error.message().contains("disk.EnableUUID"), "{error}");
}

/// The image of a test or of a release, from a registry on this computer.
async fn start_pod(guest: &Guest) -> Plugin {
    guest.run("pkill -f '[/]vsphere-csi'").await;
    let registry = Registry::start().await;
    let image = registry.push_own("vdo-csi");
    let folder = "/var/lib/kubelet/plugins/csi.vsphere.vmware.com";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "vsphere-csi-node", "namespace": "kube-system"},
        "spec": {
            "hostNetwork": true,
            "containers": [{
                "name": "node", "image": image,
                "args": ["node", "--node-name=guest", "--port=0", "--topology=false", "--plugins-registry="],
                "securityContext": {"privileged": true, "runAsUser": 0, "readOnlyRootFilesystem": true},
                "resources": {"limits": {"memory": LIMIT.to_string()}},
                "volumeMounts": [
                    {"name": "socket", "mountPath": "/csi"},
                    {"name": "kubelet", "mountPath": "/var/lib/kubelet", "mountPropagation": "Bidirectional"},
                    {"name": "dev", "mountPath": "/dev"},
                ],
            }],
            "volumes": [
                {"name": "socket", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}},
                {"name": "kubelet", "hostPath": {"path": "/var/lib/kubelet"}},
                {"name": "dev", "hostPath": {"path": "/dev"}},
            ],
        },
    });
    guest.start_kubelet(&registry, &pod).await;
    Plugin::connect(guest, "pod", &format!("{folder}/csi.sock")).await
}

/// In the unified hierarchy, below the group of the kubelet.
async fn is_limited(guest: &Guest) {
    let group =
        guest.run("sed -n 's|^0::||p' /proc/$(pgrep -f '[/]vsphere-csi node')/cgroup").await;
    let group = format!("/sys/fs/cgroup{}", group.trim());
    assert!(group.contains("/kubepods/"), "{group}");
    assert_eq!(guest.run(&format!("cat {group}/memory.max")).await.trim(), LIMIT.to_string());
    let used = guest.run(&format!("cat {group}/memory.current")).await;
    println!("  memory.current of the pod: {} bytes", used.trim());
    assert!(used.trim().parse::<u64>().unwrap() > 0);
}
