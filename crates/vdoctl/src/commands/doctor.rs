//! `vdoctl doctor`

use std::collections::{BTreeMap, BTreeSet};

use api::{Finding, Severity, finding::CATALOGUE};
use clap::Args;
use health::{
    Examination, Verdict,
    facts::{Facts, Known},
    topology,
};
use jiff::Timestamp;
use operator::{health_facts, proof};
use serde_json::{Value, json};

use super::configure::VcenterFlags;
use crate::{
    BUILD,
    cluster::Cluster,
    exit::Exit,
    failure::{Doing as _, Failure, Outcome},
    findings,
    options::{Global, OutputFormat},
    progress::ProgressStep,
    screen::Screen,
    text::{BAD, CARE, GOOD, count, paint, wrap},
};

/// Check the cluster, its nodes, its vCenters and the drivers.
///
/// The checks only read. They do not need the operator, so you can run them before you install anything. With
/// --vcenter and --no-cluster they do not need a cluster. The exit code is 3 if there are errors.
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Show only these findings: codes (VDO-1203, 1203) or prefixes (VDO-12).
    #[arg(long, value_name = "CODE", value_delimiter = ',')]
    only: Vec<String>,
    /// Explain every finding, as vdoctl explain does.
    #[arg(long)]
    explain: bool,
    /// Show findings of severity Info, too.
    #[arg(long)]
    all: bool,
    /// List all objects of every finding.
    #[arg(long)]
    each: bool,
    /// List every check, and whether it passed, failed or cannot tell.
    #[arg(long, conflicts_with = "only")]
    checks: bool,
    #[command(flatten)]
    vcenter: VcenterFlags,
    /// Check only the vCenter, not the cluster.
    #[arg(long, requires = "vcenter")]
    no_cluster: bool,
    /// The output format.
    #[arg(long, short, value_enum)]
    output: Option<OutputFormat>,
}

impl Doctor {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        // An unknown code must not look like a healthy cluster.
        self.only.iter().try_for_each(|wanted| findings_exist(wanted))?;
        let inspection = inspect(global, screen, &self.vcenter, self.no_cluster).await?;
        inspection.close().await;
        let examination = Examination::run(inspection.facts);
        let mut found = examination.report().all();
        found.retain(|finding| self.is_wanted(finding));
        if let Some(form) = self.output {
            let mut output = report_of(&found, &examination);
            if self.checks {
                output["checks"] = listed(&examination);
            }
            screen.print(&super::formatted(form, &output)?)?;
        } else {
            if self.checks {
                screen.print(&checked(&examination, screen.width))?;
            }
            screen.print(&self.shown(&found, screen.width))?;
            if self.only.is_empty() {
                screen.print(&shared(&examination, screen.width))?;
            }
            if self.each {
                screen.print(&each(&examination, &found, screen.width))?;
            }
        }
        if found.iter().any(|finding| finding.severity >= Severity::Error) {
            return Err(Failure::Verdict { exit: Exit::Degraded });
        }
        Ok(())
    }

    fn is_wanted(&self, finding: &Finding) -> bool {
        let is_severe = self.all || finding.severity > Severity::Info || !self.only.is_empty();
        let begins = |wanted: &String| finding.code.starts_with(&prefixed(wanted));
        is_severe && (self.only.is_empty() || self.only.iter().any(begins))
    }

    fn shown(&self, found: &[Finding], width: usize) -> String {
        let worst = found.iter().map(|finding| finding.severity).max();
        let checks = count(health::checks::all().len(), "check");
        let headline = match worst {
            None => format!("{}  {checks}", paint(GOOD, "● No problems")),
            Some(Severity::Error | Severity::Blocker) => {
                format!("{}  {checks}", paint(BAD, &format!("▲ {}", findings::summary(found))))
            }
            Some(_) => {
                format!("{}  {checks}", paint(CARE, &format!("● {}", findings::summary(found))))
            }
        };
        let mut text = format!("{headline}\n");
        if !found.is_empty() {
            text.push('\n');
            text.push_str(&findings::render(found, width, Timestamp::now()));
        }
        if self.explain {
            for code in codes(found) {
                if let Ok(page) = super::explain::page_of(code, width) {
                    text.extend(["\n", &page]);
                }
            }
        } else if !found.is_empty() {
            text.push('\n');
            text.push_str(&wrap("  ", "For details: vdoctl explain CODE", width));
        }
        text
    }
}

/// The checks by theme, each with its outcome.
fn checked(examination: &Examination, width: usize) -> String {
    let mut text = String::new();
    let mut theme = "";
    for (check, verdict) in health::outcomes(examination) {
        let (of, _) = check.name.split_once('/').unwrap_or((check.name, ""));
        if of != theme {
            theme = of;
            text.extend([if text.is_empty() { "" } else { "\n" }, heading(of), "\n"]);
        }
        let topic = check.topic();
        let (mark, line) = match verdict {
            Verdict::Passed => (paint(GOOD, "✓"), topic),
            Verdict::Failed(codes) => {
                let codes: Vec<&str> = codes.into_iter().collect();
                (paint(BAD, "✗"), format!("{topic}: {}", codes.join(", ")))
            }
            Verdict::CannotTell(reason) => (paint(CARE, "?"), format!("{topic}: {reason}")),
        };
        text.push_str(&wrap(&format!("  {mark} "), &line, width));
    }
    text.push('\n');
    text
}

fn heading(theme: &str) -> &str {
    match theme {
        "nodes" => "Nodes",
        "vcenter" => "vCenters",
        "privileges" => "Privileges",
        "storage" => "Storage",
        "drivers" => "Drivers",
        "zones" => "Zones",
        "operator" => "VDO",
        other => other,
    }
}

fn listed(examination: &Examination) -> Value {
    let all = health::outcomes(examination).into_iter().map(|(check, verdict)| match verdict {
        Verdict::Passed => json!({"check": check.name, "outcome": "Passed"}),
        Verdict::Failed(codes) => {
            json!({"check": check.name, "outcome": "Failed", "findings": codes})
        }
        Verdict::CannotTell(reason) => {
            json!({"check": check.name, "outcome": "CannotTell", "reason": reason})
        }
    });
    all.collect()
}

/// Everything that the doctor finds, for programs.
pub(crate) fn report(examination: &Examination) -> Value {
    report_of(&examination.report().all(), examination)
}

fn report_of(found: &[Finding], examination: &Examination) -> Value {
    json!({"findings": found, "datastores": datastores(examination)})
}

fn codes(found: &[Finding]) -> BTreeSet<&str> {
    found.iter().map(|finding| finding.code.as_str()).collect()
}

fn datastores(examination: &Examination) -> Vec<Value> {
    let all = topology::reachable(&examination.view()).into_iter();
    all.map(|place| {
        let reason = place.datastores.reason();
        json!({
            "vcenter": place.vcenter, "zone": place.zone,
            "names": place.datastores.get(), "unknown": reason,
        })
    })
    .collect()
}

/// The datastores that all nodes of a zone or of the cluster share.
fn shared(examination: &Examination, width: usize) -> String {
    let mut text = String::new();
    for place in topology::reachable(&examination.view()) {
        let whose = match place.zone {
            Some(zone) => format!("the nodes of {zone}"),
            None => "all nodes".to_owned(),
        };
        let names = match &place.datastores {
            Known::Known(names) if names.is_empty() => "none".to_owned(),
            Known::Known(names) => names.join(", "),
            Known::Unknown { reason } => format!("unknown: {reason}"),
        };
        let line = format!("Datastores of {} that {whose} share: {names}", place.vcenter);
        text.push_str(&wrap("  ", &line, width));
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn each(examination: &Examination, found: &[Finding], width: usize) -> String {
    let report = examination.report();
    let mut text = String::new();
    for code in codes(found) {
        let page = report.page(code, 0, usize::MAX);
        text.extend(["\n", code, "  ", &count(page.total, "object"), "\n"]);
        for entry in page.entries {
            text.push_str(&wrap(
                "  ",
                &format!("{} {}: {}", entry.subject.kind, entry.subject.name, entry.seen),
                width,
            ));
        }
    }
    text
}

fn prefixed(wanted: &str) -> String {
    let wanted = wanted.to_uppercase();
    if wanted.starts_with("VDO-") { wanted } else { format!("VDO-{wanted}") }
}

/// Fails if no code starts with `wanted`.
fn findings_exist(wanted: &str) -> Outcome {
    let wanted = prefixed(wanted);
    let begins = |known: &&api::finding::Definition| known.code.starts_with(&wanted);
    if CATALOGUE.iter().any(begins) {
        Ok(())
    } else {
        super::explain::definition(&wanted).map(drop)
    }
}

/// The facts for the checks, and the vCenter sessions.
pub(crate) struct Inspection {
    pub(crate) facts: Facts,
    pub(crate) cluster: Option<Cluster>,
    /// By the name of their VsphereCloudConfig.
    pub(crate) vcenters: BTreeMap<String, vsphere::Client>,
}

impl Inspection {
    /// Logs out of all vCenters. Otherwise, the sessions would stay open.
    pub(crate) async fn close(&self) {
        futures::future::join_all(self.vcenters.values().map(vsphere::Client::shut_down)).await;
    }
}

pub(crate) async fn inspect(
    global: &Global,
    screen: &Screen,
    flags: &VcenterFlags,
    no_cluster: bool,
) -> Outcome<Inspection> {
    let cluster = if no_cluster { None } else { Some(Cluster::connect(global).await?) };
    let client = cluster.as_ref().map(|cluster| &cluster.client);
    if let Some(client) = client {
        // If the API server is unreachable, every check would only report that.
        client.apiserver_version().await.doing("asking the cluster who it is")?;
    }
    let step = ProgressStep::begin(screen, "Look at the cluster and its vCenters");
    let vcenter = match flags.access(&[])? {
        Some(access) => {
            let vcenter = access.config(&global.namespace)?;
            let draft = super::configure::Draft::new(
                &[access],
                &super::configure::Drivers::default(),
                &global.namespace,
                None,
            );
            let inputs = proof::connection_inputs(None, &draft.objects, &vcenter).await;
            Some(inputs.map_err(|text| Failure::Refused { text, help: String::new() })?)
        }
        None => None,
    };
    let cluster_of = client.map(|client| (client, global.namespace.as_str()));
    let collected = health_facts::collect_once(cluster_of, vcenter, BUILD).await;
    step.done("");
    Ok(Inspection { facts: collected.facts, cluster, vcenters: collected.sessions })
}
