//! `vdoctl adopt`

use std::{sync::Arc, time::Duration};

use api::vdo_config::Adoption;
use clap::Args;
use plan::{
    Next, ObjectId, decide,
    facts::{DriverWorkload, Facts},
};
use serde_json::json;

use crate::{
    cluster::Cluster,
    failure::{Failure, Outcome},
    findings,
    options::Global,
    screen::Screen,
    text::{CARE, GOOD, Table, paint},
};

/// Adopt drivers that VDO did not install.
///
/// vdoctl first shows the drivers and whether VDO can adopt them. Adoption deletes and re-creates nothing:
/// volumes stay attached, and the cluster ID in vCenter does not change.
#[derive(Args, Debug)]
pub(crate) struct Adopt {
    /// Show the drivers and whether VDO can adopt them. Change nothing.
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
        let blocked = plan.drivers.iter().any(|driver| driver.next == Next::Blocked);
        let problems: Vec<_> =
            plan.findings.iter().filter(|f| f.severity >= api::Severity::Error).cloned().collect();
        if blocked || !problems.is_empty() {
            screen.print(&format!(
                "\n{} VDO cannot adopt the drivers:\n\n{}",
                paint(CARE, "!"),
                findings::render(&problems, screen.width, facts.now)
            ))?;
            return Err(Failure::Verdict { exit: crate::exit::Exit::Degraded });
        }
        screen.print(&format!("\n{} VDO can adopt the drivers in place.\n", paint(GOOD, "✔")))?;
        if self.dry_run {
            return Ok(());
        }
        screen.confirm("Adopt the drivers?")?;
        let cluster = Cluster::connect(global).await?;
        let patch = json!({"spec": {"adoption": Adoption::Automatic}});
        super::upgrade::patch_config(&cluster, &facts, &patch).await?;
        let overview =
            super::status::wait(&cluster, screen, Duration::from_secs(self.timeout)).await?;
        overview.verdict()
    }
}

fn not_managed_by_vdo(facts: &Facts) -> Vec<(ObjectId, DriverWorkload)> {
    let all = facts.workloads.iter().filter(|(id, _)| !facts.is_ours(id));
    all.map(|(id, workload)| (id.clone(), workload.clone())).collect()
}
