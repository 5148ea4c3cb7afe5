//! What a user does: installs the operator, writes three objects, waits.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use api::{VDOConfig, VsphereCloudConfig, condition};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use operator::facts::ObjectId;
use serde_json::json;
use testkit::{CloudController, Process, User};
use tokio::time::{Instant, sleep};

use crate::{arguments::Cpi, screen::Screen, stage::Stage};

/// Longer than any of it takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// Applies the operator's manifest and starts it.
///
/// Pods are simulated here, so the operator runs as a process of this machine instead of in its pod,
/// under the identity and the rights of its service account.
pub(crate) async fn install(stage: &Stage, screen: &Screen) -> Result<Process, String> {
    screen.step("applying deploy/install.yaml: definitions, RBAC, the operator");
    let client = stage.plane.client();
    let apply = PatchParams::apply("sandbox").force();
    for object in operator::install::objects() {
        let id = ObjectId::of(&object);
        if id.kind == "Deployment" {
            continue;
        }
        let api = operator::act::api_of(&client, &id).map_err(|e| e.to_string())?;
        let applied = api.patch(&id.name, &apply, &Patch::Apply(&object.0)).await;
        applied.map_err(|error| format!("{id} was refused: {error}"))?;
    }
    let identity = User::service_account(api::NAMESPACE, "vdo");
    let kubeconfig = stage.plane.kubeconfig_as(&identity);
    let program = built("vdo", "operator")?;
    let arguments =
        [format!("--kubeconfig={}", kubeconfig.display()), "--listen=127.0.0.1:0".into()];
    screen.step("starting the operator (as a process; pods are simulated here)");
    Process::spawn(&program, "vdo", arguments, &[], &stage.workdir).map_err(|e| e.full_text())
}

/// Writes the Secret, the VsphereCloudConfig and the VDOConfig.
pub(crate) async fn configure(stage: &Stage, cpi: Cpi, screen: &Screen) -> Result<(), String> {
    screen.step("writing one Secret, one VsphereCloudConfig and one VDOConfig");
    let client = stage.plane.client();
    let apply = PatchParams::apply("kubectl").force();
    let failed = |error: kube::Error| format!("an object was refused: {error}");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
        "metadata": {"name": "vcenter-credentials", "namespace": api::CREDENTIALS_NAMESPACE},
        "stringData": {"username": stage.vcenter.user(), "password": stage.vcenter.password()},
    });
    Api::<Secret>::namespaced(client.clone(), api::CREDENTIALS_NAMESPACE)
        .patch("vcenter-credentials", &apply, &Patch::Apply(secret))
        .await
        .map_err(failed)?;
    let vcenter = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
        "metadata": {"name": "vcenter", "namespace": api::NAMESPACE},
        "spec": {
            "vcIp": stage.vcenter.address().to_string(),
            "thumbprint": stage.vcenter.thumbprint_sha1(),
            "credentials": "vcenter-credentials",
            "datacenters": ["DC0"],
        },
    });
    Api::<VsphereCloudConfig>::namespaced(client.clone(), api::NAMESPACE)
        .patch("vcenter", &apply, &Patch::Apply(vcenter))
        .await
        .map_err(failed)?;
    let config = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
        "metadata": {"name": "vdo-config", "namespace": api::NAMESPACE},
        "spec": {
            "cloudProvider": {
                "vsphereCloudConfigs": ["vcenter"],
                "implementation": cpi.implementation(),
                "topology": {"zone": "k8s-zone", "region": "k8s-region"},
            },
            "storageProvider": {"vsphereCloudConfig": "vcenter"},
        },
    });
    Api::<VDOConfig>::namespaced(client, api::NAMESPACE)
        .patch("vdo-config", &apply, &Patch::Apply(config))
        .await
        .map_err(failed)?;
    Ok(())
}

/// Runs the real cloud controller with the arguments, the configuration and the rights the operator
/// rendered, so that nodes really become initialised: the simulated kubelet only says that its pods run.
pub(crate) async fn run_cloud_controller(
    stage: &Stage,
    cpi: Cpi,
    screen: &Screen,
) -> Result<Process, String> {
    let Stage { plane, workdir, .. } = stage;
    let end = Instant::now() + PATIENCE;
    let rendered = loop {
        let rendered = CloudController::rendered(plane, workdir).await;
        if let Some(rendered) = rendered.map_err(|e| e.full_text())? {
            break rendered;
        }
        if Instant::now() > end {
            return Err("the operator rendered no cloud controller".into());
        }
        sleep(Duration::from_millis(50)).await;
    };
    let running = match cpi {
        Cpi::Upstream => {
            screen.step("running the upstream cloud controller on what the operator rendered");
            rendered.upstream("cloud-controller", plane, workdir)
        }
        Cpi::Rust => {
            screen.step("running VDO's cloud controller on what the operator rendered");
            let program = built("vsphere-cloud-controller-manager", "cloud-controller")?;
            rendered.run(&program, "cloud-controller", plane, workdir)
        }
    };
    running.map_err(|e| e.full_text())
}

/// A program of this workspace.
fn built(name: &str, package: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name(name);
    if program.exists() {
        return Ok(program);
    }
    Err(format!(
        "{name} is not built: run `make sandbox`, or `cargo build -p {package}` ({} is missing)",
        program.display()
    ))
}

/// Waits for `Ready`, showing each step of the operator's plan as it ends.
pub(crate) async fn wait_until_ready(
    stage: &Stage,
    screen: &Screen,
    operator: &Process,
) -> Result<VDOConfig, String> {
    let configs = Api::<VDOConfig>::namespaced(stage.plane.client(), api::NAMESPACE);
    let end = Instant::now() + PATIENCE;
    let mut shown = BTreeMap::new();
    loop {
        if operator.ended().is_some() {
            return Err(format!("the operator ended:\n{}", operator.tail()));
        }
        let config = configs.get("vdo-config").await.map_err(|e| e.to_string())?;
        let status = config.status.clone().unwrap_or_default();
        screen.plan(&status, &mut shown);
        if condition::is_true(&status.conditions, condition::READY) {
            return Ok(config);
        }
        if Instant::now() > end {
            screen.status(&config);
            return Err(format!("the drivers did not become Ready:\n{}", operator.tail()));
        }
        sleep(Duration::from_millis(100)).await;
    }
}
