//! One vCenter and one controller process. Lanes share a control plane, each with a namespace of its own.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    path::PathBuf,
    time::Duration,
};

use csi::proto::csi::controller_client::ControllerClient;
use k8s_openapi::api::{core::v1::Namespace, storage::v1::CSINode};
use kube::{Api, api::PostParams};
use serde_json::json;
use testkit::{ControlPlane, FaultProxy, Inventory, Process, User, Vcenter, Vm, Workdir};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use vsphere::{Client, Credentials, Trust, cns::QueryFilter};

pub(crate) const NODES: usize = 3;

/// The parts that all lanes share.
pub(crate) struct Outside {
    plane: ControlPlane,
}

impl Outside {
    pub(crate) async fn start() -> Self {
        let plane = ControlPlane::start().await;
        let nodes = Api::<CSINode>::all(plane.client());
        for number in 1..=NODES {
            let name = format!("node-{number}");
            let driver =
                json!({"name": csi::DRIVER_NAME, "nodeID": node_id(number), "topologyKeys": []});
            let node = json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}});
            let node = serde_json::from_value(node).unwrap();
            nodes.create(&PostParams::default(), &node).await.unwrap();
        }
        Self { plane }
    }
}

/// The node id of a VM.
pub(crate) fn node_id(number: usize) -> String {
    Vm::numbered("node", number).uuid
}

/// A volume as vCenter has it, or as a client holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) mib: i64,
    /// The names of the VMs that have the disk.
    pub(crate) vms: Vec<String>,
    /// The descriptions of its snapshots, sorted.
    pub(crate) snapshots: Vec<String>,
}

/// By id.
pub(crate) type Volumes = BTreeMap<String, Volume>;

pub(crate) struct Lane {
    pub(crate) vcenter: Vcenter,
    /// In front of the vCenter and the API server, for this lane's controller.
    pub(crate) to_vcenter: FaultProxy,
    pub(crate) to_api: FaultProxy,
    kubeconfig: PathBuf,
    configuration: PathBuf,
    namespace: String,
    workdir: Workdir,
    controller: RefCell<Option<Process>>,
    started: Cell<usize>,
    observer: Client,
}

impl Lane {
    pub(crate) async fn start(outside: &Outside, number: usize, generation: usize) -> Self {
        let name = format!("lane-{number}-{generation}");
        let vcenter = Vcenter::start(Inventory::with_vms(NODES)).await;
        let to_vcenter = FaultProxy::before(vcenter.address()).await;
        let to_api = FaultProxy::before(outside.plane.address()).await;
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.clone());
        let namespaces = Api::<Namespace>::all(outside.plane.client());
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        let workdir = Workdir::new("csi-campaign").unwrap();
        let ca = workdir.write("ca.pem", vcenter.ca_pem()).unwrap();
        let configuration = format!(
            "[Global]\ncluster-id = \"{name}\"\n[VirtualCenter \"{}\"]\nuser = \"{}\"\npassword = \"{}\"\nport = \"{}\"\nca-file = \"{}\"\n",
            to_vcenter.address().ip(),
            vcenter.user(),
            vcenter.password(),
            to_vcenter.address().port(),
            ca.display(),
        );
        let observer = Client::builder(vcenter.address().to_string())
            .trust(Trust::CaBundle(vcenter.ca_pem()))
            .credentials(Credentials::new(vcenter.user().to_owned(), vcenter.password().to_owned()))
            .connect()
            .await
            .unwrap();
        let lane = Self {
            kubeconfig: outside.plane.kubeconfig_via(&User::admin(), to_api.address()),
            configuration: workdir.write("csi-vsphere.conf", configuration).unwrap(),
            namespace: name,
            vcenter,
            to_vcenter,
            to_api,
            workdir,
            controller: RefCell::default(),
            started: Cell::new(0),
            observer,
        };
        lane.start_controller();
        lane
    }

    fn socket(&self) -> PathBuf {
        self.workdir.path().join(format!("csi-{}.sock", self.started.get()))
    }

    /// Starts a controller; calls go to it from now on. Returns the one before it.
    pub(crate) fn start_controller(&self) -> Option<Process> {
        self.started.set(self.started.get() + 1);
        let arguments = [
            "controller".to_owned(),
            format!("--endpoint=unix://{}", self.socket().display()),
            format!("--config={}", self.configuration.display()),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--namespace={}", self.namespace),
            "--http-address=127.0.0.1:0".to_owned(),
            "--sidecars".to_owned(),
        ];
        let program = PathBuf::from(env!("CARGO_BIN_EXE_vsphere-csi"));
        let process = Process::spawn(&program, "controller", arguments, &[], &self.workdir);
        self.controller.replace(Some(process.unwrap()))
    }

    /// Starts the controller again when it ends, as a kubelet does. Never returns.
    pub(crate) async fn supervise(&self) {
        loop {
            let ended =
                self.controller.borrow().as_ref().is_some_and(|process| process.ended().is_some());
            if ended {
                self.start_controller();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The end of the controllers' log.
    pub(crate) fn log(&self) -> String {
        let controller = self.controller.borrow();
        let log = controller.as_ref().map(Process::log).unwrap_or_default();
        let skipped = log.lines().count().saturating_sub(120);
        log.lines().skip(skipped).collect::<Vec<_>>().join("\n")
    }

    /// Ends all faults.
    pub(crate) async fn heal(&self) {
        self.to_vcenter.heal();
        self.to_api.heal();
        self.vcenter.clear_faults().await;
    }

    pub(crate) async fn connect(&self) -> Result<ControllerClient<Channel>, Status> {
        let endpoint = Endpoint::try_from(format!("unix:{}", self.socket().display())).unwrap();
        let channel = endpoint.connect().await;
        channel.map(ControllerClient::new).map_err(|error| Status::unavailable(error.to_string()))
    }

    /// All volumes in vCenter.
    pub(crate) async fn existing(&self) -> Volumes {
        let listed = self.observer.query_volumes(&QueryFilter::default()).await.unwrap();
        let mut volumes: Volumes = listed
            .into_iter()
            .map(|volume| {
                let found = Volume {
                    name: volume.name.unwrap_or_default(),
                    mib: volume.backing.map_or(0, |backing| backing.capacity_mib()),
                    vms: Vec::new(),
                    snapshots: Vec::new(),
                };
                (volume.id.id, found)
            })
            .collect();
        let missing = |id: &str| Volume {
            name: format!("{id} is not a CNS volume"),
            mib: 0,
            vms: Vec::new(),
            snapshots: Vec::new(),
        };
        let within = Duration::from_mins(1);
        let snapshots = self.observer.query_volume_snapshots(&[], within).await.unwrap();
        for snapshot in snapshots.into_iter().filter_map(|entry| entry.snapshot) {
            let id = snapshot.volume.id;
            let volume = volumes.entry(id.clone()).or_insert_with(|| missing(&id));
            volume.snapshots.push(snapshot.description.unwrap_or_default());
            volume.snapshots.sort();
        }
        let truth = self.vcenter.truth().await;
        for vm in truth["datacenters"][0]["vms"].as_array().unwrap() {
            for disk in vm["disks"].as_array().into_iter().flatten() {
                if let Some(id) = disk["volumeId"].as_str() {
                    let volume = volumes.entry(id.to_owned()).or_insert_with(|| missing(id));
                    volume.vms.push(vm["name"].as_str().unwrap_or_default().to_owned());
                }
            }
        }
        volumes
    }
}
