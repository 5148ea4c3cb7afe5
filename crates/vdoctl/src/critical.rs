//! Changes that Ctrl-C, SIGTERM or SIGHUP must not interrupt.

use std::{
    pin::pin,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use futures::future::{Either, pending, select, select_all};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

use crate::screen::Screen;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Notified when the first critical section starts.
static BEGUN: Notify = Notify::const_new();

/// Whether a signal has asked vdoctl to end.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Notified when `STOPPED` becomes true.
static STOPPING: Notify = Notify::const_new();

struct Section;

impl Drop for Section {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs a future that finishes before the process ends.
pub(crate) async fn section<T>(work: impl Future<Output = T>) -> T {
    RUNNING.fetch_add(1, Ordering::SeqCst);
    let _section = Section;
    BEGUN.notify_one();
    // Lets `interrupted` install its signal handlers.
    tokio::task::yield_now().await;
    work.await
}

/// Returns after Ctrl-C or another termination signal, once no critical section is running.
pub(crate) async fn interrupted(screen: &Screen) {
    let (by_keys, by_others) = (pin!(by_keys()), pin!(by_others()));
    match select(by_keys, by_others).await {
        Either::Left(((), _)) | Either::Right(((), _)) => {}
    }
    STOPPED.store(true, Ordering::SeqCst);
    STOPPING.notify_waiters();
    if RUNNING.load(Ordering::SeqCst) > 0 {
        screen.note("Interrupted: vdoctl finishes the current change first.");
    }
    while RUNNING.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Whether a critical section should end early, and clean up.
pub(crate) fn is_stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}

/// Returns when a critical section should end early.
pub(crate) async fn stopped() {
    // Before the check, so that no notification is lost.
    let notified = STOPPING.notified();
    if !is_stopped() {
        notified.await;
    }
}

async fn by_keys() {
    // Without a signal handler, Ctrl-C ends the process.
    if tokio::signal::ctrl_c().await.is_err() {
        pending::<()>().await;
    }
}

/// Before the first critical section, these signals end the process at once: a question on the terminal would
/// not notice them.
async fn by_others() {
    BEGUN.notified().await;
    let hangup = (!is_hangup_ignored()).then(SignalKind::hangup);
    let kinds = [Some(SignalKind::terminate()), hangup].into_iter().flatten();
    let signals: Vec<_> = kinds.filter_map(|kind| signal(kind).ok()).collect();
    if signals.is_empty() {
        return pending().await;
    }
    let waiting = signals.into_iter().map(|mut signal| {
        Box::pin(async move {
            signal.recv().await;
        })
    });
    select_all(waiting).await;
}

/// Whether the process runs under `nohup`.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 == 1)
}
