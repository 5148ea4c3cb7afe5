//! The driver as two processes: the controller on the vCenter simulator, and the node plugin without devices.

use std::path::{Path, PathBuf};

use csi::proto::csi::{
    CreateSnapshotResponse, CreateVolumeResponse, DeleteVolumeRequest, ListVolumesRequest,
    ProbeRequest, controller_client::ControllerClient, identity_client::IdentityClient,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use prost::Message as _;
use testkit::{ControlPlane, Inventory, Process, Vcenter, Vm, Workdir, eventually};
use tonic::transport::{Channel, Endpoint};

use crate::{requests::Known, rpcs::Service};

const VMS: usize = 3;
const SERIAL: &str = "VMware-42 20 8c 6b d1 0d 37 d0-15 6f 43 5f 99 9d 94 c1\n";

/// Everything but one folder is read-only for the plugin, and its mounts are its own.
const NAMESPACE: &str = r#"set -eu
mount --bind "$1" "$1"
mount -o remount,ro,bind /
shift
exec "$@""#;

pub(crate) struct Driver {
    pub(crate) known: Known,
    controller: Process,
    node: Process,
    to_controller: Channel,
    to_node: Channel,
    _vcenter: Vcenter,
    _plane: ControlPlane,
    _workdir: Workdir,
}

impl Driver {
    pub(crate) async fn start() -> Self {
        let (plane, vcenter) =
            tokio::join!(ControlPlane::start(), Vcenter::start(Inventory::with_vms(VMS)));
        let workdir = Workdir::new("csi-fuzz").unwrap();
        let controller = controller(&plane, &vcenter, &workdir).await;
        let node = node(&workdir);
        let to_controller = connect(&workdir.path().join("controller.sock"), &controller).await;
        let to_node = connect(&workdir.path().join("node/csi.sock"), &node).await;
        eventually("the controller has read the vCenter", 60, async || {
            let mut client = ControllerClient::new(to_controller.clone());
            client.list_volumes(ListVolumesRequest::default()).await.map(drop)
        })
        .await;
        let known = Known {
            nodes: (1..=VMS).map(|number| Vm::numbered("node", number).uuid).collect(),
            folder: workdir.path().join("node/volumes"),
            ..Known::default()
        };
        Self {
            known,
            controller,
            node,
            to_controller,
            to_node,
            _vcenter: vcenter,
            _plane: plane,
            _workdir: workdir,
        }
    }

    pub(crate) fn channel(&self, service: Service) -> Channel {
        match service {
            Service::Identity | Service::Controller => self.to_controller.clone(),
            Service::Node => self.to_node.clone(),
        }
    }

    /// Remembers what a call created, so that others use it, and forgets what one deleted.
    pub(crate) fn learn(&self, method: &str, request: &[u8], answer: &[u8]) {
        match method {
            "CreateVolume" => {
                let volume = CreateVolumeResponse::decode(answer).unwrap().volume.unwrap();
                self.known.volumes.lock().unwrap().insert(volume.volume_id);
            }
            "DeleteVolume" => {
                let request = DeleteVolumeRequest::decode(request).unwrap();
                self.known.volumes.lock().unwrap().remove(&request.volume_id);
            }
            "CreateSnapshot" => {
                let snapshot = CreateSnapshotResponse::decode(answer).unwrap().snapshot.unwrap();
                self.known.snapshots.lock().unwrap().insert(snapshot.snapshot_id);
            }
            _ => {}
        }
    }

    pub(crate) fn log(&self) -> String {
        format!("{}\n{}", self.controller.tail(), self.node.tail())
    }

    pub(crate) async fn still_works(&self) {
        for process in [&self.controller, &self.node] {
            assert!(process.ended().is_none(), "it ended: {}", process.tail());
            let log = process.log();
            let panic = log.lines().find(|line| line.contains("panicked"));
            assert_eq!(panic, None, "it panicked");
        }
        for channel in [&self.to_controller, &self.to_node] {
            IdentityClient::new(channel.clone()).probe(ProbeRequest {}).await.unwrap();
        }
    }
}

async fn controller(plane: &ControlPlane, vcenter: &Vcenter, workdir: &Workdir) -> Process {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some("vmware-system-csi".into());
    let namespaces = Api::<Namespace>::all(plane.client());
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let ca = workdir.write("ca.pem", vcenter.ca_pem()).unwrap();
    let configuration = format!(
        "[Global]\ncluster-id = \"fuzz\"\n[VirtualCenter \"{}\"]\nuser = \"{}\"\npassword = \"{}\"\nport = \"{}\"\nca-file = \"{}\"\n",
        vcenter.address().ip(),
        vcenter.user(),
        vcenter.password(),
        vcenter.address().port(),
        ca.display(),
    );
    let configuration = workdir.write("csi-vsphere.conf", configuration).unwrap();
    let socket = workdir.path().join("controller.sock");
    let arguments = [
        "controller".to_owned(),
        format!("--endpoint=unix://{}", socket.display()),
        format!("--config={}", configuration.display()),
        format!("--kubeconfig={}", plane.kubeconfig().display()),
        "--http-address=127.0.0.1:0".to_owned(),
        "--sidecars".to_owned(),
    ];
    let program = PathBuf::from(env!("CARGO_BIN_EXE_vsphere-csi"));
    Process::spawn(&program, "controller", arguments, &[], workdir).unwrap()
}

fn node(workdir: &Workdir) -> Process {
    let folder = workdir.path().join("node");
    let dmi = folder.join("sys/class/dmi/id");
    for path in [&dmi, &folder.join("dev/disk/by-id"), &folder.join("volumes")] {
        std::fs::create_dir_all(path).unwrap();
    }
    std::fs::write(dmi.join("product_serial"), SERIAL).unwrap();
    let shown = folder.display().to_string();
    let mut arguments: Vec<String> =
        ["--user", "--map-root-user", "--mount", "sh", "-c", NAMESPACE, "sh", &shown]
            .map(str::to_owned)
            .into();
    arguments.extend([env!("CARGO_BIN_EXE_vsphere-csi").to_owned(), "node".to_owned()]);
    arguments.extend([
        format!("--endpoint=unix://{}", folder.join("csi.sock").display()),
        format!("--dev-root={}", folder.join("dev").display()),
        format!("--sys-root={}", folder.join("sys").display()),
    ]);
    let plain = [
        "--plugins-registry=",
        "--node-name=n1",
        "--port=0",
        "--topology=false",
        "--volume-limit=false",
    ];
    arguments.extend(plain.map(str::to_owned));
    arguments
        .extend(["--device-timeout-seconds=1", "--tool-timeout-seconds=10"].map(str::to_owned));
    Process::spawn(Path::new("unshare"), "node", arguments, &[], workdir).unwrap()
}

async fn connect(socket: &Path, process: &Process) -> Channel {
    eventually("the socket exists", 60, async || {
        let endpoint = Endpoint::try_from(format!("unix:{}", socket.display())).unwrap();
        match (endpoint.connect().await, process.ended()) {
            (Ok(channel), _) => Ok(channel),
            (Err(_), Some(_)) => panic!("{}", process.log()),
            (Err(error), None) => Err(error.to_string()),
        }
    })
    .await
}
