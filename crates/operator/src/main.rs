//! `vdo`: the operator.

mod command;

use std::{
    collections::BTreeSet, io::ErrorKind, net::SocketAddr, path::PathBuf, process::ExitCode,
    sync::Arc, time::Duration,
};

use clap::Parser;
use jiff::SignedDuration;
use operator::{
    allowed_namespaces,
    engine::{Ended, Engine, FAILING},
    leadership::{Candidate, Leader},
    observe::{self, Timeouts},
    permissions,
    probes::{LIMIT, Probes},
    report::OperatorMetrics,
};
use runtime::{
    build::BuildInfo,
    checks::Checks,
    kubernetes::{self, ClusterOptions},
    lease::{self, Contender, LeaderFile, RESUME_AGAIN, Terms},
    metrics::Metrics,
    process,
    server::{LocalServer, Server, ServerState},
    tasks::Tasks,
    telemetry::{Format, Logs},
};
use tokio_util::sync::CancellationToken;
use vsphere::login_pace::REPEAT_AFTER;

use crate::command::Command;

const BUILD: BuildInfo = BuildInfo::new("vdo");

/// Installs, configures, checks and upgrades the vSphere drivers of a cluster.
#[derive(Debug, Parser)]
#[command(name = "vdo", version = runtime::build::VERSION)]
struct Arguments {
    /// A kubeconfig, instead of the pod's service account.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<std::path::PathBuf>,
    /// The namespace of the operator, of its records and of the objects that it follows.
    #[arg(long, env = "VDO_NAMESPACE", default_value = api::NAMESPACE)]
    namespace: String,
    /// The address that serves /metrics, /livez and /readyz.
    #[arg(long, env = "VDO_LISTEN", default_value = "127.0.0.1:8089")]
    listen: SocketAddr,
    /// A unix socket on which `vdo probe` and `vdo log-level` reach this process. With it, only the leader
    /// uses `listen`, as soon as the address is free.
    #[arg(long, env = "VDO_SOCKET", global = true)]
    socket: Option<PathBuf>,
    /// The number of seconds without progress after which a round counts as stalled and /livez fails.
    #[arg(long, env = "VDO_STALLED_AFTER", hide = true, default_value_t = LIMIT.as_secs())]
    stalled_after: u64,
    /// The number of seconds in which every round fails before a leader gives up its lease and ends, so that
    /// another instance can lead.
    #[arg(long, env = "VDO_FAILING_AFTER", hide = true, default_value_t = FAILING.as_secs())]
    failing_after: u64,
    /// The number of seconds that a process that resumed the lease of a crashed one leads before its own crash counts as
    /// the first one.
    #[arg(long, env = "VDO_RESUME_AGAIN", hide = true, default_value_t = RESUME_AGAIN.as_secs())]
    resume_again: u64,
    /// The number of seconds within which VDO repeats a login that vCenter refused because of the password.
    #[arg(long, env = "VDO_LOGIN_AGAIN", hide = true, default_value_t = REPEAT_AFTER.as_secs())]
    login_again: u64,
    /// The rollout timeout in seconds: VDO rolls back a driver release that does not become healthy within
    /// this time.
    #[arg(long = "patience", env = "VDO_PATIENCE", default_value_t = 900)]
    rollout_timeout: u32,
    /// The grace period in seconds before VDO reports nodes, attachments, claims and an unreachable vCenter.
    /// It only shortens the default grace period of each.
    #[arg(long, env = "VDO_GRACE")]
    grace: Option<u32>,
    /// VDO accepts a newer minor version of Kubernetes after no API server has answered with an older one for
    /// this many seconds. Set it to no less than the duration of a control plane upgrade.
    #[arg(long, env = "VDO_SETTLED", hide = true, default_value_t = 600)]
    settled: u32,
    /// The lease duration of the leader election in seconds. Another pod can lead this long after the node of
    /// the leader fails. A leader that crashes and restarts leads again at once.
    #[arg(long, env = "VDO_LEASE", default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..))]
    lease: u32,
    /// The namespaces in which VDO adopts drivers under any name. In `kube-system` and `vmware-system-csi` VDO
    /// adopts drivers only under names that it knows. `vdoctl deploy --driver-namespace` grants the permissions.
    #[arg(long = "driver-namespace", env = operator::install::DRIVER_NAMESPACES, value_delimiter = ',')]
    driver_namespaces: Vec<String>,
    /// The log filter: a level, or levels by module as in `info,vsphere=debug`.
    #[arg(long, env = "VDO_LOG", default_value = "info")]
    log: String,
    /// The format of a log line: `json` or `human`. The default is JSON, except on a terminal.
    #[arg(long, env = "VDO_LOG_FORMAT")]
    log_format: Option<Format>,
    #[command(flatten)]
    predecessor: PredecessorArguments,
    #[command(subcommand)]
    command: Option<Command>,
}

impl Arguments {
    /// The address that serves metrics.
    fn listen(&self) -> SocketAddr {
        self.predecessor.metrics_bind_address.unwrap_or(self.listen)
    }

    /// The file next to the socket in which a leader leaves its identity. It comes before the socket, which a
    /// second process in the pod would replace.
    fn leader_file(&self) -> Result<Option<LeaderFile>, Box<dyn std::error::Error>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        let path = socket.with_extension("leader");
        match LeaderFile::open(&path) {
            Ok(file) => {
                if let Some(leader) = file.crashed() {
                    tracing::warn!(leader, "the leader in this pod crashed: resuming its lease");
                }
                Ok(Some(file))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(format!("another vdo runs in this pod: it has locked {}", path.display())
                    .into())
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "after a crash, this pod waits until the lease expires");
                Ok(None)
            }
        }
    }
}

/// The arguments in the Deployment of the Go VDO, so that an admin can change only its image.
#[derive(Debug, clap::Args)]
struct PredecessorArguments {
    /// The address that serves /metrics, instead of `listen`.
    #[arg(long, hide = true, value_parser = address)]
    metrics_bind_address: Option<SocketAddr>,
    /// An additional address that serves /healthz and /readyz.
    #[arg(long, hide = true, value_parser = address)]
    health_probe_bind_address: Option<SocketAddr>,
    /// Ignored: the operator always elects a leader.
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

/// An address in the form that Go programs accept: without a host it means all interfaces.
fn address(text: &str) -> Result<SocketAddr, std::net::AddrParseError> {
    match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}").parse(),
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

/// Starts to serve metrics and probes. In a pod, the probes use the socket and only the leader opens the
/// port: two pods can share the network of one node, and only the leader has metrics.
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

/// Serves metrics on the port that only the leader opens.
async fn serve_as_leader(listen: SocketAddr, shown: ServerState, stop: CancellationToken) {
    let server = Server::bind_when_free(listen).await;
    tracing::info!(listen = %server.address(), "metrics are served");
    server.serve(shown, stop).await;
}

async fn run(arguments: &Arguments, logs: Logs) -> Result<(), Box<dyn std::error::Error>> {
    process::exit_on_panic();
    let stop = process::shutdown_on_signal(Duration::from_secs(20))?;
    let leader_file = arguments.leader_file()?.map(Arc::new);
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
    let given = arguments.driver_namespaces.iter().filter(|namespace| !namespace.is_empty());
    let open_namespaces: BTreeSet<String> = given.cloned().collect();
    let mut more_namespaces = open_namespaces.clone();
    // An adopted driver stays in its namespace, with or without the argument. If the operator cannot read the
    // records, it reports the missing permission below.
    let recorded = observe::recorded_namespaces(&client, &arguments.namespace).await;
    more_namespaces.extend(recorded.unwrap_or_default());
    // This runs before the election: a pod without permissions must not keep out a pod that has them.
    tokio::select! {
        () = permissions::wait(&client, &arguments.namespace, &more_namespaces, &probes.permissions) => {}
        () = stop.cancelled() => return Ok(()),
    }
    probes.permissions.pass();
    let lease = Duration::from_secs(arguments.lease.into());
    let terms =
        Terms { lease_duration: lease, renew_deadline: lease * 2 / 3, retry_period: lease / 8 };
    let namespace = &arguments.namespace;
    let identity = Contender::unique_identity();
    let crashed = leader_file.as_ref().and_then(|file| file.crashed());
    let candidate = Candidate { namespace, identity: &identity, crashed };
    let leader = tokio::select! {
        leader = Leader::elected(&client, candidate, terms, &probes, &operator_metrics) => leader?,
        () = stop.cancelled() => return Ok(()),
    };
    let probes = probes.for_leader();
    if let Some(file) = leader_file.clone() {
        let (again, stop) = (Duration::from_secs(arguments.resume_again), stop.clone());
        tasks.spawn("leader file", async move { file.keep(&identity, again, stop).await });
    }
    if arguments.socket.is_some() {
        tasks.spawn("server", serve_as_leader(arguments.listen(), shown, stop.clone()));
    }
    // The previous leader can have adopted a driver in another namespace.
    more_namespaces.extend(observe::recorded_namespaces(&client, &arguments.namespace).await?);
    allowed_namespaces::also(more_namespaces);
    // If this pod loses the lease or must stop, every writer ends first.
    let writing = CancellationToken::new();
    let rollout = SignedDuration::from_secs(arguments.rollout_timeout.into());
    let settled = SignedDuration::from_secs(arguments.settled.into());
    let timeouts = Timeouts { rollout, grace: arguments.grace, settled };
    let engine = Engine::start(client, namespace, timeouts, BUILD, operator_metrics).await?;
    let engine = engine.under(leader.mandate()).reconnecting(options, BUILD).probed(&probes);
    let engine = engine.failing_for(Duration::from_secs(arguments.failing_after));
    let engine = engine.adopting_in(open_namespaces);
    let engine = engine.repeating_refused_logins(Duration::from_secs(arguments.login_again));
    let mut engine = Box::pin(engine.run(writing.clone(), probes.rounds));
    let ended = tokio::select! {
        ended = &mut engine => ended,
        () = async { tokio::select! { () = stop.cancelled() => {}, () = leader.lost() => {} } } => {
            writing.cancel();
            engine.await
        }
    };
    // Another pod gets its turn, even if this one restarts first.
    if let Some(file) = &leader_file {
        file.clear();
    }
    if stop.is_cancelled() {
        leader.release().await;
        Ok(())
    } else if ended == Ended::Failing {
        // The kubelet delays the restart of a container that keeps ending. If the other pod fails too, the
        // leader changes at most once in this time.
        leader.release().await;
        let after = arguments.failing_after;
        Err(format!("every round failed for {after} seconds: another instance can lead").into())
    } else {
        Err(lease::LEADERSHIP_LOST.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_the_go_vdo_are_understood() {
        let arguments = [
            "manager",
            "--health-probe-bind-address=:8081",
            "--metrics-bind-address=127.0.0.1:8080",
            "--leader-elect",
            "-v=4",
            "--zap-devel",
        ];
        let read = Arguments::try_parse_from(arguments).unwrap().predecessor;
        assert_eq!(read.health_probe_bind_address, "[::]:8081".parse().ok());
        assert_eq!(read.metrics_bind_address, "127.0.0.1:8080".parse().ok());
        assert_eq!(read.leader_elect, Some(true));
    }
}
