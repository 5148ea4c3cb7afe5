//! The HTTP server of every binary: `/metrics`, `/livez` (also as `/healthz`), `/readyz`, `/version`.
//!
//! A unix socket serves the same pages and `PUT /log-level`. Only processes in the same container reach it. See
//! [`crate::probe`] for the client.

use std::{
    fmt::Write as _,
    net::SocketAddr,
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
use tokio::net::{TcpListener, UnixListener};
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

/// The delay before the next attempt to listen on an address in use.
const RETRY: Duration = Duration::from_secs(2);

#[derive(Debug, Snafu)]
pub enum Error {
    #[snafu(display(
        "cannot listen on {address}: if another program holds the port, choose another one"
    ))]
    Listen { address: SocketAddr, source: std::io::Error },

    #[snafu(display("cannot listen on the socket {}", path.display()))]
    Socket { path: PathBuf, source: std::io::Error },
}

/// A server that is bound but not yet serving.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Binds, so that an address in use is reported before anything else starts.
    pub async fn bind(address: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind(address).await.context(ListenSnafu { address })?;
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

/// A server on a unix socket that is bound but not yet serving.
#[derive(Debug)]
pub struct LocalServer {
    listener: UnixListener,
}

impl LocalServer {
    /// Binds. Replaces a socket that an earlier run of this container left behind.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
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
