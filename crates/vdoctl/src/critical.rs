//! Work that Ctrl-C must not cut in two: it is finished first.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::screen::Screen;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

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
    work.await
}

/// Ctrl-C, once no such work is under way. Whoever has to wait for that is told.
pub(crate) async fn interrupted(screen: &Screen) {
    // Where signals cannot be heard, the process just ends.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
    if RUNNING.load(Ordering::SeqCst) > 0 {
        screen.note("Interrupted: what was begun is finished first.");
    }
    while RUNNING.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
