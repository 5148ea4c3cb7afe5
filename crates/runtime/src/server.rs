//! The HTTP side every binary has: `/metrics`, `/livez` (also as `/healthz`), `/readyz`, `/version`,
//! `/log-level`.

use std::{fmt::Write as _, net::SocketAddr};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::{get, put},
};
use snafu::{ResultExt, Snafu};
use tokio::net::TcpListener;
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
    /// Changed with `PUT /log-level`. Reachable by whoever reaches the port: bind to loopback, or
    /// leave it out.
    pub logs: Option<Logs>,
}

/// Why there is no server.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(display(
        "cannot listen on {address}: if another program holds the port, choose another one"
    ))]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// A server that listens but does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Takes the port, so that a port in use is told before anything else starts.
    pub async fn bind(address: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind(address).await.context(ListenSnafu { address })?;
        let address = listener.local_addr().context(ListenSnafu { address })?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until told to stop; requests under way are finished.
    pub async fn serve(self, shown: Shown, stop: CancellationToken) {
        let app = routes(shown);
        let served =
            axum::serve(self.listener, app).with_graceful_shutdown(stop.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the probe server ended");
        }
    }
}

fn routes(shown: Shown) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(async |State(shown): State<Shown>| probe(&shown.live)))
        // As many manifests still call it.
        .route("/healthz", get(async |State(shown): State<Shown>| probe(&shown.live)))
        .route("/readyz", get(async |State(shown): State<Shown>| probe(&shown.ready)))
        .route("/version", get(async |State(shown): State<Shown>| Json(shown.build)))
        .route("/log-level", put(set_log_level))
        .with_state(shown)
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

async fn set_log_level(State(shown): State<Shown>, filter: String) -> (StatusCode, String) {
    let Some(logs) = &shown.logs else {
        return (StatusCode::NOT_FOUND, "the log level cannot be changed here\n".into());
    };
    match logs.set(filter.trim()) {
        Ok(()) => (StatusCode::OK, format!("logging {}\n", filter.trim())),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}
