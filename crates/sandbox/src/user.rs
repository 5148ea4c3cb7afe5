//! What a user does: types `vdoctl`, reads what it says.

use std::{
    path::PathBuf,
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
    failure::{ClusterSnafu, CommandSnafu, Failure, PeerSnafu, RunSnafu, SaidSnafu, TooLateSnafu},
    screen::Screen,
    stage::{SECRET, Stage, VCENTER, built},
};

/// The file the user writes.
pub(crate) const FILE: &str = "vdo.yaml";
const CONFIG: &str = "vdo";
const LOOK: Duration = Duration::from_millis(100);

/// Somebody with a terminal.
pub(crate) struct User<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) screen: &'a Screen,
    vdoctl: PathBuf,
    kubeconfig: PathBuf,
}

impl<'a> User<'a> {
    pub(crate) fn new(stage: &'a Stage, screen: &'a Screen) -> Result<Self, Failure> {
        let kubeconfig = stage.plane.kubeconfig();
        Ok(Self { stage, screen, vdoctl: built("vdoctl")?, kubeconfig })
    }

    /// Types a command, lets it speak for itself, and returns its exit code.
    pub(crate) async fn types(&self, words: &[&str]) -> Result<i32, Failure> {
        let typed = format!("vdoctl {}", words.join(" "));
        self.screen.prompt(&typed);
        let mut command = self.command(words);
        command.stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let running = || RunSnafu { command: &typed };
        let child = testkit::spawn_tied_to_us(command).with_context(|_| running())?;
        let mut child = Typed(child);
        loop {
            if let Some(status) = child.0.try_wait().with_context(|_| running())? {
                return Ok(status.code().unwrap_or(1));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Types a command that has to work.
    pub(crate) async fn does(&self, words: &[&str]) -> Result<(), Failure> {
        match self.types(words).await? {
            0 => Ok(()),
            code => CommandSnafu { command: format!("vdoctl {}", words.join(" ")), code }.fail(),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.vdoctl);
        command
            .args(words)
            .env("KUBECONFIG", &self.kubeconfig)
            .current_dir(self.stage.workdir.path())
            .stdin(Stdio::null());
        command
    }

    /// Writes the file with the three objects: what a user has to know, and no more.
    pub(crate) fn writes(&self, drivers: &Value) -> Result<(), Failure> {
        let Stage { vcenter, proxy, workdir, .. } = self.stage;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": SECRET, "namespace": api::CREDENTIALS_NAMESPACE},
            "stringData": {"username": vcenter.user(), "password": vcenter.password()},
        });
        let config = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": VCENTER, "namespace": api::NAMESPACE},
            "spec": {
                "vcIp": proxy.address().to_string(),
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

    /// What VDO says.
    pub(crate) async fn status(&self) -> Result<VDOConfigStatus, Failure> {
        let config = self.configs().get(CONFIG).await;
        let config = config.context(ClusterSnafu { what: "reading the VDOConfig" })?;
        Ok(config.status.unwrap_or_default())
    }

    /// Waits until VDO says this.
    pub(crate) async fn sees(
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
            sleep(LOOK).await;
        }
    }

    /// Asks VDO to look at everything now: of some things vCenter does not tell.
    pub(crate) async fn asks(&self, question: &str, seconds: u64) -> Result<(), Failure> {
        let patch = json!({"metadata": {"annotations": {"vdo.vmware.com/check-now": question}}});
        let (configs, parameters) = (self.configs(), PatchParams::default());
        let asked = configs.patch(CONFIG, &parameters, &Patch::Merge(patch)).await;
        asked.context(ClusterSnafu { what: "asking for a check" })?;
        let answered = |status: &VDOConfigStatus| {
            status.health.as_ref().and_then(|health| health.checked.as_deref()) == Some(question)
        };
        self.sees("everything was checked", seconds, answered).await.map(drop)
    }

    /// The releases that run, and what kept others away.
    pub(crate) fn explains_versions(&self) -> Result<(), Failure> {
        let words = ["plan", "--all", "--quiet", "--output", "json"];
        let command = || format!("vdoctl {}", words.join(" "));
        let told = self.command(&words).output();
        let told = told.with_context(|_| RunSnafu { command: command() })?;
        if !told.status.success() {
            let output = String::from_utf8_lossy(&told.stderr).into_owned();
            return SaidSnafu { command: command(), output }.fail();
        }
        let told: Told = serde_json::from_slice(&told.stdout)
            .map_err(|error| SaidSnafu { command: command(), output: error.to_string() }.build())?;
        self.screen.heading("Versions, and why these (vdoctl plan --all tells all of it)");
        for driver in told.drivers {
            let name = if driver.driver == "cpi" { "Cloud provider" } else { "Storage" };
            let fits = match driver.rejected.len() {
                0 => "there is no other of its kind".to_owned(),
                others => format!("the newest that fits; {others} others were looked at"),
            };
            self.screen.say(&format!("  {name:<15} {}  {fits}", driver.installed));
            for Rejected { version, why } in driver.rejected.iter().take(2) {
                self.screen.say(&format!("                  not {version}: {why}"));
            }
        }
        Ok(())
    }

    fn configs(&self) -> Api<VDOConfig> {
        Api::namespaced(self.stage.plane.client(), api::NAMESPACE)
    }
}

/// What `vdoctl plan --output json` tells, as far as it is shown here.
#[derive(Deserialize)]
struct Told {
    drivers: Vec<Chosen>,
}

/// A driver and the releases it might have been instead.
#[derive(Deserialize)]
struct Chosen {
    driver: String,
    installed: String,
    #[serde(default)]
    rejected: Vec<Rejected>,
}

#[derive(Deserialize)]
struct Rejected {
    version: String,
    why: String,
}

/// A command that goes when nobody waits for it any more.
struct Typed(Child);

impl Drop for Typed {
    fn drop(&mut self) {
        // Ended already, most of the time.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
