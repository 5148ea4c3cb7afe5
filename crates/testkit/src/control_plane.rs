//! A real Kubernetes control plane: etcd and the API server, with the controller-manager and the
//! scheduler on request.

mod arguments;
mod kubeconfig;

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use kube::{Client, config::Kubeconfig};
use snafu::ResultExt;
use tokio::{net::TcpStream, time::Instant};

pub use self::kubeconfig::User;
use crate::{
    authority::{Authority, Identity},
    error::{Error, KubernetesSnafu, must},
    install_tls_provider,
    ports::Port,
    process::Process,
    tunnel::NodeTunnel,
    workdir::Workdir,
};

/// How long a peer can take to become ready. It is far more than needed on an idle computer: a timeout means broken, not
/// slow.
const TIMEOUT: Duration = Duration::from_mins(4);

/// A running control plane with its own CA and RBAC. It stops when dropped.
///
/// The order of the fields is the order in which programs stop: clients of the API server first, etcd last.
pub struct ControlPlane {
    scheduler: Option<Process>,
    controller_manager: Option<Process>,
    api_server: Mutex<Option<Process>>,
    /// The minor of the API server, if it differs from that of all tests.
    kubernetes: Mutex<Option<&'static str>>,
    etcd: Process,
    authority: Authority,
    admin: Identity,
    ports: Vec<Port>,
    options: ControlPlaneBuilder,
    tunnel: Option<NodeTunnel>,
    /// How long each program took to become ready.
    took: Vec<(&'static str, Duration)>,
    workdir: Workdir,
}

/// The programs to start in addition to etcd and the API server.
#[derive(Clone, Debug, Default)]
pub struct ControlPlaneBuilder {
    controllers: bool,
    audit: bool,
    real_nodes: bool,
    kubernetes: Option<&'static str>,
}

impl ControlPlaneBuilder {
    /// Also starts the controller-manager and the scheduler: Deployments get Pods, Pods get nodes, and namespaces and owned
    /// objects are really deleted.
    #[must_use]
    pub fn with_controllers(mut self) -> Self {
        self.controllers = true;
        self
    }

    /// Also writes an audit log of every request: see [`ControlPlane::audit`].
    #[must_use]
    pub fn with_audit(mut self) -> Self {
        self.audit = true;
        self
    }

    /// The API server reaches kubelets of [`RealNode`](crate::RealNode)s: logs and exec work. It reaches no webhook then.
    #[must_use]
    pub fn with_real_nodes(mut self) -> Self {
        self.real_nodes = true;
        self
    }

    /// Uses this minor of Kubernetes, which `peers/` must pin.
    #[must_use]
    pub fn kubernetes(mut self, minor: &'static str) -> Self {
        self.kubernetes = Some(minor);
        self
    }

    /// # Panics
    /// If a program cannot be built or does not become ready, with its last log lines.
    pub async fn start(self) -> ControlPlane {
        must(self.launch().await)
    }

    /// Like [`Self::start`], but returns the error.
    pub async fn launch(self) -> Result<ControlPlane, Error> {
        install_tls_provider();
        let workdir = Workdir::new("control-plane")?;
        let authority = Authority::new("vdo-tests")?;
        let admin = authority.client("admin", "system:masters")?;
        let ports = (0..5).map(|_| Port::reserve()).collect::<Result<Vec<_>, _>>()?;
        arguments::write_files(&authority, &workdir)?;
        let etcd = Process::spawn_peer(
            "etcd",
            "etcd",
            arguments::etcd(&workdir, ports[0].number, ports[1].number),
            &workdir,
        )?;
        let etcd_address = loopback(ports[0].number);
        let began = Instant::now();
        etcd.ready(TIMEOUT, async || TcpStream::connect(etcd_address).await.map(drop)).await?;
        let took = vec![("etcd", began.elapsed())];
        let kubernetes = Mutex::new(self.kubernetes);
        let tunnel = self.real_nodes.then(|| NodeTunnel::start(&workdir)).transpose()?;
        if let Some(tunnel) = &tunnel {
            arguments::write_node_files(&authority, &workdir, tunnel.socket())?;
        }
        let mut plane = ControlPlane {
            kubernetes,
            scheduler: None,
            controller_manager: None,
            api_server: Mutex::new(None),
            etcd,
            authority,
            admin,
            ports,
            options: self,
            tunnel,
            took,
            workdir,
        };
        let began = Instant::now();
        plane.launch_api_server().await?;
        plane.took.push(("kube-apiserver", began.elapsed()));
        if plane.options.controllers {
            plane.launch_controllers().await?;
        }
        Ok(plane)
    }
}

impl ControlPlane {
    /// Starts only etcd and the API server.
    ///
    /// # Panics
    /// If a program cannot be built or does not become ready, with its last log lines.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    pub fn builder() -> ControlPlaneBuilder {
        ControlPlaneBuilder::default()
    }

    /// A client with cluster admin permissions.
    pub fn client(&self) -> Client {
        must(self.client_of(&User::admin(), self.address()))
    }

    /// A client with the identity of `user`, bound by RBAC.
    pub fn client_as(&self, user: &User) -> Client {
        must(self.client_of(user, self.address()))
    }

    /// A client of `user` that reaches the API server through a proxy at `address`.
    pub fn client_via(&self, user: &User, address: SocketAddr) -> Client {
        must(self.client_of(user, address))
    }

    /// The path of a kubeconfig with cluster admin permissions.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_via(&User::admin(), self.address())
    }

    /// The path of a kubeconfig with the identity of `user`.
    pub fn kubeconfig_as(&self, user: &User) -> PathBuf {
        self.kubeconfig_via(user, self.address())
    }

    /// The path of a kubeconfig of `user` that reaches the API server through a proxy at `address`.
    pub fn kubeconfig_via(&self, user: &User, address: SocketAddr) -> PathBuf {
        must(self.write_kubeconfig(user, address))
    }

    /// The kubeconfig of a kubelet, with a certificate of its own: the API server treats it as that node.
    pub(crate) fn node_kubeconfig(
        &self,
        node: &str,
        address: SocketAddr,
    ) -> Result<Vec<u8>, Error> {
        let identity = self.authority.client(&format!("system:node:{node}"), "system:nodes")?;
        let certificate = self.authority.certificate();
        let config = kubeconfig::render(&User::admin(), address, &certificate, &identity);
        Ok(serde_json::to_vec_pretty(&config).expect("a kubeconfig is plain data"))
    }

    /// Lets the API server reach a node, if it was started [for real nodes](ControlPlaneBuilder::with_real_nodes).
    /// `process` runs in the node's network namespace.
    pub(crate) fn add_node(&self, address: IpAddr, process: u32) {
        if let Some(tunnel) = &self.tunnel {
            tunnel.add(address, process);
        }
    }

    pub fn address(&self) -> SocketAddr {
        loopback(self.ports[2].number)
    }

    /// The CA of the API server's certificate, PEM.
    pub fn ca_pem(&self) -> String {
        self.authority.certificate()
    }

    /// The audit log: one JSON object for each completed request.
    ///
    /// # Panics
    /// Without [`ControlPlaneBuilder::with_audit`].
    pub fn audit(&self) -> Vec<serde_json::Value> {
        assert!(self.options.audit, "start the control plane with `with_audit()`");
        Self::audit_in(self.workdir.path())
    }

    /// The folder of the audit log, for a reader that outlives a borrow of the control plane.
    pub fn audit_folder(&self) -> PathBuf {
        self.workdir.path().to_owned()
    }

    /// The audit log in a folder that [`Self::audit_folder`] returned.
    pub fn audit_in(folder: &Path) -> Vec<serde_json::Value> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        // Every API server writes its own file.
        let logs = entries.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("audit-") && path.extension().is_some_and(|end| end == "log")
        });
        let logs = logs.map(|log| std::fs::read_to_string(log).unwrap_or_default());
        let events = logs.flat_map(|log| {
            log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<_>>()
        });
        events.collect()
    }

    /// Kills the API server at once, like a crash of a control-plane node.
    pub fn kill_api_server(&self) {
        self.api_server.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Starts the API server again on the same data and address.
    pub async fn restart_api_server(&self) {
        self.kill_api_server();
        must(self.launch_api_server().await);
    }

    /// Starts the API server again on the same data and address, with another minor.
    pub async fn upgrade_api_server(&self, minor: &'static str) {
        *self.kubernetes.lock().unwrap_or_else(PoisonError::into_inner) = Some(minor);
        self.restart_api_server().await;
    }

    /// Starts another API server on the same data, like another node of a control plane: of this minor, and reporting this
    /// version, like that of a distribution (`v1.36.4+k3s1`). It stops when dropped.
    ///
    /// # Panics
    /// If it cannot be built or does not become ready, with its last log lines.
    pub async fn another_api_server(
        &self,
        minor: Option<&str>,
        reported_version: Option<&str>,
    ) -> ApiServer {
        must(self.launch_another(minor, reported_version).await)
    }

    async fn launch_another(
        &self,
        minor: Option<&str>,
        reported_version: Option<&str>,
    ) -> Result<ApiServer, Error> {
        let port = Port::reserve()?;
        let mut arguments = self.api_server_arguments(port.number);
        arguments.extend(reported_version.map(|version| format!("--version={version}")));
        let label = format!("kube-apiserver-{}", port.number);
        let process =
            Process::spawn_peer_of(minor, "kube-apiserver", &label, arguments, &self.workdir)?;
        let address = loopback(port.number);
        self.until_ready(&process, address).await?;
        Ok(ApiServer { address, _process: process, _port: port })
    }

    /// Name and process id of the running programs.
    pub fn processes(&self) -> Vec<(&'static str, u32)> {
        let mut all = vec![("etcd", self.etcd.pid())];
        let api_server = self.api_server.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(api_server.as_ref().map(|p| ("kube-apiserver", p.pid())));
        all.extend(self.controller_manager.as_ref().map(|p| ("kube-controller-manager", p.pid())));
        all.extend(self.scheduler.as_ref().map(|p| ("kube-scheduler", p.pid())));
        all
    }

    /// How long each program took to become ready.
    pub fn start_times(&self) -> &[(&'static str, Duration)] {
        &self.took
    }

    /// The folder of its files and logs.
    pub fn folder(&self) -> &Path {
        self.workdir.path()
    }

    async fn launch_api_server(&self) -> Result<(), Error> {
        let arguments = self.api_server_arguments(self.ports[2].number);
        let minor = *self.kubernetes.lock().unwrap_or_else(PoisonError::into_inner);
        let name = "kube-apiserver";
        let process = Process::spawn_peer_of(minor, name, name, arguments, &self.workdir)?;
        self.until_ready(&process, self.address()).await?;
        *self.api_server.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }

    fn api_server_arguments(&self, port: u16) -> Vec<String> {
        let ControlPlaneBuilder { controllers, audit, real_nodes, .. } = self.options;
        let etcd = self.ports[0].number;
        arguments::api_server(&self.workdir, port, etcd, controllers, audit, real_nodes)
    }

    async fn until_ready(&self, process: &Process, address: SocketAddr) -> Result<(), Error> {
        let client = self.client_of(&User::admin(), address)?;
        let ready = async || client.request_text(http_get("/readyz")).await.map(drop);
        process.ready(TIMEOUT, ready).await
    }

    async fn launch_controllers(&mut self) -> Result<(), Error> {
        let config_of = |name: &str| self.write_kubeconfig(&User::named(name), self.address());
        let manager = arguments::controller_manager(
            &self.workdir,
            &config_of("system:kube-controller-manager")?,
            self.ports[3].number,
        );
        let scheduler =
            arguments::scheduler(&config_of("system:kube-scheduler")?, self.ports[4].number);
        let minor = self.options.kubernetes;
        let spawn =
            |name, arguments| Process::spawn_peer_of(minor, name, name, arguments, &self.workdir);
        let (manager, scheduler) =
            (spawn("kube-controller-manager", manager)?, spawn("kube-scheduler", scheduler)?);
        let began = Instant::now();
        let parts = [("kube-controller-manager", &manager, 3), ("kube-scheduler", &scheduler, 4)];
        for (name, process, port) in parts {
            let address = loopback(self.ports[port].number);
            process.ready(TIMEOUT, async || TcpStream::connect(address).await.map(drop)).await?;
            self.took.push((name, began.elapsed()));
        }
        (self.controller_manager, self.scheduler) = (Some(manager), Some(scheduler));
        Ok(())
    }

    fn describe(&self, user: &User, address: SocketAddr) -> Kubeconfig {
        kubeconfig::render(user, address, &self.authority.certificate(), &self.admin)
    }

    fn write_kubeconfig(&self, user: &User, address: SocketAddr) -> Result<PathBuf, Error> {
        let config = self.describe(user, address);
        let text = serde_json::to_vec_pretty(&config).expect("a kubeconfig is plain data");
        self.workdir.write(&format!("{}-{}.kubeconfig", user.file_name(), address.port()), text)
    }

    fn client_of(&self, user: &User, address: SocketAddr) -> Result<Client, Error> {
        kubeconfig::client(self.describe(user, address))
            .context(KubernetesSnafu { what: "making a client" })
    }
}

/// Another API server of a control plane. It stops when dropped.
pub struct ApiServer {
    address: SocketAddr,
    _process: Process,
    _port: Port,
}

impl ApiServer {
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).expect("a constant path")
}
