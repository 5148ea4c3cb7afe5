//! The work queue of a controller: each key is queued once, however often it is added, and one worker at a time
//! processes it.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The version of a change that always counts.
pub const ANY: u64 = u64::MAX;

/// Keys of objects to work on. If a key is added while a worker processes it, the queue returns it again afterwards.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    added: Notify,
    /// A key was added that a worker is processing.
    dirty: Notify,
    depth: Gauge,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Arc<str>>,
    is_ready: HashSet<Arc<str>>,
    processing: HashSet<Arc<str>>,
    /// Keys that changed while a worker processed them, with the version of the change.
    dirty: HashMap<Arc<str>, u64>,
    /// The versions that the worker knew when it began to wait before it works on a key again.
    known: HashMap<Arc<str>, u64>,
    delayed: BTreeSet<(Instant, Arc<str>)>,
    due: HashMap<Arc<str>, Instant>,
}

impl Queue {
    /// A queue that keeps `depth` equal to the number of keys that are due.
    pub fn observed(depth: Gauge) -> Self {
        Self { depth, ..Self::default() }
    }

    pub fn add(&self, key: &str) {
        self.add_version(key, ANY);
    }

    /// Adds a key because its object changed to this version. A change up to the version that the worker knew when
    /// it ended ([`Queue::done_until_changed`]) adds nothing.
    pub fn add_version(&self, key: &str, version: u64) {
        let mut state = self.lock();
        if state.processing.contains(key) {
            let newest = state.dirty.entry(key.into()).or_default();
            *newest = version.max(*newest);
            self.dirty.notify_waiters();
        } else if !state.is_ready.contains(key)
            && state.known.get(key).is_none_or(|known| version > *known)
        {
            let key: Arc<str> = key.into();
            state.is_ready.insert(key.clone());
            state.ready.push_back(key);
            self.show(&state);
            self.added.notify_one();
        }
    }

    /// Adds a key at a time. Of several times, the earliest counts.
    pub fn add_at(&self, key: &Arc<str>, at: Instant) {
        let mut state = self.lock();
        if let Some(before) = state.due.get(key).copied() {
            if before <= at {
                return;
            }
            state.delayed.remove(&(before, key.clone()));
        }
        state.due.insert(key.clone(), at);
        state.delayed.insert((at, key.clone()));
        self.added.notify_one();
    }

    /// Returns the next key; [`Queue::done`] must follow. For one caller at a time. Cancel safe.
    pub async fn next(&self) -> Arc<str> {
        loop {
            if let Some(key) = self.try_next() {
                return key;
            }
            let due = self.lock().delayed.first().map(|(at, _)| *at);
            match due {
                Some(due) => tokio::select! {
                    () = self.added.notified() => {}
                    () = sleep_until(due) => {}
                },
                None => self.added.notified().await,
            }
        }
    }

    /// Like [`Queue::next`], if a key is due now.
    pub fn try_next(&self) -> Option<Arc<str>> {
        let mut state = self.lock();
        if state.promote(Instant::now()) {
            self.dirty.notify_waiters();
        }
        let key = state.ready.pop_front();
        self.show(&state);
        let key = key?;
        state.is_ready.remove(&key);
        state.known.remove(&key);
        state.processing.insert(key.clone());
        Some(key)
    }

    /// Waits until a key is added that a worker is processing. The caller handles that addition: the queue does not
    /// return the key again for it.
    pub async fn added_again(&self, key: &Arc<str>) {
        loop {
            let mut asked = std::pin::pin!(self.dirty.notified());
            // No notification is lost from here on.
            asked.as_mut().enable();
            if self.lock().dirty.remove(key).is_some() {
                return;
            }
            asked.await;
        }
    }

    pub fn done(&self, key: &Arc<str>) {
        self.end(key, None);
    }

    /// Like [`Queue::done`], for a worker that waits before it works on the key again: changes up to this version are
    /// no reason to do so earlier.
    pub fn done_until_changed(&self, key: &Arc<str>, known: u64) {
        self.end(key, Some(known));
    }

    fn end(&self, key: &Arc<str>, known: Option<u64>) {
        let changed = {
            let mut state = self.lock();
            state.processing.remove(key);
            if let Some(known) = known {
                state.known.insert(key.clone(), known);
            }
            state.dirty.remove(key)
        };
        if let Some(version) = changed {
            self.add_version(key, version);
        }
    }

    /// Number of keys that are due.
    pub fn depth(&self) -> usize {
        self.lock().ready.len()
    }

    fn show(&self, state: &State) {
        self.depth.set(i64::try_from(state.ready.len()).unwrap_or(i64::MAX));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Moves due keys to the ready list. Returns whether a worker is processing one of them.
    fn promote(&mut self, now: Instant) -> bool {
        let mut is_processing = false;
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.delayed.pop_first() else { break };
            self.due.remove(&key);
            if self.processing.contains(&key) {
                is_processing = true;
                self.dirty.insert(key, ANY);
            } else if self.is_ready.insert(key.clone()) {
                self.ready.push_back(key);
            }
        }
        is_processing
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_added_many_times_is_returned_once() {
        let queue = Queue::default();
        for _ in 0..3 {
            queue.add(&name("a"));
        }
        queue.add(&name("b"));
        assert_eq!((&*queue.next().await, &*queue.next().await, queue.depth()), ("a", "b", 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_in_progress_is_returned_again_only_after_it_is_done() {
        let queue = Queue::default();
        queue.add(&name("a"));
        queue.next().await;
        queue.add(&name("a"));
        assert_eq!(queue.depth(), 0, "never with two workers at once");
        queue.done(&name("a"));
        assert_eq!(&*queue.next().await, "a");
        queue.done(&name("a"));
        assert_eq!(queue.depth(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_learns_that_its_name_was_added_again_and_handles_it() {
        let queue = Queue::default();
        queue.add(&name("a"));
        queue.add(&name("b"));
        queue.next().await;
        queue.next().await;
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, queue.added_again(&name("a"))).await.is_err());
        queue.add(&name("b"));
        assert!(tokio::time::timeout(soon, queue.added_again(&name("a"))).await.is_err());
        // Added before the wait, and during it.
        queue.add(&name("a"));
        queue.added_again(&name("a")).await;
        let listening = async { queue.added_again(&name("a")).await };
        let asking = async { queue.add(&name("a")) };
        let (heard, ()) = tokio::join!(tokio::time::timeout(soon, listening), asking);
        assert!(heard.is_ok());
        queue.done(&name("a"));
        queue.done(&name("b"));
        assert_eq!(
            (&*queue.next().await, queue.depth()),
            ("b", 0),
            "the other addition was not handled"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_times_counts() {
        let queue = Queue::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        queue.add_at(&name("a"), at(60));
        queue.add_at(&name("b"), at(30));
        queue.add_at(&name("a"), at(10));
        queue.add_at(&name("a"), at(20));
        assert_eq!((&*queue.next().await, start.elapsed().as_secs()), ("a", 10));
        assert_eq!((&*queue.next().await, start.elapsed().as_secs()), ("b", 30));
        assert!(tokio::time::timeout(Duration::from_secs(100), queue.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_the_worker_knew_does_not_end_its_wait() {
        let queue = Queue::default();
        queue.add("a");
        let key = queue.next().await;
        queue.add_at(&key, Instant::now() + Duration::from_secs(10));
        queue.done_until_changed(&key, 7);
        queue.add_version("a", 7);
        assert_eq!(queue.try_next(), None);
        queue.add_version("a", 8);
        assert_eq!(queue.try_next(), Some(key));
    }

    #[tokio::test(start_paused = true)]
    async fn the_gauge_shows_the_keys_that_are_due() {
        let depth = Gauge::default();
        let queue = Queue::observed(depth.clone());
        queue.add("a");
        queue.add("b");
        assert_eq!(depth.get(), 2);
        queue.next().await;
        assert_eq!(depth.get(), 1);
    }
}
