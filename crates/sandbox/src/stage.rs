//! The stage: a real control plane, a simulated vCenter, nodes as a fresh cluster has them.

use testkit::{ControlPlane, Error, Inventory, Node, Nodes, Vcenter, Vm, Workdir};

use crate::screen::Screen;

/// Everything that runs before the product does.
pub(crate) struct Stage {
    pub(crate) plane: ControlPlane,
    pub(crate) vcenter: Vcenter,
    pub(crate) workdir: Workdir,
    _nodes: Nodes,
}

impl Stage {
    pub(crate) async fn set(nodes: usize, screen: &Screen) -> Result<Self, Error> {
        screen.step("starting the control plane: etcd, API server, controller-manager, scheduler");
        let plane = ControlPlane::builder().with_controllers().launch().await?;
        screen.step("starting the vCenter simulator: 2 clusters, 6 hosts, zones tagged");
        let inventory = inventory(nodes);
        let vms = inventory.datacenters[0].vms.clone();
        let vcenter = Vcenter::builder(inventory).launch().await?;
        screen.step(&format!("adding {nodes} nodes as fresh kubelets would: tainted, waiting"));
        let simulated = Nodes::launch(&plane).await?;
        for (number, vm) in vms.iter().enumerate() {
            let node = Node::named(&vm.name).system_uuid(&vm.uuid).uninitialized();
            simulated.add(if number == 0 { node.control_plane() } else { node }).await;
        }
        Ok(Self { plane, vcenter, workdir: Workdir::new("sandbox")?, _nodes: simulated })
    }
}

/// A vCenter with two tagged clusters and one virtual machine for each node.
fn inventory(nodes: usize) -> Inventory {
    let vms = (0..nodes).map(|number| {
        let mut vm = Vm::numbered("node", number + 1);
        vm.cluster = if number % 2 == 0 { "cluster-a" } else { "cluster-b" }.into();
        vm
    });
    Inventory::small().vms(vms).category("k8s-region", &[("region-1", &["/DC0"])]).category(
        "k8s-zone",
        &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
    )
}
