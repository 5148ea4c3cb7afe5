//! `vdoctl status`: how things are, on one screen.

mod view;

use std::{collections::BTreeMap, time::Duration};

use api::{
    VDOConfig, VsphereCloudConfig,
    vdo_config::{Health, StepState},
};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::{
    arguments::{Form, Global},
    cluster::Cluster,
    exit::Exit,
    failure::{Doing as _, Failure, Outcome},
    progress::{PACE, Step},
    screen::Screen,
};

/// Show how things are: one word first, then drivers, vCenters and what is wrong.
///
/// The exit code tells the same: 0 healthy, 3 degraded, 4 progressing, 5 not installed or not
/// configured.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Keep looking until Ctrl-C.
    #[arg(long, short, conflicts_with = "wait")]
    watch: bool,
    /// Wait until all is healthy, showing each step.
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    /// A form for programs, or more for people.
    #[arg(long, short, value_enum)]
    output: Option<Output>,
}

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Json,
    Yaml,
    Wide,
}

/// Everything the screen is made from.
#[derive(Debug, Serialize)]
pub(crate) struct Overview {
    /// The one word.
    pub(crate) health: Health,
    /// The cluster's name in the kubeconfig.
    pub(crate) cluster: Option<String>,
    /// The operator.
    pub(crate) operator: Operator,
    /// The object that is followed.
    pub(crate) config: VDOConfig,
    /// The vCenters it names.
    pub(crate) vcenters: Vec<VsphereCloudConfig>,
    #[serde(skip)]
    pub(crate) now: Timestamp,
}

/// The operator's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Operator {
    /// Its image.
    pub(crate) image: Option<String>,
    /// Pods that run.
    pub(crate) available: i32,
    /// Pods there should be.
    pub(crate) wanted: i32,
}

impl Overview {
    /// Three small questions to the API server, whatever the size of the cluster.
    pub(crate) async fn look(cluster: &Cluster) -> Outcome<Self> {
        let deployments = Api::<Deployment>::namespaced(cluster.client.clone(), &cluster.namespace);
        let (config, vcenters, deployment) = tokio::join!(
            cluster.config(),
            cluster.all::<VsphereCloudConfig>("VsphereCloudConfigs"),
            deployments.get_opt("vdo"),
        );
        let (mut config, mut vcenters) = (config?, vcenters?);
        config.metadata.managed_fields = None;
        for vcenter in &mut vcenters {
            vcenter.metadata.managed_fields = None;
        }
        let home = config.namespace();
        vcenters.retain(|vcenter| vcenter.namespace() == home);
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
        let health = status.verdict(config.metadata.generation);
        let cluster = cluster.name.clone();
        Ok(Self { health, cluster, operator, config, vcenters, now: Timestamp::now() })
    }

    /// What the process ends with.
    pub(crate) fn judged(&self) -> Outcome {
        let exit = match self.health {
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
            Overview::look(&cluster).await?
        };
        screen.print(&self.shown(&overview, screen)?)?;
        overview.judged()
    }

    fn shown(&self, overview: &Overview, screen: &Screen) -> Outcome<String> {
        match self.output {
            Some(Output::Json) => super::formatted(Form::Json, overview),
            Some(Output::Yaml) => super::formatted(Form::Yaml, overview),
            wide => Ok(view::render(overview, wide.is_some(), screen.width)),
        }
    }

    /// Shows the screen anew whenever something on it changed.
    async fn follow(&self, cluster: &Cluster, screen: &Screen) -> Outcome {
        let mut before = String::new();
        loop {
            let shown = match Overview::look(cluster).await {
                Ok(overview) => self.shown(&overview, screen)?,
                Err(failure @ (Failure::Api { .. } | Failure::NotConfigured)) => {
                    format!("{failure}; looking again\n")
                }
                Err(failure) => return Err(failure),
            };
            if shown != before {
                let clear = if screen.animated { "\x1b[2J\x1b[H" } else { "" };
                screen.print(&format!("{clear}{shown}"))?;
                before = shown;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Waits until all is healthy, showing each step of the operator's plan as it is done. What is wrong
/// may pass: only time ends the wait.
pub(crate) async fn wait(
    cluster: &Cluster,
    screen: &Screen,
    within: Duration,
) -> Outcome<Overview> {
    let end = Instant::now() + within;
    let mut shown = BTreeMap::new();
    let mut step = Step::begin(screen, "Become healthy");
    loop {
        let overview = match Overview::look(cluster).await {
            // The API server may restart meanwhile.
            Err(Failure::Api { .. }) if Instant::now() < end => {
                step.waits("the API server does not answer");
                sleep(PACE).await;
                continue;
            }
            other => other?,
        };
        let status = overview.config.status.clone().unwrap_or_default();
        for done in status.plan.iter().flat_map(|plan| &plan.steps) {
            let is_new = shown.insert(done.title.clone(), done.state) != Some(done.state);
            if is_new && done.state == StepState::Done {
                step.done("");
                step = Step::begin(screen, done.title.clone());
            }
        }
        if overview.health == Health::Healthy {
            step.done("");
            return Ok(overview);
        }
        if Instant::now() > end {
            step.failed(&format!("not healthy within {} s", within.as_secs()));
            return Ok(overview);
        }
        step.waits(&view::sentence(&overview));
        sleep(PACE).await;
    }
}
