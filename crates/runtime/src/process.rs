//! How a process ends: orderly after a signal, within a deadline; or at once after a panic.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code if the shutdown exceeds its deadline.
pub const EXIT_TOO_SLOW: i32 = 124;
/// Exit code after a panic.
pub const EXIT_PANIC: i32 = 101;

/// Makes every panic, on any thread, log an error and end the process.
///
/// A controller with a dead task looks healthy, but is not; Kubernetes restarts a process that ended. Call
/// it once, after logging is set up.
pub fn exit_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("(no text)");
        tracing::error!(thread = thread.name().unwrap_or("?"), place, "panic: {text}");
        std::process::exit(EXIT_PANIC);
    }));
}

/// Returns a token that is cancelled at the first SIGTERM or SIGINT.
///
/// From then on the process has `grace` to end by itself; after that it exits with [`EXIT_TOO_SLOW`]. A
/// second signal ends it at once.
pub fn shutdown_on_signal(grace: Duration) -> std::io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = CancellationToken::new();
    let stopping = token.clone();
    #[expect(clippy::disallowed_methods, reason = "lives as long as the process and owns its end")]
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!(grace = ?grace, "shutdown requested");
        stopping.cancel();
        tokio::select! {
            () = tokio::time::sleep(grace) => tracing::error!("shutdown took too long"),
            _ = terminate.recv() => tracing::warn!("shutdown requested again"),
            _ = interrupt.recv() => tracing::warn!("shutdown requested again"),
        }
        std::process::exit(EXIT_TOO_SLOW);
    });
    Ok(token)
}
