//! A cluster of real nodes, and its user.

use std::{
    cell::Cell,
    fmt::Write as _,
    net::SocketAddr,
    process::{Command, Output},
    time::Duration,
};

use api::VDOConfig;
use catalog::manifest::{Object, from_manifest::parse};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, PersistentVolumeClaim, Pod},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testkit::{
    ControlPlane, Disks, EarlierOperator, Inventory, Nic, RealNode, RealNodeBuilder, Registry,
    Vcenter, Vm, Workdir, eventually,
};
use tokio::time::{Instant, sleep};

pub(crate) const NAMESPACE: &str = "vmware-system-vdo";
/// How long vdoctl waits, in seconds. Other tests keep the computer busy.
pub(crate) const TIMEOUT: &str = "400";
/// The tag category of zones.
pub(crate) const ZONES: &str = "k8s-zone";
/// The pods of our cloud controller.
pub(crate) const CLOUD_CONTROLLER: &str = "name=vsphere-cloud-controller-manager";
/// The pods of the operator.
pub(crate) const OPERATOR: &str = "app.kubernetes.io/name=vdo";

/// A cluster of real nodes on VMs of a vCenter.
pub(crate) struct Cluster {
    pub(crate) plane: ControlPlane,
    pub(crate) registry: Registry,
    pub(crate) vcenter: Vcenter,
    pub(crate) vms: Vec<Vm>,
    pub(crate) nodes: Vec<RealNode>,
    /// The size of the disk of each node, if it has one of its own.
    node_disk: Option<u64>,
    disks: Disks,
    pub(crate) workdir: Workdir,
}

impl Cluster {
    /// The first node belongs to the control plane.
    pub(crate) async fn with_nodes(count: u8) -> Self {
        Self::start(count, vms(), Inventory::small(), None).await
    }

    /// With a vCenter that has more than the VMs of the nodes.
    pub(crate) async fn with_inventory(count: u8, inventory: Inventory) -> Self {
        Self::start(count, vms(), inventory, None).await
    }

    /// The disks of the nodes can be filled.
    pub(crate) async fn with_node_disks(count: u8, bytes: u64) -> Self {
        Self::start(count, vms(), Inventory::small(), Some(bytes)).await
    }

    /// Each node is in a zone of its own, `zone-a` and so on. One datastore serves all of them.
    pub(crate) async fn with_nodes_in_two_zones() -> Self {
        let mut inventory = Inventory::small().category(
            ZONES,
            &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
        );
        inventory.datacenters[0].datastores.retain(|datastore| datastore.name == "shared");
        let mut vms = vms();
        for (vm, cluster) in vms.iter_mut().zip(["cluster-a", "cluster-b"]) {
            cluster.clone_into(&mut vm.cluster);
        }
        Self::start(2, vms, inventory, None).await
    }

    async fn start(count: u8, vms: Vec<Vm>, inventory: Inventory, node_disk: Option<u64>) -> Self {
        let listen = SocketAddr::new(RealNode::outside(), 0).to_string();
        let vcenter = Vcenter::builder(inventory.vms(vms.clone()));
        let vcenter = vcenter.listen(&listen).start().await;
        let plane = ControlPlane::builder().with_controllers().with_real_nodes().start().await;
        let registry = Registry::start().await;
        let workdir = Workdir::new("install").unwrap();
        let disks = Disks::start();
        disks.follow(&vcenter).await;
        let nodes = Vec::new();
        let mut cluster = Self { plane, registry, vcenter, vms, nodes, node_disk, disks, workdir };
        for _ in 0..count {
            cluster.add_node().await;
        }
        cluster
    }

    pub(crate) async fn add_node(&mut self) {
        let number = self.nodes.len();
        let vm = &self.vms[number];
        let node = RealNode::builder(&vm.name, u8::try_from(number + 1).unwrap()).vm(&vm.uuid);
        let node = if number == 0 { node.control_plane() } else { node };
        let node = self.node_disk.into_iter().fold(node, RealNodeBuilder::disk);
        let mut node = node.start(&self.plane, &self.registry).await;
        node.reach(self.vcenter.address());
        self.disks.add_vm(&vm.name, node.dev());
        self.nodes.push(node);
    }

    /// After a restart of the VM: the node has new device nodes.
    pub(crate) fn reconnect_disks(&self, number: usize) {
        self.disks.add_vm(&self.vms[number].name, self.nodes[number].dev());
    }

    /// Installs VDO and our cloud controller, as a user with a mirror of the images does.
    pub(crate) async fn install(&self) -> String {
        self.install_with(json!({"cloudProvider": cloud_provider()})).await
    }

    pub(crate) async fn install_with(&self, drivers: Value) -> String {
        let image = self.registry.push_own("vdo");
        self.does(&["deploy", "--image", &image, "--timeout", TIMEOUT]).await;
        self.configure(drivers).await;
        image
    }

    /// Installs an earlier operator from its own manifest, and our cloud controller.
    pub(crate) async fn install_earlier(&self, operator: &EarlierOperator, tag: &str) {
        let objects = parse(&operator.manifest).unwrap();
        let texts = objects.into_iter().map(|object| {
            let mut object = Object(object);
            if object.kind() == "Deployment" {
                operator::install::set_version(&mut object, tag);
            }
            format!("{:#}\n", object.0)
        });
        self.workdir.write("earlier.yaml", texts.collect::<Vec<_>>().join("---\n")).unwrap();
        let deploy = ["deploy", "--spec", "earlier.yaml", "--image", &operator.image];
        self.does(&[&deploy[..], &["--timeout", TIMEOUT]].concat()).await;
        self.configure(json!({"cloudProvider": cloud_provider()})).await;
    }

    /// Writes the objects of the user and waits until the drivers are Ready.
    pub(crate) async fn configure(&self, drivers: Value) {
        self.registry.push_own("vdo-cloud-controller");
        self.configure_with_present_images(drivers).await;
    }

    /// The same, with the images that the registry has.
    pub(crate) async fn configure_with_present_images(&self, drivers: Value) {
        self.write_objects(drivers, Some(self.vcenter.thumbprint_sha1()));
        self.does(&["configure", "-f", "vdo.yaml"]).await;
        let shown = self.does(&["status", "--wait", "--timeout", TIMEOUT]).await;
        assert!(shown.contains("● Healthy"), "{shown}");
    }

    pub(crate) async fn vdoctl(&self, arguments: &[&str]) -> Output {
        self.vdoctl_with(arguments, &[]).await
    }

    pub(crate) async fn vdoctl_with(
        &self,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
        command
            .args(arguments)
            .envs(environment.iter().copied())
            .env("KUBECONFIG", self.plane.kubeconfig())
            .current_dir(self.workdir.path());
        // The connections of the nodes go through this process: it must not block.
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
    }

    /// Runs a command that must succeed.
    pub(crate) async fn does(&self, arguments: &[&str]) -> String {
        let output = self.vdoctl(arguments).await;
        let text = text(&output);
        let logs = if output.status.success() { String::new() } else { self.logs() };
        assert!(output.status.success(), "vdoctl {}\n{text}\n{logs}", arguments.join(" "));
        text
    }

    /// The ends of the logs of all containers on all nodes.
    fn logs(&self) -> String {
        let mut all = String::new();
        for node in &self.nodes {
            let mut folders = vec![node.folder().join("pods")];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                    let path = entry.path();
                    if path.is_dir() {
                        folders.push(path);
                        continue;
                    }
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    let lines: Vec<&str> = text.lines().collect();
                    let last = lines[lines.len().saturating_sub(8)..].join("\n");
                    writeln!(all, "{}\n{last}", path.display()).unwrap();
                }
            }
        }
        all
    }

    /// The objects of a user whose cluster has a mirror of the images.
    pub(crate) fn write_objects(&self, mut drivers: Value, thumbprint: Option<String>) {
        if drivers["images"].is_null() {
            drivers["images"] = json!({"registry": Registry::HOST});
        }
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": "credentials", "namespace": NAMESPACE},
            "stringData": {"username": self.vcenter.user(), "password": self.vcenter.password()},
        });
        let mut vcenter = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": "vcenter", "namespace": NAMESPACE},
            "spec": {
                "vcIp": self.vcenter.address().to_string(),
                "credentials": "credentials", "datacenters": ["DC0"],
            },
        });
        if let Some(thumbprint) = thumbprint {
            vcenter["spec"]["thumbprint"] = json!(thumbprint);
        }
        let config = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
            "metadata": {"name": "vdo", "namespace": NAMESPACE},
            "spec": drivers,
        });
        let text = [secret, vcenter, config].map(|object| format!("{object:#}\n")).join("---\n");
        self.workdir.write("vdo.yaml", text).unwrap();
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::default_namespaced(self.plane.client())
    }

    pub(crate) async fn pods(&self, namespace: &str, selector: &str) -> Vec<Pod> {
        let pods = Api::<Pod>::namespaced(self.plane.client(), namespace);
        pods.list(&ListParams::default().labels(selector)).await.unwrap().items
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        Api::<Node>::all(self.plane.client()).get(name).await.unwrap()
    }

    /// The uid and the restarts of each pod of the cloud controller.
    pub(crate) async fn cloud_controllers(&self) -> Vec<(String, i32)> {
        self.restarts("kube-system", CLOUD_CONTROLLER).await
    }

    /// The uid and the restarts of each pod, without those that end.
    pub(crate) async fn restarts(&self, namespace: &str, selector: &str) -> Vec<(String, i32)> {
        let pods = self.pods(namespace, selector).await;
        let identity = |pod: &Pod| {
            let status = pod.status.clone().unwrap_or_default();
            let restarts = status.container_statuses.into_iter().flatten().map(|c| c.restart_count);
            (pod.metadata.uid.clone().unwrap(), restarts.sum())
        };
        pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).map(identity).collect()
    }

    /// Asks the operator for a round, and waits until it finds everything Ready. Call it when no pod of another operator
    /// is left that could answer.
    pub(crate) async fn is_checked(&self, name: &str) {
        let configs = Api::<VDOConfig>::namespaced(self.plane.client(), NAMESPACE);
        let ask = json!({"metadata": {"annotations": {"vdo.vmware.com/check-now": name}}});
        configs.patch("vdo", &PatchParams::default(), &Patch::Merge(ask)).await.unwrap();
        eventually(&format!("{name}: the operator finds everything Ready"), 120, async || {
            let status = configs.get("vdo").await.unwrap().status.unwrap_or_default();
            let checked = status.health.as_ref().and_then(|health| health.checked.as_deref());
            let ready = api::condition::is_true(&status.conditions, "Ready");
            if ready && checked == Some(name) { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
    }

    /// Deploys another version and returns the longest time without a renewal of the leader's lease, until the pods of the
    /// present version are gone.
    pub(crate) async fn upgrade(&self, version: &[&str]) -> Duration {
        let leases = Api::<Lease>::namespaced(self.plane.client(), "kube-system");
        let longest = Cell::new(Duration::ZERO);
        let watch = async {
            let (mut renewed, mut since) = (None, Instant::now());
            loop {
                let spec = leases.get("vdo-leader").await.ok().and_then(|lease| lease.spec);
                let now = spec.and_then(|spec| spec.renew_time);
                if now != renewed {
                    (renewed, since) = (now, Instant::now());
                }
                longest.set(longest.get().max(since.elapsed()));
                sleep(Duration::from_millis(200)).await;
            }
        };
        let arguments = [&["deploy"], version, &["--timeout", TIMEOUT]].concat();
        let upgrade = async {
            self.does(&arguments).await;
            eventually("no pod of the operator is ending", 60, async || {
                let pods = self.pods(NAMESPACE, OPERATOR).await;
                let ends = pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some());
                if ends { Err("a pod of the version before is left") } else { Ok(()) }
            })
            .await;
        };
        tokio::select! {
            () = upgrade => {}
            () = watch => {}
        }
        longest.get()
    }

    /// The pods of the operator, without those that end.
    pub(crate) async fn operators(&self) -> Vec<Pod> {
        let pods = self.pods(NAMESPACE, OPERATOR).await;
        pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
    }

    /// The commits that the running operators were built from, by their logs.
    pub(crate) async fn operator_commits(&self) -> Vec<String> {
        let commit = |pod: Pod| {
            let uid = pod.metadata.uid.unwrap();
            let folders = self.nodes.iter().map(|node| node.folder().join("pods"));
            let folders = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().flatten());
            let folder = folders.map(|entry| entry.path());
            let mut folder = folder.filter(|path| path.display().to_string().contains(&uid));
            let log = folder.next().unwrap().join("vdo/0.log");
            let log = std::fs::read_to_string(log).unwrap();
            let start = log.lines().find(|line| line.contains("starting")).unwrap().to_owned();
            let commit = start.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
            commit.unwrap().0.to_owned()
        };
        self.operators().await.into_iter().map(commit).collect()
    }
}

fn vms() -> Vec<Vm> {
    let vm = |number: u8| Vm {
        nics: vec![Nic::with_address(&format!("10.77.0.{}/24", 10 + number))],
        ..Vm::named(&format!("node-{number}"))
    };
    (1..=3).map(vm).collect()
}

pub(crate) fn cloud_provider() -> Value {
    json!({"vsphereCloudConfigs": ["vcenter"], "implementation": "Rust"})
}

pub(crate) fn text(output: &Output) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    part(&output.stdout) + &part(&output.stderr)
}

/// A text without the line breaks of the screen.
pub(crate) fn unwrapped(text: &str) -> String {
    text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
}
