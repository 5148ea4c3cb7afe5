//! The node plugin in a mount namespace of its own, with a private `/dev`, driven through its socket.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    collections::HashMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use csi::proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability,
    node_client::NodeClient,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use testkit::{Disks, Process, Workdir, eventually};
use tonic::{Status, transport::Channel};

pub(crate) const MIB: u64 = 1 << 20;
/// mkfs.xfs wants at least 300 MiB.
pub(crate) const SIZE: u64 = 320 * MIB;
/// For disks that are read completely.
pub(crate) const SMALL: u64 = 48 * MIB;
pub(crate) const VM_UUID: &str = "42208c6b-d10d-37d0-156f-435f999d94c1";

/// A `/dev` with what the tools need. The last command keeps the namespace.
const NAMESPACE: &str = r#"set -eu
mkdir -p "$1/dev"
mount -t tmpfs -o mode=755 dev "$1/dev"
mknod -m 666 "$1/dev/null" c 1 3
mknod -m 666 "$1/dev/zero" c 1 5
mknod -m 666 "$1/dev/urandom" c 1 9
mkdir -p "$1/dev/disk/by-id"
mount --rbind "$1/dev" /dev
touch "$1/ready"
exec sleep infinity"#;

pub(crate) struct TestNode {
    pub(crate) name: String,
    pub(crate) disks: Arc<Disks>,
    pub(crate) workdir: Workdir,
    namespace: Process,
    plugin: Option<Process>,
    arguments: Vec<OsString>,
    tools: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(1);

impl TestNode {
    pub(crate) async fn start() -> Self {
        Self::start_with(Arc::new(Disks::start()), &[]).await
    }

    /// A node that gets its disks from `disks`, with more arguments for the plugin.
    pub(crate) async fn start_with(disks: Arc<Disks>, arguments: &[&str]) -> Self {
        let name = format!("node-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self::of_vm(disks, &name, VM_UUID, arguments).await
    }

    /// A node on a VM of this name and BIOS uuid.
    pub(crate) async fn of_vm(disks: Arc<Disks>, vm: &str, uuid: &str, arguments: &[&str]) -> Self {
        let mut node = Self::prepare(disks, vm, uuid).await;
        node.start_plugin(arguments).await;
        node
    }

    async fn prepare(disks: Arc<Disks>, vm: &str, uuid: &str) -> Self {
        let workdir = Workdir::new("csi-node").unwrap();
        let folder = workdir.path().to_owned();
        let dmi = folder.join("sys/class/dmi/id");
        let tools = folder.join("tools");
        for path in [&dmi, &tools] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::fs::write(dmi.join("product_serial"), serial(uuid)).unwrap();
        let shown = folder.display().to_string();
        let script = ["--mount", "--propagation", "private", "sh", "-c", NAMESPACE, "sh", &shown];
        let namespace =
            Process::spawn(Path::new("unshare"), "namespace", script, &[], &workdir).unwrap();
        eventually("the namespace is ready", 20, async || {
            if folder.join("ready").exists() { Ok(()) } else { Err(namespace.log()) }
        })
        .await;
        let name = vm.to_owned();
        let node =
            Self { name, disks, workdir, namespace, plugin: None, arguments: Vec::new(), tools };
        node.disks.add_vm(&node.name, node.dev());
        node
    }

    /// The folder of its device nodes.
    pub(crate) fn dev(&self) -> PathBuf {
        self.inside("/dev")
    }

    /// Starts the plugin, or another one after the first was killed.
    pub(crate) async fn start_plugin(&mut self, arguments: &[&str]) {
        let folder = self.workdir.path();
        let mut all: Vec<OsString> = self.enter().map(Into::into).into();
        all.push(env!("CARGO_BIN_EXE_vsphere-csi").into());
        all.push("node".into());
        all.push(format!("--endpoint=unix://{}", self.socket().display()).into());
        all.push(format!("--plugins-registry={}", folder.join("r").display()).into());
        all.push(format!("--sys-root={}", folder.join("sys").display()).into());
        all.extend(
            ["--node-name=n1", "--port=0", "--log=debug,h2=info,tower=info"].map(Into::into),
        );
        if !arguments.iter().any(|argument| argument.starts_with("--kubeconfig")) {
            all.extend(["--topology=false", "--volume-limit=false"].map(Into::into));
        }
        all.extend(arguments.iter().map(Into::into));
        self.arguments.clone_from(&all);
        self.spawn().await;
    }

    /// Kills the plugin and starts it again with the same arguments.
    pub(crate) async fn restart_plugin(&mut self) {
        self.plugin().kill();
        self.spawn().await;
    }

    async fn spawn(&mut self) {
        let path = format!("{}:{}", self.tools.display(), std::env::var("PATH").unwrap());
        let nsenter = Path::new("nsenter");
        let environment = [("PATH", path.as_str())];
        let arguments = self.arguments.clone();
        let plugin = Process::spawn(nsenter, "plugin", arguments, &environment, &self.workdir);
        self.plugin = Some(plugin.unwrap());
        let socket = self.socket();
        eventually("the plugin serves", 30, async || {
            let connected = tokio::net::UnixStream::connect(&socket).await;
            connected.map(drop).map_err(|error| format!("{error} {}", self.plugin().tail()))
        })
        .await;
    }

    pub(crate) fn plugin(&self) -> &Process {
        self.plugin.as_ref().expect("it was started")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.workdir.path().join("csi.sock")
    }

    pub(crate) async fn client(&self) -> NodeClient<Channel> {
        NodeClient::new(channel(&self.socket()).await)
    }

    /// Puts a script of this name before the real tool in the plugin's PATH.
    pub(crate) fn fake_tool(&self, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.tools.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn remove_fake_tool(&self, name: &str) {
        std::fs::remove_file(self.tools.join(name)).unwrap();
    }

    /// A path of the node, seen from outside of its namespace.
    pub(crate) fn inside(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref().strip_prefix("/").unwrap();
        PathBuf::from(format!("/proc/{}/root", self.namespace.pid())).join(path)
    }

    /// The arguments of `nsenter` for a command in the node's namespace.
    pub(crate) fn enter(&self) -> [String; 2] {
        [format!("--mount=/proc/{}/ns/mnt", self.namespace.pid()), "--".to_owned()]
    }

    /// Runs a command in the node's namespace and returns its output.
    pub(crate) fn command(&self, line: &str) -> String {
        let output = std::process::Command::new("nsenter")
            .args(self.enter())
            .args(["sh", "-ec", line])
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// A path for a volume's mount below the node's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.workdir.path().join(name)
    }
}

/// The serial number in the firmware of a VM.
fn serial(uuid: &str) -> String {
    let digits: Vec<char> = uuid.chars().filter(char::is_ascii_hexdigit).collect();
    let pairs: Vec<String> = digits.chunks(2).map(|pair| pair.iter().collect()).collect();
    format!("VMware-{}-{}\n", pairs[..8].join(" "), pairs[8..].join(" "))
}

/// Whether two files have the same content. Quicker than a comparison in an unoptimised program.
pub(crate) fn same(one: &Path, other: &Path) -> bool {
    std::process::Command::new("cmp").arg("-s").args([one, other]).status().unwrap().success()
}

/// Whether nothing was written to a disk.
pub(crate) fn is_blank(node: &TestNode, volume: &Volume) -> bool {
    let file = node.disks.file(&volume.uuid);
    let blank = node.disks.file(&format!("blank-{}", volume.uuid));
    let length = std::fs::metadata(&file).unwrap().len();
    std::fs::File::create(&blank).unwrap().set_len(length).unwrap();
    same(&file, &blank)
}

pub(crate) async fn channel(socket: &Path) -> Channel {
    let address = format!("unix://{}", socket.display());
    eventually("the socket answers", 20, async || {
        let endpoint = tonic::transport::Endpoint::from_shared(address.clone()).unwrap();
        endpoint.connect().await.map_err(|error| format!("{error:?}"))
    })
    .await
}

/// A volume as the kubelet knows it.
#[derive(Clone)]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) uuid: String,
    pub(crate) capability: VolumeCapability,
}

impl Volume {
    /// With a file system; empty for the default.
    pub(crate) fn with(file_system: &str) -> Self {
        let mount = MountVolume { fs_type: file_system.to_owned(), ..MountVolume::default() };
        Self::with_access(AccessType::Mount(mount))
    }

    pub(crate) fn block() -> Self {
        Self::with_access(AccessType::Block(BlockVolume {}))
    }

    fn with_access(access: AccessType) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mode = AccessMode { mode: Mode::SingleNodeMultiWriter.into() };
        let capability = VolumeCapability { access_mode: Some(mode), access_type: Some(access) };
        let uuid = format!("6000c29{:09x}{number:016x}", std::process::id());
        Self { id: format!("volume-{number}"), uuid, capability }
    }

    #[must_use]
    pub(crate) fn mode(mut self, mode: Mode) -> Self {
        self.capability.access_mode = Some(AccessMode { mode: mode.into() });
        self
    }

    #[must_use]
    pub(crate) fn options(mut self, options: &[&str]) -> Self {
        if let Some(AccessType::Mount(mount)) = &mut self.capability.access_type {
            mount.mount_flags = options.iter().map(|&option| option.to_owned()).collect();
        }
        self
    }

    pub(crate) fn context(&self) -> HashMap<String, String> {
        let kind = ("type".to_owned(), "vSphere CNS Block Volume".to_owned());
        [kind, ("diskUUID".to_owned(), self.uuid.clone())].into()
    }
}

/// The calls of the kubelet.
impl TestNode {
    pub(crate) fn attach(&self, volume: &Volume) -> PathBuf {
        self.disks.attach(&self.name, &volume.uuid, SIZE)
    }

    pub(crate) fn attach_small(&self, volume: &Volume) -> PathBuf {
        self.disks.attach(&self.name, &volume.uuid, SMALL)
    }

    pub(crate) fn staging(&self, volume: &Volume) -> PathBuf {
        self.path(&format!("staging-{}", volume.id))
    }

    /// The target of a pod.
    pub(crate) fn target(&self, volume: &Volume, pod: &str) -> PathBuf {
        self.path(&format!("pods-{pod}-{}", volume.id)).join("mount")
    }

    pub(crate) async fn stage(&self, volume: &Volume) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: volume.id.clone(),
            publish_context: volume.context(),
            staging_target_path: self.staging(volume).display().to_string(),
            volume_capability: Some(volume.capability.clone()),
            ..NodeStageVolumeRequest::default()
        };
        self.client().await.node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self, volume: &Volume) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: volume.id.clone(),
            staging_target_path: self.staging(volume).display().to_string(),
        };
        self.client().await.node_unstage_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, volume: &Volume, pod: &str) -> Result<PathBuf, Status> {
        self.publish_with(volume, pod, false).await
    }

    pub(crate) async fn publish_with(
        &self,
        volume: &Volume,
        pod: &str,
        readonly: bool,
    ) -> Result<PathBuf, Status> {
        let target = self.target(volume, pod);
        // The kubelet makes the parent.
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        let request = NodePublishVolumeRequest {
            volume_id: volume.id.clone(),
            publish_context: volume.context(),
            staging_target_path: self.staging(volume).display().to_string(),
            target_path: target.display().to_string(),
            volume_capability: Some(volume.capability.clone()),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        self.client().await.node_publish_volume(request).await?;
        Ok(self.inside(target))
    }

    pub(crate) async fn unpublish(&self, volume: &Volume, pod: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume.id.clone(),
            target_path: self.target(volume, pod).display().to_string(),
        };
        self.client().await.node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn expand(
        &self,
        volume: &Volume,
        pod: &str,
        bytes: u64,
    ) -> Result<u64, Status> {
        let range = CapacityRange { required_bytes: bytes.cast_signed(), limit_bytes: 0 };
        let request = NodeExpandVolumeRequest {
            volume_id: volume.id.clone(),
            volume_path: self.target(volume, pod).display().to_string(),
            capacity_range: Some(range),
            staging_target_path: self.staging(volume).display().to_string(),
            ..NodeExpandVolumeRequest::default()
        };
        let answer = self.client().await.node_expand_volume(request).await?;
        Ok(answer.into_inner().capacity_bytes.cast_unsigned())
    }

    pub(crate) async fn stats(
        &self,
        volume: &Volume,
        path: &Path,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.id.clone(),
            volume_path: path.display().to_string(),
            ..NodeGetVolumeStatsRequest::default()
        };
        Ok(self.client().await.node_get_volume_stats(request).await?.into_inner())
    }

    /// Stages and publishes.
    pub(crate) async fn mount(&self, volume: &Volume) -> PathBuf {
        self.stage(volume).await.unwrap();
        self.publish(volume, "a").await.unwrap()
    }

    /// Unpublishes and unstages.
    pub(crate) async fn unmount(&self, volume: &Volume) {
        self.unpublish(volume, "a").await.unwrap();
        self.unstage(volume).await.unwrap();
    }
}
