//! `vsphere-csi node`: the node plugin as a process.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{ArgAction, Args};
use runtime::{
    build::BuildInfo,
    checks::{Check, Checks},
    kubernetes::{self, ClusterOptions},
    process::shutdown_on_signal,
    server::{Server as ProbeServer, ServerState},
    tasks::Tasks,
};
use snafu::{OptionExt as _, ResultExt as _, Snafu};
use tokio::{net::UnixStream, time::timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::{
    device::Devices,
    filesystem::FileSystems,
    identity::NodeIdentity,
    metrics::Metrics,
    operations::Operations,
    registration::{Registrar, SocketError, listen},
    service::NodeService,
    tool::Tools,
    topology::NodeTopology,
    volumes::Volumes,
};
use crate::proto::csi::{identity_server::IdentityServer, node_server::NodeServer};

/// Longer than the longest usual operation. The manifest gives the pod a little more.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(25);
const FINISH_TIMEOUT: Duration = Duration::from_secs(20);
const STATS_TIMEOUT: Duration = Duration::from_secs(20);
const LIMIT_TIMEOUT: Duration = Duration::from_secs(10);
const SOCKET_CHECK: Duration = Duration::from_secs(10);
const SOCKET_GRACE: Duration = Duration::from_secs(45);

/// The node plugin: finds, formats and mounts the disks of this node for the kubelet.
#[derive(Clone, Debug, Args)]
pub struct NodeArguments {
    /// The socket of the CSI services.
    #[arg(long, env = "CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    pub endpoint: String,

    /// The name of this Node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,

    /// The path of the CSI socket on the host, where the kubelet connects to it.
    #[arg(
        long,
        env = "KUBELET_REGISTRATION_PATH",
        default_value = "/var/lib/kubelet/plugins/csi.vsphere.vmware.com/csi.sock"
    )]
    pub kubelet_registration_path: PathBuf,

    /// The folder in which the kubelet looks for plugins; empty to leave the registration to another program.
    #[arg(long, env = "PLUGINS_REGISTRY", default_value = "/var/lib/kubelet/plugins_registry")]
    pub plugins_registry: String,

    /// The most volumes on this node; 0 if only the room on its VM counts.
    #[arg(long, env = "MAX_VOLUMES_PER_NODE", default_value_t = 59, value_parser = clap::value_parser!(i64).range(0..=255))]
    pub max_volumes_per_node: i64,

    /// Ask the controller how many volumes the VM has room for, through the CSINodeTopology object of this node. The
    /// smaller number counts.
    #[arg(long, env = "CSI_VOLUME_LIMIT", num_args = 0..=1, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub volume_limit: bool,

    /// Ask the controller for the topology of this node, in the same way.
    #[arg(long, env = "CSI_TOPOLOGY", num_args = 0..=1, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub topology: bool,

    /// How many minutes the controller can take to answer.
    #[arg(long, env = "NODEGETINFO_WATCH_TIMEOUT_MINUTES", default_value_t = 1)]
    pub topology_timeout_minutes: u64,

    /// The same in seconds. It takes precedence.
    #[arg(long)]
    pub topology_timeout_seconds: Option<u64>,

    /// Where the device nodes are.
    #[arg(long, env = "CSI_DEV_ROOT", default_value = "/dev")]
    pub dev_root: PathBuf,

    /// Where sysfs is mounted.
    #[arg(long, env = "CSI_SYS_ROOT", default_value = "/sys")]
    pub sys_root: PathBuf,

    /// How many seconds a device can take to appear after its disk was attached.
    #[arg(long, env = "CSI_DEVICE_TIMEOUT_SECONDS", default_value_t = 30)]
    pub device_timeout_seconds: u64,

    /// The timeout of mount, umount, blkid and blockdev, in seconds.
    #[arg(long, env = "CSI_TOOL_TIMEOUT_SECONDS", default_value_t = 60)]
    pub tool_timeout_seconds: u64,

    /// The timeout of mkfs, fsck and the growth of a file system, in seconds.
    #[arg(long, env = "CSI_FORMAT_TIMEOUT_SECONDS", default_value_t = 600)]
    pub format_timeout_seconds: u64,

    /// Kubeconfig, if the plugin does not run in a pod.
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// The address of `/metrics`, `/livez` and `/readyz`.
    #[arg(long, env = "CSI_BIND_ADDRESS", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,

    /// The port of these endpoints; 0 disables them.
    #[arg(long, env = "CSI_NODE_PORT", default_value_t = 9808)]
    pub port: u16,
}

#[derive(Debug, Snafu)]
pub enum NodeError {
    #[snafu(display("the endpoint {endpoint} is not a socket: write unix:///path/to/csi.sock"))]
    Endpoint { endpoint: String },
    #[snafu(display("cannot receive signals"))]
    Signals { source: std::io::Error },
    #[snafu(display("cannot connect to the cluster"))]
    Cluster { source: kubernetes::Error },
    #[snafu(display("cannot serve"))]
    Socket { source: SocketError },
    #[snafu(display("a task of the process ended"))]
    Ended { source: runtime::tasks::Ended },
}

/// Runs the node plugin until a signal stops it.
pub async fn run(arguments: NodeArguments, build: BuildInfo) -> Result<(), NodeError> {
    let stop = shutdown_on_signal(SHUTDOWN_GRACE).context(SignalsSnafu)?;
    let socket = arguments.endpoint.strip_prefix("unix://").unwrap_or(&arguments.endpoint);
    let socket = Some(Path::new(socket)).filter(|path| path.is_absolute());
    let socket = socket.context(EndpointSnafu { endpoint: &arguments.endpoint })?.to_owned();
    let metrics = Arc::new(Metrics::default());
    let operations = Operations::new(metrics.clone());
    let service = service(&arguments, &metrics, &operations, build).await?;
    let (live, ready) = (Checks::default(), Checks::default());
    let answers = live.register("socket", "the CSI socket has not answered yet");
    answers.pass_for(SOCKET_GRACE, "the CSI socket does not answer");
    let mut tasks = Tasks::default();
    let listener = listen(&socket).context(SocketSnafu)?;
    let serving = Server::builder()
        .add_service(IdentityServer::new(NodeIdentity { build }))
        .add_service(NodeServer::new(service))
        .serve_with_incoming_shutdown(
            UnixListenerStream::new(listener),
            stop.clone().cancelled_owned(),
        );
    let stopping = stop.clone();
    tasks.spawn("csi", async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the CSI server ended");
        }
        // After a stop, the process is about to end.
        if stopping.is_cancelled() {
            std::future::pending::<()>().await;
        }
    });
    let mut registered = None;
    if !arguments.plugins_registry.is_empty() {
        let registrar = Registrar {
            folder: PathBuf::from(&arguments.plugins_registry),
            endpoint: arguments.kubelet_registration_path.clone(),
            check: ready.register("registration", "the kubelet has not registered the driver yet"),
        };
        let first = listen(&registrar.socket()).context(SocketSnafu)?;
        registered = Some(registrar.socket());
        let stop = stop.clone();
        tasks.spawn("registration", async move {
            registrar.run(first, stop).await;
            std::future::pending::<()>().await;
        });
    }
    serve_probes(&arguments, build, &metrics, live, ready, &mut tasks);
    tasks.spawn("liveness", watch_socket(socket.clone(), answers));
    tasks.spawn("memory", runtime::memory::return_free_memory());
    tracing::info!(build = %build, socket = %socket.display(), "serving");
    let outcome = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = tasks.first_to_end() => ended.map_or(Ok(()), |source| Err(NodeError::Ended { source })),
    };
    // The kubelet must not call a driver that is about to end.
    for path in registered.iter().chain([&socket]) {
        let _ = std::fs::remove_file(path);
    }
    operations.finish(FINISH_TIMEOUT).await;
    outcome
}

async fn service(
    arguments: &NodeArguments,
    metrics: &Arc<Metrics>,
    operations: &Operations,
    build: BuildInfo,
) -> Result<NodeService, NodeError> {
    let tools = Tools::new(Duration::from_secs(arguments.tool_timeout_seconds), metrics.clone());
    let device_timeout = Duration::from_secs(arguments.device_timeout_seconds);
    let controller = if arguments.topology || arguments.volume_limit {
        let cluster = ClusterOptions {
            kubeconfig: arguments.kubeconfig.clone(),
            ..ClusterOptions::default()
        };
        let client = kubernetes::client(&cluster, build).await.context(ClusterSnafu)?;
        let minutes = Duration::from_mins(arguments.topology_timeout_minutes);
        let timeout = arguments.topology_timeout_seconds.map_or(minutes, Duration::from_secs);
        // A node without a topology can register before the controller runs.
        let timeout = if arguments.topology { timeout } else { timeout.min(LIMIT_TIMEOUT) };
        let node = arguments.node_name.clone();
        Some(NodeTopology { client, node, timeout, answered: Arc::default() })
    } else {
        None
    };
    let devices = Devices::new(&arguments.dev_root, &arguments.sys_root, device_timeout);
    Ok(NodeService {
        volumes: Volumes {
            devices: devices.clone(),
            tools: tools.clone(),
            file_systems: FileSystems {
                devices,
                tools,
                limit: Duration::from_secs(arguments.format_timeout_seconds),
                metrics: metrics.clone(),
            },
            stats_timeout: STATS_TIMEOUT,
        },
        operations: operations.clone(),
        sys: arguments.sys_root.clone(),
        max_volumes: arguments.max_volumes_per_node,
        controller,
        has_topology: arguments.topology,
    })
}

fn serve_probes(
    arguments: &NodeArguments,
    build: BuildInfo,
    metrics: &Arc<Metrics>,
    live: Checks,
    ready: Checks,
    tasks: &mut Tasks,
) {
    if arguments.port == 0 {
        return;
    }
    let registry = runtime::metrics::Metrics::new("", build);
    registry.register(|registry| metrics.register(registry));
    let address = SocketAddr::new(arguments.bind_address, arguments.port);
    let state = ServerState { build, live, ready, metrics: registry };
    tasks.spawn("probes", async move {
        // During a rollout the old pod can still have the port on the host's network.
        ProbeServer::bind_when_free(address).await.serve(state, CancellationToken::new()).await;
    });
}

/// Connects to the driver's own socket, as the kubelet does.
async fn watch_socket(socket: PathBuf, check: Check) {
    loop {
        if let Ok(Ok(_)) = timeout(SOCKET_CHECK, UnixStream::connect(&socket)).await {
            check.pass_for(SOCKET_GRACE, "the CSI socket does not answer");
        }
        tokio::time::sleep(SOCKET_CHECK).await;
    }
}
