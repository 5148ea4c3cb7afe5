//! How a process ends: asked to, in good order and by a deadline; or by a panic, at once and loudly.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a process whose shutdown took too long.
pub const EXIT_TOO_SLOW: i32 = 124;
/// Exit code of a process that panicked.
pub const EXIT_PANIC: i32 = 101;

/// Makes every panic, on any thread, a logged error and the end of the process.
///
/// A controller that goes on with one task dead looks healthy and is not; the orchestrator restarts
/// a process that ended. Call it once, after logging is set up.
pub fn exit_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("(no text)");
        tracing::error!(thread = thread.name().unwrap_or("?"), place, "panic: {text}");
        std::process::exit(EXIT_PANIC);
    }));
}

/// A token that is cancelled at the first SIGTERM or SIGINT.
///
/// From then on the process has `grace` to end by itself; after that it is ended, with
/// [`EXIT_TOO_SLOW`]. A second signal ends it at once.
pub fn shutdown_on_signal(grace: Duration) -> std::io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = CancellationToken::new();
    let stopping = token.clone();
    #[expect(clippy::disallowed_methods, reason = "lives as long as the process and owns its end")]
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!(grace = ?grace, "asked to stop");
        stopping.cancel();
        tokio::select! {
            () = tokio::time::sleep(grace) => tracing::error!("did not stop in time"),
            _ = terminate.recv() => tracing::warn!("asked to stop again"),
            _ = interrupt.recv() => tracing::warn!("asked to stop again"),
        }
        std::process::exit(EXIT_TOO_SLOW);
    });
    Ok(token)
}
