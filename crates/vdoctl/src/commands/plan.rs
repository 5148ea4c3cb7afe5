//! `vdoctl plan`

use std::time::Duration;

use ::catalog::{
    Action, Catalog, Decision, Driver, Environment, Implementation, Policy, Release, Request,
    Rewrite, Vcenter, choose,
    manifest::images_to_mirror,
    version::{KubernetesVersion, VsphereVersion},
};
use clap::Args;
use jiff::Timestamp;
use operator::one_shot;
use plan::{DriverPlan, StepState, decide, facts::Facts};
use semver::Version;
use serde_json::{Value, json};

use crate::{
    BUILD,
    cluster::Cluster,
    failure::{Failure, Outcome},
    findings,
    options::{Global, OutputFormat},
    progress::ProgressStep,
    screen::Screen,
    text::{BUSY, CARE, DIM, GOOD, STRONG, count, paint, wrap},
};

/// Show what VDO plans to install or upgrade, and why.
///
/// vdoctl uses the same rules as the operator. With --kubernetes and --vsphere it needs no cluster.
#[derive(Args, Debug)]
pub(crate) struct Plan {
    /// Plan for a cluster of this Kubernetes version.
    #[arg(long, requires = "vsphere", value_name = "VERSION")]
    kubernetes: Option<KubernetesVersion>,
    /// Plan for vCenters of these versions, for example 8.0.3 or 7.0U3.
    #[arg(long, requires = "kubernetes", value_name = "VERSION", value_delimiter = ',')]
    vsphere: Vec<VsphereVersion>,
    /// The version of the oldest ESXi host. Some releases do not work with older hosts.
    #[arg(long, requires = "kubernetes", value_name = "VERSION")]
    hosts: Option<VsphereVersion>,
    /// The installed version of the cloud provider.
    #[arg(long, requires = "kubernetes", value_name = "VERSION")]
    cpi: Option<Version>,
    /// The installed version of the storage driver.
    #[arg(long, requires = "kubernetes", value_name = "VERSION")]
    csi: Option<Version>,
    /// List all rejected releases, not only newer ones.
    #[arg(long)]
    all: bool,
    /// The output format.
    #[arg(long, short, value_enum)]
    output: Option<OutputFormat>,
}

/// Rejected releases that are listed without `--all`.
const LISTED: usize = 3;

/// The plan for one driver.
pub(crate) struct Choice {
    driver: Driver,
    installed: Option<String>,
    target: Option<String>,
    decision: Option<Decision>,
    held: Option<String>,
    steps: Vec<(String, bool)>,
    images: Vec<String>,
}

impl Plan {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        if let Some(kubernetes) = self.kubernetes {
            let choices = self.offline(kubernetes);
            return self.show(&choices, None, screen);
        }
        let facts = facts(global, screen).await?;
        let plan = decide(&facts);
        let choices: Vec<Choice> =
            plan.drivers.iter().map(|driver| planned_choice(&facts.catalog, driver)).collect();
        self.show(&choices, Some((&facts, &plan.findings)), screen)
    }

    fn offline(&self, kubernetes: KubernetesVersion) -> Vec<Choice> {
        let vcenter = |(number, version): (usize, &VsphereVersion)| Vcenter {
            name: if self.vsphere.len() == 1 {
                "vCenter".into()
            } else {
                format!("vCenter {}", number + 1)
            },
            version: *version,
            oldest_host: self.hosts,
        };
        let seen = Environment {
            kubernetes,
            vcenters: self.vsphere.iter().enumerate().map(vcenter).collect(),
            distribution: "vanilla".into(),
            windows_nodes: false,
            topology: false,
            rewrite: Rewrite::default(),
            today: Some(Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date()),
        };
        let catalog = ::catalog::embedded();
        let parts = [(Driver::Cpi, &self.cpi), (Driver::Csi, &self.csi)];
        let decided = parts.into_iter().map(|(driver, installed)| {
            let request = Request {
                implementation: Implementation::Upstream,
                policy: Policy::Stable,
                installed: installed.clone(),
            };
            let decision = choose(catalog, &seen, driver, &request);
            let target = decision.action.version().map(ToString::to_string);
            Choice {
                driver,
                installed: installed.as_ref().map(ToString::to_string),
                images: images(catalog, driver, target.as_deref()),
                target,
                decision: Some(decision),
                held: None,
                steps: Vec::new(),
            }
        });
        decided.collect()
    }

    fn show(
        &self,
        choices: &[Choice],
        seen: Option<(&Facts, &[api::Finding])>,
        screen: &Screen,
    ) -> Outcome {
        if let Some(form) = self.output {
            let drivers: Vec<Value> = choices.iter().map(Choice::as_value).collect();
            let mut all = json!({"drivers": drivers});
            if let Some((_, findings)) = seen {
                all["findings"] = json!(findings);
            }
            return screen.print(&super::formatted(form, &all)?);
        }
        let mut text = String::new();
        for choice in choices {
            text.push_str(&choice.render(self.all, screen.width));
            text.push('\n');
        }
        if choices.is_empty() {
            text.push_str("The VDOConfig asks for no driver.\n\n");
        }
        if let Some((facts, findings)) = seen
            && !findings.is_empty()
        {
            text.push_str(&findings::render(findings, screen.width, facts.now));
            text.push('\n');
        }
        screen.print(text.trim_end_matches('\n'))
    }
}

/// The facts on which the operator decides, read with the user's permissions.
pub(crate) async fn facts(global: &Global, screen: &Screen) -> Outcome<Facts> {
    let cluster = Cluster::connect(global).await?;
    // Fails early without VDO or without a VDOConfig.
    cluster.config().await?;
    let step = ProgressStep::begin(screen, "Look at the cluster and its vCenters");
    let observation =
        one_shot::observe_once(&cluster.client, &cluster.namespace, BUILD, Duration::from_mins(1));
    let seen = Box::pin(observation).await;
    match seen {
        Ok(seen) => {
            step.done("");
            seen.facts.ok_or(Failure::NotConfigured)
        }
        Err(error) => {
            step.failed("");
            Err(observed(error))
        }
    }
}

pub(crate) fn observed(error: one_shot::Error) -> Failure {
    match error {
        one_shot::Error::Cluster { source } => {
            Failure::Api { doing: "looking at the cluster".into(), source }
        }
        one_shot::Error::Kind { kind, source } => {
            Failure::Api { doing: format!("reading {kind}"), source }
        }
        other @ one_shot::Error::Slow { .. } => Failure::Other {
            text: "the cluster does not respond in time".into(),
            source: other.into(),
        },
    }
}

fn planned_choice(catalog: &Catalog, driver: &DriverPlan) -> Choice {
    let done = |step: &plan::PlannedStep| (step.title.clone(), step.state == StepState::Done);
    Choice {
        driver: driver.driver,
        installed: driver.installed.clone(),
        target: driver.target.clone(),
        decision: driver.decision.clone(),
        held: driver.held.clone(),
        steps: driver.steps.iter().map(done).collect(),
        images: images(catalog, driver.driver, driver.target.as_deref()),
    }
}

pub(crate) fn images(catalog: &Catalog, driver: Driver, version: Option<&str>) -> Vec<String> {
    let version = version.and_then(|version| Version::parse(version).ok());
    let found =
        |release: &&Release| release.driver == driver && Some(&release.version) == version.as_ref();
    let release = catalog.releases.iter().find(found);
    release.map(images_to_mirror).into_iter().flatten().map(|image| image.to_string()).collect()
}

impl Choice {
    fn as_value(&self) -> Value {
        let others = self.decision.iter().flat_map(|decision| &decision.others);
        let others =
            others.map(|(version, why)| json!({"version": version, "why": why.to_string()}));
        let notices = self.decision.iter().flat_map(|decision| &decision.notices);
        json!({
            "driver": self.driver,
            "installed": self.installed,
            "target": self.target,
            "waitsFor": self.held,
            "notices": notices.map(ToString::to_string).collect::<Vec<_>>(),
            "rejected": others.collect::<Vec<_>>(),
            "images": self.images,
        })
    }

    fn render(&self, all: bool, width: usize) -> String {
        let name = name(self.driver);
        let (word, style) = match (&self.installed, &self.target) {
            (None, Some(target)) => (format!("install {target}"), BUSY),
            (Some(from), Some(to)) if from != to => (format!("{from} → {to}"), BUSY),
            (Some(from), _) => (format!("keep {from}"), GOOD),
            (None, None) => ("nothing fits".to_owned(), CARE),
        };
        let mut text =
            format!("{}{}\n", paint(STRONG, &format!("{name:<16}")), paint(style, &word));
        if let Some(held) = &self.held {
            text.push_str(&wrap("  waits   ", held, width));
        }
        if let Some(decision) = &self.decision {
            text.push_str(&Self::reasons(decision, all, width));
        }
        let open: Vec<&(String, bool)> = self.steps.iter().filter(|(_, done)| !done).collect();
        for (number, (title, _)) in open.into_iter().enumerate() {
            text.push_str(&wrap(&format!("  {}       ", number + 1), title, width));
        }
        if !self.images.is_empty() {
            let line = format!("{} (vdoctl images)", count(self.images.len(), "image"));
            text.push_str(&wrap("  needs   ", &line, width));
        }
        text
    }

    fn reasons(decision: &Decision, all: bool, width: usize) -> String {
        let mut text = String::new();
        if let Some(standstill) = &decision.standstill {
            text.push_str(&wrap("  why     ", &standstill.to_string(), width));
        }
        if let Action::Change(path) = &decision.action {
            for hop in &path.hops {
                for step in &hop.before {
                    text.push_str(&wrap("  before  ", &step.text, width));
                }
                text.push_str(&wrap("  to      ", &hop.to.to_string(), width));
                for step in &hop.after {
                    text.push_str(&wrap("  after   ", &step.text, width));
                }
            }
        }
        for notice in &decision.notices {
            text.push_str(&wrap(
                &format!("  {}    ", paint(CARE, "mind")),
                &notice.to_string(),
                width,
            ));
        }
        let runs = decision.action.version();
        // The newest releases are enough: the same reasons apply to older ones.
        let newer = |version: &Version| runs.is_none_or(|runs| version > runs);
        let newer = decision.others.iter().filter(|(version, _)| newer(version)).count();
        let shown = if all { decision.others.len() } else { newer.min(LISTED) };
        for (version, why) in decision.others.iter().take(shown) {
            let begin = paint(DIM, &format!("  not {:<8}", version.to_string()));
            text.push_str(&wrap(&format!("{begin}  "), &why.to_string(), width));
        }
        let hidden = decision.others.len() - shown;
        if hidden > 0 {
            let line = format!("and {hidden} more: use --all");
            text.push_str(&wrap(&paint(DIM, "  not     "), &line, width));
        }
        text
    }
}

pub(crate) fn name(driver: Driver) -> &'static str {
    match driver {
        Driver::Cpi => "Cloud provider",
        Driver::Csi => "Storage",
    }
}
