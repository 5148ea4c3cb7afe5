//! What can be seen from outside: every call, as it starts and as it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Is told of every call. Implementations must be quick: they run in the path of the call.
pub trait CallObserver: Send + Sync + std::fmt::Debug {
    /// A call goes out.
    fn started(&self, call: Call<'_>);
    /// A call is over. Every call that started is also reported finished, once.
    fn finished(&self, call: Call<'_>, outcome: Outcome, latency: Duration);
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// The vCenter, as [`Address`](crate::Address) shows it.
    pub vcenter: &'a str,
    /// The method: `RetrievePropertiesEx`, or `GET /rest/…` without ids and query.
    pub method: &'a str,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// With a result.
    Done,
    /// With a refusal by vCenter.
    Refused,
    /// Without a usable answer.
    Failed,
    /// Its caller went away.
    Cancelled,
}

/// An observer that counts, for tools and tests.
#[derive(Debug, Default)]
pub struct CallCounter {
    counts: Mutex<BTreeMap<String, u64>>,
}

impl CallCounter {
    /// How often `method` was called so far.
    pub fn of(&self, method: &str) -> u64 {
        self.lock().get(method).copied().unwrap_or_default()
    }

    /// All calls so far, by method.
    pub fn all(&self) -> BTreeMap<String, u64> {
        self.lock().clone()
    }

    /// The number of all calls so far.
    pub fn total(&self) -> u64 {
        self.lock().values().sum()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallObserver for CallCounter {
    fn started(&self, call: Call<'_>) {
        *self.lock().entry(call.method.to_owned()).or_default() += 1;
    }

    fn finished(&self, _: Call<'_>, _: Outcome, _: Duration) {}
}

/// An observer that looks away.
#[derive(Debug)]
pub(crate) struct Unobserved;

impl CallObserver for Unobserved {
    fn started(&self, _: Call<'_>) {}
    fn finished(&self, _: Call<'_>, _: Outcome, _: Duration) {}
}

/// Reports the end of a call even when its future is dropped.
#[derive(Debug)]
pub(crate) struct Observed {
    observer: Arc<dyn CallObserver>,
    vcenter: Arc<str>,
    method: String,
    since: Instant,
    outcome: Outcome,
}

impl Observed {
    pub(crate) fn start(
        observer: &Arc<dyn CallObserver>,
        vcenter: &Arc<str>,
        method: &str,
    ) -> Self {
        observer.started(Call { vcenter, method });
        Self {
            observer: Arc::clone(observer),
            vcenter: Arc::clone(vcenter),
            method: method.to_owned(),
            since: Instant::now(),
            outcome: Outcome::Cancelled,
        }
    }

    pub(crate) fn set(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let call = Call { vcenter: &self.vcenter, method: &self.method };
        self.observer.finished(call, self.outcome, self.since.elapsed());
    }
}
