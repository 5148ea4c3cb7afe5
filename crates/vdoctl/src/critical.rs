//! Work that Ctrl-C, a polite `kill` or a terminal that is closed must not cut in two: it is finished
//! first.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures::future::{Either, pending, select, select_all};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

use crate::screen::Screen;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// There was such work.
static BEGUN: Notify = Notify::const_new();

struct Section;

impl Drop for Section {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Does work that is finished before the process ends.
pub(crate) async fn section<T>(work: impl Future<Output = T>) -> T {
    RUNNING.fetch_add(1, Ordering::SeqCst);
    let _section = Section;
    BEGUN.notify_one();
    // Whoever listens begins to.
    tokio::task::yield_now().await;
    work.await
}

/// Ctrl-C or another signal to end, once no such work is under way. Whoever has to wait for that is
/// told.
pub(crate) async fn interrupted(screen: &Screen) {
    let (by_keys, by_others) = (pin!(by_keys()), pin!(by_others()));
    match select(by_keys, by_others).await {
        Either::Left(((), _)) | Either::Right(((), _)) => {}
    }
    if RUNNING.load(Ordering::SeqCst) > 0 {
        screen.note("Interrupted: vdoctl finishes the current change first.");
    }
    while RUNNING.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn by_keys() {
    // Where signals cannot be heard, the process just ends.
    if tokio::signal::ctrl_c().await.is_err() {
        pending::<()>().await;
    }
}

/// What ends a process at once is left to do so until there is something to finish: a question that
/// waits for its answer hears nothing.
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

/// Whether somebody said `nohup`, where that can be known.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 == 1)
}
