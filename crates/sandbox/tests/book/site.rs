//! The site of the book: a vCenter with the names of the pages, and clusters on its VMs.

use testkit::{ControlPlane, Inventory, Nic, Node, Nodes, Permission, Vcenter, VcenterUser, Vm};

/// Datastores in a folder and a template, which the simulator's inventory file does not support.
pub(crate) const FOLDERS_AND_TEMPLATE: &str = "
govc folder.create /Frankfurt/datastore/k8s
govc object.mv /Frankfurt/datastore/shared /Frankfurt/datastore/shared-a /Frankfurt/datastore/shared-b \\
  /Frankfurt/datastore/k8s
govc vm.markastemplate k8s-template
";

/// A cluster whose nodes wait for their cloud controller.
pub(crate) struct Cluster {
    pub(crate) plane: ControlPlane,
    pub(crate) nodes: Nodes,
}

impl Cluster {
    /// A cluster on these VMs; the first one is the control plane.
    pub(crate) async fn on_vms(vms: &[Vm]) -> Self {
        let plane = ControlPlane::builder().with_controllers().start().await;
        let nodes = Nodes::start(&plane).await;
        for (number, vm) in vms.iter().enumerate() {
            let node = Node::named(&vm.name).system_uuid(&vm.uuid).uninitialized();
            nodes.add(if number == 0 { node.control_plane() } else { node }).await;
        }
        Self { plane, nodes }
    }
}

/// The vCenter of the pages, and its VMs that are nodes. It has no zones: a page creates them.
pub(crate) async fn vcenter() -> (Vcenter, Vec<Vm>) {
    let mut inventory = Inventory::small();
    // The account of the samples.
    inventory.users.push(VcenterUser::new("vdo@vsphere.local", "CHANGE-ME"));
    inventory.permissions.push(Permission::new("vdo@vsphere.local", "Admin", "/"));
    let mut vms = ["control-plane-1", "worker-1", "worker-2", "worker-3"].map(Vm::named).to_vec();
    for (number, vm) in vms.iter_mut().enumerate() {
        let addresses =
            [format!("fe80::250:56ff:fe9f:{number}/64"), format!("10.0.0.{}/16", 14 + number)];
        vm.nics = vec![Nic { addresses: addresses.into(), ..Nic::with_address("") }];
        vm.folder = "k8s".into();
    }
    let template = Vm { power: "off".into(), ..Vm::named("k8s-template") };
    let frankfurt = &mut inventory.datacenters[0];
    frankfurt.name = "Frankfurt".into();
    frankfurt.folders = vec!["k8s".into()];
    frankfurt.vms = vms.iter().cloned().chain([template]).collect();
    (Vcenter::start(inventory).await, vms)
}
