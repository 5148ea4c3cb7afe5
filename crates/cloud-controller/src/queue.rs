//! Which nodes are to be looked at, each once however often it was asked for.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Names waiting to be looked at. A name is handed out to one worker at a time; if it is asked for
/// while it is out, it comes again afterwards.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    added: Notify,
    /// A name was asked for that is out.
    again: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Arc<str>>,
    is_ready: HashSet<Arc<str>>,
    out: HashSet<Arc<str>>,
    again: HashSet<Arc<str>>,
    later: BTreeSet<(Instant, Arc<str>)>,
    due: HashMap<Arc<str>, Instant>,
}

impl Queue {
    /// Asks for `name` now.
    pub fn add(&self, name: &Arc<str>) {
        let mut state = self.lock();
        if state.out.contains(name) {
            state.again.insert(name.clone());
            self.again.notify_waiters();
        } else if state.is_ready.insert(name.clone()) {
            state.ready.push_back(name.clone());
            self.added.notify_one();
        }
    }

    /// Asks for `name` at a time. Of several times the earliest counts.
    pub fn add_at(&self, name: &Arc<str>, at: Instant) {
        let mut state = self.lock();
        if let Some(before) = state.due.get(name).copied() {
            if before <= at {
                return;
            }
            state.later.remove(&(before, name.clone()));
        }
        state.due.insert(name.clone(), at);
        state.later.insert((at, name.clone()));
        self.added.notify_one();
    }

    /// The next name; [`Queue::done`] must follow. For one caller at a time; safe to drop and call
    /// again.
    pub async fn next(&self) -> Arc<str> {
        loop {
            let due = {
                let mut state = self.lock();
                if state.promote(Instant::now()) {
                    self.again.notify_waiters();
                }
                if let Some(name) = state.ready.pop_front() {
                    state.is_ready.remove(&name);
                    state.out.insert(name.clone());
                    return name;
                }
                state.later.first().map(|(at, _)| *at)
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

    /// Waits until a name that is out is asked for. Who hears that takes it upon himself: it does not come
    /// again because of it.
    pub async fn asked_for_again(&self, name: &Arc<str>) {
        loop {
            let mut asked = std::pin::pin!(self.again.notified());
            // From here on nothing is missed.
            asked.as_mut().enable();
            if self.lock().again.remove(name) {
                return;
            }
            asked.await;
        }
    }

    /// Says that a name that was handed out has been looked at.
    pub fn done(&self, name: &Arc<str>) {
        let again = {
            let mut state = self.lock();
            state.out.remove(name);
            state.again.remove(name)
        };
        if again {
            self.add(name);
        }
    }

    /// How many names wait now.
    pub fn depth(&self) -> usize {
        self.lock().ready.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Moves what is due to what is ready; says whether some of it is out.
    fn promote(&mut self, now: Instant) -> bool {
        let mut is_out = false;
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.later.pop_first() else { break };
            self.due.remove(&name);
            if self.out.contains(&name) {
                is_out = true;
                self.again.insert(name);
            } else if self.is_ready.insert(name.clone()) {
                self.ready.push_back(name);
            }
        }
        is_out
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
    async fn a_name_asked_for_many_times_comes_once() {
        let queue = Queue::default();
        for _ in 0..3 {
            queue.add(&name("a"));
        }
        queue.add(&name("b"));
        assert_eq!((&*queue.next().await, &*queue.next().await, queue.depth()), ("a", "b", 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_out_comes_again_only_after_it_is_done() {
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
    async fn who_has_a_name_out_hears_that_it_is_asked_for_and_takes_it_over() {
        let queue = Queue::default();
        queue.add(&name("a"));
        queue.add(&name("b"));
        queue.next().await;
        queue.next().await;
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, queue.asked_for_again(&name("a"))).await.is_err());
        queue.add(&name("b"));
        assert!(tokio::time::timeout(soon, queue.asked_for_again(&name("a"))).await.is_err());
        // Asked for before, and while somebody listens.
        queue.add(&name("a"));
        queue.asked_for_again(&name("a")).await;
        let listening = async { queue.asked_for_again(&name("a")).await };
        let asking = async { queue.add(&name("a")) };
        let (heard, ()) = tokio::join!(tokio::time::timeout(soon, listening), asking);
        assert!(heard.is_ok());
        queue.done(&name("a"));
        queue.done(&name("b"));
        assert_eq!((&*queue.next().await, queue.depth()), ("b", 0), "the other one was not heard");
    }

    #[tokio::test(start_paused = true)]
    async fn of_several_times_the_earliest_counts() {
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
