//! The checks behind `/livez` and `/readyz`.
//!
//! | check | fails when |
//! |---|---|
//! | live: `progress` | a round is under way and none of its requests has ended for [`LIMIT`] |
//! | ready: `permissions` | the account lacks permissions the operator cannot do without |
//! | ready: `lease` | the API server does not answer, or refuses the lease |
//! | ready: `installation` | another installation of VDO owns this cluster |
//! | ready: `watches` (leader) | a watch has not synced yet, or has been interrupted for two minutes |
//! | ready: `rounds` (leader) | no round has finished recently, or the last one failed |
//!
//! Neither fails while a vCenter is unreachable or a driver is unhealthy: the status shows that, and another
//! pod would not change it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::runtime::watcher;
use runtime::{
    checks::{Check, Checks, Watchdog},
    error_chain::error_chain,
    kubernetes::LONGEST_REQUEST,
};
use tokio::time::Instant;

/// The longest step of a round: the slowest possible request to the API server, and the longest request to a
/// vCenter within a round.
pub const LIMIT: Duration = LONGEST_REQUEST.saturating_add(Duration::from_mins(3));
/// How long a watch can be interrupted: longer than an API server takes to restart.
const INTERRUPTED: Duration = Duration::from_mins(2);
/// How often the operator checks for interrupted watches.
const LOOK: Duration = Duration::from_secs(5);

/// The checks of an instance, whether or not it leads.
#[derive(Clone, Debug)]
pub struct Probes {
    ready: Checks,
    progress: Watchdog,
    /// Whether the account has the permissions it needs.
    pub permissions: Check,
    /// Whether the election works.
    pub lease: Check,
    /// Whether this installation owns the cluster.
    pub installation: Check,
}

/// The additional checks of the leader.
#[derive(Clone, Debug)]
pub struct LeaderProbes {
    pub(crate) progress: Watchdog,
    pub(crate) watches: Check,
    /// Whether rounds finish.
    pub rounds: Check,
}

impl Probes {
    /// Registers the checks. `limit` is the longest time that a step of a round can take.
    pub fn register(live: &Checks, ready: &Checks, limit: Duration) -> Self {
        let installation =
            ready.register("installation", "the cluster's lease has not been read yet");
        installation.pass();
        Self {
            installation,
            progress: live.watchdog("progress", limit),
            permissions: ready.register("permissions", "the permissions are not known yet"),
            lease: ready.register("lease", "the lease has not been read yet"),
            ready: ready.clone(),
        }
    }

    /// Registers the checks of an instance that leads from now on.
    pub fn for_leader(&self) -> LeaderProbes {
        LeaderProbes {
            progress: self.progress.clone(),
            watches: self.ready.register("watches", "the watches have not synced yet"),
            rounds: self.ready.register("rounds", "no round has finished yet"),
        }
    }
}

/// The currently interrupted watches. Clones are cheap and share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interruptions(Arc<Mutex<Interrupted>>);

#[derive(Debug, Default)]
struct Interrupted {
    /// Since when, and the error with its causes.
    now: BTreeMap<String, (Instant, String)>,
    /// The last error of each watch that ever failed.
    last: BTreeMap<String, WatchError>,
}

/// Why a watch failed.
#[derive(Clone, Debug)]
pub(crate) struct WatchError {
    pub(crate) reason: String,
    /// Whether the cluster does not define the kind.
    pub(crate) is_undefined: bool,
}

impl Interruptions {
    /// Notes the result of a watch: an error, or `None` for an event.
    pub(crate) fn note(&self, watch: &str, error: Option<&watcher::Error>) {
        let mut interrupted = self.lock();
        match error {
            Some(error) => {
                let before = interrupted.now.get(watch);
                let since = before.map_or_else(Instant::now, |(since, _)| *since);
                interrupted.now.insert(watch.to_owned(), (since, error_chain(error)));
                interrupted.last.insert(watch.to_owned(), WatchError::new(error));
            }
            None => drop(interrupted.now.remove(watch)),
        }
    }

    /// The last error of a watch, if it ever failed.
    pub(crate) fn last(&self, watch: &str) -> Option<WatchError> {
        self.lock().last.get(watch).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Interrupted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watches that have been interrupted for too long, with the reason.
    fn too_long(&self) -> Vec<String> {
        let interrupted = self.lock();
        let late = interrupted.now.iter().filter(|(_, (since, _))| since.elapsed() >= INTERRUPTED);
        late.map(|(watch, (_, reason))| format!("{watch}: {reason}")).collect()
    }

    /// Keeps a check up to date. Never ends.
    pub(crate) async fn report_to(self, check: Check) {
        loop {
            match self.too_long() {
                late if late.is_empty() => check.pass(),
                late => check.fail(late.join("; ")),
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl WatchError {
    fn new(error: &watcher::Error) -> Self {
        use watcher::Error::InitialListFailed;
        let list = match error {
            InitialListFailed(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        };
        Self { reason: reason(error), is_undefined: list == Some(404) }
    }
}

/// The reason why a watch fails, without the details that change from one attempt to the next.
pub(crate) fn reason(error: &watcher::Error) -> String {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
            Some(status.message.clone())
        }
        watcher::Error::WatchError(status) => Some(status.message.clone()),
        _ => None,
    };
    status.unwrap_or_else(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> watcher::Error {
        let status = kube::core::Status::failure("nodes is forbidden", "Forbidden");
        watcher::Error::WatchError(Box::new(status))
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_counts_as_interrupted_after_a_while_and_not_once_it_is_back() {
        let (interruptions, ready) = (Interruptions::default(), Checks::default());
        let watches = ready.register("watches", "not yet");
        let reporting = interruptions.clone().report_to(watches);
        let error_chain = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(ready.pass());
            interruptions.note("Node", Some(&refused()));
            tokio::time::sleep(Duration::from_mins(1)).await;
            assert!(ready.pass(), "as when an API server restarts");
            interruptions.note("Node", Some(&refused()));
            tokio::time::sleep(Duration::from_secs(70)).await;
            let states = ready.states();
            let reason = states["watches"].as_ref().unwrap_err();
            assert!(reason.starts_with("Node: ") && reason.contains("forbidden"), "{reason}");
            interruptions.note("Node", None);
            tokio::time::sleep(LOOK * 2).await;
            assert!(ready.pass());
        };
        tokio::select! { () = reporting => {}, () = error_chain => {} }
    }

    #[test]
    fn a_standby_is_ready_without_rounds_and_a_leader_is_not() {
        let (live, ready) = (Checks::default(), Checks::default());
        let probes = Probes::register(&live, &ready, LIMIT);
        assert!(live.pass() && !ready.pass());
        probes.permissions.pass();
        probes.lease.pass();
        assert!(ready.pass());
        let leader = probes.for_leader();
        assert!(!ready.pass(), "it has done nothing yet");
        leader.watches.pass();
        leader.rounds.pass();
        assert!(ready.pass());
    }
}
