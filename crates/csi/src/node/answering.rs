//! System calls on disks and file systems that may never answer.
//!
//! A call that hangs keeps its thread until the disk answers or is removed. So each path has one such call at a time: a
//! hung disk costs one thread, however often the kubelet asks.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use snafu::Snafu;
use tokio::{
    sync::OwnedMutexGuard,
    time::{Instant, timeout_at},
};

#[derive(Debug, Snafu)]
#[snafu(display("{} did not answer within {} s", path.display(), limit.as_secs()))]
pub struct NoAnswer {
    path: PathBuf,
    limit: Duration,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

/// The turns of all paths with a call in progress.
static TURNS: Mutex<Option<HashMap<PathBuf, Turn>>> = Mutex::new(None);

fn turns() -> MutexGuard<'static, Option<HashMap<PathBuf, Turn>>> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the turn of a path when nobody uses it any more.
struct Cleanup(PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let mut turns = turns();
        let turns = turns.get_or_insert_default();
        if turns.get(&self.0).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(&self.0);
        }
    }
}

/// A call's right to run. The turn ends before the cleanup looks whether anybody uses it.
struct Running {
    _turn: OwnedMutexGuard<()>,
    _cleanup: Cleanup,
}

/// Runs a call that reads or writes `path`, on a thread of its own.
pub async fn within<T: Send + 'static>(
    limit: Duration,
    path: &Path,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let end = Instant::now() + limit;
    let no_answer = || NoAnswer { path: path.to_owned(), limit };
    let _cleanup = Cleanup(path.to_owned());
    let turn = Arc::clone(turns().get_or_insert_default().entry(path.to_owned()).or_default());
    let turn = timeout_at(end, turn.lock_owned()).await.map_err(|_| no_answer())?;
    let running = Running { _turn: turn, _cleanup: Cleanup(path.to_owned()) };
    let calling = tokio::task::spawn_blocking(move || {
        let answer = call();
        drop(running);
        answer
    });
    match timeout_at(end, calling).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) | Err(_) => Err(no_answer()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    #[tokio::test]
    async fn a_hung_disk_costs_one_thread_however_often_it_is_asked() {
        let (answer, hung) = mpsc::channel::<()>();
        let hung = Arc::new(Mutex::new(hung));
        let started = Arc::new(AtomicUsize::new(0));
        let (path, limit) = (Path::new("/dev/hung"), Duration::from_millis(50));
        let ask = || {
            let (hung, started) = (Arc::clone(&hung), Arc::clone(&started));
            within(limit, path, move || {
                started.fetch_add(1, Ordering::Relaxed);
                let _ = hung.lock().unwrap().recv();
            })
        };
        for _ in 0..20 {
            ask().await.unwrap_err();
        }
        assert_eq!(started.load(Ordering::Relaxed), 1);
        let other = within(Duration::from_secs(20), Path::new("/dev/other"), || 7).await;
        assert_eq!(other.unwrap(), 7, "other disks are not affected");
        // Nobody asks again: the call itself cleans up when the disk answers.
        drop(answer);
        testkit::eventually("nothing is left", 20, async || {
            let left = turns().iter().flatten().any(|(known, _)| known == path);
            if left { Err("the turn of the disk is left") } else { Ok(()) }
        })
        .await;
        within(Duration::from_secs(20), path, || ()).await.unwrap();
    }
}
