//! The scenarios: from an empty cluster to running drivers, and the tasks after that.

mod breaking;
mod storing;
mod upgrading;

pub(crate) use self::{breaking::list, upgrading::KUBERNETES as OLDER_KUBERNETES};

use serde_json::{Value, json};
use snafu::ResultExt as _;
use testkit::Breakage;

use crate::{
    arguments::{Arguments, Cpi, Task},
    environment::{ClusterNodes, Environment, VCENTER, built_program},
    failure::{Failure, PeerSnafu},
    screen::Screen,
    user::{FILE, User},
};

pub(crate) async fn run(
    arguments: &Arguments,
    environment: &Environment,
    screen: &Screen,
) -> Result<(), Failure> {
    let user = User::new(environment, screen)?;
    install(&user, arguments).await?;
    match &arguments.task {
        None => {
            user.explains_versions()?;
            if matches!(environment.nodes, ClusterNodes::Real(_)) {
                storing::run(&user).await?;
            }
        }
        Some(Task::Break(what)) => {
            breaking::run(&user, &what.chosen(), arguments.options.stays()).await?;
        }
        Some(Task::Upgrade) => upgrading::run(&user, arguments).await?,
    }
    if arguments.options.stays() {
        next(environment, screen)?;
    }
    Ok(())
}

/// The three commands of a user.
async fn install(user: &User<'_>, arguments: &Arguments) -> Result<(), Failure> {
    let broken = arguments.options.broken();
    match &user.environment.nodes {
        ClusterNodes::Simulated { .. } => user.does(&["deploy"]).await?,
        ClusterNodes::Real(nodes) => {
            user.does(&["deploy", "--image", &nodes.operator_image]).await?;
        }
    }
    // Faults of vCenter and the nodes come first, those of objects as soon as the objects exist.
    let early = broken.filter(|breakage| !changes_an_object(breakage));
    inject(user, early).await?;
    let drivers = match &user.environment.nodes {
        _ if arguments.upgrades() => upgrading::older(arguments.cpi()),
        ClusterNodes::Simulated { .. } => drivers(arguments.cpi()),
        ClusterNodes::Real(_) => storing::drivers(),
    };
    user.writes(&drivers)?;
    user.does(&["configure", "-f", FILE]).await?;
    inject(user, broken.filter(|breakage| changes_an_object(breakage))).await?;
    wait(user, arguments).await
}

/// Waits until the drivers are Ready.
async fn wait(user: &User<'_>, arguments: &Arguments) -> Result<(), Failure> {
    let limit = arguments.options.timeout.map(|seconds| seconds.to_string());
    let limit = limit.iter().flat_map(|seconds| ["--timeout", seconds]);
    let command: Vec<&str> = ["status", "--wait"].into_iter().chain(limit).collect();
    user.does(&command).await
}

async fn inject(user: &User<'_>, breakage: Option<&Breakage>) -> Result<(), Failure> {
    let Some(breakage) = breakage else { return Ok(()) };
    user.screen.heading(&format!("Broken on purpose: {}", breakage.how));
    user.environment.site()?.make(breakage).await.context(PeerSnafu)
}

/// Whether the fault changes an object that the user creates first.
fn changes_an_object(breakage: &Breakage) -> bool {
    ["certificate", "password", "datacenter", "registration"].contains(&breakage.name)
}

/// The spec of the VDOConfig.
pub(crate) fn drivers(cpi: Cpi) -> Value {
    let mut cloud = json!({
        "vsphereCloudConfigs": [VCENTER],
        "implementation": cpi.implementation(),
        "topology": {"zone": "k8s-zone", "region": "k8s-region"},
    });
    if cpi == Cpi::Rust {
        turn_on_options(&mut cloud);
    }
    json!({"cloudProvider": cloud, "storageProvider": {"vsphereCloudConfig": VCENTER}})
}

/// Turns on what only the cloud controller of this project can do.
fn turn_on_options(cloud: &mut Value) {
    for option in ["hostLabels", "refreshLabels", "outOfServiceTaint", "requireZones"] {
        cloud[option] = true.into();
    }
    cloud["nodeLabels"] = json!({"site": "sandbox"});
    cloud["nodeDeletionLimits"] = json!({"delay": "10s"});
}

pub(crate) fn introduce(environment: &Environment, screen: &Screen) {
    screen.heading("What is real and what is simulated");
    let folder = environment.folder();
    let folder = folder.display();
    if matches!(environment.nodes, ClusterNodes::Real(_)) {
        screen.say(&format!(
            "  real       etcd, API server, controller-manager, scheduler; two nodes with kubelet and
             containerd in namespaces of this computer; a registry; all pods, in images of this checkout
  simulated  vCenter: its API on a port of this computer, without ESXi hosts. A disk that it attaches to
             a VM appears as a block device in the node of that VM
  files      {folder}
             removed at the end"
        ));
        return;
    }
    screen.say(&format!(
        "  real       etcd, API server, controller-manager, scheduler; vdoctl, the operator, the cloud
             controller: all of them work as in any cluster
  simulated  vCenter: its API on a port of this computer, without ESXi hosts
             kubelets and containers: pods are reported as running, and nothing runs. So the operator
             and the cloud controller run as processes here, with the arguments, the configuration and
             the permissions of their pods; the storage driver does not run
  files      {folder}
             removed at the end"
    ));
}

/// Prints how to continue in another terminal.
pub(crate) fn next(environment: &Environment, screen: &Screen) -> Result<(), Failure> {
    let own = built_program("vdoctl")?;
    let kubectl = testkit::peer("kubectl");
    let folder = |path: &std::path::Path| path.parent().map(|f| f.display().to_string());
    let folders = [folder(&own), folder(&kubectl)].into_iter().flatten().collect::<Vec<_>>();
    let text = format!(
        "export KUBECONFIG={}\nexport PATH={}:$PATH\n",
        environment.plane.kubeconfig().display(),
        folders.join(":"),
    );
    let file = environment.workdir.write("env", text).context(PeerSnafu)?;
    screen.heading("What to try next, in another terminal");
    screen.say(&format!(
        "  . {}
  vdoctl status --watch
  vdoctl plan
  kubectl get vdo,vcc --all-namespaces
  kubectl --namespace vmware-system-csi delete deployment vsphere-csi-controller   (VDO re-creates it)

  make sandbox ARGS=\"break disk-uuid\"   a fault, its finding and its fix
  make sandbox ARGS=\"break --list\"      all faults
  make sandbox ARGS=upgrade             older drivers, upgraded live
  make sandbox ARGS=\"--cpi upstream\"    the same with upstream's cloud controller

  vCenter:     {} as {}, password {}
  Control API: {} (peers/vcsim/README.md)",
        file.display(),
        environment.vcenter_address(),
        environment.vcenter.user(),
        environment.vcenter.password(),
        environment.vcenter.control_url(),
    ));
    Ok(())
}
