//! Start, leader election and shutdown of the process.

use std::{collections::BTreeMap, ffi::OsString, io::Write as _, path::PathBuf, time::Duration};

use cloud_controller::{
    configuration::{Configuration, ConfigurationError},
    controller::{Controller, Options, Probes},
    events::Events,
    explain,
    identity::{self, Match},
    metrics::Metrics,
    nodes::{LabelFilter, Nodes},
    pooled_vcenter::{SharedSettings, Signal},
    settings::Settings,
    vcenter_pool::{PoolSupervisor, VcenterPool},
    zones::Categories,
};
use runtime::{
    build::BuildInfo,
    checks::{Check, Checks},
    configuration::{Followed, Reading},
    kubernetes::{self, ClusterOptions},
    lease::{self, Contender, Leadership, Mandate, Terms},
    process::shutdown_on_signal,
    server::{self, Server, ServerState},
    tasks::Tasks,
};
use snafu::{OptionExt as _, ResultExt as _, Snafu};
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;
use vsphere::{Limits, LoginPace};

const SHUTDOWN_GRACE: Duration = Duration::from_secs(20);
/// How often the configuration and its CA files are read and the probes are updated.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest healthy sync: a few API server requests and vCenter queries.
const MAX_SYNC: Duration = kubernetes::LONGEST_REQUEST.saturating_mul(4);
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Snafu)]
pub(crate) enum Error {
    #[snafu(display("the configuration cannot be used"))]
    Configuration { source: ConfigurationError },
    #[snafu(display("cannot connect to the cluster"))]
    Cluster { source: kubernetes::Error },
    #[snafu(display("cannot receive signals"))]
    Signals { source: std::io::Error },
    #[snafu(display("cannot serve probes and metrics"))]
    Serve { source: server::Error },
    #[snafu(display("cannot elect a leader"))]
    Election { source: lease::Error },
    #[snafu(display("{}", lease::LEADERSHIP_LOST))]
    LeadershipLost,
    #[snafu(display("a task of the process ended"))]
    Ended { source: runtime::tasks::Ended },
    #[snafu(display("cannot read the node {name}"))]
    Node { name: String, source: kube::Error },
    #[snafu(display("the node {name} does not exist"))]
    NoSuchNode { name: String },
}

pub(crate) async fn run(settings: Settings, build: BuildInfo) -> Result<(), Error> {
    if !settings.ignored_flags.is_empty() {
        let flags = settings.ignored_flags.join(", ");
        tracing::warn!(flags, "ignoring flags without effect");
    }
    let stop = shutdown_on_signal(SHUTDOWN_GRACE).context(SignalsSnafu)?;
    // All variables that the controller uses are valid Unicode.
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let environment: BTreeMap<String, String> = std::env::vars_os().filter_map(text).collect();
    let source = ConfigurationSource { path: settings.flags.cloud_config.clone(), environment };
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
    let progress = live.watchdog("progress", MAX_SYNC);
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
        Election::Stopped => return Ok(()),
        Election::Alone => None,
        Election::Leading(leadership) => Some(leadership),
    };
    let lost =
        leadership.as_ref().map_or_else(CancellationToken::new, |leadership| leadership.token());
    let mandate = leadership.as_ref().map_or_else(Mandate::unlimited, |l| l.mandate());
    let nodes = ready.register("nodes", "not all nodes are listed yet");
    let probes = Probes { nodes, progress };
    let work = LeaderTasks { settings, client, metrics, vcenters, probes, source, build, mandate };
    let outcome = work.run(configuration, &mut tasks, &stop, &lost).await;
    if let Some(leadership) = leadership
        && !lost.is_cancelled()
    {
        leadership.release().await;
    }
    outcome
}

enum Election {
    Leading(Box<Leadership>),
    Alone,
    Stopped,
}

async fn lead(
    settings: &Settings,
    client: &kube::Client,
    ready: &Checks,
    stop: &CancellationToken,
) -> Result<Election, Error> {
    let flags = &settings.flags;
    if !flags.leader_elect {
        return Ok(Election::Alone);
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
    Ok(leading.map_or(Election::Stopped, |leadership| Election::Leading(Box::new(leadership))))
}

#[derive(Clone)]
struct ConfigurationSource {
    path: Option<PathBuf>,
    environment: BTreeMap<String, String>,
}

impl ConfigurationSource {
    fn load(&self) -> Result<Configuration, ConfigurationError> {
        Configuration::load(self.path.as_deref(), &self.environment)
    }
}

struct LeaderTasks {
    settings: Settings,
    client: kube::Client,
    metrics: Metrics,
    vcenters: Check,
    probes: Probes,
    source: ConfigurationSource,
    build: BuildInfo,
    mandate: Mandate,
}

impl LeaderTasks {
    async fn run(
        self,
        configuration: Configuration,
        tasks: &mut Tasks,
        stop: &CancellationToken,
        lost: &CancellationToken,
    ) -> Result<(), Error> {
        let (signals, signal_receiver) = mpsc::unbounded_channel();
        let shared = shared(&self.settings, &self.client, &self.metrics, self.build, signals);
        let pool = VcenterPool::default();
        let mut supervisor = PoolSupervisor::new(pool.clone());
        let (events, sending) = Events::new(self.client.clone(), self.mandate.clone());
        let label_filter = LabelFilter::with(self.settings.extra_labels.keys());
        let nodes = Nodes::new(self.client.clone(), label_filter, self.mandate.clone());
        let options = options(&self.settings);
        let controller =
            Controller::new(nodes, pool.clone(), events, self.metrics.clone(), options);
        let controller = controller.with_probes(self.probes.clone());
        // Stops all writes before anything else ends.
        let writing = lost.child_token();
        tasks.spawn("events", sending);
        let work = writing.clone();
        tasks.spawn("controller", async move {
            controller.run(signal_receiver, work.clone()).await;
            // After a stop, the process is about to end.
            if work.is_cancelled() {
                std::future::pending::<()>().await;
            }
        });
        let following = self.watch_configuration(configuration, &mut supervisor, &pool, &shared);
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = lost.cancelled() => LeadershipLostSnafu.fail(),
            outcome = tasks.first_to_end() => outcome.map_or(Ok(()), |outcome| Err(Error::Ended { source: outcome })),
            never = following => match never {},
        };
        writing.cancel();
        supervisor.stop().await;
        outcome
    }

    /// Applies the configuration and every later version of it.
    async fn watch_configuration(
        &self,
        first: Configuration,
        supervisor: &mut PoolSupervisor,
        pool: &VcenterPool,
        shared: &SharedSettings,
    ) -> std::convert::Infallible {
        let apply = |supervisor: &mut PoolSupervisor, configuration: Configuration| {
            let categories = configuration.categories.clone();
            supervisor.apply(configuration, &SharedSettings { categories, ..shared.clone() });
            let _ = shared.signals.send(Signal::Resync);
        };
        let mut followed = Followed::new(first.clone());
        apply(supervisor, first);
        self.metrics.configuration_current.set(1);
        loop {
            sleep(POLL_INTERVAL).await;
            self.report(pool);
            let reading = followed.read(self.source.load());
            if let Reading::Unusable(error) = reading {
                self.metrics.configuration_current.set(0);
                pool.set_configuration_problem(Some(error));
                continue;
            }
            self.metrics.configuration_current.set(1);
            if let Reading::Changed { now, .. } = reading {
                apply(supervisor, now);
            }
            // Only now: additional vCenters are in the pool from here on.
            pool.set_configuration_problem(None);
        }
    }

    fn report(&self, pool: &VcenterPool) {
        for pooled in pool.pooled_vcenters() {
            self.metrics.count_sessions(pooled.name(), pooled.sessions());
        }
        self.vcenters.pass_without(&pool.problems());
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
        host_labels: settings.flags.host_labels,
    }
}

fn shared(
    settings: &Settings,
    client: &kube::Client,
    metrics: &Metrics,
    build: BuildInfo,
    signals: mpsc::UnboundedSender<Signal>,
) -> SharedSettings {
    let longest_pause = settings.flags.vcenter_retry_period.0;
    let usual = Limits::default();
    let call = settings.flags.vcenter_call_timeout.0.max(Duration::from_secs(1));
    let (connect, idle) = (usual.connect.min(call), usual.idle.min(call));
    // Reading tags keeps the REST session alive, so it needs no keep-alive in between.
    let tags = settings.tag_period() + Duration::from_secs(30);
    let rest_keep_alive = usual.rest_keep_alive.max(tags.min(Duration::from_secs(290)));
    SharedSettings {
        categories: Categories::default(),
        tag_period: settings.tag_period(),
        scope: settings.scope(),
        refresh_labels: settings.flags.refresh_labels,
        host_labels: settings.flags.host_labels,
        limits: Limits { longest_pause, rest_keep_alive, call, connect, idle, ..usual },
        logins: LoginPace::default(),
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
    let shared =
        SharedSettings { categories, ..shared(settings, &client, &metrics, build, signals) };
    let pool = VcenterPool::default();
    let mut supervisor = PoolSupervisor::new(pool.clone());
    supervisor.apply(configuration, &shared);
    let nodes = Nodes::new(client, LabelFilter::default(), Mandate::unlimited());
    let node =
        nodes.fetch(name).await.context(NodeSnafu { name })?.context(NoSuchNodeSnafu { name })?;
    let has_zones = || match identity::identify(&node, &pool).outcome {
        Match::Found(vm, _) => pool.zones(&vm).is_some(),
        _ => pool.pooled_vcenters().iter().all(|pooled| pooled.tags().is_some()),
    };
    let complete = async {
        while !pool.problems().is_empty() || !has_zones() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    // The explanation contains what is missing after the timeout.
    let _ = tokio::time::timeout(EXPLAIN_TIMEOUT, complete).await;
    let _ = write!(std::io::stdout(), "{}", explain::explain(&node, &pool));
    supervisor.stop().await;
    Ok(())
}
