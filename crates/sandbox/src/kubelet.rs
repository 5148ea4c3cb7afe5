//! The hand of a kubelet: pods are simulated here, so the programs that matter run as processes of this
//! machine, with the arguments, the configuration and the rights of their pods.

use std::{convert::Infallible, path::Path, time::Duration};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::Api;
use snafu::ResultExt as _;
use testkit::{CloudController, Process, User};
use tokio::time::sleep;

use crate::{
    failure::{ClusterSnafu, EndedSnafu, Failure, PeerSnafu},
    stage::{Stage, built},
};

/// A program that ends is started again, as a kubelet does; so often, and then it is told.
const TIMEOUT: u32 = 10;
const PACE: Duration = Duration::from_millis(100);
const OPERATOR: &str = "vdo";
const CLOUD_CONTROLLER: &str = "vsphere-cloud-controller-manager";

/// Runs the operator and the cloud controller while their objects are in the cluster.
pub(crate) async fn serve(stage: &Stage) -> Result<Infallible, Failure> {
    let client = stage.plane.client();
    let operators = Api::<Deployment>::namespaced(client.clone(), api::NAMESPACE);
    let controllers = Api::<DaemonSet>::namespaced(client, "kube-system");
    let (mut operator, mut controller) = (Pod::new(OPERATOR), Pod::new(CLOUD_CONTROLLER));
    let reading = || ClusterSnafu { what: "reading what should run" };
    loop {
        let found = operators.get_opt(OPERATOR).await.with_context(|_| reading())?;
        let wanted = found.as_ref().and_then(|found| found.metadata.generation);
        if operator.settle(wanted)?
            && let Some(found) = &found
        {
            operator.process = Some(start_operator(stage, found)?);
        }
        let found = controllers.get_opt(CLOUD_CONTROLLER).await.with_context(|_| reading())?;
        let wanted = found.and_then(|found| found.metadata.generation);
        if controller.settle(wanted)? {
            controller.process = start_cloud_controller(stage).await?;
        }
        sleep(PACE).await;
    }
}

/// A program that stands for a pod.
struct Pod {
    name: &'static str,
    /// Which template of the pod it was started from.
    generation: Option<i64>,
    process: Option<Process>,
    ended: u32,
}

impl Pod {
    fn new(name: &'static str) -> Self {
        Self { name, generation: None, process: None, ended: 0 }
    }

    /// Stops what is not wanted any more, or not so. Says whether it has to be started.
    fn settle(&mut self, wanted: Option<i64>) -> Result<bool, Failure> {
        if self.generation != wanted {
            self.process = None;
            self.generation = wanted;
        }
        if let Some(process) = self.process.as_ref().filter(|process| process.ended().is_some()) {
            self.ended += 1;
            if self.ended >= TIMEOUT {
                let (name, tail) = (self.name, process.tail());
                return EndedSnafu { name, times: self.ended, tail }.fail();
            }
            self.process = None;
        }
        Ok(wanted.is_some() && self.process.is_none())
    }
}

fn start_operator(stage: &Stage, deployment: &Deployment) -> Result<Process, Failure> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let account = pod.and_then(|pod| pod.service_account_name.as_deref()).unwrap_or("default");
    let container = pod.and_then(|pod| pod.containers.first());
    let kubeconfig = stage.plane.kubeconfig_as(&User::service_account(api::NAMESPACE, account));
    let own = ["--kubeconfig", "--listen"];
    let given = container.iter().flat_map(|container| container.args.iter().flatten());
    let given = given.filter(|flag| !own.iter().any(|name| flag.starts_with(name))).cloned();
    let here = [format!("--kubeconfig={}", kubeconfig.display()), "--listen=127.0.0.1:0".into()];
    let variables = container.iter().flat_map(|container| container.env.iter().flatten());
    // Its socket would be in the folder of this machine that every sandbox shares.
    let variables = variables.filter(|variable| variable.name != "VDO_SOCKET");
    let variables: Vec<(&str, &str)> =
        variables.filter_map(|v| Some((v.name.as_str(), v.value.as_deref()?))).collect();
    let arguments: Vec<String> = given.chain(here).collect();
    let program = built(OPERATOR)?;
    Process::spawn(&program, OPERATOR, arguments, &variables, &stage.workdir).context(PeerSnafu)
}

/// Whichever the DaemonSet names by its image: ours, or upstream's.
async fn start_cloud_controller(stage: &Stage) -> Result<Option<Process>, Failure> {
    let Stage { plane, workdir, .. } = stage;
    let rendered = CloudController::rendered(plane, workdir).await.context(PeerSnafu)?;
    let Some(rendered) = rendered else { return Ok(None) };
    let started = if is_ours(rendered.image()) {
        rendered.run(&built(CLOUD_CONTROLLER)?, "cloud-controller", plane, workdir)
    } else {
        rendered.upstream("cloud-controller", plane, workdir)
    };
    started.map(Some).context(PeerSnafu)
}

fn is_ours(image: &str) -> bool {
    let name = Path::new(image).file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("vdo-cloud-controller"))
}
