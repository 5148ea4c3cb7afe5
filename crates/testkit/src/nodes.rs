//! Simulated nodes and pods: KWOK with our own stages, and a task that does what a kubelet does and KWOK does not.

mod kubelet;
mod logs;

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use futures::{StreamExt as _, stream};
use k8s_openapi::{
    api::{
        core::v1::{Node as KubeNode, NodeAddress, NodeSpec, NodeStatus, NodeSystemInfo, Taint},
        storage::v1::{CSINode, CSINodeSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use snafu::ResultExt;
use tokio::{net::TcpStream, task::JoinSet};

use self::kubelet::Fates;
pub(crate) use self::kubelet::topology_keys;
pub use self::{kubelet::Fate, logs::Logs};
use crate::{
    control_plane::ControlPlane,
    error::{Error, KubernetesSnafu, must},
    ports::Port,
    process::Process,
    vcenter::Vm,
    workdir::Workdir,
};

const STAGES: &str = include_str!("nodes/stages.yaml");

/// Adds a Ready node for each of these VMs, in parallel. Nothing simulates their kubelets.
///
/// # Panics
/// If the API server rejects one.
pub async fn add_bare_nodes(client: &Client, vms: &[Vm]) {
    let nodes = Api::<KubeNode>::all(client.clone());
    let adding = vms.iter().map(|vm| {
        let nodes = nodes.clone();
        async move {
            let node = json!({
                "metadata": {"name": vm.name, "labels": {"kubernetes.io/hostname": vm.name}},
                "spec": {"providerID": format!("vsphere://{}", vm.uuid)},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {
                        "systemUUID": vm.uuid, "architecture": "amd64", "bootID": "", "machineID": "",
                        "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                        "kubeletVersion": "v1.36.0", "operatingSystem": "linux", "osImage": "",
                    },
                },
            });
            let node: KubeNode = serde_json::from_value(node).expect("it is a Node");
            let made = nodes.create(&PostParams::default(), &node).await;
            must(made.context(KubernetesSnafu { what: format!("adding the node {}", vm.name) }));
        }
    });
    stream::iter(adding).buffer_unordered(32).collect::<Vec<()>>().await;
}

/// The nodes of a control plane. The simulation stops when this is dropped.
pub struct Nodes {
    client: Client,
    fates: Fates,
    kwok: Process,
    _kubelet: JoinSet<()>,
    _port: Port,
    _workdir: Workdir,
}

#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    system_uuid: String,
    uninitialized: bool,
    kubelet_version: String,
    operating_system: String,
    provider_id: Option<String>,
    internal_ip: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    taints: Vec<Taint>,
}

impl Node {
    /// A Linux worker, initialised, without a provider id.
    pub fn named(name: &str) -> Self {
        let hostname = ("kubernetes.io/hostname".to_owned(), name.to_owned());
        Self {
            name: name.into(),
            system_uuid: String::new(),
            uninitialized: false,
            kubelet_version: kubelet_version().into(),
            operating_system: "linux".into(),
            provider_id: None,
            internal_ip: None,
            labels: BTreeMap::from([hostname]),
            annotations: BTreeMap::new(),
            taints: Vec::new(),
        }
    }

    /// The uuid in its firmware, which is that of its VM.
    #[must_use]
    pub fn system_uuid(mut self, uuid: &str) -> Self {
        uuid.clone_into(&mut self.system_uuid);
        self
    }

    /// With the taint of a node that waits for its cloud controller.
    #[must_use]
    pub fn uninitialized(mut self) -> Self {
        self.uninitialized = true;
        self
    }

    /// The kubelet's version, as `v1.33.3`.
    #[must_use]
    pub fn kubelet(mut self, version: &str) -> Self {
        version.clone_into(&mut self.kubelet_version);
        self
    }

    #[must_use]
    pub fn windows(mut self) -> Self {
        self.operating_system = "windows".into();
        self
    }

    /// A control-plane node, with the label and the taint of kubeadm.
    #[must_use]
    pub fn control_plane(self) -> Self {
        let key = "node-role.kubernetes.io/control-plane";
        let taint = Taint { key: key.into(), effect: "NoSchedule".into(), ..Taint::default() };
        self.label(key, "").taint(taint)
    }

    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.into(), value.into());
        self
    }

    #[must_use]
    pub fn taint(mut self, taint: Taint) -> Self {
        self.taints.push(taint);
        self
    }

    #[must_use]
    pub fn provider_id(mut self, id: &str) -> Self {
        self.provider_id = Some(id.into());
        self
    }

    #[must_use]
    pub fn internal_ip(mut self, address: &str) -> Self {
        self.internal_ip = Some(address.into());
        self
    }

    fn build(mut self) -> KubeNode {
        if self.uninitialized {
            self.taints.push(Taint {
                key: "node.cloudprovider.kubernetes.io/uninitialized".into(),
                value: Some("true".into()),
                effect: "NoSchedule".into(),
                ..Taint::default()
            });
        }
        self.labels.insert("kubernetes.io/os".into(), self.operating_system.clone());
        self.labels.insert("kubernetes.io/arch".into(), "amd64".into());
        let address =
            |kind: &str, value: &str| NodeAddress { type_: kind.into(), address: value.into() };
        let mut addresses = vec![address("Hostname", &self.name)];
        addresses.extend(self.internal_ip.as_deref().map(|ip| address("InternalIP", ip)));
        KubeNode {
            metadata: ObjectMeta {
                name: Some(self.name),
                labels: Some(self.labels),
                annotations: Some(self.annotations),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                provider_id: self.provider_id,
                taints: (!self.taints.is_empty()).then_some(self.taints),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                addresses: Some(addresses),
                node_info: Some(NodeSystemInfo {
                    architecture: "amd64".into(),
                    container_runtime_version: "containerd://2.1.4".into(),
                    kernel_version: "6.8.0".into(),
                    kube_proxy_version: String::new(),
                    kubelet_version: self.kubelet_version,
                    operating_system: self.operating_system,
                    os_image: "Simulated".into(),
                    system_uuid: self.system_uuid,
                    ..NodeSystemInfo::default()
                }),
                ..NodeStatus::default()
            }),
        }
    }
}

/// The version of the control plane of the tests.
pub(crate) fn kubelet_version() -> &'static str {
    match std::env::var("VDO_KUBERNETES").as_deref() {
        Ok("1.33") => "v1.33.3",
        _ => "v1.36.4",
    }
}

impl Nodes {
    /// Simulates the kubelets of all nodes and pods of a control plane.
    ///
    /// # Panics
    /// If KWOK cannot be built or does not start, with its last log lines.
    pub async fn start(plane: &ControlPlane) -> Self {
        must(Self::launch(plane).await)
    }

    /// Like [`Self::start`], but returns the error.
    pub async fn launch(plane: &ControlPlane) -> Result<Self, Error> {
        let workdir = Workdir::new("nodes")?;
        let port = Port::reserve()?;
        let stages = workdir.write("stages.yaml", STAGES)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.number));
        let arguments = [
            format!("--kubeconfig={}", plane.kubeconfig().display()),
            format!("--config={}", stages.display()),
            "--manage-all-nodes=true".into(),
            "--cidr=10.244.0.0/16".into(),
            "--node-lease-duration-seconds=40".into(),
            format!("--server-address={address}"),
        ];
        let kwok = Process::spawn_peer("kwok", "kwok", arguments, &workdir)?;
        let open = async || TcpStream::connect(address).await.map(drop);
        kwok.ready(Duration::from_mins(4), open).await?;
        let (client, fates) = (plane.client(), Fates::default());
        let mut kubelet = JoinSet::new();
        kubelet.spawn(kubelet::serve(client.clone(), fates.clone()));
        Ok(Self { client, fates, kwok, _kubelet: kubelet, _port: port, _workdir: workdir })
    }

    /// Adds a node, and the CSINode that its kubelet would create.
    ///
    /// # Panics
    /// If the API server rejects it.
    pub async fn add(&self, node: Node) {
        must(self.try_add(node).await);
    }

    async fn try_add(&self, node: Node) -> Result<(), Error> {
        let what = format!("adding the node {}", node.name);
        let name = node.name.clone();
        let csi_node = CSINode {
            metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
            spec: CSINodeSpec { drivers: Vec::new() },
        };
        let parameters = PostParams::default();
        Api::all(self.client.clone())
            .create(&parameters, &node.build())
            .await
            .context(KubernetesSnafu { what: what.clone() })?;
        Api::all(self.client.clone())
            .create(&parameters, &csi_node)
            .await
            .context(KubernetesSnafu { what })?;
        Ok(())
    }

    pub async fn set_ready(&self, name: &str, ready: bool) {
        self.decide_ready(name, (!ready).then_some("false")).await;
    }

    /// Sets Ready to Unknown, as for a kubelet that stopped reporting.
    pub async fn silence(&self, name: &str) {
        self.decide_ready(name, Some("unknown")).await;
    }

    /// Stops the kubelet of a node for good: Ready is Unknown, and the pods of the node stay as they are. A pod that
    /// somebody deletes stays Terminating until the Node is deleted too.
    ///
    /// # Panics
    /// If the API server rejects a change.
    pub async fn stop_kubelet(&self, name: &str) {
        self.silence(name).await;
        let stopped = kubelet::stop(&self.client, &self.fates, name).await;
        must(stopped.context(KubernetesSnafu { what: format!("stopping the kubelet of {name}") }));
    }

    async fn decide_ready(&self, name: &str, value: Option<&str>) {
        let patch = json!({"metadata": {"annotations": {"testkit.vdo/ready": value}}});
        let nodes = Api::<KubeNode>::all(self.client.clone());
        let patched = nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        must(patched.context(KubernetesSnafu { what: format!("patching the node {name}") }));
    }

    /// Fills or frees the disk of a node: the kubelet reports DiskPressure and evicts pods meanwhile.
    pub async fn fill_disk(&self, name: &str, full: bool) {
        let status = if full { "True" } else { "False" };
        let reason = if full { "KubeletHasDiskPressure" } else { "KubeletHasNoDiskPressure" };
        let condition = json!({"type": "DiskPressure", "status": status, "reason": reason});
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let nodes = Api::<KubeNode>::all(self.client.clone());
        let patched = nodes.patch_status(name, &PatchParams::default(), &patch).await;
        must(patched.context(KubernetesSnafu { what: format!("patching the node {name}") }));
        self.fates.decide_on(name, full.then_some(Fate::Evicted));
    }

    /// Sets the fate of current and future pods whose name or image contains `text`. The last rule wins.
    pub fn pods(&self, text: &str, fate: Fate) {
        self.fates.decide(text, fate);
    }

    /// Lets the current nodes serve the logs of their pods until the value is dropped. They get an address through which the
    /// API server reaches the log server.
    ///
    /// # Panics
    /// If the API server rejects a change.
    pub async fn serve_logs(&self) -> Logs {
        let logs = Logs::serve(self.client.clone(), self.fates.clone()).await;
        let nodes = Api::<KubeNode>::all(self.client.clone());
        let listed = nodes.list(&ListParams::default()).await;
        let listed = must(listed.context(KubernetesSnafu { what: "listing nodes" }));
        let patch = Patch::Strategic(json!({"status": {
            "addresses": [{"type": "ExternalDNS", "address": "localhost"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": logs.port()}},
        }}));
        for name in listed.into_iter().filter_map(|node| node.metadata.name) {
            let patched = nodes.patch_status(&name, &PatchParams::default(), &patch).await;
            must(patched.context(KubernetesSnafu { what: format!("patching the node {name}") }));
        }
        logs
    }

    pub fn process(&self) -> &Process {
        &self.kwok
    }
}
