//! The control plane, the simulator and the drivers.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use csi::proto::csi::controller_client::ControllerClient;
use futures::StreamExt as _;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, Node},
    storage::v1::{CSIDriver, CSINode},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testkit::{
    ControlPlane, Fault, Host, Inventory, MemoryGroup, Process, Vcenter, Vm, Workdir, eventually,
    peer,
};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::PROGRAM;

const NAMESPACE: &str = "vmware-system-csi";
pub(crate) const CLUSTER: &str = "bench";
const FEATURES: &str = "internal-feature-states.csi.vsphere.vmware.com";
/// Far more than either driver needs.
const LIMIT: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Go,
    Ours,
}

pub(crate) struct Environment {
    pub(crate) plane: ControlPlane,
    pub(crate) vcenter: Vcenter,
    pub(crate) nodes: Vec<String>,
    workdir: Workdir,
}

/// A running driver. Fields are dropped in this order: the process leaves its cgroup first.
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) memory: Option<MemoryGroup>,
    pub(crate) socket: PathBuf,
}

impl Environment {
    /// Nodes with their VMs in one cluster: ten on a host, and at least three hosts, with a datastore that all hosts
    /// share.
    pub(crate) async fn of_size(nodes: usize) -> Self {
        let vms: Vec<Vm> = (1..=nodes).map(|number| Vm::numbered("node", number)).collect();
        let mut inventory = Inventory::small().vms(vms.clone());
        for cluster in &mut inventory.datacenters[0].clusters {
            cluster.file_service = Some(false);
        }
        let hosts = &mut inventory.datacenters[0].clusters[0].hosts;
        for number in hosts.len() + 1..=nodes / 10 {
            hosts.push(Host { name: format!("esx-a{number}"), ..Host::default() });
        }
        let (plane, vcenter) =
            tokio::join!(ControlPlane::builder().with_audit().start(), Vcenter::start(inventory));
        let workdir = Workdir::new("csi-bench").unwrap();
        let environment =
            Self { plane, vcenter, nodes: vms.iter().map(|vm| vm.uuid.clone()).collect(), workdir };
        environment.objects(&vms).await;
        environment
    }

    /// The objects that the kubelets, the registrar and the manifest of the Go driver would create.
    async fn objects(&self, vms: &[Vm]) {
        let client = self.plane.client();
        create::<Namespace>(Api::all(client.clone()), json!({"metadata": {"name": NAMESPACE}}))
            .await;
        let features = json!({
            "metadata": {"name": FEATURES},
            "data": {"trigger-csi-fullsync": "false", "pv-to-backingdiskobjectid-mapping": "false"},
        });
        create::<ConfigMap>(Api::namespaced(client.clone(), NAMESPACE), features).await;
        let driver =
            json!({"metadata": {"name": csi::DRIVER_NAME}, "spec": {"attachRequired": true}});
        create::<CSIDriver>(Api::all(client.clone()), driver).await;
        let work = vms.iter().map(|vm| node(client.clone(), vm));
        futures::stream::iter(work).buffer_unordered(16).collect::<Vec<()>>().await;
    }

    fn configuration(&self) -> PathBuf {
        let text = format!(
            "[Global]\ncluster-id = \"{CLUSTER}\"\n[VirtualCenter \"127.0.0.1\"]\ninsecure-flag = \"true\"\nuser = \"{}\"\npassword = \"{}\"\nport = \"{}\"\ndatacenters = \"DC0\"\n",
            self.vcenter.user(),
            self.vcenter.password(),
            self.vcenter.address().port(),
        );
        self.workdir.write("csi-vsphere.conf", text).unwrap()
    }

    /// Each answer of vCenter takes this long from now on.
    pub(crate) async fn delay(&self, latency: Duration) {
        self.vcenter.clear_faults().await;
        if !latency.is_zero() {
            self.vcenter.fault(Fault::on("*").delayed(latency)).await;
        }
    }

    /// Waits until vCenter gets no call for three seconds.
    pub(crate) async fn until_quiet(&self) {
        let (mut last, mut since) = (0, Instant::now());
        while since.elapsed() < Duration::from_secs(3) {
            let calls = self.vcenter.calls().await.sum();
            if calls != last {
                (last, since) = (calls, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Starts a driver in a cgroup, if this user can create one.
    pub(crate) async fn start(&self, driver: Driver) -> Running {
        // The lease of a predecessor that was killed.
        let leases = Api::<Lease>::namespaced(self.plane.client(), NAMESPACE);
        for lease in leases.list(&kube::api::ListParams::default()).await.unwrap() {
            let name = lease.metadata.name.unwrap_or_default();
            let _ = leases.delete(&name, &DeleteParams::default()).await;
        }
        let program = if driver == Driver::Go { peer("vsphere-csi") } else { PROGRAM.clone() };
        let memory = MemoryGroup::new(&program, LIMIT).ok();
        let program = memory.as_ref().map_or(program, MemoryGroup::program);
        let socket = self.workdir.path().join("csi.sock");
        let _ = std::fs::remove_file(&socket);
        let process = match driver {
            Driver::Go => self.go(&program, &socket),
            Driver::Ours => self.ours(&program, &socket),
        };
        Running { process, memory, socket }
    }

    /// As in its manifest.
    fn go(&self, program: &Path, socket: &Path) -> Process {
        let endpoint = format!("unix://{}", socket.display());
        let (kubeconfig, configuration) = (self.plane.kubeconfig(), self.configuration());
        let environment = [
            ("KUBECONFIG", kubeconfig.to_str().unwrap()),
            ("CSI_ENDPOINT", &endpoint),
            ("X_CSI_MODE", "controller"),
            ("VSPHERE_CSI_CONFIG", configuration.to_str().unwrap()),
            ("LOGGER_LEVEL", "PRODUCTION"),
            ("INCLUSTER_CLIENT_QPS", "100"),
            ("INCLUSTER_CLIENT_BURST", "100"),
            ("CSI_NAMESPACE", NAMESPACE),
            ("CLUSTER_FLAVOR", "VANILLA"),
        ];
        let arguments = [
            format!("--fss-name={FEATURES}"),
            format!("--fss-namespace={NAMESPACE}"),
            "--enable-profile-server=false".to_owned(),
        ];
        Process::spawn(program, "go", arguments, &environment, &self.workdir).unwrap()
    }

    /// With all its loops.
    fn ours(&self, program: &Path, socket: &Path) -> Process {
        let arguments = [
            "controller".to_owned(),
            format!("--endpoint=unix://{}", socket.display()),
            format!("--config={}", self.configuration().display()),
            format!("--kubeconfig={}", self.plane.kubeconfig().display()),
            format!("--namespace={NAMESPACE}"),
            "--http-address=127.0.0.1:0".to_owned(),
        ];
        Process::spawn(program, "ours", arguments, &[], &self.workdir).unwrap()
    }

    /// Reads and writes of operation records so far.
    pub(crate) fn record_requests(&self) -> (u64, u64) {
        let (mut reads, mut writes) = (0, 0);
        for entry in self.plane.audit() {
            if entry["objectRef"]["resource"] == "cnsvolumeoperationrequests" {
                match entry["verb"].as_str() {
                    Some("create" | "update" | "patch" | "delete") => writes += 1,
                    Some("get" | "list") => reads += 1,
                    _ => {}
                }
            }
        }
        (reads, writes)
    }
}

impl Running {
    pub(crate) async fn connect(&self) -> ControllerClient<Channel> {
        eventually("the driver serves its socket", 60, async || {
            let endpoint = Endpoint::try_from(format!("unix:{}", self.socket.display())).unwrap();
            match (endpoint.connect().await, self.process.ended()) {
                // A list of many volumes is one message.
                (Ok(channel), _) => {
                    Ok(ControllerClient::new(channel).max_decoding_message_size(64 << 20))
                }
                (Err(_), Some(_)) => panic!("{}\n{}", self.process.log(), self.process.output()),
                (Err(error), None) => Err(error.to_string()),
            }
        })
        .await
    }

    pub(crate) fn memory(&self) -> Memory {
        let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.pid()));
        let status = status.unwrap_or_default();
        let field = |name: &str| -> f64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let kib = line.split_whitespace().next().and_then(|text| text.parse::<u64>().ok());
            mib(kib.unwrap_or(0) * 1024)
        };
        Memory {
            working_set: self.memory.as_ref().map_or(0.0, |group| mib(group.working_set())),
            peak: self.memory.as_ref().map_or(0.0, |group| mib(group.peak())),
            anonymous: field("RssAnon:"),
            files: field("RssFile:"),
        }
    }
}

/// In MiB. The working set is what the kubelet counts: without the pages of files, such as the program itself, that the
/// kernel considers inactive.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "printed")]
pub(crate) struct Memory {
    pub(crate) working_set: f64,
    pub(crate) peak: f64,
    pub(crate) anonymous: f64,
    pub(crate) files: f64,
}

async fn create<K>(api: Api<K>, object: Value)
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

async fn node(client: Client, vm: &Vm) {
    let provider_id = format!("vsphere://{}", vm.uuid);
    let node = json!({"metadata": {"name": vm.name}, "spec": {"providerID": provider_id}});
    create::<Node>(Api::all(client.clone()), node).await;
    let driver = json!({"name": csi::DRIVER_NAME, "nodeID": vm.uuid, "topologyKeys": []});
    let node = json!({"metadata": {"name": vm.name}, "spec": {"drivers": [driver]}});
    create::<CSINode>(Api::all(client), node).await;
}
