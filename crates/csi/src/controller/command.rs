//! The command `vsphere-csi controller`: start, configuration and shutdown of the process.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use prometheus_client::metrics::info::Info;
use runtime::{
    build::BuildInfo,
    checks::{Check, Checks},
    configuration::{Followed, Reading},
    kubernetes::{self, ClusterOptions},
    process::shutdown_on_signal,
    server::{self as probes, Server, ServerState},
    tasks::Tasks,
};
use snafu::{ResultExt as _, Snafu};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use vsphere::LoginPace;

use super::{
    ControllerService, ControllerSettings,
    leader::{Leader, LeaderError},
};
use crate::{
    cluster_id::{self, ClusterIdError},
    configuration::{Configuration, ConfigurationError},
    identity::IdentityService,
    metrics::Metrics,
    node_set::NodeSet,
    node_topology, node_watch,
    proto::csi::{controller_server::ControllerServer, identity_server::IdentityServer},
    records::{self, KubernetesRecords},
    server::{self, Socket},
    vcenters::{Intervals, SharedSettings, Supervisor, Vcenters},
};

/// Operations in progress have this long to end after SIGTERM.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(25);
/// How often the configuration is read and the probes are updated.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The arguments of the controller. Upstream's environment variables are accepted.
#[derive(Clone, Debug, Args)]
pub struct ControllerArguments {
    /// The socket of the CSI services.
    #[arg(long, env = "CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    pub endpoint: String,

    /// The configuration, csi-vsphere.conf.
    #[arg(long, env = "VSPHERE_CSI_CONFIG", default_value = "/etc/cloud/csi-vsphere.conf")]
    pub config: PathBuf,

    /// The namespace of the driver and of its operation records.
    #[arg(long, env = "CSI_NAMESPACE", default_value = "vmware-system-csi")]
    pub namespace: String,

    /// Kubeconfig, if the driver does not run in a pod.
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// The address of probes and metrics.
    #[arg(long, env = "CSI_HTTP_ADDRESS", default_value = "[::]:2112")]
    pub http_address: SocketAddr,

    /// Serve only the CSI socket: the upstream sidecars do the work of the loops.
    #[arg(long, env = "CSI_SIDECARS")]
    pub sidecars: bool,
}

#[derive(Debug, Snafu)]
pub enum Error {
    #[snafu(display("the configuration cannot be used"))]
    Configuration { source: ConfigurationError },
    #[snafu(display("cannot connect to the cluster"))]
    Cluster { source: kubernetes::Error },
    #[snafu(display("cannot receive signals"))]
    Signals { source: std::io::Error },
    #[snafu(display("cannot serve probes and metrics"))]
    Probes { source: probes::Error },
    #[snafu(display("cannot serve the CSI socket"))]
    Socket { source: server::Error },
    #[snafu(display("cannot determine the id of the cluster"))]
    ClusterId { source: ClusterIdError },
    #[snafu(display("cannot create the custom resource definitions of the driver"))]
    Definitions {
        #[snafu(source(from(kube::Error, Box::new)))]
        source: Box<kube::Error>,
    },
    #[snafu(display("cannot do the work of the leader"))]
    Leader { source: LeaderError },
    #[snafu(display("a task of the process ended"))]
    Ended { source: runtime::tasks::Ended },
}

/// Runs the controller until a signal.
pub async fn run(arguments: ControllerArguments, build: BuildInfo) -> Result<(), Error> {
    let stop = shutdown_on_signal(SHUTDOWN_GRACE).context(SignalsSnafu)?;
    let configuration = Configuration::load(&arguments.config).context(ConfigurationSnafu)?;
    let cluster =
        ClusterOptions { kubeconfig: arguments.kubeconfig.clone(), ..ClusterOptions::default() };
    let client = kubernetes::client(&cluster, build).await.context(ClusterSnafu)?;
    let path = server::socket_path(&arguments.endpoint).context(SocketSnafu)?;
    let metrics = Metrics::default();
    let (live, ready) = (Checks::default(), Checks::default());
    let mut tasks = Tasks::default();
    let probes = Server::bind(arguments.http_address).await.context(ProbesSnafu)?;
    let registry = runtime::metrics::Metrics::new("", build);
    registry.register(|registry| {
        metrics.register(registry);
        let version = Info::new(vec![("version", build.version)]);
        registry.register("vsphere_csi", "The version of the driver", version);
    });
    let state = ServerState { build, live, ready: ready.clone(), metrics: registry };
    tasks.spawn("probes", probes.serve(state, CancellationToken::new()));
    tasks.spawn("memory", runtime::memory::return_free_memory());
    tracing::info!(build = %build, "starting");

    records::install_definition(&client).await.context(DefinitionsSnafu)?;
    node_topology::install_definition(&client).await.context(DefinitionsSnafu)?;
    let namespace = &arguments.namespace;
    let determined = cluster_id::determine(&client, namespace, &configuration.cluster_id);
    let cluster_id: Arc<str> = determined.await.context(ClusterIdSnafu)?.into();

    let vcenters = Vcenters::default();
    let mut supervisor = Supervisor::new(vcenters.clone());
    let shared = SharedSettings {
        cluster_id,
        distribution: configuration.distribution.as_str().into(),
        with_tags: !configuration.categories.is_empty(),
        user_agent: build.user_agent(),
        intervals: Intervals::default(),
        logins: LoginPace::default(),
        metrics: metrics.clone(),
    };
    supervisor.apply(&configuration.vcenters, &shared);

    let records = KubernetesRecords::new(client.clone(), namespace, metrics.clone());
    tasks.spawn("operation records", Arc::clone(&records).run());
    let nodes = NodeSet::default();
    tasks.spawn("nodes", node_watch::follow(client.clone(), nodes.clone()));
    let service = ControllerService::new(
        vcenters.clone(),
        Arc::clone(&records) as _,
        nodes,
        settings(&configuration),
        metrics.clone(),
    );
    let starting = ready.register("records", "the operation records are not read yet");
    stop.run_until_cancelled(records.ready()).await;
    starting.pass();

    let socket = Socket::bind(&path).context(SocketSnafu)?;
    let identity = IdentityService::new(build, Arc::new(|| Ok(())));
    let router = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(service.clone()));
    let serving = socket.serve(router, stop.clone());
    let leader = Leader {
        client,
        namespace: arguments.namespace.clone(),
        service: service.clone(),
        vcenters: vcenters.clone(),
        metrics: metrics.clone(),
        loops: !arguments.sidecars,
        topology: !configuration.categories.is_empty(),
    };
    let leading = Box::pin(leader.run(&ready, stop.clone()));
    let check = ready.register("vcenters", "not connected yet");
    let following = follow_configuration(
        &arguments,
        configuration,
        &mut supervisor,
        &vcenters,
        &service,
        &shared,
        &check,
    );
    let outcome = tokio::select! {
        outcome = async {
            tokio::try_join!(
                async { serving.await.context(SocketSnafu) },
                async { leading.await.context(LeaderSnafu) },
            ).map(drop)
        } => outcome,
        ended = tasks.first_to_end() => ended.map_or(Ok(()), |source| Err(Error::Ended { source })),
        never = following => match never {},
    };
    // Operations finish, so that no task is left without a record.
    service.finish_operations().await;
    supervisor.stop().await;
    outcome
}

fn settings(configuration: &Configuration) -> ControllerSettings {
    ControllerSettings {
        categories: configuration.categories.clone(),
        max_snapshots: configuration.max_snapshots,
    }
}

/// Applies every new version of the configuration, and reports vCenters that cannot be used.
async fn follow_configuration(
    arguments: &ControllerArguments,
    current: Configuration,
    supervisor: &mut Supervisor,
    vcenters: &Vcenters,
    service: &ControllerService,
    shared: &SharedSettings,
    check: &Check,
) -> std::convert::Infallible {
    let mut followed = Followed::new(current);
    loop {
        check.pass_without(&vcenters.problems());
        sleep(POLL_INTERVAL).await;
        if let Reading::Changed { before, now } =
            followed.read(Configuration::load(&arguments.config))
        {
            if now.cluster_id != before.cluster_id {
                tracing::error!(
                    "the cluster-id changed; the driver keeps the old one, because CNS stores the volumes under it"
                );
            }
            let shared = SharedSettings { with_tags: !now.categories.is_empty(), ..shared.clone() };
            supervisor.apply(&now.vcenters, &shared);
            service.apply(settings(&now));
        }
    }
}
