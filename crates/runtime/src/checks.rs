//! Named conditions behind `/livez` and `/readyz`.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A set of named checks. Cheap to clone; all clones share one set.
///
/// A check fails with the reason it was registered with until it reports for the first time.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    states: States,
}

type States = Arc<Mutex<BTreeMap<&'static str, State>>>;

#[derive(Clone, Debug)]
enum State {
    Pass,
    /// Passes until the instant, then fails with the reason.
    PassUntil(Instant, String),
    Fail(String),
}

/// Reports the state of one check.
#[derive(Clone, Debug)]
pub struct Check {
    name: &'static str,
    states: States,
}

impl Checks {
    /// Registers a check. Until it reports, it fails with `not_yet`.
    pub fn register(&self, name: &'static str, not_yet: &str) -> Check {
        let check = Check { name, states: self.states.clone() };
        check.report(State::Fail(not_yet.to_owned()));
        check
    }

    /// Registers a check that fails while work hangs: work is in progress, and none of its steps has ended for
    /// `limit`. Without work it passes.
    pub fn watchdog(&self, name: &'static str, limit: Duration) -> Watchdog {
        let check = Check { name, states: self.states.clone() };
        check.pass();
        Watchdog { check, limit, work: Arc::default() }
    }

    /// The current state of every check.
    pub fn states(&self) -> BTreeMap<&'static str, Result<(), String>> {
        let now = Instant::now();
        let states = lock(&self.states);
        let at_present = states.iter().map(|(name, state)| {
            let state = match state {
                State::Pass => Ok(()),
                State::PassUntil(until, _) if now < *until => Ok(()),
                State::PassUntil(_, reason) | State::Fail(reason) => Err(reason.clone()),
            };
            (*name, state)
        });
        at_present.collect()
    }

    pub fn pass(&self) -> bool {
        self.states().values().all(Result::is_ok)
    }
}

impl Check {
    /// Passes until the next report.
    pub fn pass(&self) {
        self.report(State::Pass);
    }

    /// Passes for `limit`, then fails with `reason` unless another report arrives.
    pub fn pass_for(&self, limit: Duration, reason: impl Into<String>) {
        self.report(State::PassUntil(Instant::now() + limit, reason.into()));
    }

    /// Fails until the next report. `/livez` or `/readyz` shows the reason.
    pub fn fail(&self, reason: impl Into<String>) {
        self.report(State::Fail(reason.into()));
    }

    /// Passes without problems; otherwise fails with the name and the reason of each.
    pub fn pass_without<N: Display>(&self, problems: &[(N, String)]) {
        let listed: Vec<String> =
            problems.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        if listed.is_empty() { self.pass() } else { self.fail(listed.join("; ")) }
    }

    fn report(&self, state: State) {
        lock(&self.states).insert(self.name, state);
    }
}

/// Detects work that hangs. Cheap to clone; all clones watch the same work.
#[derive(Clone, Debug)]
pub struct Watchdog {
    check: Check,
    limit: Duration,
    work: Arc<Mutex<UnderWay>>,
}

/// Work in progress, with the deadline of each next step.
#[derive(Debug, Default)]
struct UnderWay {
    deadlines: BTreeMap<u64, Instant>,
    begun: u64,
}

/// Work that a [`Watchdog`] watches until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Work {
    id: u64,
    watchdog: Watchdog,
}

impl Watchdog {
    /// Starts work. It must end, or complete a step, within the limit.
    pub fn begin(&self) -> Work {
        let id = self.change(|work, deadline| {
            work.begun += 1;
            work.deadlines.insert(work.begun, deadline);
            work.begun
        });
        Work { id, watchdog: self.clone() }
    }

    /// Records the end of a step, successful or not.
    pub fn step(&self) {
        self.change(|work, deadline| work.deadlines.values_mut().for_each(|of| *of = deadline));
    }

    /// The time limit of a step.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Updates the work in progress and reports it. The closure gets the deadline of a step that starts now.
    fn change<R>(&self, change: impl FnOnce(&mut UnderWay, Instant) -> R) -> R {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut work, Instant::now() + self.limit);
        self.check.report(match work.deadlines.values().min() {
            Some(first) => {
                let reason = format!("no step has ended for {} seconds", self.limit.as_secs());
                State::PassUntil(*first, reason)
            }
            None => State::Pass,
        });
        result
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.watchdog.change(|work, _| work.deadlines.remove(&self.id));
    }
}

fn lock(states: &States) -> MutexGuard<'_, BTreeMap<&'static str, State>> {
    states.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_fails_until_its_first_report() {
        let checks = Checks::default();
        assert!(checks.pass(), "nothing registered, nothing wrong");
        let check = checks.register("cache", "the cache is not filled yet");
        assert!(!checks.pass());
        assert_eq!(checks.states()["cache"], Err("the cache is not filled yet".into()));
        check.pass();
        assert!(checks.pass());
        check.fail("vCenter is unreachable");
        assert_eq!(checks.states()["cache"], Err("vCenter is unreachable".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_with_a_limit_expires() {
        let checks = Checks::default();
        let check = checks.register("rounds", "none yet");
        check.pass_for(Duration::from_secs(10), "no round for 10 seconds");
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(checks.pass());
        check.pass_for(Duration::from_secs(10), "no round for 10 seconds");
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(checks.pass(), "the second report counts");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(checks.states()["rounds"], Err("no round for 10 seconds".into()));
        check.pass();
        tokio::time::advance(Duration::from_hours(1)).await;
        assert!(checks.pass());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watchdog_fails_only_while_work_hangs() {
        let checks = Checks::default();
        let watchdog = checks.watchdog("progress", Duration::from_secs(10));
        tokio::time::advance(Duration::from_hours(1)).await;
        watchdog.step();
        tokio::time::advance(Duration::from_hours(1)).await;
        assert!(checks.pass(), "no work, nothing hangs");
        let work = watchdog.begin();
        for _ in 0..5 {
            tokio::time::advance(Duration::from_secs(9)).await;
            assert!(checks.pass(), "long work makes progress");
            watchdog.step();
        }
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(checks.states()["progress"], Err("no step has ended for 10 seconds".into()));
        watchdog.step();
        assert!(checks.pass(), "it goes on");
        drop(work);
        tokio::time::advance(Duration::from_hours(1)).await;
        assert!(checks.pass());
        // One hangs; other work that starts and ends does not hide it.
        let hangs = watchdog.begin();
        tokio::time::advance(Duration::from_secs(6)).await;
        drop(watchdog.begin());
        tokio::time::advance(Duration::from_secs(6)).await;
        assert!(!checks.pass());
        drop(hangs);
        assert!(checks.pass());
    }
}
