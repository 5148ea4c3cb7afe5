//! `vdoctl upgrade`

use std::time::Duration;

use ::catalog::{Driver, tool::DriverName, why::Standstill};
use api::{finding::codes, vdo_config::Health};
use clap::Args;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use operator::writing;
use plan::{DriverPlan, decide, facts::Facts, names};
use semver::Version;
use serde_json::{Value, json};

use super::status::Overview;
use crate::{
    cluster::Cluster,
    exit::Exit,
    failure::{Doing as _, Failure, Outcome, refuse},
    options::Global,
    screen::Screen,
    text::{STRONG, paint},
};

/// Upgrade the drivers, or roll back an upgrade.
///
/// Without arguments, vdoctl approves the upgrade of every driver to the release that `vdoctl plan` shows.
#[derive(Args, Debug)]
pub(crate) struct Upgrade {
    /// Upgrade only this driver.
    driver: Option<DriverName>,
    /// Upgrade to this release instead of the planned one.
    #[arg(long, value_name = "VERSION", requires = "driver")]
    to: Option<Version>,
    /// Roll back to the previous release. This is possible until the new one is healthy.
    #[arg(long, requires = "driver", conflicts_with = "to")]
    back: bool,
    /// Remove the pin of --to, so that VDO chooses the release again.
    #[arg(long, requires = "driver", conflicts_with_all = ["to", "back"])]
    unpin: bool,
    /// Do not wait for the upgrade to finish.
    #[arg(long)]
    no_wait: bool,
    /// How long to wait, in seconds.
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    timeout: u64,
}

impl Upgrade {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let facts = super::plan::facts(global, screen).await?;
        if self.unpin {
            return self.remove_pin(global, &facts, screen).await;
        }
        if let (Some(driver), Some(to)) = (self.driver, &self.to) {
            fits(&facts, driver.into(), to)?;
        }
        let plan = decide(&facts);
        let wanted = |driver: &&DriverPlan| {
            self.driver.is_none_or(|wanted| Driver::from(wanted) == driver.driver)
        };
        let drivers: Vec<&DriverPlan> = plan.drivers.iter().filter(wanted).collect();
        let changes =
            if self.back { vec![self.rollback(&facts)?] } else { self.approved(&drivers) };
        if changes.is_empty() {
            screen.print("There is nothing to upgrade: all planned releases run.\n")?;
            return Ok(());
        }
        screen.print(&changes.iter().map(ReleaseChange::line).collect::<String>())?;
        screen.confirm("Continue?")?;
        let cluster = Cluster::connect(global).await?;
        let mut patch = json!({});
        for change in &changes {
            change.write_into(&mut patch);
        }
        let before = Overview::read(&cluster).await?;
        patch_config(&cluster, &facts, &patch).await?;
        if self.no_wait {
            screen.note("Approved. To follow the upgrade: vdoctl status --watch");
            return Ok(());
        }
        self.follow(&cluster, &changes, &before, screen).await
    }

    async fn remove_pin(&self, global: &Global, facts: &Facts, screen: &Screen) -> Outcome {
        let driver = self.driver.map_or(Driver::Csi, Driver::from);
        let name = super::plan::name(driver);
        let Some(version) = pin(facts, driver) else {
            return screen.print(&format!("{name} is not pinned: VDO chooses its release.\n"));
        };
        screen.confirm(&format!("Remove the pin of {name} to {version}?"))?;
        let cluster = Cluster::connect(global).await?;
        let patch = json!({"spec": {section(driver): {"version": null}}});
        patch_config(&cluster, facts, &patch).await?;
        screen.print(&format!("{name} is no longer pinned to {version}.\n"))?;
        screen.note("vdoctl plan shows the release that VDO chooses.");
        Ok(())
    }

    /// Waits until the releases run, or until VDO rolls one back.
    async fn follow(
        &self,
        cluster: &Cluster,
        changes: &[ReleaseChange],
        before: &Overview,
        screen: &Screen,
    ) -> Outcome {
        let failed = |overview: &Overview| {
            let findings = overview.config.status.iter().flat_map(|status| &status.findings);
            findings.into_iter().any(|finding| finding.code == codes::UPGRADE_ROLLED_BACK.code)
        };
        // An existing finding is about an earlier attempt.
        let failed_before = failed(before);
        let there = |overview: &Overview| changes.iter().all(|change| change.is_made(overview));
        let within = Duration::from_secs(self.timeout);
        let before = Some(before);
        let overview = super::status::wait_until(cluster, screen, within, before, |overview| {
            there(overview) && overview.health == Health::Healthy
                || !failed_before && !self.back && failed(overview)
        })
        .await?;
        if there(&overview) && overview.health == Health::Healthy {
            return Ok(());
        }
        screen.print(&overview.findings(screen.width))?;
        let exit = if failed(&overview) { Exit::Degraded } else { Exit::Progressing };
        Err(Failure::Verdict { exit })
    }

    fn approved(&self, drivers: &[&DriverPlan]) -> Vec<ReleaseChange> {
        let changes = drivers.iter().filter_map(|driver| {
            let to = self.to.as_ref().map(ToString::to_string).or_else(|| goal(driver))?;
            let from = driver.installed.clone();
            let pinned = self.to.is_some();
            let first = driver.is_untouched();
            (from.as_ref() != Some(&to) || first).then_some(ReleaseChange {
                driver: driver.driver,
                from,
                to,
                pinned,
                first,
            })
        });
        changes.collect()
    }

    fn rollback(&self, facts: &Facts) -> Outcome<ReleaseChange> {
        let driver = self.driver.map_or(Driver::Csi, Driver::from);
        let record = facts.record(driver);
        let running = record.version.as_deref().unwrap_or("nothing");
        let Some(previous) = record.previous.clone().filter(|_| !record.healthy) else {
            return refuse(
                format!("no upgrade of {} {running} is in progress", super::plan::name(driver)),
                "VDO does not downgrade a healthy release: an older one may not support the volumes that it created",
            );
        };
        let from = record.version.clone();
        Ok(ReleaseChange { driver, from, to: previous, pinned: true, first: false })
    }
}

/// The release that the VDOConfig pins.
fn pin(facts: &Facts, driver: Driver) -> Option<&str> {
    let spec = &facts.config.spec;
    let version = match driver {
        Driver::Cpi => spec.cloud_provider.as_ref()?.version.as_ref(),
        Driver::Csi => spec.storage_provider.as_ref()?.version.as_ref(),
    };
    version.map(|version| version.0.as_str())
}

/// Refuses a release that VDO would not install, before anything is written.
fn fits(facts: &Facts, driver: Driver, to: &Version) -> Outcome {
    let mut pinned = facts.clone();
    let spec = &mut std::sync::Arc::make_mut(&mut pinned.config).spec;
    let version = Some(to.to_string().as_str().into());
    match driver {
        Driver::Cpi => {
            if let Some(cloud) = spec.cloud_provider.as_mut() {
                cloud.version = version;
            }
        }
        Driver::Csi => {
            if let Some(storage) = spec.storage_provider.as_mut() {
                storage.version = version;
            }
        }
    }
    let plan = decide(&pinned);
    let driver_plan = plan.drivers.iter().find(|plan| plan.driver == driver);
    let decision = driver_plan.and_then(|plan| plan.decision.as_ref());
    match decision.and_then(|decision| decision.standstill.as_ref()) {
        Some(Standstill::PinUnknown { .. }) => refuse(
            format!("the catalog does not contain {} {to}", super::plan::name(driver)),
            "vdoctl versions lists the releases",
        ),
        Some(Standstill::PinRefused { reason, .. }) => refuse(
            format!("{} {to} cannot be installed: {reason}", super::plan::name(driver)),
            "vdoctl plan --all shows for each release whether it fits",
        ),
        _ => Ok(()),
    }
}

struct ReleaseChange {
    driver: Driver,
    from: Option<String>,
    to: String,
    /// Whether the VDOConfig pins the release, or approves it once.
    pinned: bool,
    /// Whether VDO adopted the driver and changes it for the first time.
    first: bool,
}

impl ReleaseChange {
    fn line(&self) -> String {
        let name = paint(STRONG, super::plan::name(self.driver));
        let from = self.from.as_deref().unwrap_or("nothing");
        if self.first && from == self.to {
            return format!("{name}  {from} stays, with VDO's configuration\n");
        }
        format!("{name}  {from} → {}\n", self.to)
    }

    /// Whether the operator has made the change.
    fn is_made(&self, overview: &Overview) -> bool {
        let waits = format!("{}: {}", self.driver, plan::ADOPT);
        let untouched = overview.steps().iter().any(|step| step.title == waits);
        overview.running(self.driver) == Some(&*self.to) && !(self.first && untouched)
    }

    fn write_into(&self, patch: &mut Value) {
        if self.first {
            patch["metadata"]["annotations"][annotation(self.driver)] = self.to.as_str().into();
        }
        if self.pinned {
            patch["spec"][section(self.driver)]["version"] = self.to.as_str().into();
        } else {
            patch["metadata"]["annotations"][annotation(self.driver)] = self.to.as_str().into();
        }
    }
}

/// The planned release, also if it waits for approval.
fn goal(driver: &DriverPlan) -> Option<String> {
    let decision = driver.decision.as_ref();
    let waits = decision.and_then(|decision| match &decision.standstill {
        Some(Standstill::AwaitsApproval { available }) => Some(available.to_string()),
        _ => None,
    });
    waits.or_else(|| driver.target.clone())
}

fn annotation(driver: Driver) -> &'static str {
    match driver {
        Driver::Cpi => names::APPROVE_CPI,
        Driver::Csi => names::APPROVE_CSI,
    }
}

pub(crate) fn section(driver: Driver) -> &'static str {
    match driver {
        Driver::Cpi => "cloudProvider",
        Driver::Csi => "storageProvider",
    }
}

pub(crate) async fn patch_config(cluster: &Cluster, facts: &Facts, patch: &Value) -> Outcome {
    let namespace = facts.config.namespace().unwrap_or_default();
    let configs = Api::<api::VDOConfig>::namespaced(cluster.client.clone(), &namespace);
    let parameters = PatchParams {
        field_manager: Some(writing::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    let name = facts.config.name_any();
    let patched = configs.patch(&name, &parameters, &Patch::Merge(patch)).await;
    patched.map(drop).doing("changing the VDOConfig")
}
