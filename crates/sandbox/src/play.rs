//! What is played: from an empty cluster to running drivers, and what comes after.

mod breaking;
mod upgrading;

pub(crate) use self::{breaking::list, upgrading::KUBERNETES as OLDER_KUBERNETES};

use serde_json::{Value, json};
use snafu::ResultExt as _;
use testkit::Breakage;

use crate::{
    arguments::{Arguments, Cpi, Task},
    failure::{Failure, PeerSnafu},
    screen::Screen,
    stage::{Stage, VCENTER, built},
    user::{FILE, User},
};

/// Everything up to the point where the sandbox ends or stays.
pub(crate) async fn run(
    arguments: &Arguments,
    stage: &Stage,
    screen: &Screen,
) -> Result<(), Failure> {
    let user = User::new(stage, screen)?;
    begin(&user, arguments).await?;
    match &arguments.task {
        None => user.explains_versions()?,
        Some(Task::Break(what)) => {
            breaking::play(&user, &what.chosen(), arguments.manner.stays()).await?;
        }
        Some(Task::Upgrade) => upgrading::play(&user, arguments).await?,
    }
    if arguments.manner.stays() {
        next(stage, screen)?;
    }
    Ok(())
}

/// The three commands of a user.
async fn begin(user: &User<'_>, arguments: &Arguments) -> Result<(), Failure> {
    let broken = arguments.manner.broken();
    user.does(&["deploy"]).await?;
    // What concerns vCenter and the nodes is broken before anybody looks, the rest as soon as it is
    // there.
    let early = broken.filter(|breakage| !is_of_an_object(breakage));
    break_it(user, early).await?;
    let drivers = if arguments.upgrades() {
        upgrading::older(arguments.cpi())
    } else {
        drivers(arguments.cpi())
    };
    user.writes(&drivers)?;
    user.does(&["configure", "-f", FILE]).await?;
    break_it(user, broken.filter(|breakage| is_of_an_object(breakage))).await?;
    wait(user, arguments).await
}

/// Waits until the drivers run as they should.
async fn wait(user: &User<'_>, arguments: &Arguments) -> Result<(), Failure> {
    let limit = arguments.manner.timeout.map(|seconds| seconds.to_string());
    let limit = limit.iter().flat_map(|seconds| ["--timeout", seconds]);
    let words: Vec<&str> = ["status", "--wait"].into_iter().chain(limit).collect();
    user.does(&words).await
}

async fn break_it(user: &User<'_>, breakage: Option<&Breakage>) -> Result<(), Failure> {
    let Some(breakage) = breakage else { return Ok(()) };
    user.screen.heading(&format!("Broken on purpose: {}", breakage.how));
    user.stage.site().make(breakage).await.context(PeerSnafu)
}

/// Whether it is done to an object a user has to write first.
fn is_of_an_object(breakage: &Breakage) -> bool {
    ["certificate", "password", "datacenter", "registration"].contains(&breakage.name)
}

/// What the user asks for.
pub(crate) fn drivers(cpi: Cpi) -> Value {
    json!({
        "cloudProvider": {
            "vsphereCloudConfigs": [VCENTER],
            "implementation": cpi.implementation(),
            "topology": {"zone": "k8s-zone", "region": "k8s-region"},
        },
        "storageProvider": {"vsphereCloudConfig": VCENTER},
    })
}

/// What is real, and what only says it is.
pub(crate) fn introduce(stage: &Stage, screen: &Screen) {
    screen.heading("What is real and what is simulated");
    screen.say(&format!(
        "  real       etcd, API server, controller-manager, scheduler; vdoctl, the operator, the cloud
             controller: all of them work as they do anywhere
  simulated  vCenter: its API on a port of this machine, no ESXi behind it
             kubelets and containers: a pod says that it runs, and nothing runs in it. So the operator
             and the cloud controller run as processes here, with the arguments, the configuration and
             the rights of their pods; the storage driver's pods only say they run
  files      {}
             removed at the end",
        stage.folder().display()
    ));
}

/// How to go on in another terminal.
pub(crate) fn next(stage: &Stage, screen: &Screen) -> Result<(), Failure> {
    let own = built("vdoctl")?;
    let kubectl = testkit::peer("kubectl");
    let folder = |path: &std::path::Path| path.parent().map(|f| f.display().to_string());
    let folders = [folder(&own), folder(&kubectl)].into_iter().flatten().collect::<Vec<_>>();
    let text = format!(
        "export KUBECONFIG={}\nexport PATH={}:$PATH\n",
        stage.plane.kubeconfig().display(),
        folders.join(":"),
    );
    let file = stage.workdir.write("env", text).context(PeerSnafu)?;
    screen.heading("What to try next, in another terminal");
    screen.say(&format!(
        "  . {}
  vdoctl status --watch
  vdoctl plan
  kubectl get vdo,vcc --all-namespaces
  kubectl --namespace vmware-system-csi delete deployment vsphere-csi-controller   (it comes back)

  make sandbox ARGS=\"break disk-uuid\"   something breaks, is named, and mended
  make sandbox ARGS=\"break --list\"      everything that can be broken
  make sandbox ARGS=upgrade             older drivers, upgraded live
  make sandbox ARGS=\"--cpi upstream\"    the same with upstream's cloud controller

  The vCenter: {} as {}, password {}
  Its levers:  {} (peers/vcsim/README.md)",
        file.display(),
        stage.proxy.address(),
        stage.vcenter.user(),
        stage.vcenter.password(),
        stage.vcenter.control_url(),
    ));
    Ok(())
}
