//! Fixes that change a VM while it is off, one node after the other.

use health::repair::{Proposal, Repair};
use operator::{
    maintenance::{DrainOptions, Maintenance, Step, Work, obstacles},
    remediation::RepairClients,
};

use crate::{
    critical,
    failure::{Doing as _, Failure, Outcome, request},
    progress::ProgressStep,
    screen::Screen,
    text::{DIM, paint, wrap},
};

/// The names of pods that a message lists.
const LISTED: usize = 5;

/// The changes of VMs, in order.
pub(super) struct Plan {
    all: Vec<(String, Repair)>,
    /// How many of them an earlier run began.
    begun: usize,
}

impl Plan {
    /// Finishes the work that an earlier run began first.
    pub(super) fn new(unfinished: Vec<Work>, proposals: Vec<Proposal>) -> Self {
        let mut all: Vec<(String, Repair)> =
            unfinished.into_iter().map(|work| (work.code, work.repair)).collect();
        let begun = all.len();
        let new = proposals.into_iter().map(|proposal| (proposal.code, proposal.repair));
        let new: Vec<_> = new.filter(|new| !all.contains(new)).collect();
        all.extend(new);
        Self { all, begun }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    fn nodes(&self) -> impl Iterator<Item = &str> {
        self.all.iter().filter_map(|(_, repair)| repair.drained_node())
    }

    pub(super) fn shown(&self, width: usize) -> String {
        let mut text = String::new();
        for node in self.nodes().take(self.begun) {
            let line =
                format!("an earlier run did not finish its work on {node}: vdoctl continues it");
            text.push_str(&wrap(&format!("{}  ", paint(DIM, "Unfinished")), &line, width));
        }
        if self.len() > 0 {
            let line = "vdoctl drains each node, shuts its VM down, changes it and powers it on, one node at a time";
            text.push_str(&wrap(&format!("{}  ", paint(DIM, "Restarts")), line, width));
        }
        text
    }

    /// Refuses if a drain would harm pods.
    pub(super) async fn check(&self, clients: &RepairClients, options: DrainOptions) -> Outcome {
        let mut found = Vec::new();
        for node in self.nodes() {
            let pods = obstacles(&clients.cluster, node, options).await;
            found.extend(pods.doing("listing the pods of the nodes")?);
        }
        if found.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = found.iter().take(LISTED).map(ToString::to_string).collect();
        let more = match found.len().saturating_sub(LISTED) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        request(
            format!("{}{more}", names.join("; ")),
            "move these pods, or add --delete-emptydir-data or --force, which mean the same as for kubectl drain",
        )
    }

    pub(super) async fn run(
        &self,
        clients: &RepairClients,
        options: DrainOptions,
        screen: &Screen,
    ) -> Outcome {
        for (code, repair) in &self.all {
            maintain(clients, code, repair, options, screen).await?;
        }
        Ok(())
    }
}

async fn maintain(
    clients: &RepairClients,
    code: &str,
    repair: &Repair,
    options: DrainOptions,
    screen: &Screen,
) -> Outcome {
    let failed = |error: operator::maintenance::Error| Failure::Other {
        text: format!("the fix did not end; vdoctl fix {code} continues it"),
        source: error.into(),
    };
    let node = repair.drained_node().unwrap_or_default();
    let mut work = Maintenance::begin(clients, code, repair, options).await.map_err(failed)?;
    let steps = work.steps().await.map_err(failed)?;
    let (before, off): (Vec<Step>, Vec<Step>) =
        steps.iter().partition(|step| **step == Step::Drain);
    let (off, after): (Vec<Step>, Vec<Step>) =
        off.into_iter().partition(|step| *step != Step::BecomeReady);
    for step in before {
        make(&mut work, step, node, screen).await.map_err(failed)?;
    }
    // Neither an interrupt nor a rejected change leaves the VM off.
    let off = async {
        let mut rejected = None;
        for step in off {
            match make(&mut work, step, node, screen).await {
                Err(error) if step == Step::Change => rejected = Some(error),
                other => other?,
            }
        }
        Ok(rejected)
    };
    let rejected = critical::section(off).await.map_err(failed)?;
    for step in after {
        make(&mut work, step, node, screen).await.map_err(failed)?;
    }
    work.finish().await.map_err(failed)?;
    match rejected {
        None => Ok(()),
        Some(error) => {
            let text = format!("the VM of {node} was not changed; it runs again as before");
            Err(Failure::Other { text, source: error.into() })
        }
    }
}

async fn make(
    work: &mut Maintenance<'_>,
    step: Step,
    node: &str,
    screen: &Screen,
) -> Result<(), operator::maintenance::Error> {
    let mut progress = ProgressStep::begin(screen, step.title(node));
    match work.make(step, |what| progress.waits(what)).await {
        Ok(()) => {
            progress.done("");
            Ok(())
        }
        Err(error) => {
            progress.failed("");
            Err(error)
        }
    }
}
