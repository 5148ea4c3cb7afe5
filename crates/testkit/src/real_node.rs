//! A real node: kubelet, containerd, runc and CNI plugins in namespaces of their own, on the machine of the test.
//!
//! ```text
//!   the test's network                        the node's network namespace
//!   API server 127.0.0.1:21007  ◄── relay ──  10.96.0.1:443        kubelet, pods
//!   registry   127.0.0.1:21009  ◄── relay ──  192.0.2.1:5000       containerd
//!   vCenter    192.0.2.1:21011  ◄── relay ──  192.0.2.1:21011      operator, drivers, pods
//! ```
//!
//! A relay listens inside the node's network namespace and connects outside of it, so that nodes of parallel tests
//! may all have the same addresses. A server that nodes and the machine must reach at the same address listens on
//! [`RealNode::outside`].
//!
//! It needs root and Linux with cgroup v1 hierarchies for cpu, memory and pids; see [`RealNodeBuilder::launch`].

mod faults;
mod files;
mod processes;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use snafu::ResultExt as _;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::{
    control_plane::ControlPlane,
    error::{Error, FilesSnafu, RealNodeSnafu, SpawnSnafu, must},
    process::Process,
    registry::Registry,
    tunnel::in_network_of,
    workdir::Workdir,
};

const INIT: &str = include_str!("real_node/init.sh");
/// The address of the Service `kubernetes`, where pods look for the API server.
const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The address under which a node reaches everything else outside of it.
/// It is reserved for documentation, so no network has it.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const REGISTRY_PORT: u16 = 5000;
const READY_TIMEOUT: Duration = Duration::from_mins(3);
/// The cgroup v1 hierarchies a kubelet works with.
const HIERARCHIES: [&str; 9] =
    ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"];

/// The nodes that this process has started: several tests have a node of the same name.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// A node with a real kubelet. Gone when dropped, with everything it runs.
pub struct RealNode {
    name: String,
    address: IpAddr,
    init: Process,
    /// In the namespaces of the node: its first process.
    inner: u32,
    hardware: Hardware,
    cgroup: String,
    /// The addresses inside the node that lead out of it, and where they lead.
    routes: Vec<(SocketAddr, SocketAddr)>,
    relays: JoinSet<()>,
    /// Whether the relays forward.
    connected: watch::Sender<bool>,
    workdir: Workdir,
}

/// The options of a node.
#[derive(Clone, Debug)]
pub struct RealNodeBuilder {
    name: String,
    number: u8,
    hardware: Hardware,
    control_plane: bool,
}

/// The parts of a node that stay when its power is lost.
#[derive(Clone, Debug, Default)]
struct Hardware {
    /// The VM that the node pretends to be: the uuid of its BIOS, or nothing.
    vm: String,
    /// The size of its disk in bytes, if it is not that of this machine.
    disk: Option<u64>,
}

impl RealNodeBuilder {
    /// Runs as this VM: the node finds its uuid in its firmware, and waits for a cloud controller as the kubelet of a
    /// cluster with an external cloud provider does.
    #[must_use]
    pub fn vm(mut self, uuid: &str) -> Self {
        uuid.clone_into(&mut self.hardware.vm);
        self
    }

    /// Keeps pods and images on a disk of this size, so that the disk can be full. The kubelet then evicts pods, as it
    /// does by default.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.hardware.disk = Some(bytes);
        self
    }

    /// Gets the label and the taint that kubeadm gives to nodes of the control plane.
    #[must_use]
    pub fn control_plane(mut self) -> Self {
        self.control_plane = true;
        self
    }

    /// Starts the node and waits until it is registered and Ready.
    ///
    /// # Panics
    /// If it cannot be started, with the reason and the last log lines.
    pub async fn start(self, plane: &ControlPlane, registry: &Registry) -> RealNode {
        must(self.launch(plane, registry).await)
    }

    /// Like [`Self::start`], but returns the error.
    pub async fn launch(
        self,
        plane: &ControlPlane,
        registry: &Registry,
    ) -> Result<RealNode, Error> {
        check_machine()?;
        let name = &self.name;
        let workdir = Workdir::new(&format!("node-{name}"))?;
        let address = Ipv4Addr::new(10, 77, 0, 10 + self.number);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let cgroup = format!("vdo-{}-{number}-{name}", std::process::id());
        prepare_cgroups(&cgroup)?;
        let evicts = self.hardware.disk.is_some();
        files::write_files(plane, &workdir, name, self.number, &cgroup, evicts)?;
        let (init, inner) = boot(&workdir, name, address, &self.hardware).await?;
        let mut node = RealNode {
            name: name.clone(),
            address: IpAddr::V4(address),
            init,
            inner,
            hardware: self.hardware,
            cgroup,
            routes: Vec::new(),
            relays: JoinSet::new(),
            connected: watch::Sender::new(true),
            workdir,
        };
        node.relay(SocketAddr::from((API_SERVICE, 443)), plane.address())?;
        node.relay(SocketAddr::from((OUTSIDE, REGISTRY_PORT)), registry.front())?;
        plane.add_node(node.address, inner);
        node.until_ready(plane).await?;
        if self.control_plane {
            node.join_control_plane(plane).await?;
        }
        Ok(node)
    }
}

impl RealNode {
    /// A node that is not started yet. `number` gives it its address, `10.77.0.(10 + number)`.
    pub fn builder(name: &str, number: u8) -> RealNodeBuilder {
        RealNodeBuilder {
            name: name.to_owned(),
            number,
            hardware: Hardware::default(),
            control_plane: false,
        }
    }

    /// The address of this machine that nodes can reach too, with [`RealNode::reach`]. The loopback device gets it and
    /// keeps it.
    ///
    /// # Panics
    /// If this machine cannot run nodes, with the reason.
    pub fn outside() -> IpAddr {
        must(Self::find_outside())
    }

    /// Like [`Self::outside`], but returns the error.
    pub fn find_outside() -> Result<IpAddr, Error> {
        check_machine()?;
        let address = format!("{OUTSIDE}/32");
        let arguments = ["address", "replace", &address, "dev", "lo"];
        let output = Command::new("ip").args(arguments).output();
        let output = output.context(SpawnSnafu { program: "ip", path: "ip" })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            return RealNodeSnafu { name: "ip address replace", text }.fail();
        }
        Ok(IpAddr::V4(OUTSIDE))
    }

    /// A kubelet may not give itself this label.
    async fn join_control_plane(&self, plane: &ControlPlane) -> Result<(), Error> {
        let nodes = Api::<Node>::all(plane.client());
        let role = "node-role.kubernetes.io/control-plane";
        let label = json!({"metadata": {"labels": {role: ""}}});
        let patched = async {
            let node =
                nodes.patch(&self.name, &PatchParams::default(), &Patch::Merge(label)).await?;
            let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            taints.push(Taint {
                key: role.into(),
                effect: "NoSchedule".into(),
                ..Taint::default()
            });
            let taints = json!({"spec": {"taints": taints}});
            nodes.patch(&self.name, &PatchParams::default(), &Patch::Merge(taints)).await
        };
        patched.await.map(drop).map_err(|error: kube::Error| {
            RealNodeSnafu { name: &self.name, text: error.to_string() }.build()
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The folder of its device nodes, for [`Disks`](crate::Disks).
    pub fn dev(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/dev", self.inner))
    }

    /// Lets the node reach `target`, which listens on this machine. Returns the address in the node.
    ///
    /// # Panics
    /// If the port is taken inside the node.
    pub fn reach(&mut self, target: SocketAddr) -> SocketAddr {
        let address = SocketAddr::from((OUTSIDE, target.port()));
        must(self.relay(address, target));
        address
    }

    fn relay(&mut self, address: SocketAddr, target: SocketAddr) -> Result<(), Error> {
        self.routes.push((address, target));
        self.open_route(address, target)
    }

    fn open_route(&mut self, address: SocketAddr, target: SocketAddr) -> Result<(), Error> {
        let listener = self.listen(address)?;
        let connected = self.connected.subscribe();
        self.relays.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut inside, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let mut connected = connected.clone();
                connections.spawn(async move {
                    let forward = async {
                        let mut outside = TcpStream::connect(target).await?;
                        tokio::io::copy_bidirectional(&mut inside, &mut outside).await
                    };
                    tokio::select! {
                        _ = connected.wait_for(|connected| !connected) => {}
                        _ = forward => {}
                    }
                });
            }
        });
        Ok(())
    }

    fn listen(&self, address: SocketAddr) -> Result<TcpListener, Error> {
        let bound = in_network_of(self.inner, move || {
            let listener = StdListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let path = PathBuf::from(address.to_string());
        bound.and_then(TcpListener::from_std).context(FilesSnafu { path })
    }

    async fn until_ready(&self, plane: &ControlPlane) -> Result<(), Error> {
        let nodes = Api::<Node>::all(plane.client());
        let ready = async || match nodes.get_opt(&self.name).await {
            Ok(Some(node)) if is_ready(&node) => Ok(()),
            Ok(Some(_)) => Err("not Ready".to_owned()),
            Ok(None) => Err("not registered".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        self.init.ready(READY_TIMEOUT, ready).await.map_err(|error| {
            let kubelet = std::fs::read_to_string(self.workdir.path().join("kubelet.log"));
            let lines: Vec<String> =
                kubelet.unwrap_or_default().lines().map(str::to_owned).collect();
            let last = lines[lines.len().saturating_sub(15)..].join("\n");
            RealNodeSnafu { name: &self.name, text: format!("{error}\n{last}") }.build()
        })
    }

    /// The folder with its logs.
    pub fn folder(&self) -> &Path {
        self.workdir.path()
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts the first process of a node and waits until it has started the kubelet. Returns it, and its id in the
/// namespaces of the node.
async fn boot(
    workdir: &Workdir,
    name: &str,
    address: Ipv4Addr,
    hardware: &Hardware,
) -> Result<(Process, u32), Error> {
    let folder = workdir.path().display().to_string();
    let (address, outside) = (address.to_string(), OUTSIDE.to_string());
    let service = API_SERVICE.to_string();
    let namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let script = ["--propagation", "private", "bash", "-c", INIT, "node", &folder, name];
    let addresses = [address.as_str(), &outside, &service];
    let arguments: Vec<&str> = [&namespaces[..], &script, &addresses].concat();
    let disk = hardware.disk.map(|bytes| bytes.to_string()).unwrap_or_default();
    let environment = [("VM_UUID", hardware.vm.as_str()), ("DISK_BYTES", &disk)];
    let init = Process::spawn(Path::new("unshare"), name, arguments, &environment, workdir)?;
    let kubelet_started = workdir.path().join("kubelet.pid");
    // The relays come later: neither kubelet nor containerd waits for them, but both try again.
    let started = async || {
        let child = processes::first_child(init.pid()).filter(|_| kubelet_started.exists());
        child.ok_or("kubelet is not started")
    };
    let inner = init.ready(READY_TIMEOUT, started).await?;
    Ok((init, inner))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Checks that this machine can run a real node. The error names the missing part and the fix.
fn check_machine() -> Result<(), Error> {
    let fail = |text: &str| RealNodeSnafu { name: "a real node", text }.fail();
    if !rustix::process::geteuid().is_root() {
        return fail("it needs root: run as root, or in a container with --privileged");
    }
    for program in ["unshare", "ip", "mount"] {
        let found = std::env::var("PATH").unwrap_or_default();
        if !found
            .split(':')
            .chain(["/usr/sbin", "/sbin"])
            .any(|folder| Path::new(folder).join(program).exists())
        {
            return fail(&format!(
                "{program} is missing: install it (Debian: util-linux iproute2 mount)"
            ));
        }
    }
    if !Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
        return fail(
            "this machine has no cgroup v1 hierarchy for memory: start it with systemd.unified_cgroup_hierarchy=0",
        );
    }
    Ok(())
}

fn prepare_cgroups(name: &str) -> Result<(), Error> {
    for hierarchy in HIERARCHIES {
        remove_groups_of_killed_runs(&Path::new("/sys/fs/cgroup").join(hierarchy));
        let path = Path::new("/sys/fs/cgroup").join(hierarchy).join(name);
        std::fs::create_dir_all(&path).context(FilesSnafu { path: &path })?;
    }
    let parent = Path::new("/sys/fs/cgroup/cpuset");
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let path = parent.join(name).join(file);
        let text = std::fs::read(parent.join(file)).context(FilesSnafu { path: &path })?;
        std::fs::write(&path, text).context(FilesSnafu { path: &path })?;
    }
    Ok(())
}

/// A run that was killed could not remove its groups. Their names have the id of its process.
fn remove_groups_of_killed_runs(hierarchy: &Path) {
    for entry in std::fs::read_dir(hierarchy).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let run = name.strip_prefix("vdo-").and_then(|rest| rest.split_once("-node-"));
        let run = run.and_then(|(run, _)| run.split('-').next()?.parse::<u32>().ok());
        if run.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            remove_groups(&entry.path());
        }
    }
}

/// The kernel takes a moment to let go of the processes of a group.
#[expect(clippy::disallowed_methods, reason = "a destructor cannot wait any other way")]
fn remove_groups(path: &Path) {
    for _ in 0..50 {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                remove_groups(&entry.path());
            }
        }
        if std::fs::remove_dir(path).is_ok() || !path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
