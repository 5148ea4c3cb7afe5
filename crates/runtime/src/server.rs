//! The HTTP server every binary has: `/metrics`, `/livez` (also as `/healthz`), `/readyz`, `/version`.
//!
//! On a unix socket the same, and `PUT /log-level`: only processes that share the file system of the
//! container reach it. See [`crate::probe`] for the client.

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

/// What the server shows.
#[derive(Clone)]
pub struct Shown {
    /// The build, at `/version`.
    pub build: BuildInfo,
    /// Whether the process must be restarted, at `/livez`.
    pub live: Checks,
    /// Whether it can do its work, at `/readyz`.
    pub ready: Checks,
    /// At `/metrics`.
    pub metrics: Metrics,
}

/// How long to wait before the next attempt to listen on an address that is in use.
const RETRY: Duration = Duration::from_secs(2);

/// Why there is no server.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display(
        "cannot listen on {address}: if another program holds the port, choose another one"
    ))]
    Listen { address: SocketAddr, source: std::io::Error },

    #[snafu(display("cannot listen on the socket {}", path.display()))]
    Socket { path: PathBuf, source: std::io::Error },
}

/// A server that listens but does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens, so that an address in use is reported before anything else starts.
    pub async fn bind(address: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind(address).await.context(ListenSnafu { address })?;
        let address = listener.local_addr().context(ListenSnafu { address })?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens as soon as no other process uses the address: during a rollout two instances are on one
    /// node, and its network is the same for both.
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

    /// Answers until `stop` is cancelled; requests under way are finished.
    pub async fn serve(self, shown: Shown, stop: CancellationToken) {
        let app = routes().with_state(shown);
        let served =
            axum::serve(self.listener, app).with_graceful_shutdown(stop.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the probe server ended");
        }
    }
}

/// A server on a unix socket, which listens but does not answer yet.
#[derive(Debug)]
pub struct LocalServer {
    listener: UnixListener,
}

impl LocalServer {
    /// Listens. A socket that an earlier run of this container left behind is replaced.
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

    /// Answers until `stop` is cancelled; requests under way are finished.
    pub async fn serve(self, shown: Shown, logs: Logs, stop: CancellationToken) {
        let change = async move |filter: String| set_log_level(&logs, &filter);
        let app = routes().route("/log-level", put(change)).with_state(shown);
        let served =
            axum::serve(self.listener, app).with_graceful_shutdown(stop.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the probe server on the socket ended");
        }
    }
}

fn routes() -> Router<Shown> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(async |State(shown): State<Shown>| probe(&shown.live)))
        // As many manifests still call it.
        .route("/healthz", get(async |State(shown): State<Shown>| probe(&shown.live)))
        .route("/readyz", get(async |State(shown): State<Shown>| probe(&shown.ready)))
        .route("/version", get(async |State(shown): State<Shown>| Json(shown.build)))
}

async fn metrics(State(shown): State<Shown>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], shown.metrics.encode())
}

/// One line a check, as the Kubernetes API server shows its own, and the verdict last.
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
