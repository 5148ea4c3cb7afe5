//! What is shown.

use std::collections::BTreeMap;

use api::{
    VDOConfig, VDOConfigStatus, condition,
    vdo_config::{DriverStatus, StepState},
};
use tokio::time::Instant;

use crate::stage::Stage;

/// Lines with the time since the start.
pub(crate) struct Screen {
    began: Instant,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now() }
    }

    /// Something begins.
    pub(crate) fn step(&self, text: &str) {
        println!("{:>6.1} s  {text}", self.began.elapsed().as_secs_f32());
    }

    /// Steps of the operator's plan that ended since the last look.
    pub(crate) fn plan(&self, status: &VDOConfigStatus, shown: &mut BTreeMap<String, StepState>) {
        for step in status.plan.iter().flat_map(|plan| &plan.steps) {
            if shown.insert(step.title.clone(), step.state) != Some(step.state)
                && step.state == StepState::Done
            {
                self.step(&format!("  done: {}", step.title));
            }
        }
    }

    /// How to reach what runs.
    pub(crate) fn reach(&self, stage: &Stage) {
        let Stage { plane, vcenter, .. } = stage;
        self.step("the stage is set");
        println!(
            "
  The cluster (real control plane; nodes and pods are simulated):
    export KUBECONFIG={}
    kubectl get nodes

  The vCenter (simulated, version 8.0.3):
    address     {}
    user        {}
    password    {}
    thumbprint  {}
    levers      {}  (see peers/vcsim/README.md)
",
            plane.kubeconfig().display(),
            vcenter.address(),
            vcenter.user(),
            vcenter.password(),
            vcenter.thumbprint_sha1(),
            vcenter.control_url(),
        );
    }

    /// The state of the drivers.
    pub(crate) fn status(&self, config: &VDOConfig) {
        let status = config.status.clone().unwrap_or_default();
        let ready = condition::get(&status.conditions, condition::READY);
        let (word, text) = ready.map_or(("Unknown", ""), |c| {
            (if c.status == "True" { "Ready" } else { "Not ready" }, c.message.as_str())
        });
        self.step(&format!("{word}: {text}"));
        println!();
        let driver = |name: &str, driver: &Option<DriverStatus>| {
            let Some(driver) = driver else { return };
            let version = driver.version.as_deref().unwrap_or("not installed");
            let nodes = match (driver.nodes_ready, driver.nodes) {
                (Some(ready), Some(all)) if all > 0 => {
                    format!(", {ready} of {all} nodes initialised")
                }
                _ => String::new(),
            };
            println!("  {name:<18} {version}{nodes}");
        };
        driver("cloud provider", &status.cpi);
        driver("storage", &status.csi);
        for vcenter in status.versions.iter().flat_map(|versions| &versions.vcenters) {
            let version = vcenter.version.as_deref().unwrap_or("not verified");
            println!("  {:<18} vCenter {version}", vcenter.name);
        }
        for finding in &status.findings {
            println!("\n  {} {}", finding.code, finding.title);
            println!("    {}", finding.seen.as_deref().unwrap_or_default());
            for step in &finding.remedy {
                println!("    - {step}");
            }
        }
        println!();
    }

    /// What to try now.
    #[expect(clippy::unused_self, reason = "everything shown goes through the screen")]
    pub(crate) fn next_steps(&self) {
        println!(
            "  What to try, in another terminal with the KUBECONFIG above:
    kubectl get vdo,vcc --all-namespaces
    kubectl describe vdo --namespace {}
    kubectl --namespace vmware-system-csi delete deployment vsphere-csi-controller   (it comes back)
",
            api::NAMESPACE
        );
    }
}
