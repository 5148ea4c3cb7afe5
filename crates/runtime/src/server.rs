//! The HTTP server of every binary: `/metrics`, `/livez` (also as `/healthz`), `/readyz`, `/version`.
//!
//! A unix socket serves the same pages and `PUT /log-level`. Only processes in the same container reach it. See
//! [`crate::probe`] for the client.

use std::{
    fmt::Write as _,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::{get, put},
};
use snafu::{ResultExt, Snafu};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::{build::BuildInfo, checks::Checks, metrics::Metrics, telemetry::Logs};

/// The data behind the pages.
#[derive(Clone)]
pub struct ServerState {
    /// For `/version`.
    pub build: BuildInfo,
    /// For `/livez`: a failure restarts the process.
    pub live: Checks,
    /// For `/readyz`: a failure means that the process cannot work.
    pub ready: Checks,
    /// For `/metrics`.
    pub metrics: Metrics,
}

/// The number of connections that can wait: the default of tokio.
const BACKLOG: u32 = 1024;

/// The delay before the next attempt to listen on an address in use.
const RETRY: Duration = Duration::from_secs(2);

#[derive(Debug, Snafu)]
pub enum Error {
    #[snafu(display("cannot listen on {address}{}", advice(source)))]
    Listen { address: SocketAddr, source: io::Error },

    #[snafu(display("cannot listen on the socket {}", path.display()))]
    Socket { path: PathBuf, source: io::Error },
}

fn advice(error: &io::Error) -> &'static str {
    let is_in_use = error.kind() == io::ErrorKind::AddrInUse;
    if is_in_use { ": another program uses the port: choose another one" } else { "" }
}

/// A server that is bound but not yet serving.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Binds, so that an address in use is reported before anything else starts. The address `[::]` stands for all
    /// addresses of both IP families, and on a node without IPv6 for all IPv4 addresses.
    #[expect(clippy::unused_async, reason = "it needs the runtime of tokio")]
    pub async fn bind(address: SocketAddr) -> Result<Self, Error> {
        Self::bind_with(address, listen)
    }

    fn bind_with(
        address: SocketAddr,
        listen: impl Fn(SocketAddr) -> io::Result<TcpListener>,
    ) -> Result<Self, Error> {
        let listener = match listen(address) {
            Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && lacks_ipv6(&error) => {
                listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
            }
            other => other,
        };
        let listener = listener.context(ListenSnafu { address })?;
        let address = listener.local_addr().context(ListenSnafu { address })?;
        Ok(Self { listener, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Binds as soon as no other process uses the address: during a rollout two instances can share the host
    /// network of one node.
    pub async fn bind_when_free(address: SocketAddr) -> Self {
        let mut reported = false;
        loop {
            match Self::bind(address).await {
                Ok(server) => return server,
                Err(error) if !reported => {
                    let error = crate::error_chain::error_chain(&error);
                    tracing::warn!(%address, error, "metrics are not served until the address is free");
                    reported = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Serves until `stop` is cancelled, and completes the requests in progress.
    pub async fn serve(self, state: ServerState, stop: CancellationToken) {
        let app = routes().with_state(state);
        let served =
            axum::serve(self.listener, app).with_graceful_shutdown(stop.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the probe server ended");
        }
    }
}

/// Whether the reason for an error is that the kernel has no IPv6, or that it is disabled.
fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // The sysctl net.ipv6.bindv6only of the node changes the default.
        SockRef::from(&socket).set_only_v6(false)?;
    }
    // Connections of an earlier process can still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A server on a unix socket that is bound but not yet serving.
#[derive(Debug)]
pub struct LocalServer {
    listener: UnixListener,
}

impl LocalServer {
    /// Binds. Replaces a socket that an earlier run of this container left behind.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).context(SocketSnafu { path });
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).context(SocketSnafu { path })?;
        Ok(Self { listener })
    }

    /// Serves until `stop` is cancelled, and completes the requests in progress.
    pub async fn serve(self, state: ServerState, logs: Logs, stop: CancellationToken) {
        let change = async move |filter: String| set_log_level(&logs, &filter);
        let app = routes().route("/log-level", put(change)).with_state(state);
        let served =
            axum::serve(self.listener, app).with_graceful_shutdown(stop.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the probe server on the socket ended");
        }
    }
}

fn routes() -> Router<ServerState> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(async |State(state): State<ServerState>| probe(&state.live)))
        // Many manifests still use this name.
        .route("/healthz", get(async |State(state): State<ServerState>| probe(&state.live)))
        .route("/readyz", get(async |State(state): State<ServerState>| probe(&state.ready)))
        .route("/version", get(async |State(state): State<ServerState>| Json(state.build)))
}

async fn metrics(State(state): State<ServerState>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], state.metrics.encode())
}

/// One line per check, as in the Kubernetes API server, and the overall result last.
fn probe(checks: &Checks) -> (StatusCode, String) {
    let mut page = String::new();
    for (name, state) in checks.states() {
        let _ = match state {
            Ok(()) => writeln!(page, "[+] {name} ok"),
            Err(reason) => writeln!(page, "[-] {name}: {reason}"),
        };
    }
    if checks.pass() {
        (StatusCode::OK, page + "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, page + "not ok\n")
    }
}

fn set_log_level(logs: &Logs, filter: &str) -> (StatusCode, String) {
    match logs.set(filter.trim()) {
        Ok(()) => (StatusCode::OK, format!("logging {}\n", filter.trim())),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    fn everywhere() -> SocketAddr {
        "[::]:0".parse().unwrap()
    }

    #[tokio::test]
    async fn the_unspecified_address_serves_ipv4_and_ipv6() {
        let server = Server::bind(everywhere()).await.unwrap();
        for host in ["127.0.0.1", "::1"] {
            let reached = TcpStream::connect((host, server.address().port())).await;
            assert!(reached.is_ok(), "{host}: {reached:?}");
        }
    }

    #[tokio::test]
    async fn without_ipv6_the_unspecified_address_serves_ipv4() {
        for code in [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL] {
            let without_ipv6 = |address: SocketAddr| match address {
                SocketAddr::V4(_) => listen(address),
                SocketAddr::V6(_) => Err(io::Error::from_raw_os_error(code)),
            };
            let server = Server::bind_with(everywhere(), without_ipv6).unwrap();
            let reached = TcpStream::connect(("127.0.0.1", server.address().port())).await;
            assert!(reached.is_ok(), "{code}: {reached:?}");
            // Another address is the one that the admin wants.
            let one = "[::1]:0".parse().unwrap();
            let error = Server::bind_with(one, without_ipv6).unwrap_err();
            assert_eq!(error.to_string(), "cannot listen on [::1]:0");
        }
    }

    #[tokio::test]
    async fn only_a_port_in_use_is_reported_as_such() {
        let first = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = Server::bind(first.address()).await.unwrap_err().to_string();
        assert!(error.ends_with("another program uses the port: choose another one"), "{error}");
        let foreign = "192.0.2.1:0".parse().unwrap();
        let no_such_address = |_| Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        let error = Server::bind_with(foreign, no_such_address).unwrap_err().to_string();
        assert_eq!(error, "cannot listen on 192.0.2.1:0");
    }
}
