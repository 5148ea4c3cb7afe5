//! From what is known to what is written: one look at one node at a time.
//!
//! A look reads the node from the mirror and its machine from the inventories, decides with the pure
//! parts, and writes only what differs, on the condition that the node is still what was looked at.

mod copies;
mod look;
mod questions;
mod removal;
mod replaced;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use runtime::{
    backoff::Backoff,
    checks::{Check, Watchdog},
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
    model::Place,
    nodes::{Change, Nodes},
    pooled_vcenter::Signal,
    queue::Queue,
    record::Record,
    vcenter_pool::VcenterPool,
};

/// After trouble a node is looked at again after this long, doubling up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_mins(1);
/// Where nobody can say whether a machine is gone, every question goes through whole inventories, and
/// most of what could bring an answer is told by a watch.
const LONGEST_IN_DOUBT: Duration = Duration::from_mins(5);
/// Nodes without a machine are looked at again this long after a machine changed.
const GATHER: Duration = Duration::from_millis(200);

/// What an administrator decided.
#[derive(Clone, Debug)]
pub struct Options {
    /// Initialise nodes and keep their addresses.
    pub node_controller: bool,
    /// Taint and delete nodes.
    pub lifecycle_controller: bool,
    /// When.
    pub policy: Policy,
    /// Looks at the same time.
    pub concurrency: usize,
    /// Labels every node gets.
    pub extra_labels: std::collections::BTreeMap<String, String>,
    /// Nodes wait for their zones.
    pub require_zones: bool,
    /// Labels follow machines.
    pub refresh_labels: bool,
}

/// The controller. Clones are one.
#[derive(Clone)]
pub struct Controller {
    shared: Arc<Shared>,
    probes: Option<Probes>,
}

/// Reports whether the controller works.
#[derive(Clone)]
pub struct Probes {
    /// Whether all nodes are known.
    pub nodes: Check,
    /// Detects a look at a node that hangs.
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
    doubt: Backoff<Arc<str>>,
    /// For looks. What they need is in memory or asked of the API server.
    slots: Arc<Semaphore>,
    /// For questions to vCenters. One that hangs lets them wait for long: they are asked by looks that
    /// gave their slot back, so that no other node waits with them.
    questions: Semaphore,
    memory: Mutex<Memory>,
}

/// The right to look at a node; given back when it is dropped.
type Slot = OwnedSemaphorePermit;

/// What is remembered between looks.
#[derive(Default)]
struct Memory {
    /// Which node a machine is.
    node_of: HashMap<Place, Arc<str>>,
    place_of: HashMap<Arc<str>, Place>,
    /// What would stand on record of nodes that somebody else initialised, by uid: a copy is not taken
    /// for the machine that was seen before.
    met: HashMap<Box<str>, Record>,
    /// Nodes whose machine is not in view: any new machine may be theirs.
    lost: HashSet<Arc<str>>,
    /// Nodes whose zones are incomplete.
    zoneless: HashSet<Arc<str>>,
    /// Nodes that were looked at.
    seen: HashSet<Box<str>>,
    deletions: Deletions,
    /// The last count, and when that was.
    census: Option<(Instant, Census)>,
}

/// All nodes, in a few words.
#[derive(Clone)]
struct Census {
    /// How many are ours, and how many of those have no machine in view.
    counts: (usize, usize),
    /// Where their machines stood when they were last seen.
    last_seen: Arc<LastSeen>,
}

/// When to look at a node again.
enum Next {
    /// When something changes.
    OnChange,
    /// Then.
    At(Instant),
    /// After a pause that grows.
    Retry,
    /// After a pause that grows longer.
    InDoubt,
}

impl Controller {
    /// A controller over these parts.
    pub fn new(
        nodes: Nodes,
        pool: VcenterPool,
        events: Events,
        metrics: Metrics,
        options: Options,
    ) -> Self {
        let at_once = options.concurrency.min(Semaphore::MAX_PERMITS);
        let shared = Shared {
            slots: Arc::new(Semaphore::new(at_once)),
            questions: Semaphore::new(at_once),
            nodes,
            pool,
            events,
            metrics,
            options,
            queue: Queue::default(),
            backoff: Backoff::new(FIRST, LONGEST),
            doubt: Backoff::new(FIRST, LONGEST_IN_DOUBT),
            memory: Mutex::default(),
        };
        Self { shared: Arc::new(shared), probes: None }
    }

    /// Reports to these checks.
    #[must_use]
    pub fn probed(self, probes: Probes) -> Self {
        Self { probes: Some(probes), ..self }
    }

    /// Works until `stop` is cancelled; a write under way is abandoned then.
    pub async fn run(&self, signals: mpsc::UnboundedReceiver<Signal>, stop: CancellationToken) {
        let (complete, is_complete) = tokio::sync::oneshot::channel();
        let working = async {
            tokio::join!(self.follow_nodes(complete), self.follow_signals(signals), async {
                // How many nodes there are matters to what may be deleted.
                if is_complete.await.is_ok() {
                    self.dispatch().await;
                }
            },);
        };
        stop.run_until_cancelled(working).await;
    }

    async fn follow_nodes(&self, complete: tokio::sync::oneshot::Sender<()>) {
        let mut complete = Some(complete);
        let mut changes = std::pin::pin!(self.shared.nodes.follow());
        while let Some(changes) = changes.next().await {
            for change in changes {
                match change {
                    Change::Node(name) => self.shared.queue.add(&name),
                    Change::Gone(name, uid) => self.shared.forget(&name, &uid),
                    Change::Complete => {
                        if let Some(complete) = complete.take() {
                            tracing::info!(nodes = self.shared.nodes.len(), "all nodes are known");
                            if let Some(probes) = &self.probes {
                                probes.nodes.pass();
                            }
                            // Nobody waiting means that the controller ends.
                            let _ = complete.send(());
                        }
                    }
                }
            }
        }
    }

    async fn follow_signals(&self, mut signals: mpsc::UnboundedReceiver<Signal>) {
        let shared = &self.shared;
        let mut sweep: Option<Instant> = None;
        let mut changed = HashSet::new();
        loop {
            tokio::select! {
                signal = signals.recv() => match signal {
                    Some(Signal::VirtualMachine(place)) => {
                        let memory = shared.memory();
                        if let Some(node) = memory.node_of.get(&place) {
                            shared.queue.add(node);
                        } else if !memory.lost.is_empty() {
                            changed.insert(place);
                            sweep.get_or_insert_with(|| Instant::now() + GATHER);
                        }
                    }
                    Some(Signal::Anything) => {
                        for node in shared.nodes.all() {
                            shared.queue.add(&node.name);
                        }
                    }
                    None => return,
                },
                () = sleep_until(sweep.unwrap_or_else(Instant::now)), if sweep.is_some() => {
                    sweep = None;
                    shared.sweep(&std::mem::take(&mut changed));
                }
            }
        }
    }

    /// Hands nodes to workers.
    async fn dispatch(&self) {
        let shared = &self.shared;
        let mut workers: JoinSet<()> = JoinSet::new();
        let next = async || {
            // It is never closed.
            let slot = shared.slots.clone().acquire_owned().await.ok();
            (slot, shared.queue.next().await)
        };
        loop {
            tokio::select! {
                (slot, name) = next() => {
                    let shared = shared.clone();
                    let work = self.probes.as_ref().map(|probes| probes.progress.begin());
                    workers.spawn(async move {
                        shared.look(name, slot).await;
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
    /// Looks at a node and arranges the next look.
    async fn look(self: Arc<Self>, name: Arc<str>, slot: Option<Slot>) {
        let next = self.look_at(&name, slot).await;
        match next {
            Next::OnChange => self.calm(&name),
            Next::At(at) => self.queue.add_at(&name, at),
            Next::InDoubt => {
                self.metrics.retries.inc();
                self.queue.add_at(&name, Instant::now() + self.doubt.failed(name.clone()));
            }
            Next::Retry => {
                self.metrics.retries.inc();
                self.queue.add_at(&name, Instant::now() + self.backoff.failed(name.clone()));
            }
        }
        self.queue.done(&name);
    }

    /// Looks again at those nodes without a machine for which these changes matter.
    fn sweep(&self, changed: &HashSet<Place>) {
        let lost: Vec<Arc<str>> = self.memory().lost.iter().cloned().collect();
        let found = lost.iter().filter(|node| self.is_found(node, changed));
        found.for_each(|node| self.queue.add(node));
    }

    /// Whether a look at a node whose machine was not in view finds it now, or may find that it is gone:
    /// one of these machines changed. Others wait out their pauses.
    fn is_found(&self, name: &str, changed: &HashSet<Place>) -> bool {
        let Some(node) = self.nodes.get(name) else { return false };
        let record = identity::record_of(&node);
        if record.as_ref().is_some_and(|record| changed.contains(&record.place())) {
            return true;
        }
        match identity::identify(&node, &self.pool).outcome {
            Match::Found(vm, _) => {
                !record.is_some_and(|record| copies::is_another(&node, &record, &vm))
            }
            Match::Several(..) | Match::NotFound | Match::Foreign => false,
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pauses of this node begin short again.
    fn calm(&self, name: &Arc<str>) {
        self.backoff.succeeded(name);
        self.doubt.succeeded(name);
    }

    fn forget(&self, name: &Arc<str>, uid: &str) {
        self.calm(name);
        let mut memory = self.memory();
        memory.lost.remove(name);
        memory.zoneless.remove(name);
        memory.seen.remove(uid);
        memory.met.remove(uid);
        memory.deletions.forget(uid);
        memory.unplace(name);
        self.count(&memory);
    }

    fn count(&self, memory: &Memory) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.metrics.zones_missing.set(number(memory.zoneless.len()));
        self.metrics.vms_gone.set(number(memory.deletions.gone()));
    }
}

impl Memory {
    /// Remembers which machine a node is; returns another node that was the same machine.
    fn place(&mut self, node: &Arc<str>, place: &Place) -> Option<Arc<str>> {
        self.lost.remove(node);
        if self.place_of.get(node) == Some(place) {
            return self.node_of.get(place).filter(|other| *other != node).cloned();
        }
        self.unplace(node);
        self.place_of.insert(node.clone(), place.clone());
        self.node_of.insert(place.clone(), node.clone()).filter(|other| other != node)
    }

    /// Forgets which machine a node is. Another node that is the same machine has it alone then.
    fn unplace(&mut self, node: &Arc<str>) {
        if let Some(place) = self.place_of.remove(node)
            && self.node_of.get(&place) == Some(node)
        {
            self.node_of.remove(&place);
            let twin = self.place_of.iter().find(|(_, other)| **other == place);
            if let Some(twin) = twin.map(|(name, _)| name.clone()) {
                self.node_of.insert(place, twin);
            }
        }
    }
}

#[cfg(test)]
mod tests;
