//! `vdo`: the operator.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Parser;
use jiff::SignedDuration;
use operator::{engine::Engine, report::OperatorMetrics};
use runtime::{
    build::BuildInfo,
    checks::Checks,
    kubernetes::{self, ClusterOptions},
    lease::{Contender, Terms},
    metrics::Metrics,
    process,
    server::{Server, Shown},
    tasks::Tasks,
    telemetry::{Format, Logs},
};

const BUILD: BuildInfo = BuildInfo::of("vdo");

/// Installs, configures, checks and upgrades the vSphere drivers of a cluster.
#[derive(Debug, Parser)]
#[command(name = "vdo", version = runtime::build::VERSION)]
struct Arguments {
    /// A kubeconfig, instead of the pod's service account.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<std::path::PathBuf>,
    /// The namespace the operator runs in; its lease and records are there.
    #[arg(long, env = "VDO_NAMESPACE", default_value = api::NAMESPACE)]
    namespace: String,
    /// Where /metrics, /livez and /readyz are served.
    #[arg(long, env = "VDO_LISTEN", default_value = "127.0.0.1:8089")]
    listen: SocketAddr,
    /// How long a new driver release may take to become healthy, in seconds, before the one before it
    /// is put back.
    #[arg(long, env = "VDO_PATIENCE", default_value_t = 900)]
    patience: u32,
    /// How long an instance that vanished is taken to lead, in seconds.
    #[arg(long, env = "VDO_LEASE", default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..))]
    lease: u32,
    /// What to log: a level, or levels by module as in `info,vsphere=debug`.
    #[arg(long, env = "VDO_LOG", default_value = "info")]
    log: String,
    /// How a log line looks: `json` or `human`. By default JSON unless on a terminal.
    #[arg(long, env = "VDO_LOG_FORMAT")]
    log_format: Option<Format>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let format = arguments.log_format.unwrap_or_else(Format::by_terminal);
    let outcome = match Logs::start(format, &arguments.log) {
        Ok(logs) => run(&arguments, logs).await,
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "vdo ends");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments, logs: Logs) -> Result<(), Box<dyn std::error::Error>> {
    process::exit_on_panic();
    let stop = process::shutdown_on_signal(Duration::from_secs(20))?;
    let server = Server::bind(arguments.listen).await?;
    tracing::info!(build = %BUILD, listen = %server.address(), "starting");

    let (live, ready) = (Checks::default(), Checks::default());
    let working = ready.register("rounds", "no round is finished yet");
    let metrics = Metrics::new("vdo", BUILD);
    let operator_metrics = OperatorMetrics::default();
    operator_metrics.register(&metrics);
    let mut tasks = Tasks::default();
    let shown = Shown { build: BUILD, live, ready, metrics, logs: Some(logs) };
    tasks.spawn("server", server.serve(shown, stop.clone()));

    let options = ClusterOptions { kubeconfig: arguments.kubeconfig.clone(), context: None };
    let client = kubernetes::client(&options, BUILD).await?;
    let identity = Contender::unique_identity();
    let lease = Duration::from_secs(arguments.lease.into());
    let terms =
        Terms { lease_duration: lease, renew_deadline: lease * 2 / 3, retry_period: lease / 8 };
    let contender = Contender::new(client.clone(), &arguments.namespace, "vdo", &identity, terms)?;
    let leadership = tokio::select! {
        leadership = contender.lead() => leadership,
        () = stop.cancelled() => return Ok(()),
    };
    // Losing the lease or being asked to stop: either way every writer ends first.
    let writing = leadership.token().child_token();
    let patience = SignedDuration::from_secs(arguments.patience.into());
    let namespace = &arguments.namespace;
    let engine = Engine::start(client, namespace, patience, BUILD, operator_metrics).await?;
    let mut engine = Box::pin(engine.run(writing.clone(), working));
    tokio::select! {
        () = &mut engine => {}
        () = stop.cancelled() => {
            writing.cancel();
            engine.await;
        }
    }
    if stop.is_cancelled() {
        leadership.release().await;
        Ok(())
    } else {
        Err("leadership was lost: another instance leads".into())
    }
}
