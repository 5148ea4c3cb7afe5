//! `vdo`: the operator.

mod command;

use std::{
    collections::BTreeSet, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration,
};

use clap::Parser;
use jiff::SignedDuration;
use operator::{
    allowed_namespaces,
    engine::Engine,
    leadership::Leader,
    observe::{self, Timeouts},
    probes::{LIMIT, Probes},
    report::OperatorMetrics,
    rights,
};
use runtime::{
    build::BuildInfo,
    checks::Checks,
    kubernetes::{self, ClusterOptions},
    lease::Terms,
    metrics::Metrics,
    process,
    server::{LocalServer, Server, ServerState},
    tasks::Tasks,
    telemetry::{Format, Logs},
};
use tokio_util::sync::CancellationToken;

use crate::command::Command;

const BUILD: BuildInfo = BuildInfo::new("vdo");

/// Installs, configures, checks and upgrades the vSphere drivers of a cluster.
#[derive(Debug, Parser)]
#[command(name = "vdo", version = runtime::build::VERSION)]
struct Arguments {
    /// A kubeconfig, instead of the pod's service account.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<std::path::PathBuf>,
    /// The namespace the operator runs in: its records are there, and the objects it follows.
    #[arg(long, env = "VDO_NAMESPACE", default_value = api::NAMESPACE)]
    namespace: String,
    /// Where /metrics, /livez and /readyz are served.
    #[arg(long, env = "VDO_LISTEN", default_value = "127.0.0.1:8089")]
    listen: SocketAddr,
    /// A unix socket on which `vdo probe` and `vdo log-level` reach this process. With it, only the leader
    /// uses `listen`, as soon as the address is free.
    #[arg(long, env = "VDO_SOCKET", global = true)]
    socket: Option<PathBuf>,
    /// After how many seconds without progress a round counts as stalled, and /livez fails.
    #[arg(long, env = "VDO_STALLED_AFTER", hide = true, default_value_t = LIMIT.as_secs())]
    stalled_after: u64,
    /// How long a new driver release may take to become healthy, in seconds, before the one before it
    /// is put back.
    #[arg(long = "patience", env = "VDO_PATIENCE", default_value_t = 900)]
    timeouts: u32,
    /// How many seconds nodes, attachments, claims and an unreachable vCenter have before VDO reports
    /// them, if that is to be less than the usual grace period of each.
    #[arg(long, env = "VDO_GRACE")]
    grace: Option<u32>,
    /// For how many seconds no API server may have answered with an older minor of Kubernetes before a
    /// newer one counts. Less than the upgrade of a control plane takes is too little.
    #[arg(long, env = "VDO_SETTLED", hide = true, default_value_t = 600)]
    settled: u32,
    /// How long an instance that vanished is taken to lead, in seconds.
    #[arg(long, env = "VDO_LEASE", default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..))]
    lease: u32,
    /// Where drivers may be adopted under any name. In `kube-system` and `vmware-system-csi` they are
    /// adopted under names that VDO knows. `vdoctl deploy --driver-namespace` grants the permissions.
    #[arg(long = "driver-namespace", env = operator::install::DRIVER_NAMESPACES, value_delimiter = ',')]
    driver_namespaces: Vec<String>,
    /// What to log: a level, or levels by module as in `info,vsphere=debug`.
    #[arg(long, env = "VDO_LOG", default_value = "info")]
    log: String,
    /// How a log line looks: `json` or `human`. By default JSON unless on a terminal.
    #[arg(long, env = "VDO_LOG_FORMAT")]
    log_format: Option<Format>,
    #[command(flatten)]
    predecessor: PredecessorArguments,
    #[command(subcommand)]
    command: Option<Command>,
}

impl Arguments {
    /// Where metrics are served.
    fn listen(&self) -> SocketAddr {
        self.predecessor.metrics_bind_address.unwrap_or(self.listen)
    }
}

/// The arguments in the Deployment of the Go VDO, so that an admin can change only its image.
#[derive(Debug, clap::Args)]
struct PredecessorArguments {
    /// Where /metrics is served, instead of `listen`.
    #[arg(long, hide = true, value_parser = address)]
    metrics_bind_address: Option<SocketAddr>,
    /// Where /healthz and /readyz are served too.
    #[arg(long, hide = true, value_parser = address)]
    health_probe_bind_address: Option<SocketAddr>,
    /// There is always an election.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leader_elect: Option<bool>,
    /// Ignored: `log` sets the log level.
    #[arg(short = 'v', long = "v", hide = true)]
    verbosity: Option<String>,
    /// The same.
    #[arg(long, hide = true)]
    zap_log_level: Option<String>,
    /// The same.
    #[arg(long, hide = true)]
    zap_encoder: Option<String>,
    /// The same.
    #[arg(long, hide = true)]
    zap_stacktrace_level: Option<String>,
    /// The same.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    zap_devel: Option<bool>,
}

/// An address as Go programs take it: without a host it is every one.
fn address(text: &str) -> Result<SocketAddr, std::net::AddrParseError> {
    match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}").parse(),
        None => text.parse(),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(command) = &arguments.command {
        return command.run(arguments.socket.as_deref());
    }
    let format = arguments.log_format.unwrap_or_else(Format::by_terminal);
    let outcome = Logs::start(format, &arguments.log).map_err(Into::into).and_then(|logs| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(&arguments, logs))
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "vdo ends");
            ExitCode::FAILURE
        }
    }
}

/// Starts to serve metrics and probes. In a pod, where probes are asked on the socket, the port is left to
/// the leader: two pods may share the network of one node, and the metrics are the leader's.
async fn serve(
    arguments: &Arguments,
    shown: &ServerState,
    logs: Logs,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Result<(), runtime::server::Error> {
    let (listen, predecessor) = (arguments.listen(), &arguments.predecessor);
    if let Some(probed) = predecessor.health_probe_bind_address.filter(|probed| *probed != listen) {
        let server = Server::bind(probed).await?;
        tasks.spawn("probes", server.serve(shown.clone(), stop.clone()));
    }
    if let Some(socket) = &arguments.socket {
        let server = LocalServer::bind(socket)?;
        tracing::info!(build = %BUILD, socket = %socket.display(), "starting");
        tasks.spawn("socket", server.serve(shown.clone(), logs, stop.clone()));
    } else {
        let server = Server::bind(listen).await?;
        tracing::info!(build = %BUILD, listen = %server.address(), "starting");
        tasks.spawn("server", server.serve(shown.clone(), stop.clone()));
    }
    Ok(())
}

/// Serves metrics on the port that was left to the leader.
async fn serve_as_leader(listen: SocketAddr, shown: ServerState, stop: CancellationToken) {
    let server = Server::bind_when_free(listen).await;
    tracing::info!(listen = %server.address(), "metrics are served");
    server.serve(shown, stop).await;
}

async fn run(arguments: &Arguments, logs: Logs) -> Result<(), Box<dyn std::error::Error>> {
    process::exit_on_panic();
    let stop = process::shutdown_on_signal(Duration::from_secs(20))?;
    let (live, ready) = (Checks::default(), Checks::default());
    let probes = Probes::register(&live, &ready, Duration::from_secs(arguments.stalled_after));
    let metrics = Metrics::new("vdo", BUILD);
    let operator_metrics = OperatorMetrics::default();
    operator_metrics.register(&metrics);
    let mut tasks = Tasks::default();
    let shown = ServerState { build: BUILD, live, ready, metrics };
    serve(arguments, &shown, logs, &stop, &mut tasks).await?;
    tasks.spawn("memory", runtime::memory::return_free_memory());

    let options =
        ClusterOptions { kubeconfig: arguments.kubeconfig.clone(), ..ClusterOptions::default() };
    let client = kubernetes::client(&options, BUILD).await?;
    let said = arguments.driver_namespaces.iter().filter(|namespace| !namespace.is_empty());
    let mut more_namespaces: BTreeSet<String> = said.cloned().collect();
    allowed_namespaces::open(more_namespaces.clone());
    // An adopted driver stays in its namespace, with or without the argument. If the operator cannot read the
    // records, it reports the missing permission below.
    let recorded = observe::recorded_namespaces(&client, &arguments.namespace).await;
    more_namespaces.extend(recorded.unwrap_or_default());
    // Before there is a lease: one that may do nothing must not keep out one that may.
    tokio::select! {
        () = rights::wait(&client, &arguments.namespace, &more_namespaces, &probes.permissions) => {}
        () = stop.cancelled() => return Ok(()),
    }
    probes.permissions.pass();
    let lease = Duration::from_secs(arguments.lease.into());
    let terms =
        Terms { lease_duration: lease, renew_deadline: lease * 2 / 3, retry_period: lease / 8 };
    let namespace = &arguments.namespace;
    let leader = tokio::select! {
        leader = Leader::elected(&client, namespace, terms, &probes, &operator_metrics) => leader?,
        () = stop.cancelled() => return Ok(()),
    };
    let probes = probes.of_leader();
    if arguments.socket.is_some() {
        tasks.spawn("server", serve_as_leader(arguments.listen(), shown, stop.clone()));
    }
    // The leader before may have adopted one.
    more_namespaces.extend(observe::recorded_namespaces(&client, &arguments.namespace).await?);
    allowed_namespaces::also(more_namespaces);
    // Losing the lease or being asked to stop: either way every writer ends first.
    let writing = CancellationToken::new();
    let rollout = SignedDuration::from_secs(arguments.timeouts.into());
    let settled = SignedDuration::from_secs(arguments.settled.into());
    let timeouts = Timeouts { rollout, grace: arguments.grace, settled };
    let engine = Engine::start(client, namespace, timeouts, BUILD, operator_metrics).await?;
    let engine = engine.under(leader.mandate()).reconnecting(options, BUILD).probed(&probes);
    let mut engine = Box::pin(engine.run(writing.clone(), probes.rounds));
    tokio::select! {
        () = &mut engine => {}
        () = async { tokio::select! { () = stop.cancelled() => {}, () = leader.lost() => {} } } => {
            writing.cancel();
            engine.await;
        }
    }
    if stop.is_cancelled() {
        leader.release().await;
        Ok(())
    } else {
        Err("leadership was lost: another instance leads".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_go_vdos_deployment_says_is_understood() {
        let said = [
            "manager",
            "--health-probe-bind-address=:8081",
            "--metrics-bind-address=127.0.0.1:8080",
            "--leader-elect",
            "-v=4",
            "--zap-devel",
        ];
        let read = Arguments::try_parse_from(said).unwrap().predecessor;
        assert_eq!(read.health_probe_bind_address, "0.0.0.0:8081".parse().ok());
        assert_eq!(read.metrics_bind_address, "127.0.0.1:8080".parse().ok());
        assert_eq!(read.leader_elect, Some(true));
    }
}
