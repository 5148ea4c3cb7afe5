//! Replaces the kubelet: pods are simulated, so the operator and the cloud controller run as processes of this computer,
//! with the arguments, the configuration and the permissions of their pods.

use std::{convert::Infallible, path::Path, time::Duration};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::Api;
use snafu::ResultExt as _;
use testkit::{CloudController, Process, User};
use tokio::time::sleep;

use crate::{
    environment::{ClusterNodes, Environment, built_program},
    failure::{ClusterSnafu, EndedSnafu, Failure, PeerSnafu},
};

/// Restarts a program that ends, like a kubelet; after this many times the sandbox fails.
const MAX_RESTARTS: u32 = 10;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const OPERATOR: &str = "vdo";
const CLOUD_CONTROLLER: &str = "vsphere-cloud-controller-manager";

/// Runs the operator and the cloud controller while their workloads exist.
pub(crate) async fn serve(environment: &Environment) -> Result<Infallible, Failure> {
    if matches!(environment.nodes, ClusterNodes::Real(_)) {
        // They have kubelets.
        return std::future::pending().await;
    }
    let client = environment.plane.client();
    let operators = Api::<Deployment>::namespaced(client.clone(), api::NAMESPACE);
    let controllers = Api::<DaemonSet>::namespaced(client, "kube-system");
    let (mut operator, mut controller) = (Pod::new(OPERATOR), Pod::new(CLOUD_CONTROLLER));
    let reading = || ClusterSnafu { what: "reading the workloads" };
    loop {
        let found = operators.get_opt(OPERATOR).await.with_context(|_| reading())?;
        let wanted = found.as_ref().and_then(|found| found.metadata.generation);
        if operator.reconcile(wanted)?
            && let Some(found) = &found
        {
            operator.process = Some(start_operator(environment, found)?);
        }
        let found = controllers.get_opt(CLOUD_CONTROLLER).await.with_context(|_| reading())?;
        let wanted = found.and_then(|found| found.metadata.generation);
        if controller.reconcile(wanted)? {
            controller.process = start_cloud_controller(environment).await?;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// A process in place of a pod.
struct Pod {
    name: &'static str,
    /// The generation of the workload it was started for.
    generation: Option<i64>,
    process: Option<Process>,
    ended: u32,
}

impl Pod {
    fn new(name: &'static str) -> Self {
        Self { name, generation: None, process: None, ended: 0 }
    }

    /// Stops the process if its workload is gone or has changed. Returns whether it must be started.
    fn reconcile(&mut self, wanted: Option<i64>) -> Result<bool, Failure> {
        if self.generation != wanted {
            self.process = None;
            self.generation = wanted;
        }
        if let Some(process) = self.process.as_ref().filter(|process| process.ended().is_some()) {
            self.ended += 1;
            if self.ended >= MAX_RESTARTS {
                let (name, tail) = (self.name, process.tail());
                return EndedSnafu { name, times: self.ended, tail }.fail();
            }
            self.process = None;
        }
        Ok(wanted.is_some() && self.process.is_none())
    }
}

fn start_operator(environment: &Environment, deployment: &Deployment) -> Result<Process, Failure> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let account = pod.and_then(|pod| pod.service_account_name.as_deref()).unwrap_or("default");
    let container = pod.and_then(|pod| pod.containers.first());
    let kubeconfig =
        environment.plane.kubeconfig_as(&User::service_account(api::NAMESPACE, account));
    let own = ["--kubeconfig", "--listen"];
    let from_pod = container.iter().flat_map(|container| container.args.iter().flatten());
    let from_pod = from_pod.filter(|flag| !own.iter().any(|name| flag.starts_with(name))).cloned();
    let overrides =
        [format!("--kubeconfig={}", kubeconfig.display()), "--listen=127.0.0.1:0".into()];
    let variables = container.iter().flat_map(|container| container.env.iter().flatten());
    // All sandboxes of this computer would share its socket.
    let variables = variables.filter(|variable| variable.name != "VDO_SOCKET");
    let variables: Vec<(&str, &str)> =
        variables.filter_map(|v| Some((v.name.as_str(), v.value.as_deref()?))).collect();
    let arguments: Vec<String> = from_pod.chain(overrides).collect();
    let program = built_program(OPERATOR)?;
    Process::spawn(&program, OPERATOR, arguments, &variables, &environment.workdir)
        .context(PeerSnafu)
}

/// Starts our cloud controller or upstream's, depending on the image of the DaemonSet.
async fn start_cloud_controller(environment: &Environment) -> Result<Option<Process>, Failure> {
    let Environment { plane, workdir, .. } = environment;
    let rendered = CloudController::rendered(plane, workdir).await.context(PeerSnafu)?;
    let Some(rendered) = rendered else { return Ok(None) };
    let started = if is_ours(rendered.image()) {
        rendered.run(&built_program(CLOUD_CONTROLLER)?, "cloud-controller", plane, workdir)
    } else {
        rendered.upstream("cloud-controller", plane, workdir)
    };
    started.map(Some).context(PeerSnafu)
}

fn is_ours(image: &str) -> bool {
    let name = Path::new(image).file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("vdo-cloud-controller"))
}
