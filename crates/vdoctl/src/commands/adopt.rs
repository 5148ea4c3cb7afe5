//! `vdoctl adopt`

use std::{sync::Arc, time::Duration};

use api::vdo_config::{Adoption, Health, StepState};
use clap::Args;
use plan::{
    AdoptionPreview, DriverPlan, ObjectId, decide,
    facts::{DriverWorkload, Facts},
};
use serde_json::json;

use super::status::Overview;
use crate::{
    cluster::Cluster,
    failure::{Failure, Outcome},
    findings,
    options::Global,
    screen::Screen,
    text::{CARE, DIM, GOOD, STRONG, Table, paint, wrap},
};

/// Adopt drivers that VDO did not install.
///
/// vdoctl first shows what VDO adopts, what it leaves, and what it changes later. Adoption itself changes no
/// object of a driver and restarts no pod; the cluster ID in vCenter stays. `vdoctl upgrade` then rolls out
/// VDO's own configuration, when you want it.
#[derive(Args, Debug)]
pub(crate) struct Adopt {
    /// Show what VDO adopts, leaves and changes later. Change nothing.
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the adoption to finish, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

impl Adopt {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let mut facts = super::plan::facts(global, screen).await?;
        let found = not_managed_by_vdo(&facts);
        if found.is_empty() {
            return screen.print("VDO manages all drivers here: there is nothing to adopt.\n");
        }
        let mut table = Table::new(&["DRIVER", "VERSION", "PODS", "WHERE"]);
        for (id, workload) in &found {
            let version = workload.version.clone().unwrap_or_else(|| paint(CARE, "unknown"));
            let pods = format!("{}/{}", workload.available, workload.wanted);
            table.row([
                super::plan::name(workload.driver).to_owned(),
                version,
                pods,
                id.to_string(),
            ]);
        }
        screen.print(&table.render(screen.width))?;
        // The plan of the operator if adoption were automatic.
        let mut config = (*facts.config).clone();
        config.spec.adoption = Some(Adoption::Automatic);
        facts.config = Arc::new(config);
        let plan = decide(&facts);
        let previews: Vec<(&DriverPlan, &AdoptionPreview)> = plan
            .drivers
            .iter()
            .filter_map(|driver| Some((driver, driver.adoption.as_ref()?)))
            .filter(|(_, preview)| !preview.adopted)
            .collect();
        for (driver, preview) in &previews {
            screen.print(&format!("\n{}", render(driver, preview, screen.width)))?;
        }
        let adoptable: Vec<&DriverPlan> = previews
            .iter()
            .filter(|(_, preview)| preview.impossible.is_none())
            .map(|(driver, _)| *driver)
            .collect();
        let problems: Vec<_> =
            plan.findings.iter().filter(|f| f.severity >= api::Severity::Error).cloned().collect();
        if adoptable.is_empty() || !problems.is_empty() {
            let shown = findings::render(&problems, screen.width, facts.now);
            screen.print(&format!(
                "\n{} VDO cannot adopt all drivers:\n\n{shown}",
                paint(CARE, "!")
            ))?;
        }
        if adoptable.is_empty() {
            return Err(Failure::Verdict { exit: crate::exit::Exit::Degraded });
        }
        let names: Vec<&str> =
            adoptable.iter().map(|driver| super::plan::name(driver.driver)).collect();
        screen.print(&format!(
            "\n{} VDO can adopt in place: {}.\n",
            paint(GOOD, "✔"),
            names.join(", ")
        ))?;
        if self.dry_run {
            return Ok(());
        }
        screen.confirm("Adopt the drivers?")?;
        let cluster = Cluster::connect(global).await?;
        let patch = json!({"spec": {"adoption": Adoption::Automatic}});
        super::upgrade::patch_config(&cluster, &facts, &patch).await?;
        let adopted = |overview: &Overview| {
            overview.health == Health::Healthy
                || adoptable.iter().all(|driver| is_adopted(overview, driver))
        };
        let within = Duration::from_secs(self.timeout);
        let overview = super::status::wait_until(&cluster, screen, within, None, adopted).await?;
        if !adopted(&overview) {
            return overview.verdict();
        }
        screen.note("Adopted. VDO changes the drivers when you ask for it: vdoctl upgrade");
        Ok(())
    }
}

/// Whether the operator has adopted a driver.
fn is_adopted(overview: &Overview, driver: &DriverPlan) -> bool {
    let title = format!("{}: {}", driver.driver, plan::ADOPT);
    overview.steps().iter().any(|step| step.title == title && step.state == StepState::Done)
}

/// The effect of the adoption of one driver.
fn render(driver: &DriverPlan, preview: &AdoptionPreview, width: usize) -> String {
    let name = super::plan::name(driver.driver);
    let release = preview.release.as_deref().unwrap_or_default();
    let mut text = format!("{}\n", paint(STRONG, format!("{name} {release}").trim_end()));
    if let Some(why) = &preview.impossible {
        text.push_str(&wrap(&format!("  {}  ", paint(CARE, "impossible")), why, width));
        return text;
    }
    text.push_str(&wrap("  adopts      ", &preview.workloads.join(", "), width));
    text.push_str(&wrap(
        "  changes     ",
        "nothing now: no object of the driver changes, and no pod restarts",
        width,
    ));
    for (number, change) in preview.changes.iter().enumerate() {
        let begin = if number == 0 { "  later       " } else { "              " };
        text.push_str(&wrap(&paint(DIM, begin), change, width));
    }
    for (number, left) in preview.left.iter().enumerate() {
        let begin = if number == 0 { "  leaves      " } else { "              " };
        text.push_str(&wrap(begin, left, width));
    }
    text
}

fn not_managed_by_vdo(facts: &Facts) -> Vec<(ObjectId, DriverWorkload)> {
    let all = facts.workloads.iter().filter(|(id, _)| !facts.is_ours(id));
    all.map(|(id, workload)| (id.clone(), workload.clone())).collect()
}
