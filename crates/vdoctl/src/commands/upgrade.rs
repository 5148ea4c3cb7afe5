//! `vdoctl upgrade`: approve an upgrade, follow it, or go back.

use std::time::Duration;

use ::catalog::{Driver, tool::DriverName};
use clap::Args;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use operator::{decide::decide, facts::Facts, names, plan::DriverPlan, writing};
use semver::Version;
use serde_json::{Value, json};

use crate::{
    arguments::Global,
    cluster::Cluster,
    failure::{Doing as _, Outcome, request},
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
        let (lines, patch) =
            if self.back { self.going_back(&facts)? } else { self.approved(&drivers) };
        if lines.is_empty() {
            screen.print("There is nothing to upgrade: what runs is what is planned.\n")?;
            return Ok(());
        }
        screen.print(&lines.join(""))?;
        screen.confirm("Go on?")?;
        let cluster = Cluster::connect(global).await?;
        patch_config(&cluster, &facts, &patch).await?;
        if self.no_wait {
            screen.note("Approved. vdoctl status --watch follows it.");
            return Ok(());
        }
        let within = Duration::from_secs(self.timeout);
        let overview = super::status::wait(&cluster, screen, within).await?;
        overview.judged()
    }

    /// What would be approved, and how that is said in the VDOConfig.
    fn approved(&self, drivers: &[&DriverPlan]) -> (Vec<String>, Value) {
        let (mut lines, mut annotations, mut spec) = (Vec::new(), json!({}), json!({}));
        for driver in drivers {
            let target = self.to.as_ref().map(ToString::to_string).or_else(|| goal(driver));
            let Some(target) = target.filter(|target| driver.installed.as_ref() != Some(target))
            else {
                continue;
            };
            let from = driver.installed.as_deref().unwrap_or("nothing");
            let name = paint(STRONG, super::plan::name(driver.driver));
            lines.push(format!("{name}  {from} → {target}\n"));
            if self.to.is_some() {
                spec[section(driver.driver)] = json!({"version": target});
            } else {
                annotations[annotation(driver.driver)] = target.into();
            }
        }
        let mut patch = json!({"metadata": {"annotations": annotations}});
        if spec != json!({}) {
            patch["spec"] = spec;
        }
        (lines, patch)
    }

    /// Back to the release before: possible as long as the new one has not become healthy.
    fn going_back(&self, facts: &Facts) -> Outcome<(Vec<String>, Value)> {
        let driver = self.driver.map_or(Driver::Csi, Driver::from);
        let record = facts.record(driver);
        let running = record.version.as_deref().unwrap_or("nothing");
        let Some(previous) = record.previous.as_ref().filter(|_| !record.healthy) else {
            return request(
                format!("{} {running} is not being upgraded", super::plan::name(driver)),
                "a release that became healthy is not followed by an older one: volumes it made may not suit that",
            );
        };
        let line = format!("{}  {running} → {previous}\n", super::plan::name(driver));
        Ok((vec![line], json!({"spec": {section(driver): {"version": previous}}})))
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
