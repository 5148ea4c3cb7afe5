//! Delays between two attempts on the same object: growing, bounded, with jitter.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rand::RngExt;

/// Per-object back-off. Only objects with failures have an entry, so memory does not grow with the cluster.
#[derive(Debug)]
pub struct Backoff<K> {
    first: Duration,
    most: Duration,
    failures: Mutex<HashMap<K, u32>>,
}

impl<K: Eq + Hash> Backoff<K> {
    /// `first` is the delay after the first failure. It doubles with each further failure, up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, failures: Mutex::default() }
    }

    /// Records a failure of `key` and returns the delay before the next attempt: a random time between half and
    /// all of the current step, so that many objects that failed together do not retry together.
    pub fn failed(&self, key: K) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(key).or_insert(0);
        let step = step(self.first, self.most, *count);
        *count = count.saturating_add(1);
        step.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Resets the delays of `key`.
    pub fn succeeded(&self, key: &K) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// The delay after this number of earlier failures, without jitter.
pub fn step(first: Duration, most: Duration, failures: u32) -> Duration {
    first.saturating_mul(1 << failures.min(30)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_start_over_after_success() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
        for step in [1, 2, 4, 8, 16, 32, 60, 60, 60_u32] {
            let delay = backoff.failed("node-1");
            let whole = Duration::from_secs(step.into());
            assert!(delay >= whole / 2 && delay <= whole, "{delay:?} for a step of {whole:?}");
        }
        assert!(backoff.failed("node-2") <= Duration::from_secs(1), "objects do not share delays");
        backoff.succeeded(&"node-1");
        assert!(backoff.failed("node-1") <= Duration::from_secs(1));
    }

    #[test]
    fn objects_that_failed_together_do_not_retry_together() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
        let delays: std::collections::HashSet<Duration> =
            (0..50).map(|object| backoff.failed(object)).collect();
        assert!(delays.len() > 10, "{} different delays for 50 objects", delays.len());
    }

    #[test]
    fn repeated_failures_never_overflow() {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_mins(5));
        for _ in 0..10_000 {
            assert!(backoff.failed(()) <= Duration::from_mins(5));
        }
    }
}
