//! `vdoctl status`

mod view;

use std::{collections::BTreeMap, time::Duration};

use api::{
    VDOConfig, VsphereCloudConfig,
    vdo_config::{Health, PlanStep, StepState},
};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::{
    cluster::Cluster,
    exit::Exit,
    failure::{Doing as _, Failure, Outcome},
    findings,
    options::{Global, OutputFormat},
    progress::{PACE, ProgressStep},
    screen::Screen,
};

/// Show the health of VDO, its drivers and vCenters, and the findings.
///
/// The exit code is 0 if everything is healthy, 3 if degraded, 4 if in progress, and 5 if VDO is not installed
/// or not configured.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Update the screen until Ctrl-C.
    #[arg(long, short, conflicts_with = "wait")]
    watch: bool,
    /// Wait until everything is healthy, and show each step.
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    /// The output format.
    #[arg(long, short, value_enum)]
    output: Option<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Json,
    Yaml,
    Wide,
}

#[derive(Debug, Serialize)]
pub(crate) struct Overview {
    pub(crate) health: Health,
    /// The cluster's name in the kubeconfig.
    pub(crate) cluster: Option<String>,
    pub(crate) operator: Operator,
    /// The VDOConfig that the operator follows.
    pub(crate) config: VDOConfig,
    pub(crate) vcenters: Vec<VsphereCloudConfig>,
    #[serde(skip)]
    pub(crate) now: Timestamp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Operator {
    pub(crate) image: Option<String>,
    pub(crate) available: i32,
    pub(crate) wanted: i32,
}

impl Operator {
    pub(crate) fn is_installed(&self) -> bool {
        self.image.is_some()
    }

    /// Without a running operator, the health is unknown.
    fn qualify(&self, verdict: Health) -> Health {
        match verdict {
            Health::Healthy | Health::Progressing if self.available == 0 => Health::Unknown,
            other => other,
        }
    }
}

impl Overview {
    /// Sends three small requests, for clusters of any size.
    pub(crate) async fn read(cluster: &Cluster) -> Outcome<Self> {
        let deployments = Api::<Deployment>::namespaced(cluster.client.clone(), &cluster.namespace);
        let (config, vcenters, deployment) = tokio::join!(
            cluster.config(),
            cluster.own::<VsphereCloudConfig>("VsphereCloudConfigs"),
            deployments.get_opt("vdo"),
        );
        let (mut config, mut vcenters) = (config?, vcenters?);
        config.metadata.managed_fields = None;
        for vcenter in &mut vcenters {
            vcenter.metadata.managed_fields = None;
        }
        vcenters.sort_by_key(kube::ResourceExt::name_any);
        let deployment = deployment.doing("reading the operator's Deployment")?;
        let operator = deployment.map_or_else(Operator::default, |deployment| {
            let spec = deployment.spec.unwrap_or_default();
            let containers = spec.template.spec.map(|pod| pod.containers).unwrap_or_default();
            Operator {
                wanted: spec.replicas.unwrap_or(1),
                image: containers.into_iter().next().and_then(|container| container.image),
                available: deployment.status.and_then(|s| s.available_replicas).unwrap_or(0),
            }
        });
        let status = config.status.clone().unwrap_or_default();
        let health = operator.qualify(status.verdict(config.metadata.generation));
        let cluster = cluster.name.clone();
        Ok(Self { health, cluster, operator, config, vcenters, now: Timestamp::now() })
    }

    pub(crate) fn running(&self, driver: ::catalog::Driver) -> Option<&str> {
        let status = self.config.status.as_ref()?;
        let part = match driver {
            ::catalog::Driver::Cpi => &status.cpi,
            ::catalog::Driver::Csi => &status.csi,
        };
        part.as_ref()?.version.as_deref()
    }

    pub(crate) fn steps(&self) -> &[PlanStep] {
        let plan = self.config.status.as_ref().and_then(|status| status.plan.as_ref());
        plan.map(|plan| plan.steps.as_slice()).unwrap_or_default()
    }

    pub(crate) fn findings(&self, width: usize) -> String {
        let findings = self.config.status.iter().flat_map(|status| &status.findings);
        findings::render(&findings.cloned().collect::<Vec<_>>(), width, self.now)
    }

    /// Fails with the exit code for the health.
    pub(crate) fn verdict(&self) -> Outcome {
        let exit = match self.health {
            _ if !self.operator.is_installed() => Exit::Absent,
            Health::Healthy => return Ok(()),
            Health::Degraded => Exit::Degraded,
            Health::Progressing | Health::Unknown => Exit::Progressing,
        };
        Err(Failure::Verdict { exit })
    }
}

impl Status {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let cluster = Cluster::connect(global).await?;
        if self.watch {
            return self.follow(&cluster, screen).await;
        }
        let overview = if self.wait {
            wait(&cluster, screen, Duration::from_secs(self.timeout)).await?
        } else {
            Overview::read(&cluster).await?
        };
        screen.print(&self.shown(&overview, screen)?)?;
        overview.verdict()
    }

    fn shown(&self, overview: &Overview, screen: &Screen) -> Outcome<String> {
        match self.output {
            Some(Output::Json) => super::formatted(OutputFormat::Json, overview),
            Some(Output::Yaml) => super::formatted(OutputFormat::Yaml, overview),
            wide => Ok(view::render(overview, wide.is_some(), screen.width)),
        }
    }

    /// Prints the screen again whenever it changes.
    async fn follow(&self, cluster: &Cluster, screen: &Screen) -> Outcome {
        let mut before = String::new();
        loop {
            let shown = match Overview::read(cluster).await {
                Ok(overview) => self.shown(&overview, screen)?,
                Err(
                    failure @ (Failure::Api { .. }
                    | Failure::NotConfigured
                    | Failure::ConfiguredElsewhere { .. }),
                ) => format!("{failure}; retrying\n"),
                Err(failure) => return Err(failure),
            };
            if shown != before {
                let clear = if screen.animated { "\x1b[2J\x1b[H" } else { "" };
                screen.print_while_read(&format!("{clear}{shown}"))?;
                before = shown;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Waits until everything is healthy, and shows each step of the operator's plan. Findings may be temporary, so only
/// the timeout or a missing operator ends the wait.
pub(crate) async fn wait(
    cluster: &Cluster,
    screen: &Screen,
    within: Duration,
) -> Outcome<Overview> {
    let is_over = |overview: &Overview| overview.health == Health::Healthy;
    wait_until(cluster, screen, within, None, is_over).await
}

/// Like [`wait`], but until `is_over`. Does not show steps that were done `before`.
pub(crate) async fn wait_until(
    cluster: &Cluster,
    screen: &Screen,
    within: Duration,
    before: Option<&Overview>,
    is_over: impl Fn(&Overview) -> bool,
) -> Outcome<Overview> {
    let end = Instant::now() + within;
    let mut steps = Steps::new(screen);
    if let Some(before) = before {
        steps.seen.extend(before.steps().iter().map(|step| (step.title.clone(), step.state)));
    }
    loop {
        let overview = match Box::pin(Overview::read(cluster)).await {
            // The API server may restart.
            Err(Failure::Api { .. }) if Instant::now() < end => {
                steps.now.waits("the API server does not answer");
                sleep(PACE).await;
                continue;
            }
            other => other?,
        };
        if is_over(&overview) {
            steps.end(&overview);
            return Ok(overview);
        }
        if !overview.operator.is_installed() {
            steps.now.failed("the operator is not installed; vdoctl deploy installs it");
            return Ok(overview);
        }
        if Instant::now() > end {
            steps.now.failed(&format!("not within {} s", within.as_secs()));
            return Ok(overview);
        }
        steps.show(&overview);
        sleep(PACE).await;
    }
}

struct Steps<'a> {
    screen: &'a Screen,
    seen: BTreeMap<String, StepState>,
    now: ProgressStep<'a>,
}

/// Shown while no step is running.
const WAIT: &str = "Wait for the operator";

impl<'a> Steps<'a> {
    fn new(screen: &'a Screen) -> Self {
        Self { screen, seen: BTreeMap::new(), now: ProgressStep::begin(screen, WAIT) }
    }

    fn show(&mut self, overview: &Overview) {
        let steps = overview.steps();
        for step in steps.iter().filter(|step| step.state == StepState::Done) {
            if self.seen.insert(step.title.clone(), step.state) != Some(step.state) {
                self.start(&step.title);
                self.finish("");
            }
        }
        for step in steps.iter().filter(|step| step.state != StepState::Done) {
            self.seen.insert(step.title.clone(), step.state);
        }
        let under_way = steps.iter().find(|step| step.state == StepState::Running);
        match under_way {
            Some(step) => {
                self.start(&step.title);
                self.now.waits(step.message.as_deref().unwrap_or_default());
            }
            None => self.now.waits(&view::sentence(overview)),
        }
    }

    fn start(&mut self, title: &str) {
        if self.now.title() != title {
            self.now.clear();
            self.now = ProgressStep::begin(self.screen, title);
        }
    }

    fn finish(&mut self, result: &str) {
        let next = ProgressStep::begin(self.screen, WAIT);
        std::mem::replace(&mut self.now, next).done(result);
    }

    fn end(mut self, overview: &Overview) {
        self.show(overview);
        self.now.clear();
        let last = ProgressStep::begin(self.screen, format!("{:?}", overview.health));
        match overview.health {
            Health::Healthy => last.done(""),
            _ => last.failed(""),
        }
    }
}
