//! The work queue of a loop: a failed key waits for its back-off.

use std::{sync::Arc, time::Duration};

use prometheus_client::metrics::counter::Counter;
pub use runtime::queue::ANY;
use runtime::{backoff::Backoff, queue::Queue as Keys};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::metrics::LoopMetrics;

/// Per object, as in the upstream sidecars.
pub const FIRST_RETRY: Duration = Duration::from_secs(1);
pub const MAX_RETRY: Duration = Duration::from_mins(5);
/// The pause after a write that conflicted with another one. The watch delivers the newer object meanwhile.
const AFTER_CONFLICT: Duration = Duration::from_millis(50);
/// How long running operations get to finish when the process stops.
const GRACE: Duration = Duration::from_secs(10);

/// When a key is due again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When one of its objects changes.
    OnChange,
    /// After the back-off of the key.
    Retry,
    /// Soon: an object changed while the loop worked on it.
    Conflict,
    /// After this time, without a failure.
    After(Duration),
}

/// One loop: it brings the object of a key closer to its desired state.
pub trait Reconcile: Send + Sync + 'static {
    fn reconcile(&self, key: &str) -> impl Future<Output = Next> + Send;

    /// The newest version of the key's object that the loop has seen or written. A change up to this version is no
    /// reason to work on the key before its back-off ends: it is most likely the report of the last failure.
    fn known_version(&self, key: &str) -> u64;
}

#[derive(Debug)]
pub struct Queue {
    keys: Keys,
    backoff: Backoff<Arc<str>>,
    retries: Counter,
}

impl Queue {
    pub fn new(name: &'static str, metrics: &LoopMetrics) -> Self {
        Self {
            keys: Keys::observed(metrics.depth(name)),
            backoff: Backoff::new(FIRST_RETRY, MAX_RETRY),
            retries: metrics.retries(name),
        }
    }

    /// Adds a key because its object changed to this version.
    pub fn add(&self, key: &str, version: u64) {
        self.keys.add_version(key, version);
    }

    fn done(&self, key: &Arc<str>, next: Next, known: u64) {
        match next {
            Next::OnChange => self.backoff.succeeded(key),
            Next::Conflict => self.keys.add_at(key, Instant::now() + AFTER_CONFLICT),
            Next::Retry => {
                self.retries.inc();
                self.keys.add_at(key, Instant::now() + self.backoff.failed(key.clone()));
            }
            Next::After(pause) => {
                self.backoff.succeeded(key);
                self.keys.add_at(key, Instant::now() + pause);
            }
        }
        match next {
            Next::OnChange | Next::Conflict => self.keys.done(key),
            Next::Retry | Next::After(_) => self.keys.done_until_changed(key, known),
        }
    }

    /// Runs a loop until `stop` is cancelled. Then running operations get a moment to finish.
    pub async fn work(
        self: Arc<Self>,
        reconciler: Arc<impl Reconcile>,
        concurrency: usize,
        stop: CancellationToken,
    ) {
        let permits = Arc::new(Semaphore::new(concurrency.clamp(1, Semaphore::MAX_PERMITS)));
        let mut workers: JoinSet<()> = JoinSet::new();
        let next = async || {
            // The semaphore is never closed.
            let permit = permits.clone().acquire_owned().await.ok();
            (permit, self.keys.next().await)
        };
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                (permit, key) = next() => {
                    let (queue, reconciler) = (self.clone(), reconciler.clone());
                    workers.spawn(async move {
                        let due = reconciler.reconcile(&key).await;
                        queue.done(&key, due, reconciler.known_version(&key));
                        drop(permit);
                    });
                }
                Some(_) = workers.join_next(), if !workers.is_empty() => {}
            }
        }
        let finishing = async { while workers.join_next().await.is_some() {} };
        // The others are repeated by the next leader: every operation can be repeated.
        let _ = timeout(GRACE, finishing).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Fails twice, and counts how many keys it works on at once.
    #[derive(Default)]
    struct Counting {
        calls: AtomicUsize,
        running: AtomicUsize,
        most: AtomicUsize,
    }

    impl Reconcile for Counting {
        async fn reconcile(&self, key: &str) -> Next {
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(running, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(10)).await;
            self.running.fetch_sub(1, Ordering::SeqCst);
            let calls = self.calls.fetch_add(1, Ordering::SeqCst);
            if key == "fails" && calls < 2 { Next::Retry } else { Next::OnChange }
        }

        fn known_version(&self, _: &str) -> u64 {
            7
        }
    }

    fn queue() -> Arc<Queue> {
        Arc::new(Queue::new("test", &LoopMetrics::default()))
    }

    async fn run(queue: &Arc<Queue>, concurrency: usize, for_: Duration) -> Arc<Counting> {
        let counting = Arc::new(Counting::default());
        let working = queue.clone().work(counting.clone(), concurrency, CancellationToken::new());
        let _ = timeout(for_, working).await;
        counting
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_many_times_is_processed_once() {
        let queue = queue();
        (0..5).for_each(|_| queue.add("a", ANY));
        let counting = run(&queue, 10, Duration::from_mins(1)).await;
        assert_eq!(counting.calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_key_is_retried_until_it_succeeds() {
        let queue = queue();
        queue.add("fails", ANY);
        let counting = run(&queue, 10, Duration::from_mins(1)).await;
        assert_eq!(counting.calls.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_report_of_a_failure_does_not_end_the_back_off() {
        for (version, calls) in [(7, 1), (8, 2), (ANY, 2)] {
            let queue = queue();
            queue.add("fails", ANY);
            let adding = async {
                // While it works, and while it waits.
                tokio::time::sleep(Duration::from_millis(5)).await;
                queue.add("fails", version.min(7));
                tokio::time::sleep(Duration::from_millis(100)).await;
                queue.add("fails", version);
            };
            let (counting, ()) = tokio::join!(run(&queue, 10, Duration::from_millis(300)), adding);
            assert_eq!(counting.calls.load(Ordering::SeqCst), calls, "version {version}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_running_operations_is_bounded() {
        let queue = queue();
        (0..50).for_each(|n| queue.add(&n.to_string(), ANY));
        let counting = run(&queue, 7, Duration::from_mins(1)).await;
        assert_eq!(counting.calls.load(Ordering::SeqCst), 50);
        assert_eq!(counting.most.load(Ordering::SeqCst), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_never_processed_twice_at_once() {
        let queue = queue();
        queue.add("a", ANY);
        let adding = async {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                queue.add("a", ANY);
            }
        };
        let (counting, ()) = tokio::join!(run(&queue, 10, Duration::from_secs(1)), adding);
        assert_eq!(counting.most.load(Ordering::SeqCst), 1);
        assert!(counting.calls.load(Ordering::SeqCst) >= 2, "a later change is not lost");
    }
}
