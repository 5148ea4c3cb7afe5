//! `vdoctl adopt`: what other hands installed, what taking it over would change, and doing it.

use std::{sync::Arc, time::Duration};

use api::vdo_config::Adoption;
use clap::Args;
use plan::{
    Next, ObjectId, decide,
    facts::{Facts, Workload},
};
use serde_json::json;

use crate::{
    arguments::Global,
    cluster::Cluster,
    failure::{Failure, Outcome},
    findings,
    screen::Screen,
    text::{CARE, GOOD, Table, paint},
};

/// Take over drivers that other hands installed.
///
/// They are shown first, with whether they can be taken over as they stand. Nothing is deleted and nothing made anew: volumes stay attached, the cluster's identity in vCenter
/// stays what it is.
#[derive(Args, Debug)]
pub(crate) struct Adopt {
    /// Only show.
    #[arg(long)]
    dry_run: bool,
    /// How long to wait until it is done, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

impl Adopt {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let mut facts = super::plan::facts(global, screen).await?;
        let theirs = theirs(&facts);
        if theirs.is_empty() {
            return screen.print("Every driver here is VDO's own: there is nothing to adopt.\n");
        }
        let mut table = Table::new(&["DRIVER", "VERSION", "PODS", "WHERE"]);
        for (id, workload) in &theirs {
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
        // What the operator would do if it were allowed to.
        let mut config = (*facts.config).clone();
        config.spec.adoption = Some(Adoption::Automatic);
        facts.config = Arc::new(config);
        let plan = decide(&facts);
        let blocked = plan.drivers.iter().any(|driver| driver.next == Next::Blocked);
        let problems: Vec<_> =
            plan.findings.iter().filter(|f| f.severity >= api::Severity::Error).cloned().collect();
        if blocked || !problems.is_empty() {
            screen.print(&format!(
                "\n{} It cannot be adopted as it is:\n\n{}",
                paint(CARE, "!"),
                findings::render(&problems, screen.width, facts.now)
            ))?;
            return Err(Failure::Verdict { exit: crate::exit::Exit::Degraded });
        }
        screen.print(&format!("\n{} It can be adopted in place.\n", paint(GOOD, "✔")))?;
        if self.dry_run {
            return Ok(());
        }
        screen.confirm("Let VDO take it over?")?;
        let cluster = Cluster::connect(global).await?;
        let patch = json!({"spec": {"adoption": Adoption::Automatic}});
        super::upgrade::patch_config(&cluster, &facts, &patch).await?;
        let overview =
            super::status::wait(&cluster, screen, Duration::from_secs(self.timeout)).await?;
        overview.judged()
    }
}

/// Workloads that are not ours.
fn theirs(facts: &Facts) -> Vec<(ObjectId, Workload)> {
    let all = facts.workloads.iter().filter(|(id, _)| !facts.is_ours(id));
    all.map(|(id, workload)| (id.clone(), workload.clone())).collect()
}
