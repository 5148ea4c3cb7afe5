//! Two nodes with real kubelets, and a registry with the images of this checkout.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    time::Duration,
};

use snafu::ResultExt as _;
use testkit::{ControlPlane, Disks, Nic, RealNode, Registry, Vcenter, Vm};
use tokio::time::sleep;

use crate::{
    failure::{BuildSnafu, Failure, PeerSnafu, RunSnafu},
    screen::Screen,
};

/// The number of nodes. The first belongs to the control plane.
const COUNT: u8 = 2;
const OPERATOR: &str = "vdo";
const DRIVERS: [&str; 2] = ["vdo-cloud-controller", "vdo-csi"];

/// Nodes that run pods.
pub(crate) struct RealNodes {
    /// The image of the operator, by digest.
    pub(crate) operator_image: String,
    // Nodes end before the programs they use.
    _nodes: Vec<RealNode>,
    _disks: Disks,
    _registry: Registry,
}

impl RealNodes {
    pub(super) async fn start(
        plane: &ControlPlane,
        vcenter: &Vcenter,
        vms: &[Vm],
        screen: &Screen,
    ) -> Result<Self, Failure> {
        let title = "Registry with the images of the operator and the drivers";
        let starting = async {
            let registry = Registry::launch().await?;
            let operator_image = registry.push_own(OPERATOR);
            for image in DRIVERS {
                registry.push_own(image);
            }
            Ok((registry, operator_image))
        };
        let (registry, operator_image) = screen.step(title, starting).await.context(PeerSnafu)?;
        let disks = Disks::launch().context(PeerSnafu)?;
        disks.follow(vcenter).await;
        let mut nodes = Vec::new();
        for (number, vm) in (1..=COUNT).zip(vms) {
            let node = RealNode::builder(&vm.name, number).vm(&vm.uuid);
            let node = if number == 1 { node.control_plane() } else { node };
            let title = format!("{}: kubelet and containerd", vm.name);
            let starting = node.launch(plane, &registry);
            let mut node = screen.step(&title, starting).await.context(PeerSnafu)?;
            node.reach(vcenter.address());
            disks.add_vm(&vm.name, node.dev());
            nodes.push(node);
        }
        Ok(Self { operator_image, _nodes: nodes, _disks: disks, _registry: registry })
    }
}

/// The part that this computer lacks for real nodes.
pub(crate) fn missing() -> Option<String> {
    let script = testkit::repository().join("scripts/missing-for-real-nodes");
    let output = match Command::new(&script).stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => return Some(format!("{} to run: {error}", script.display())),
    };
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Builds what the nodes run: kubelet, containerd and the programs around them, then the images. Both build only what
/// has changed.
pub(super) async fn build(screen: &Screen) -> Result<(), Failure> {
    let title =
        "Programs of the nodes: kubelet, containerd, registry (some minutes the first time)";
    screen.step(title, run_script("peers/build", "nodes")).await?;
    // Other images are built already.
    if std::env::var_os("VDO_TEST_IMAGES").is_some() {
        return Ok(());
    }
    let title = "Images of this checkout (some minutes the first time)";
    screen.step(title, run_script("scripts/images", "--test")).await
}

async fn run_script(script: &str, argument: &str) -> Result<(), Failure> {
    let command = || format!("{script} {argument}");
    let mut build = Command::new(testkit::repository().join(script));
    build.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = testkit::spawn_tied_to_us(build);
    let mut child = child.with_context(|_| RunSnafu { command: command() })?;
    // Read in another thread: a full pipe would stop the build.
    let errors = child.stderr.take();
    let reading = tokio::task::spawn_blocking(move || {
        errors.map(std::io::read_to_string).and_then(Result::ok).unwrap_or_default()
    });
    loop {
        let ended = child.try_wait().with_context(|_| RunSnafu { command: command() })?;
        match ended {
            Some(status) if status.success() => return Ok(()),
            Some(_) => {
                let output = reading.await.unwrap_or_default();
                return BuildSnafu { command: command(), output: output.trim() }.fail();
            }
            None => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Gives the VMs of the nodes the addresses of their nodes.
pub(super) fn give_addresses(vms: &mut [Vm]) {
    for (number, vm) in (1..=COUNT).zip(vms) {
        vm.nics = vec![Nic::with_address(&format!("10.77.0.{}/24", 10 + number))];
    }
}

/// The address for the vCenter to listen on, so that the nodes reach it.
pub(super) fn vcenter_address() -> Result<String, Failure> {
    let address = RealNode::find_outside().context(PeerSnafu)?;
    Ok(SocketAddr::new(address, 0).to_string())
}
