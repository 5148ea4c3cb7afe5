//! A user who runs `vdoctl` and reads its output.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use api::{VDOConfig, VDOConfigStatus};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::{Value, json};
use snafu::ResultExt as _;
use tokio::time::{Instant, sleep};

use crate::{
    environment::{Environment, SECRET, VCENTER, built_program},
    failure::{
        ClusterSnafu, CommandSnafu, Failure, OutputSnafu, PeerSnafu, RunSnafu, TooLateSnafu,
    },
    screen::Screen,
};

pub(crate) const FILE: &str = "vdo.yaml";
const CONFIG: &str = "vdo";
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct User<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) screen: &'a Screen,
    vdoctl: PathBuf,
    kubeconfig: PathBuf,
}

impl<'a> User<'a> {
    pub(crate) fn new(environment: &'a Environment, screen: &'a Screen) -> Result<Self, Failure> {
        let kubeconfig = environment.plane.kubeconfig();
        Ok(Self { environment, screen, vdoctl: built_program("vdoctl")?, kubeconfig })
    }

    /// Runs `vdoctl` with its output on the screen, and returns its exit code.
    pub(crate) async fn types(&self, arguments: &[&str]) -> Result<i32, Failure> {
        let typed = format!("vdoctl {}", arguments.join(" "));
        self.run(&typed, self.command(&self.vdoctl, arguments)).await
    }

    /// Runs a command of `kubectl` that must succeed.
    pub(crate) async fn types_kubectl(&self, arguments: &[&str]) -> Result<(), Failure> {
        let typed = format!("kubectl {}", arguments.join(" "));
        match self.run(&typed, self.command(&testkit::peer("kubectl"), arguments)).await? {
            0 => Ok(()),
            code => CommandSnafu { command: typed, code }.fail(),
        }
    }

    async fn run(&self, typed: &str, mut command: Command) -> Result<i32, Failure> {
        self.screen.prompt(typed);
        command.stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let running = || RunSnafu { command: typed };
        let child = testkit::spawn_tied_to_us(command).with_context(|_| running())?;
        let mut child = KillOnDrop(child);
        loop {
            if let Some(status) = child.0.try_wait().with_context(|_| running())? {
                return Ok(status.code().unwrap_or(1));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Runs a command that must succeed.
    pub(crate) async fn does(&self, arguments: &[&str]) -> Result<(), Failure> {
        match self.types(arguments).await? {
            0 => Ok(()),
            code => {
                CommandSnafu { command: format!("vdoctl {}", arguments.join(" ")), code }.fail()
            }
        }
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .current_dir(self.environment.workdir.path())
            .stdin(Stdio::null());
        command
    }

    /// Writes the file with the three objects.
    pub(crate) fn writes(&self, drivers: &Value) -> Result<(), Failure> {
        let Environment { vcenter, workdir, .. } = self.environment;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": SECRET, "namespace": api::NAMESPACE},
            "stringData": {"username": vcenter.user(), "password": vcenter.password()},
        });
        let config = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": VCENTER, "namespace": api::NAMESPACE},
            "spec": {
                "vcIp": self.environment.vcenter_address().to_string(),
                "thumbprint": vcenter.thumbprint_sha1(),
                "credentials": SECRET,
                "datacenters": ["DC0"],
            },
        });
        let drivers = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
            "metadata": {"name": CONFIG, "namespace": api::NAMESPACE},
            "spec": drivers,
        });
        let text = [secret, config, drivers].map(|object| format!("{object:#}\n")).join("---\n");
        workdir.write(FILE, text).map(drop).context(PeerSnafu)
    }

    pub(crate) async fn status(&self) -> Result<VDOConfigStatus, Failure> {
        let config = self.configs().get(CONFIG).await;
        let config = config.context(ClusterSnafu { what: "reading the VDOConfig" })?;
        Ok(config.status.unwrap_or_default())
    }

    /// Waits until the status satisfies `is`.
    pub(crate) async fn waits_for(
        &self,
        what: &str,
        seconds: u64,
        is: impl Fn(&VDOConfigStatus) -> bool,
    ) -> Result<VDOConfigStatus, Failure> {
        let end = Instant::now() + Duration::from_secs(seconds);
        loop {
            let status = self.status().await?;
            if is(&status) {
                return Ok(status);
            }
            if Instant::now() > end {
                return TooLateSnafu { what, seconds }.fail();
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Requests a complete check now: vCenter does not notify about some faults.
    pub(crate) async fn checks_now(&self, value: &str, seconds: u64) -> Result<(), Failure> {
        let patch = json!({"metadata": {"annotations": {"vdo.vmware.com/check-now": value}}});
        let (configs, parameters) = (self.configs(), PatchParams::default());
        let patched = configs.patch(CONFIG, &parameters, &Patch::Merge(patch)).await;
        patched.context(ClusterSnafu { what: "requesting a check" })?;
        let checked = |status: &VDOConfigStatus| {
            status.health.as_ref().and_then(|health| health.checked.as_deref()) == Some(value)
        };
        self.waits_for("everything was checked", seconds, checked).await.map(drop)
    }

    /// Prints the running releases, and why others were not chosen.
    pub(crate) fn explains_versions(&self) -> Result<(), Failure> {
        let arguments = ["plan", "--all", "--quiet", "--output", "json"];
        let command = || format!("vdoctl {}", arguments.join(" "));
        let output = self.command(&self.vdoctl, &arguments).output();
        let output = output.with_context(|_| RunSnafu { command: command() })?;
        if !output.status.success() {
            let output = String::from_utf8_lossy(&output.stderr).into_owned();
            return OutputSnafu { command: command(), output }.fail();
        }
        let plan: PlanOutput = serde_json::from_slice(&output.stdout).map_err(|error| {
            OutputSnafu { command: command(), output: error.to_string() }.build()
        })?;
        self.screen.heading("Versions, and why (vdoctl plan --all shows all of them)");
        for driver in plan.drivers {
            let name = if driver.driver == "cpi" { "Cloud provider" } else { "Storage" };
            let fits = match driver.rejected.len() {
                0 => "the only release".to_owned(),
                others => format!("the newest that fits; {others} others were considered"),
            };
            self.screen.say(&format!("  {name:<15} {}  {fits}", driver.installed));
            for RejectedRelease { version, why } in driver.rejected.iter().take(2) {
                self.screen.say(&format!("                  not {version}: {why}"));
            }
        }
        Ok(())
    }

    fn configs(&self) -> Api<VDOConfig> {
        Api::namespaced(self.environment.plane.client(), api::NAMESPACE)
    }
}

/// The used parts of `vdoctl plan --output json`.
#[derive(Deserialize)]
struct PlanOutput {
    drivers: Vec<ChosenRelease>,
}

/// A driver with the releases that were not chosen.
#[derive(Deserialize)]
struct ChosenRelease {
    driver: String,
    installed: String,
    #[serde(default)]
    rejected: Vec<RejectedRelease>,
}

#[derive(Deserialize)]
struct RejectedRelease {
    version: String,
    why: String,
}

/// A child process that is killed when dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It has usually ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
