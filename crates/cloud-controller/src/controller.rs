//! The sync loop: one sync per node at a time.
//!
//! A sync reads the Node from the cache and its VM from the inventories, decides with the pure
//! modules, and writes only the differences. A write fails if the Node has changed since.

mod copies;
mod removal;
mod replaced;
mod sync;
mod vcenter_queries;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use runtime::{
    backoff::Backoff,
    checks::{Check, Watchdog},
    queue::Queue,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    absence::LastSeen,
    events::Events,
    identity::{self, Match},
    lifecycle::{Deletions, Policy},
    metrics::Metrics,
    model::VmRef,
    nodes::{Change, Nodes},
    pooled_vcenter::Signal,
    record::Record,
    vcenter_pool::VcenterPool,
};

/// Pause after a failed sync; it doubles up to [`MAX_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(200);
const MAX_RETRY: Duration = Duration::from_mins(1);
/// Longer than [`MAX_RETRY`]: while it is unclear whether a VM is gone, each query lists whole
/// inventories, and a watch reports most changes anyway.
const MAX_UNCERTAIN_RETRY: Duration = Duration::from_mins(5);
/// Pause between a change of a VM and the sync of nodes without a visible VM.
const DEBOUNCE: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub struct Options {
    pub node_controller: bool,
    pub lifecycle_controller: bool,
    pub policy: Policy,
    /// Number of nodes synced at the same time.
    pub concurrency: usize,
    pub extra_labels: std::collections::BTreeMap<String, String>,
    /// Keep a node uninitialised until its zone and region are known.
    pub require_zones: bool,
    /// Update zone, region and instance type labels after initialisation.
    pub refresh_labels: bool,
    /// Label nodes with their ESXi host and cluster.
    pub host_labels: bool,
}

/// Clones share one controller.
#[derive(Clone)]
pub struct Controller {
    shared: Arc<Shared>,
    probes: Option<Probes>,
}

#[derive(Clone)]
pub struct Probes {
    /// Passes after the first complete list of nodes.
    pub nodes: Check,
    /// Fails if a sync hangs.
    pub progress: Watchdog,
}

struct Shared {
    nodes: Nodes,
    pool: VcenterPool,
    events: Events,
    metrics: Metrics,
    options: Options,
    queue: Queue,
    backoff: Backoff<Arc<str>>,
    uncertain_backoff: Backoff<Arc<str>>,
    /// Permits for syncs, which use data in memory and the API server.
    workers: Arc<Semaphore>,
    /// Permits for vCenter queries. A hanging vCenter blocks them for long, so a sync releases its
    /// worker permit first: no other node waits for that vCenter.
    vcenter_queries: Semaphore,
    state: Mutex<SyncState>,
}

type WorkerPermit = OwnedSemaphorePermit;

/// State between syncs.
#[derive(Default)]
struct SyncState {
    node_of: HashMap<VmRef, Arc<str>>,
    vm_of: HashMap<Arc<str>, VmRef>,
    /// Records of nodes without the annotation, by uid: another controller initialised them. They
    /// prevent that a copy is taken for the VM seen before.
    unrecorded: HashMap<Box<str>, Record>,
    /// Nodes whose VM is not visible: any new VM can be theirs.
    without_vm: HashSet<Arc<str>>,
    missing_zones: HashSet<Arc<str>>,
    /// Uids of nodes that were synced at least once.
    synced: HashSet<Box<str>>,
    deletions: Deletions,
    /// The last summary and its time.
    summary: Option<(Instant, NodeSummary)>,
}

#[derive(Clone)]
struct NodeSummary {
    /// Number of nodes that have or had a VM, and how many of them have no visible VM.
    counts: (usize, usize),
    last_seen: Arc<LastSeen>,
}

enum NextSync {
    /// When the node or its VM changes.
    OnChange,
    At(Instant),
    /// After [`Shared::backoff`].
    Retry,
    /// After [`Shared::uncertain_backoff`].
    Uncertain,
}

impl Controller {
    pub fn new(
        nodes: Nodes,
        pool: VcenterPool,
        events: Events,
        metrics: Metrics,
        options: Options,
    ) -> Self {
        let at_once = options.concurrency.min(Semaphore::MAX_PERMITS);
        let shared = Shared {
            workers: Arc::new(Semaphore::new(at_once)),
            vcenter_queries: Semaphore::new(at_once),
            nodes,
            pool,
            events,
            metrics,
            options,
            queue: Queue::default(),
            backoff: Backoff::new(FIRST_RETRY, MAX_RETRY),
            uncertain_backoff: Backoff::new(FIRST_RETRY, MAX_UNCERTAIN_RETRY),
            state: Mutex::default(),
        };
        Self { shared: Arc::new(shared), probes: None }
    }

    #[must_use]
    pub fn with_probes(self, probes: Probes) -> Self {
        Self { probes: Some(probes), ..self }
    }

    /// Runs until `stop` is cancelled, which also abandons a write in flight.
    pub async fn run(&self, signals: mpsc::UnboundedReceiver<Signal>, stop: CancellationToken) {
        let (complete, is_complete) = tokio::sync::oneshot::channel();
        let working = async {
            tokio::join!(self.watch_nodes(complete), self.handle_signals(signals), async {
                // The deletion limits depend on the number of nodes.
                if is_complete.await.is_ok() {
                    self.dispatch().await;
                }
            },);
        };
        stop.run_until_cancelled(working).await;
    }

    async fn watch_nodes(&self, complete: tokio::sync::oneshot::Sender<()>) {
        let mut complete = Some(complete);
        let mut changes = std::pin::pin!(self.shared.nodes.watch());
        while let Some(changes) = changes.next().await {
            for change in changes {
                match change {
                    Change::Node(name) => self.shared.queue.add(&name),
                    Change::Gone(name, uid) => self.shared.forget(&name, &uid),
                    Change::Complete => {
                        if let Some(complete) = complete.take() {
                            tracing::info!(nodes = self.shared.nodes.len(), "all nodes are listed");
                            if let Some(probes) = &self.probes {
                                probes.nodes.pass();
                            }
                            // The receiver is gone only when the controller ends.
                            let _ = complete.send(());
                        }
                    }
                }
            }
        }
    }

    async fn handle_signals(&self, mut signals: mpsc::UnboundedReceiver<Signal>) {
        let shared = &self.shared;
        let mut requeue_at: Option<Instant> = None;
        let mut changed = HashSet::new();
        loop {
            tokio::select! {
                signal = signals.recv() => match signal {
                    Some(Signal::VirtualMachine(vm_ref)) => {
                        let state = shared.state();
                        if let Some(node) = state.node_of.get(&vm_ref) {
                            shared.queue.add(node);
                        } else if !state.without_vm.is_empty() {
                            changed.insert(vm_ref);
                            requeue_at.get_or_insert_with(|| Instant::now() + DEBOUNCE);
                        }
                    }
                    Some(Signal::Resync) => {
                        for node in shared.nodes.all() {
                            shared.queue.add(&node.name);
                        }
                    }
                    None => return,
                },
                () = sleep_until(requeue_at.unwrap_or_else(Instant::now)), if requeue_at.is_some() => {
                    requeue_at = None;
                    shared.requeue_without_vm(&std::mem::take(&mut changed));
                }
            }
        }
    }

    async fn dispatch(&self) {
        let shared = &self.shared;
        let mut workers: JoinSet<()> = JoinSet::new();
        let next = async || {
            // The semaphore is never closed.
            let permit = shared.workers.clone().acquire_owned().await.ok();
            (permit, shared.queue.next().await)
        };
        loop {
            tokio::select! {
                (permit, name) = next() => {
                    let shared = shared.clone();
                    let work = self.probes.as_ref().map(|probes| probes.progress.begin());
                    workers.spawn(async move {
                        shared.sync(name, permit).await;
                        drop(work);
                    });
                }
                Some(_) = workers.join_next(), if !workers.is_empty() => {}
            }
            let depth = i64::try_from(shared.queue.depth()).unwrap_or(i64::MAX);
            shared.metrics.depth.set(depth);
        }
    }
}

impl Shared {
    /// Syncs a node and schedules its next sync.
    async fn sync(self: Arc<Self>, name: Arc<str>, permit: Option<WorkerPermit>) {
        let next_sync = self.sync_node(&name, permit).await;
        match next_sync {
            NextSync::OnChange => self.reset_backoff(&name),
            NextSync::At(at) => self.queue.add_at(&name, at),
            NextSync::Uncertain => {
                self.metrics.retries.inc();
                self.queue
                    .add_at(&name, Instant::now() + self.uncertain_backoff.failed(name.clone()));
            }
            NextSync::Retry => {
                self.metrics.retries.inc();
                self.queue.add_at(&name, Instant::now() + self.backoff.failed(name.clone()));
            }
        }
        self.queue.done(&name);
    }

    /// Syncs nodes without a visible VM again if these changes can affect them.
    fn requeue_without_vm(&self, changed: &HashSet<VmRef>) {
        let without_vm: Vec<Arc<str>> = self.state().without_vm.iter().cloned().collect();
        let found = without_vm.iter().filter(|node| self.may_have_vm(node, changed));
        found.for_each(|node| self.queue.add(node));
    }

    /// Whether a sync can now find the node's VM, or that it is gone. Other nodes keep waiting for
    /// their backoff.
    fn may_have_vm(&self, name: &str, changed: &HashSet<VmRef>) -> bool {
        let Some(node) = self.nodes.get(name) else { return false };
        let record = identity::record_of(&node);
        if record.as_ref().is_some_and(|record| changed.contains(&record.vm_ref())) {
            return true;
        }
        match identity::identify(&node, &self.pool).outcome {
            Match::Found(vm, _) => {
                !record.is_some_and(|record| copies::is_different_vm(&node, &record, &vm))
            }
            Match::Several(..) | Match::NotFound | Match::Foreign => false,
        }
    }

    fn state(&self) -> MutexGuard<'_, SyncState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reset_backoff(&self, name: &Arc<str>) {
        self.backoff.succeeded(name);
        self.uncertain_backoff.succeeded(name);
    }

    fn forget(&self, name: &Arc<str>, uid: &str) {
        self.reset_backoff(name);
        let mut state = self.state();
        state.without_vm.remove(name);
        state.missing_zones.remove(name);
        state.synced.remove(uid);
        state.unrecorded.remove(uid);
        state.deletions.forget(uid);
        state.unassign(name);
        self.update_gauges(&state);
    }

    fn update_gauges(&self, state: &SyncState) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.metrics.zones_missing.set(number(state.missing_zones.len()));
        self.metrics.vms_gone.set(number(state.deletions.gone_count()));
    }
}

impl SyncState {
    /// Assigns a VM to a node. Returns another node with the same VM.
    fn assign(&mut self, node: &Arc<str>, vm_ref: &VmRef) -> Option<Arc<str>> {
        self.without_vm.remove(node);
        if self.vm_of.get(node) == Some(vm_ref) {
            return self.node_of.get(vm_ref).filter(|other| *other != node).cloned();
        }
        self.unassign(node);
        self.vm_of.insert(node.clone(), vm_ref.clone());
        self.node_of.insert(vm_ref.clone(), node.clone()).filter(|other| other != node)
    }

    /// Another node with the same VM keeps it.
    fn unassign(&mut self, node: &Arc<str>) {
        if let Some(vm_ref) = self.vm_of.remove(node)
            && self.node_of.get(&vm_ref) == Some(node)
        {
            self.node_of.remove(&vm_ref);
            let duplicate = self.vm_of.iter().find(|(_, other)| **other == vm_ref);
            if let Some(duplicate) = duplicate.map(|(name, _)| name.clone()) {
                self.node_of.insert(vm_ref, duplicate);
            }
        }
    }
}

#[cfg(test)]
mod tests;
