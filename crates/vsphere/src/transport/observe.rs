//! Observers of calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Observes every call. Implementations must be fast, because they run inline with the call.
pub trait CallObserver: Send + Sync + std::fmt::Debug {
    fn started(&self, call: Call<'_>);
    /// Called exactly once for each started call.
    fn finished(&self, call: Call<'_>, outcome: Outcome, latency: Duration);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// The vCenter, as [`Address`](crate::Address) displays it.
    pub vcenter: &'a str,
    /// The method: `RetrievePropertiesEx`, or `GET /rest/…` without ids and query.
    pub method: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// vCenter returned a result.
    Done,
    /// vCenter returned a fault or an error status.
    Refused,
    /// The client received no usable reply.
    Failed,
    /// The caller dropped the call.
    Cancelled,
}

/// An observer that counts calls, for tools and tests.
#[derive(Debug, Default)]
pub struct CallCounter {
    counts: Mutex<BTreeMap<String, u64>>,
}

impl CallCounter {
    pub fn count(&self, method: &str) -> u64 {
        self.lock().get(method).copied().unwrap_or_default()
    }

    /// The number of calls by method.
    pub fn all(&self) -> BTreeMap<String, u64> {
        self.lock().clone()
    }

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

/// An observer that does nothing.
#[derive(Debug)]
pub(crate) struct NoObserver;

impl CallObserver for NoObserver {
    fn started(&self, _: Call<'_>) {}
    fn finished(&self, _: Call<'_>, _: Outcome, _: Duration) {}
}

/// Reports the end of a call even when its future is dropped.
#[derive(Debug)]
pub(crate) struct ObservedCall {
    observer: Arc<dyn CallObserver>,
    vcenter: Arc<str>,
    method: String,
    since: Instant,
    outcome: Outcome,
}

impl ObservedCall {
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

impl Drop for ObservedCall {
    fn drop(&mut self) {
        let call = Call { vcenter: &self.vcenter, method: &self.method };
        self.observer.finished(call, self.outcome, self.since.elapsed());
    }
}
