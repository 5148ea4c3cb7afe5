//! The work queue: each node is queued once, however often it is added.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Names of nodes to sync. One worker at a time processes a name. If the name is added during
/// that time, the queue returns it again afterwards.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    added: Notify,
    /// A name was added that a worker is processing.
    dirty: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Arc<str>>,
    is_ready: HashSet<Arc<str>>,
    processing: HashSet<Arc<str>>,
    dirty: HashSet<Arc<str>>,
    delayed: BTreeSet<(Instant, Arc<str>)>,
    due: HashMap<Arc<str>, Instant>,
}

impl Queue {
    pub fn add(&self, name: &Arc<str>) {
        let mut state = self.lock();
        if state.processing.contains(name) {
            state.dirty.insert(name.clone());
            self.dirty.notify_waiters();
        } else if state.is_ready.insert(name.clone()) {
            state.ready.push_back(name.clone());
            self.added.notify_one();
        }
    }

    /// Adds `name` at a time. Of several times, the earliest counts.
    pub fn add_at(&self, name: &Arc<str>, at: Instant) {
        let mut state = self.lock();
        if let Some(before) = state.due.get(name).copied() {
            if before <= at {
                return;
            }
            state.delayed.remove(&(before, name.clone()));
        }
        state.due.insert(name.clone(), at);
        state.delayed.insert((at, name.clone()));
        self.added.notify_one();
    }

    /// Returns the next name; [`Queue::done`] must follow. For one caller at a time. Cancel safe.
    pub async fn next(&self) -> Arc<str> {
        loop {
            let due = {
                let mut state = self.lock();
                if state.promote(Instant::now()) {
                    self.dirty.notify_waiters();
                }
                if let Some(name) = state.ready.pop_front() {
                    state.is_ready.remove(&name);
                    state.processing.insert(name.clone());
                    return name;
                }
                state.delayed.first().map(|(at, _)| *at)
            };
            match due {
                Some(due) => tokio::select! {
                    () = self.added.notified() => {}
                    () = sleep_until(due) => {}
                },
                None => self.added.notified().await,
            }
        }
    }

    /// Waits until a name is added that a worker is processing. The caller handles that addition: the
    /// queue does not return the name again for it.
    pub async fn added_again(&self, name: &Arc<str>) {
        loop {
            let mut asked = std::pin::pin!(self.dirty.notified());
            // No notification is lost from here on.
            asked.as_mut().enable();
            if self.lock().dirty.remove(name) {
                return;
            }
            asked.await;
        }
    }

    pub fn done(&self, name: &Arc<str>) {
        let dirty = {
            let mut state = self.lock();
            state.processing.remove(name);
            state.dirty.remove(name)
        };
        if dirty {
            self.add(name);
        }
    }

    /// Number of names that are due.
    pub fn depth(&self) -> usize {
        self.lock().ready.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Moves due names to the ready list. Returns whether a worker is processing one of them.
    fn promote(&mut self, now: Instant) -> bool {
        let mut is_processing = false;
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.delayed.pop_first() else { break };
            self.due.remove(&name);
            if self.processing.contains(&name) {
                is_processing = true;
                self.dirty.insert(name);
            } else if self.is_ready.insert(name.clone()) {
                self.ready.push_back(name);
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
}
