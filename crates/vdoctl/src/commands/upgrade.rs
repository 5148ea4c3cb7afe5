//! `vdoctl upgrade`: approve an upgrade, follow it, or go back.

use std::time::Duration;

use ::catalog::{Driver, tool::DriverName};
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
    arguments::Global,
    cluster::Cluster,
    exit::Exit,
    failure::{Doing as _, Failure, Outcome, refuse},
    screen::Screen,
    text::{STRONG, paint},
};

/// Approve an upgrade of the drivers, follow it, or go back.
///
/// Without arguments, every driver is brought to the release `vdoctl plan` shows.
#[derive(Args, Debug)]
pub(crate) struct Upgrade {
    /// Only this driver.
    driver: Option<DriverName>,
    /// To this release instead of the planned one.
    #[arg(long, value_name = "VERSION", requires = "driver")]
    to: Option<Version>,
    /// Back to the release before, while the new one is not healthy yet.
    #[arg(long, requires = "driver", conflicts_with = "to")]
    back: bool,
    /// Do not wait until it is done.
    #[arg(long)]
    no_wait: bool,
    /// How long to wait, in seconds.
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    timeout: u64,
}

impl Upgrade {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let facts = super::plan::facts(global, screen).await?;
        let plan = decide(&facts);
        let wanted = |driver: &&DriverPlan| {
            self.driver.is_none_or(|wanted| Driver::from(wanted) == driver.driver)
        };
        let drivers: Vec<&DriverPlan> = plan.drivers.iter().filter(wanted).collect();
        let changes =
            if self.back { vec![self.going_back(&facts)?] } else { self.approved(&drivers) };
        if changes.is_empty() {
            screen.print("There is nothing to upgrade: what runs is what is planned.\n")?;
            return Ok(());
        }
        screen.print(&changes.iter().map(Change::line).collect::<String>())?;
        screen.confirm("Go on?")?;
        let cluster = Cluster::connect(global).await?;
        let mut patch = json!({});
        for change in &changes {
            change.write_into(&mut patch);
        }
        let before = Overview::look(&cluster).await?;
        patch_config(&cluster, &facts, &patch).await?;
        if self.no_wait {
            screen.note("Approved. vdoctl status --watch follows it.");
            return Ok(());
        }
        self.follow(&cluster, &changes, &before, screen).await
    }

    /// Until the releases run, or one of them was taken back.
    async fn follow(
        &self,
        cluster: &Cluster,
        changes: &[Change],
        before: &Overview,
        screen: &Screen,
    ) -> Outcome {
        let failed = |overview: &Overview| {
            let findings = overview.config.status.iter().flat_map(|status| &status.findings);
            findings.into_iter().any(|finding| finding.code == codes::UPGRADE_ROLLED_BACK.code)
        };
        // One that is told already is about an earlier try.
        let told = failed(before);
        let there = |overview: &Overview| {
            let all = changes.iter();
            all.into_iter().all(|change| overview.running(change.driver) == Some(&*change.to))
        };
        let within = Duration::from_secs(self.timeout);
        let before = Some(before);
        let overview = super::status::wait_until(cluster, screen, within, before, |overview| {
            there(overview) && overview.health == Health::Healthy
                || !told && !self.back && failed(overview)
        })
        .await?;
        if there(&overview) && overview.health == Health::Healthy {
            return Ok(());
        }
        screen.print(&overview.problems(screen.width))?;
        let exit = if failed(&overview) { Exit::Degraded } else { Exit::Progressing };
        Err(Failure::Verdict { exit })
    }

    /// What would be approved.
    fn approved(&self, drivers: &[&DriverPlan]) -> Vec<Change> {
        let changes = drivers.iter().filter_map(|driver| {
            let to = self.to.as_ref().map(ToString::to_string).or_else(|| goal(driver))?;
            let from = driver.installed.clone();
            let pinned = self.to.is_some();
            (from.as_ref() != Some(&to)).then_some(Change {
                driver: driver.driver,
                from,
                to,
                pinned,
            })
        });
        changes.collect()
    }

    /// Back to the release before: possible as long as the new one has not become healthy.
    fn going_back(&self, facts: &Facts) -> Outcome<Change> {
        let driver = self.driver.map_or(Driver::Csi, Driver::from);
        let record = facts.record(driver);
        let running = record.version.as_deref().unwrap_or("nothing");
        let Some(previous) = record.previous.clone().filter(|_| !record.healthy) else {
            return refuse(
                format!("{} {running} is not being upgraded", super::plan::name(driver)),
                "a release that became healthy is not followed by an older one: volumes it made may not suit that",
            );
        };
        Ok(Change { driver, from: record.version.clone(), to: previous, pinned: true })
    }
}

/// One driver from one release to another.
struct Change {
    driver: Driver,
    from: Option<String>,
    to: String,
    /// Whether it stays there from then on, or is brought there once.
    pinned: bool,
}

impl Change {
    fn line(&self) -> String {
        let name = paint(STRONG, super::plan::name(self.driver));
        format!("{name}  {} → {}\n", self.from.as_deref().unwrap_or("nothing"), self.to)
    }

    /// How it is said in the VDOConfig.
    fn write_into(&self, patch: &mut Value) {
        if self.pinned {
            patch["spec"][section(self.driver)]["version"] = self.to.as_str().into();
        } else {
            patch["metadata"]["annotations"][annotation(self.driver)] = self.to.as_str().into();
        }
    }
}

/// The release that will run in the end, also where it waits for approval.
fn goal(driver: &DriverPlan) -> Option<String> {
    let decision = driver.decision.as_ref();
    let waits = decision.and_then(|decision| match &decision.standstill {
        Some(::catalog::why::Standstill::AwaitsApproval { available }) => {
            Some(available.to_string())
        }
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

/// The part of the VDOConfig that is about a driver.
pub(crate) fn section(driver: Driver) -> &'static str {
    match driver {
        Driver::Cpi => "cloudProvider",
        Driver::Csi => "storageProvider",
    }
}

/// Changes the VDOConfig that is followed.
pub(crate) async fn patch_config(cluster: &Cluster, facts: &Facts, patch: &Value) -> Outcome {
    let home = facts.config.namespace().unwrap_or_default();
    let configs = Api::<api::VDOConfig>::namespaced(cluster.client.clone(), &home);
    let parameters = PatchParams {
        field_manager: Some(writing::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    let name = facts.config.name_any();
    let patched = configs.patch(&name, &parameters, &Patch::Merge(patch)).await;
    patched.map(drop).doing("changing the VDOConfig")
}
