//! The environment: a real control plane, a simulated vCenter, and nodes of a fresh cluster.

mod real_nodes;

use std::{net::SocketAddr, path::PathBuf};

use snafu::ResultExt as _;
use testkit::{
    ControlPlane, Datastore, FaultProxy, Inventory, Node, Nodes, Permission, Role, Site, Vcenter,
    VcenterBuilder, VcenterUser, Vm, Workdir,
};

pub(crate) use self::real_nodes::{RealNodes, missing as missing_for_real_nodes};
use crate::{
    failure::{Failure, NotBuiltSnafu, PeerSnafu, SimulatedOnlySnafu},
    screen::Screen,
};

/// The names of the VsphereCloudConfig and the Secret.
pub(crate) const VCENTER: &str = "vcenter";
pub(crate) const SECRET: &str = "vcenter-credentials";
/// VDO's account, with exactly the documented privileges.
const ACCOUNT: (&str, &str) = ("vdo@vsphere.local", "sandbox-Passw0rd!");
/// The VM that the faults affect.
const AFFECTED_VM: &str = "worker-2";
/// The folder of the cluster's VMs.
const FOLDER: &str = "k8s";

/// Everything that runs before VDO is installed. All files are in one folder of this process.
pub(crate) struct Environment {
    pub(crate) plane: ControlPlane,
    pub(crate) vcenter: Vcenter,
    pub(crate) nodes: ClusterNodes,
    pub(crate) workdir: Workdir,
    vms: Vec<Vm>,
}

pub(crate) enum ClusterNodes {
    /// The connection from VDO to vCenter goes through a proxy, so that faults can cut it.
    Simulated {
        nodes: Nodes,
        proxy: FaultProxy,
    },
    Real(RealNodes),
}

impl Environment {
    /// With simulated nodes.
    pub(crate) async fn simulated(screen: &Screen) -> Result<Self, Failure> {
        let plane = start_plane(screen).await?;
        let inventory = inventory();
        let vms = inventory.datacenters[0].vms.clone();
        let vcenter = start_vcenter(Vcenter::builder(inventory), screen).await?;
        let proxy = FaultProxy::before(vcenter.address()).await;
        let title = "5 nodes, each tainted `uninitialized` as a fresh kubelet does";
        let nodes = screen.step(title, join(&plane, &vms)).await.context(PeerSnafu)?;
        let workdir = Workdir::new("sandbox").context(PeerSnafu)?;
        Ok(Self { plane, vcenter, nodes: ClusterNodes::Simulated { nodes, proxy }, workdir, vms })
    }

    /// With real nodes, which pull the images of this checkout.
    pub(crate) async fn real(screen: &Screen) -> Result<Self, Failure> {
        real_nodes::build(screen).await?;
        let plane = start_plane(screen).await?;
        let mut inventory = inventory();
        real_nodes::give_addresses(&mut inventory.datacenters[0].vms);
        let vms = inventory.datacenters[0].vms.clone();
        let listen = real_nodes::vcenter_address()?;
        let vcenter = Vcenter::builder(inventory).listen(&listen);
        let vcenter = start_vcenter(vcenter, screen).await?;
        let nodes = RealNodes::start(&plane, &vcenter, &vms, screen).await?;
        let workdir = Workdir::new("sandbox").context(PeerSnafu)?;
        Ok(Self { plane, vcenter, nodes: ClusterNodes::Real(nodes), workdir, vms })
    }

    /// The address of the vCenter for VDO and the drivers.
    pub(crate) fn vcenter_address(&self) -> SocketAddr {
        match &self.nodes {
            ClusterNodes::Simulated { proxy, .. } => proxy.address(),
            ClusterNodes::Real(_) => self.vcenter.address(),
        }
    }

    /// The targets of the faults.
    pub(crate) fn site(&self) -> Result<Site<'_>, Failure> {
        let ClusterNodes::Simulated { nodes, proxy } = &self.nodes else {
            return SimulatedOnlySnafu.fail();
        };
        let affected = self.vms.iter().find(|vm| vm.name == AFFECTED_VM);
        Ok(Site {
            client: self.plane.client(),
            vcenter: &self.vcenter,
            proxy,
            nodes,
            vm: affected.cloned().unwrap_or_else(|| Vm::named(AFFECTED_VM)),
            permission: search_permission(),
            vcenter_config: VCENTER,
            secret: SECRET,
        })
    }

    /// The folder with every file of the sandbox.
    pub(crate) fn folder(&self) -> PathBuf {
        self.workdir.path().parent().unwrap_or(self.workdir.path()).to_owned()
    }
}

async fn start_plane(screen: &Screen) -> Result<ControlPlane, Failure> {
    let plane = ControlPlane::builder().with_controllers();
    let title = "Control plane: etcd, API server, controller-manager, scheduler";
    screen.step(title, plane.launch()).await.context(PeerSnafu)
}

async fn start_vcenter(vcenter: VcenterBuilder, screen: &Screen) -> Result<Vcenter, Failure> {
    let title = "vCenter 8.0.3: 2 clusters of 3 hosts, 2 zones, 9 datastores, 5 VMs";
    screen.step(title, vcenter.launch()).await.context(PeerSnafu)
}

async fn join(plane: &ControlPlane, vms: &[Vm]) -> Result<Nodes, testkit::Error> {
    let nodes = Nodes::launch(plane).await?;
    for (number, vm) in vms.iter().enumerate() {
        let node = Node::named(&vm.name).system_uuid(&vm.uuid).uninitialized();
        nodes.add(if number == 0 { node.control_plane() } else { node }).await;
    }
    Ok(nodes)
}

/// A vCenter with two tagged clusters, an account with few privileges, and a VM for each node.
fn inventory() -> Inventory {
    let names = ["control-plane-1", "worker-1", "worker-2", "worker-3", "worker-4"];
    let vms = names.iter().enumerate().map(|(number, name)| Vm {
        name: (*name).into(),
        host_name: (*name).into(),
        folder: FOLDER.into(),
        cluster: if number % 2 == 0 { "cluster-a" } else { "cluster-b" }.into(),
        ..Vm::numbered("sandbox", number + 1)
    });
    let mut inventory =
        Inventory::small().vms(vms).category("k8s-region", &[("region-1", &["/DC0"])]).category(
            "k8s-zone",
            &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
        );
    let datacenter = &mut inventory.datacenters[0];
    datacenter.folders.push(FOLDER.into());
    let hosts = datacenter.clusters.iter().flat_map(|cluster| &cluster.hosts);
    let local = hosts.map(|host| Datastore {
        name: format!("local-{}", host.name),
        kind: "VMFS".into(),
        url: format!("ds:///vmfs/volumes/local-{}/", host.name),
        hosts: vec![host.name.clone()],
    });
    let local: Vec<Datastore> = local.collect();
    datacenter.datastores.extend(local);
    account(&mut inventory);
    inventory
}

/// VDO's account is first: `Vcenter::user` returns it.
fn account(inventory: &mut Inventory) {
    let (name, password) = ACCOUNT;
    inventory.users.insert(0, VcenterUser::new(name, password));
    inventory.roles.extend([
        Role::new("CNS-SEARCH-AND-SPBM", &["Cns.Searchable", "StorageProfile.View"]),
        Role::new("CNS-DATASTORE", &["Datastore.FileManagement"]),
        Role::new(
            "CNS-VM",
            &["VirtualMachine.Config.AddExistingDisk", "VirtualMachine.Config.AddRemoveDevice"],
        ),
    ]);
    let folder = format!("/DC0/vm/{FOLDER}");
    inventory.permissions.extend([
        search_permission(),
        Permission::new(name, "ReadOnly", "/DC0"),
        Permission::new(name, "CNS-DATASTORE", "/DC0/datastore"),
        Permission::new(name, "CNS-VM", &folder),
    ]);
}

/// The permission of VDO's account to search volumes and policies, on the vCenter root.
fn search_permission() -> Permission {
    let root = Permission::new(ACCOUNT.0, "CNS-SEARCH-AND-SPBM", "/");
    Permission { propagate: false, ..root }
}

/// A program of this workspace, next to this one.
pub(crate) fn built_program(name: &str) -> Result<PathBuf, Failure> {
    let here = std::env::current_exe().unwrap_or_default();
    let path = here.with_file_name(name);
    if path.exists() { Ok(path) } else { NotBuiltSnafu { name, path }.fail() }
}
