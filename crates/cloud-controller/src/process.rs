//! How the process starts, leads and ends.

use std::{collections::BTreeMap, ffi::OsString, io::Write as _, path::PathBuf, time::Duration};

use cloud_controller::{
    configuration::{Configuration, ConfigurationError},
    controller::{Controller, Options, Probes},
    events::Events,
    explain,
    identity::{self, Match},
    metrics::Metrics,
    nodes::{Kept, Nodes},
    pooled_vcenter::{Common, Signal},
    settings::Settings,
    vcenter_pool::{PoolSupervisor, VcenterPool},
    zones::Categories,
};
use runtime::{
    build::BuildInfo,
    checks::{Check, Checks},
    error_chain::error_chain,
    kubernetes::{self, ClusterOptions},
    lease::{self, Contender, Leadership, Mandate, Terms},
    process::shutdown_on_signal,
    server::{self, Server, ServerState},
    tasks::Tasks,
};
use snafu::{OptionExt as _, ResultExt as _, Snafu};
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;
use vsphere::Limits;

/// How long the end may take.
const GRACE: Duration = Duration::from_secs(20);
/// How often the configuration, with the authorities it names, is looked at, and the probes are told.
const RHYTHM: Duration = Duration::from_secs(1);
/// How long a look at a node may take: it asks the API server a few times, and vCenters.
const LOOK: Duration = kubernetes::LONGEST_REQUEST.saturating_mul(4);
/// How long `--explain-node` waits for the vCenters.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why the process ends.
#[derive(Debug, Snafu)]
pub(crate) enum Error {
    #[snafu(display("the configuration cannot be used"))]
    Configuration { source: ConfigurationError },
    #[snafu(display("there is no way to the cluster"))]
    Cluster { source: kubernetes::Error },
    #[snafu(display("signals cannot be received"))]
    Signals { source: std::io::Error },
    #[snafu(display("probes and metrics cannot be served"))]
    Serve { source: server::Error },
    #[snafu(display("no leader can be elected"))]
    Election { source: lease::Error },
    #[snafu(display("the leadership was lost; another instance leads"))]
    LeadershipLost,
    #[snafu(display("a part of the process ended"))]
    Ended { source: runtime::tasks::Ended },
    #[snafu(display("the node {name} cannot be read"))]
    Node { name: String, source: kube::Error },
    #[snafu(display("there is no node {name}"))]
    NoSuchNode { name: String },
}

pub(crate) async fn run(settings: Settings, build: BuildInfo) -> Result<(), Error> {
    if !settings.without_meaning.is_empty() {
        let flags = settings.without_meaning.join(", ");
        tracing::warn!(flags, "flags that have no meaning for this controller are ignored");
    }
    let stop = shutdown_on_signal(GRACE).context(SignalsSnafu)?;
    // None of ours is anything but text.
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let environment: BTreeMap<String, String> = std::env::vars_os().filter_map(text).collect();
    let source = Source { path: settings.flags.cloud_config.clone(), environment };
    let configuration = source.load().context(ConfigurationSnafu)?;
    let cluster = ClusterOptions {
        kubeconfig: settings.flags.kubeconfig.clone(),
        ..ClusterOptions::default()
    };
    let client = kubernetes::client(&cluster, build).await.context(ClusterSnafu)?;
    let metrics = Metrics::default();
    if let Some(name) = settings.flags.explain_node.clone() {
        return explain_node(&name, &settings, configuration, client, metrics, build).await;
    }
    let mut tasks = Tasks::default();
    let (live, ready) = (Checks::default(), Checks::default());
    let progress = live.watchdog("progress", LOOK);
    let vcenters = ready.register("vcenters", "not the leader yet");
    vcenters.pass();
    if let Some(address) = settings.address() {
        let server = Server::bind(address).await.context(ServeSnafu)?;
        let registry = runtime::metrics::Metrics::new("", build);
        registry.register(|registry| metrics.register(registry));
        let shown = ServerState { build, live, ready: ready.clone(), metrics: registry };
        tasks.spawn("server", server.serve(shown, CancellationToken::new()));
    }
    tasks.spawn("memory", runtime::memory::return_free_memory());
    tracing::info!(build = %build, "starting");
    let leadership = match lead(&settings, &client, &ready, &stop).await? {
        Lead::Stopped => return Ok(()),
        Lead::Alone => None,
        Lead::Leading(leadership) => Some(leadership),
    };
    let lost =
        leadership.as_ref().map_or_else(CancellationToken::new, |leadership| leadership.token());
    let mandate = leadership.as_ref().map_or_else(Mandate::unlimited, |l| l.mandate());
    let nodes = ready.register("nodes", "not all nodes are known yet");
    let probes = Probes { nodes, progress };
    let work = Work { settings, client, metrics, vcenters, probes, source, build, mandate };
    let ended = work.run(configuration, &mut tasks, &stop, &lost).await;
    if let Some(leadership) = leadership
        && !lost.is_cancelled()
    {
        leadership.release().await;
    }
    ended
}

enum Lead {
    Leading(Box<Leadership>),
    Alone,
    Stopped,
}

async fn lead(
    settings: &Settings,
    client: &kube::Client,
    ready: &Checks,
    stop: &CancellationToken,
) -> Result<Lead, Error> {
    let flags = &settings.flags;
    if !flags.leader_elect {
        return Ok(Lead::Alone);
    }
    let terms = Terms {
        lease_duration: flags.leader_elect_lease_duration.0,
        renew_deadline: flags.leader_elect_renew_deadline.0,
        retry_period: flags.leader_elect_retry_period.0,
    };
    let contender = Contender::new(
        client.clone(),
        &flags.leader_elect_resource_namespace,
        &flags.leader_elect_resource_name,
        &Contender::unique_identity(),
        terms,
    )
    .context(ElectionSnafu)?
    .reporting_to(ready.register("lease", "the lease has not been read yet"));
    let leading = stop.run_until_cancelled(contender.lead()).await;
    Ok(leading.map_or(Lead::Stopped, |leadership| Lead::Leading(Box::new(leadership))))
}

/// Where the configuration is.
#[derive(Clone)]
struct Source {
    path: Option<PathBuf>,
    environment: BTreeMap<String, String>,
}

impl Source {
    fn load(&self) -> Result<Configuration, ConfigurationError> {
        Configuration::load(self.path.as_deref(), &self.environment)
    }
}

/// What is done while leading.
struct Work {
    settings: Settings,
    client: kube::Client,
    metrics: Metrics,
    vcenters: Check,
    probes: Probes,
    source: Source,
    build: BuildInfo,
    mandate: Mandate,
}

impl Work {
    async fn run(
        self,
        configuration: Configuration,
        tasks: &mut Tasks,
        stop: &CancellationToken,
        lost: &CancellationToken,
    ) -> Result<(), Error> {
        let (signals, heard) = mpsc::unbounded_channel();
        let common = common(&self.settings, &self.client, &self.metrics, self.build, signals);
        let pool = VcenterPool::default();
        let mut supervisor = PoolSupervisor::new(pool.clone());
        let (events, sending) = Events::new(self.client.clone(), self.mandate.clone());
        let kept = Kept::with(self.settings.extra_labels.keys());
        let nodes = Nodes::new(self.client.clone(), kept, self.mandate.clone());
        let options = options(&self.settings);
        let controller =
            Controller::new(nodes, pool.clone(), events, self.metrics.clone(), options);
        let controller = controller.probed(self.probes.clone());
        // Everything that writes stops with this, before anything else ends.
        let writing = lost.child_token();
        tasks.spawn("events", sending);
        let work = writing.clone();
        tasks.spawn("controller", async move {
            controller.run(heard, work.clone()).await;
            // Told to stop: the process is about to end.
            if work.is_cancelled() {
                std::future::pending::<()>().await;
            }
        });
        let following = self.follow_configuration(configuration, &mut supervisor, &pool, &common);
        let ended = tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = lost.cancelled() => LeadershipLostSnafu.fail(),
            ended = tasks.first_to_end() => ended.map_or(Ok(()), |ended| Err(Error::Ended { source: ended })),
            never = following => match never {},
        };
        writing.cancel();
        supervisor.stop().await;
        ended
    }

    /// Puts the configuration, and each that follows it, into service.
    async fn follow_configuration(
        &self,
        first: Configuration,
        supervisor: &mut PoolSupervisor,
        pool: &VcenterPool,
        common: &Common,
    ) -> std::convert::Infallible {
        let apply = |supervisor: &mut PoolSupervisor, configuration: Configuration| {
            let categories = configuration.categories.clone();
            supervisor.apply(configuration, &Common { categories, ..common.clone() });
            let _ = common.signals.send(Signal::Anything);
        };
        let mut current = first.clone();
        let mut complaint = String::new();
        apply(supervisor, first);
        self.metrics.configuration_current.set(1);
        loop {
            sleep(RHYTHM).await;
            self.report(pool);
            match self.source.load() {
                Ok(configuration) => {
                    complaint.clear();
                    self.metrics.configuration_current.set(1);
                    if configuration != current {
                        tracing::info!("the configuration changed");
                        current = configuration.clone();
                        apply(supervisor, configuration);
                    }
                    // Only now: what it names more is followed from here on.
                    pool.note_configuration(None);
                }
                Err(error) => {
                    self.metrics.configuration_current.set(0);
                    let now = error_chain(&error);
                    pool.note_configuration(Some(now.clone()));
                    if now != complaint {
                        tracing::error!(
                            error = now,
                            "the changed configuration cannot be used; the old one stays in use"
                        );
                        complaint = now;
                    }
                }
            }
        }
    }

    fn report(&self, pool: &VcenterPool) {
        let troubles = pool.troubles();
        for pooled in pool.pooled_vcenters() {
            self.metrics.count_sessions(pooled.name(), pooled.sessions());
        }
        if troubles.is_empty() {
            self.vcenters.pass();
        } else {
            let listed: Vec<String> =
                troubles.iter().map(|(name, why)| format!("{name}: {why}")).collect();
            self.vcenters.fail(listed.join("; "));
        }
    }
}

fn options(settings: &Settings) -> Options {
    let skip_deletion = std::env::var_os("SKIP_NODE_DELETION").is_some();
    Options {
        node_controller: settings.node_controller,
        lifecycle_controller: settings.lifecycle_controller,
        policy: settings.policy(skip_deletion),
        concurrency: settings.flags.concurrent_node_syncs,
        extra_labels: settings.extra_labels.clone(),
        require_zones: settings.flags.require_zones,
        refresh_labels: settings.flags.refresh_labels,
    }
}

fn common(
    settings: &Settings,
    client: &kube::Client,
    metrics: &Metrics,
    build: BuildInfo,
    signals: mpsc::UnboundedSender<Signal>,
) -> Common {
    let longest_pause = settings.flags.vcenter_retry_period.0;
    let usual = Limits::default();
    let call = settings.flags.vcenter_call_timeout.0.max(Duration::from_secs(1));
    let (connect, idle) = (usual.connect.min(call), usual.idle.min(call));
    // Reading tags keeps the REST session alive; it need not be touched in between.
    let tags = settings.tag_period() + Duration::from_secs(30);
    let rest_keep_alive = usual.rest_keep_alive.max(tags.min(Duration::from_secs(290)));
    Common {
        categories: Categories::default(),
        tag_period: settings.tag_period(),
        scope: settings.scope(),
        refresh_labels: settings.flags.refresh_labels,
        limits: Limits { longest_pause, rest_keep_alive, call, connect, idle, ..usual },
        user_agent: build.user_agent(),
        metrics: metrics.clone(),
        signals,
        kubernetes: client.clone(),
    }
}

async fn explain_node(
    name: &str,
    settings: &Settings,
    configuration: Configuration,
    client: kube::Client,
    metrics: Metrics,
    build: BuildInfo,
) -> Result<(), Error> {
    let (signals, _heard) = mpsc::unbounded_channel();
    let categories = configuration.categories.clone();
    let common = Common { categories, ..common(settings, &client, &metrics, build, signals) };
    let pool = VcenterPool::default();
    let mut supervisor = PoolSupervisor::new(pool.clone());
    supervisor.apply(configuration, &common);
    let nodes = Nodes::new(client, Kept::default(), Mandate::unlimited());
    let node =
        nodes.fetch(name).await.context(NodeSnafu { name })?.context(NoSuchNodeSnafu { name })?;
    let is_zoned = || match identity::identify(&node, &pool).outcome {
        Match::Found(vm, _) => pool.zones(&vm).is_some(),
        _ => pool.pooled_vcenters().iter().all(|pooled| pooled.tags().is_some()),
    };
    let known = async {
        while !pool.troubles().is_empty() || !is_zoned() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    // What is not known by then stands on the page.
    let _ = tokio::time::timeout(TIMEOUT, known).await;
    let _ = write!(std::io::stdout(), "{}", explain::page(&node, &pool));
    supervisor.stop().await;
    Ok(())
}
