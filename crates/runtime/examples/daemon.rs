//! The smallest binary on this runtime, for `tests/daemon.rs`.
//!
//! `daemon [idle|panic|stubborn|cold|hanging] [SOCKET]`
#![allow(clippy::panic, reason = "the test requests the panic")]

use std::time::Duration;

use runtime::{
    build::BuildInfo,
    checks::Checks,
    metrics::Metrics,
    process,
    server::{LocalServer, Server, ServerState},
    tasks::Tasks,
    telemetry::{Format, Logs},
};

/// Log lines at debug level only.
async fn ticks(stop: tokio_util::sync::CancellationToken) {
    while !stop.is_cancelled() {
        tracing::debug!("tick");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let logs = Logs::start(Format::Json, "info")?;
    process::exit_on_panic();
    let stop = process::shutdown_on_signal(Duration::from_millis(500))?;
    let build = BuildInfo::new("daemon");
    let server = Server::bind("127.0.0.1:0".parse()?).await?;
    tracing::info!(address = %server.address(), version = %build, "listening");

    let (live, ready) = (Checks::default(), Checks::default());
    let metrics = Metrics::new("daemon", build);
    let warm = ready.register("warm", "not warm yet");
    let mut tasks = Tasks::default();
    let progress = live.watchdog("progress", Duration::from_secs(1));
    let state = ServerState { build, live, ready, metrics };
    if let Some(socket) = std::env::args().nth(2) {
        let local = LocalServer::bind(socket.as_ref())?;
        tasks.spawn("local server", local.serve(state.clone(), logs, stop.clone()));
    }
    tasks.spawn("server", server.serve(state, stop.clone()));
    if mode == "cold" {
        warm.fail("still cold");
    } else {
        warm.pass();
    }
    tasks.spawn("ticks", ticks(stop.clone()));

    match mode.as_str() {
        "panic" => tasks.spawn("work", async { panic!("out of cheese") }),
        "hanging" => tasks.spawn("work", async move {
            let _work = progress.begin();
            std::future::pending::<()>().await;
        }),
        "stubborn" => tasks.spawn("work", std::future::pending()),
        _ => {}
    }
    stop.cancelled().await;
    tasks.all_to_end().await;
    tracing::info!("stopped");
    Ok(())
}
