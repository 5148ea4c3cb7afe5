//! The smallest binary on this runtime: what `tests/daemon.rs` starts, asks and ends.
//!
//! `daemon [idle|panic|stubborn|cold|hanging] [SOCKET]`
#![allow(clippy::panic, reason = "it is told to, to show what a panic does")]

use std::time::Duration;

use runtime::{
    build::BuildInfo,
    checks::Checks,
    metrics::Metrics,
    process,
    server::{LocalServer, Server, Shown},
    tasks::Tasks,
    telemetry::{Format, Logs},
};

/// Something to be seen at debug level only.
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
    let build = BuildInfo::of("daemon");
    let server = Server::bind("127.0.0.1:0".parse()?).await?;
    tracing::info!(address = %server.address(), version = %build, "listening");

    let (live, ready) = (Checks::default(), Checks::default());
    let metrics = Metrics::new("daemon", build);
    let warm = ready.register("warm", "not warm yet");
    let mut tasks = Tasks::default();
    let progress = live.watchdog("progress", Duration::from_secs(1));
    let shown = Shown { build, live, ready, metrics };
    if let Some(socket) = std::env::args().nth(2) {
        let local = LocalServer::bind(socket.as_ref())?;
        tasks.spawn("local server", local.serve(shown.clone(), logs, stop.clone()));
    }
    tasks.spawn("server", server.serve(shown, stop.clone()));
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
