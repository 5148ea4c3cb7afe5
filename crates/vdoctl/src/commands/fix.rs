//! `vdoctl fix`

mod powered_off;

use std::{collections::BTreeMap, time::Duration};

use api::Finding;
use clap::Args;
use health::{Examination, repair::Proposal};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use operator::{
    maintenance::{self, DrainOptions, Work},
    remediation::{self, RepairClients},
};

use super::{configure::VcenterFlags, doctor, explain};
use crate::{
    cluster::Cluster,
    critical,
    exit::Exit,
    failure::{Doing as _, Failure, Outcome, request},
    findings,
    options::Global,
    progress::ProgressStep,
    screen::Screen,
    text::{CARE, DIM, GOOD, STRONG, Table, count, paint, wrap},
};

/// Fix a finding, if VDO can.
///
/// vdoctl shows the changes and asks before it makes them. No change can lose data. If VDO cannot fix the
/// finding, vdoctl shows how to fix it by hand and exits with code 3. Without a code, vdoctl lists everything
/// that VDO can fix now.
///
/// If a VM must be off for a change, vdoctl drains its node, shuts the VM down, changes it, powers it on and waits
/// for the node, one node at a time. Evictions respect PodDisruptionBudgets. If vdoctl ends in between, run the same
/// command again: it continues.
#[derive(Args, Debug)]
pub(crate) struct Fix {
    /// The code of the finding, for example VDO-1203 or 1203.
    code: Option<String>,
    /// Show the changes, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// List the fixes that VDO has made.
    #[arg(long, conflicts_with_all = ["code", "undo", "dry_run"])]
    made: bool,
    /// Undo the fix with this name. --made lists the names.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["code", "dry_run"])]
    undo: Option<String>,
    /// Drain nodes although pods lose the data in their emptyDir volumes.
    #[arg(long)]
    delete_emptydir_data: bool,
    /// Drain nodes although nothing creates some of their pods again.
    #[arg(long)]
    force: bool,
    /// How long the drain of a node can take, in minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    drain_timeout: u32,
}

impl Fix {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        if self.made {
            return self.list_made(global, screen).await;
        }
        let code = self.code.as_deref().map(explain::definition).transpose()?;
        let code = code.map(|definition| definition.code);
        let mut inspection =
            doctor::inspect(global, screen, &VcenterFlags::default(), false).await?;
        let outcome = Box::pin(self.with(&mut inspection, code, screen)).await;
        inspection.close().await;
        outcome
    }

    async fn with(
        &self,
        inspection: &mut doctor::Inspection,
        code: Option<&'static str>,
        screen: &Screen,
    ) -> Outcome {
        let Some(cluster) = inspection.cluster.clone() else { return Err(Failure::NotInstalled) };
        let clients = RepairClients {
            namespace: operator_namespace(&cluster).await?,
            cluster: cluster.client,
            vcenters: inspection.vcenters.clone(),
        };
        if let Some(id) = &self.undo {
            return undo(&clients, id, screen).await;
        }
        let facts = std::mem::take(&mut inspection.facts);
        let examination = Examination::run(facts.clone());
        let mut found = examination.report().all();
        found.retain(|finding| code.is_none_or(|code| finding.code == code));
        let proposals = remediation::propose(facts, code);
        let (refused, ready): (Vec<_>, Vec<_>) =
            proposals.into_iter().partition(|proposal| proposal.refused.is_some());
        let mut unfinished = maintenance::unfinished(&clients.cluster)
            .await
            .doing("looking for nodes with unfinished work")?;
        unfinished.retain(|work| code.is_none_or(|code| work.code == code));
        // A kubelet can annotate its own node.
        unfinished.retain(|work| {
            let own = health::repair::is_of_its_node(&examination, &work.repair);
            if !own {
                screen.note(&format!(
                    "The annotation {} of node {} does not name its VM: vdoctl ignores it.",
                    plan::names::MAINTENANCE,
                    work.node()
                ));
            }
            own
        });
        match code {
            None => listed(&ready, &unfinished, screen),
            Some(code) if found.is_empty() && unfinished.is_empty() => {
                screen.print(&format!("{code} was not found: there is nothing to fix.\n"))
            }
            Some(_) if ready.is_empty() && unfinished.is_empty() => {
                by_hand(&found, &refused, screen)
            }
            Some(_) => self.remediate(&clients, ready, unfinished, &refused, screen).await,
        }
    }

    fn drain_options(&self) -> DrainOptions {
        DrainOptions {
            delete_empty_dirs: self.delete_emptydir_data,
            force: self.force,
            timeout: Duration::from_mins(self.drain_timeout.into()),
        }
    }

    async fn remediate(
        &self,
        clients: &RepairClients,
        ready: Vec<Proposal>,
        unfinished: Vec<Work>,
        refused: &[Proposal],
        screen: &Screen,
    ) -> Outcome {
        let text: String = ready.iter().map(|proposal| shown(proposal, screen.width)).collect();
        screen.print(&text)?;
        let (powered_off, ready): (Vec<_>, Vec<_>) =
            ready.into_iter().partition(maintenance::needs_power_off);
        let work = powered_off::Plan::new(unfinished, powered_off);
        screen.print(&work.shown(screen.width))?;
        for proposal in refused {
            let why = proposal.refused.as_deref().unwrap_or_default();
            screen.print(&wrap(&format!("{} ", paint(CARE, "!")), why, screen.width))?;
        }
        let options = self.drain_options();
        work.check(clients, options).await?;
        if self.dry_run {
            screen.note("Nothing was changed.");
            return Ok(());
        }
        screen.confirm(&format!("Make {}?", count(ready.len() + work.len(), "change")))?;
        work.run(clients, options, screen).await?;
        for proposal in &ready {
            let step = ProgressStep::begin(screen, proposal.says.clone());
            match critical::section(remediation::carry_out(clients, proposal)).await {
                Ok(remediation::Outcome::Made) => step.done(""),
                Ok(remediation::Outcome::AlreadyMade) => step.done("nothing left to do"),
                Err(error) => {
                    step.failed("");
                    return Err(fix_failed(error));
                }
            }
        }
        let mut next_steps: Vec<&str> = ready.iter().filter_map(|p| p.then.as_deref()).collect();
        next_steps.dedup();
        for then in next_steps {
            screen.print(&wrap("Then  ", then, screen.width))?;
        }
        if clients.namespace.is_some() && ready.iter().any(|proposal| proposal.undo.is_some()) {
            screen.note("vdoctl fix --made lists the fixes; vdoctl fix --undo NAME undoes one.");
        }
        Ok(())
    }

    async fn list_made(&self, global: &Global, screen: &Screen) -> Outcome {
        let cluster = Cluster::connect(global).await?;
        let clients = RepairClients {
            namespace: operator_namespace(&cluster).await?,
            cluster: cluster.client,
            vcenters: BTreeMap::new(),
        };
        let made = remediation::made(&clients).await.map_err(fix_failed)?;
        if made.is_empty() {
            return screen.print("VDO has not fixed anything yet.\n");
        }
        let mut table = Table::new(&["NAME", "WHEN", "STATE"]);
        for (id, entry) in made {
            let state =
                if entry.undone.is_some() { paint(DIM, "undone") } else { paint(GOOD, "fixed") };
            let when = crate::text::ago(entry.at, Timestamp::now());
            table.row([id, format!("{when} ago"), state]);
        }
        screen.print(&table.render(screen.width))
    }
}

/// The operator's namespace, which contains the list of fixes; `None` without an operator.
async fn operator_namespace(cluster: &Cluster) -> Outcome<Option<String>> {
    let namespaces = Api::<Namespace>::all(cluster.client.clone());
    let found = namespaces.get_metadata_opt(&cluster.namespace).await;
    Ok(found.doing("looking for the operator's namespace")?.map(|_| cluster.namespace.clone()))
}

fn shown(proposal: &Proposal, width: usize) -> String {
    let begin = format!("{}  ", paint(STRONG, &proposal.code));
    let mut text = wrap(&begin, &proposal.says, width);
    let blanks = " ".repeat(crate::text::columns(&begin));
    if let Some(then) = &proposal.then {
        text.push_str(&wrap(&format!("{blanks}{}  ", paint(DIM, "Then")), then, width));
    }
    if let Some(undo) = &proposal.undo {
        text.push_str(&wrap(&format!("{blanks}{}  ", paint(DIM, "Undo")), undo, width));
    }
    text
}

fn listed(ready: &[Proposal], unfinished: &[Work], screen: &Screen) -> Outcome {
    for work in unfinished {
        let text = format!("the work on {} is not finished: vdoctl fix {}", work.node(), work.code);
        screen.print(&wrap(&format!("{} ", paint(CARE, "!")), &text, screen.width))?;
    }
    if ready.is_empty() && unfinished.is_empty() {
        let text = "There is nothing that VDO can fix. vdoctl doctor runs all checks.";
        return screen.print(&wrap("", text, screen.width));
    }
    let text: String = ready.iter().map(|proposal| shown(proposal, screen.width)).collect();
    screen.print(&text)?;
    screen.note("\nTo make these changes: vdoctl fix CODE");
    Ok(())
}

/// Shows how to fix findings that VDO cannot fix.
fn by_hand(found: &[Finding], refused: &[Proposal], screen: &Screen) -> Outcome {
    // The screen must not recommend the command that has just failed.
    let found: Vec<Finding> =
        found.iter().cloned().map(|finding| Finding { fixable: false, ..finding }).collect();
    screen.print(&findings::render(&found, screen.width, Timestamp::now()))?;
    let mut reasons: Vec<&str> = refused.iter().filter_map(|p| p.refused.as_deref()).collect();
    reasons.dedup();
    for reason in &reasons {
        screen.print(&wrap(&format!("\n{} ", paint(CARE, "!")), reason, screen.width))?;
    }
    if reasons.is_empty() {
        screen.print(&wrap("\n", "VDO cannot fix this.", screen.width))?;
    }
    Err(Failure::Verdict { exit: Exit::Degraded })
}

async fn undo(clients: &RepairClients, id: &str, screen: &Screen) -> Outcome {
    let made = remediation::made(clients).await.map_err(fix_failed)?;
    if !made.contains_key(id) {
        let near = crate::text::nearest(id, made.keys().map(String::as_str));
        return request(
            format!("there is no fix with the name {id}"),
            match near {
                Some(near) => format!("did you mean {near}?"),
                None => "vdoctl fix --made lists all fixes".to_owned(),
            },
        );
    }
    screen.confirm(&format!("Undo {id}?"))?;
    let step = ProgressStep::begin(screen, format!("Undo {id}"));
    match critical::section(remediation::undo(clients, id)).await {
        Ok(()) => {
            step.done("");
            Ok(())
        }
        Err(error) => {
            step.failed("");
            Err(fix_failed(error))
        }
    }
}

fn fix_failed(error: remediation::Error) -> Failure {
    Failure::Other { text: "the fix failed".into(), source: error.into() }
}
