//! Following an inventory as it changes.
//!
//! # Flow
//! 1. One property collector with one filter is made in the session: a view of everything selected.
//! 2. Its first answers are the snapshot; when it is complete it becomes the [`Inventory`] all at
//!    once.
//! 3. Each further answer is a set of changes. What left is asked for by its reference before
//!    anything is said of it.
//! 4. Any failure ends the collector: which changes vCenter took for told is not known then. The
//!    old view stays readable, marked [`Status::Unreachable`], until step 2 is reached again; that
//!    is told as [`Event::Resynced`].

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::absence::{Absence, Departure, Standing};
use super::apply::{Gap, apply};
use super::model::Object;
use super::patience::Patience;
use super::selection::Selection;
use super::tree::Tree;
use crate::client::{Client, pause};
use crate::collector::Collector;
use crate::collector::calls::{View as ServerView, Waited};
use crate::error::Error;

/// Events a slow reader may be behind before they are replaced by one [`Event::Resynced`].
const BACKLOG: usize = 1024;

/// Objects that exist but cannot be seen may cease to exist unseen: they are asked for this often.
const ASK_HIDDEN: Duration = Duration::from_mins(5);

/// What happened. The objects are also in the [`Inventory`], which is never behind the events.
#[derive(Debug, Clone)]
pub enum Event {
    /// The first view is complete.
    Snapshot,
    /// The view was built anew: between the last event and this one, anything may have happened to
    /// anything. Whoever mirrors the inventory must read it again.
    Resynced,
    /// An object came into view.
    Appeared(Object),
    /// An object changed.
    Changed {
        /// As it was.
        before: Object,
        /// As it is.
        after: Object,
    },
    /// An object is no longer in view. Told again when the reason becomes known, or another.
    Left(Departure),
    /// vCenter cannot be followed at present; the view is as it was.
    Unreachable(Arc<Error>),
}

/// How good a view is.
#[derive(Debug, Clone)]
pub enum Status {
    /// No view yet.
    Starting,
    /// As vCenter is.
    Live,
    /// As vCenter was; it will be followed again as soon as it can.
    Unreachable(Arc<Error>),
    /// As vCenter was; nobody follows it any more.
    Ended,
}

/// A view of a vCenter that is kept up to date. Clones are the same view.
#[derive(Debug, Clone)]
pub struct Inventory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    address: Box<str>,
    tree: RwLock<Tree>,
    status: watch::Sender<Status>,
    /// `None` once the watch has ended.
    events: RwLock<Option<broadcast::Sender<Event>>>,
}

/// The inventory at an instant. Hold it briefly: changes wait for it.
#[derive(Debug)]
pub struct View<'a>(RwLockReadGuard<'a, Tree>);

impl Deref for View<'_> {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.0
    }
}

/// The events of an inventory, for one reader.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// The next event; `None` once the watch has ended. A reader that fell behind gets
    /// [`Event::Resynced`] for all it missed. Safe to drop and call again.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Event::Resynced),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// The events as a stream.
    pub fn into_stream(self) -> impl futures::Stream<Item = Event> {
        futures::stream::unfold(self, async |mut events| {
            events.next().await.map(|event| (event, events))
        })
    }
}

impl Inventory {
    fn new(address: &str) -> Self {
        let (status, _) = watch::channel(Status::Starting);
        let (events, _) = broadcast::channel(BACKLOG);
        let events = RwLock::new(Some(events));
        Self {
            shared: Arc::new(Shared {
                address: address.into(),
                tree: RwLock::default(),
                status,
                events,
            }),
        }
    }

    /// The inventory as it is now.
    pub fn view(&self) -> View<'_> {
        View(self.shared.tree.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How good the view is.
    pub fn status(&self) -> Status {
        self.shared.status.borrow().clone()
    }

    /// Events from here on. Subscribe first, read the [`Inventory::view`] then: nothing is missed in
    /// between.
    pub fn events(&self) -> Events {
        let events = self.shared.events.read().unwrap_or_else(PoisonError::into_inner);
        // Without a sender, a receiver that is at its end.
        Events(
            events.as_ref().map_or_else(|| broadcast::channel(1).1, broadcast::Sender::subscribe),
        )
    }

    /// Waits for the first complete view.
    ///
    /// # Errors
    /// Why the first attempt to get one failed. The watch goes on trying.
    pub async fn ready(&self) -> Result<(), Arc<Error>> {
        let mut status = self.shared.status.subscribe();
        let settled = status.wait_for(|status| !matches!(status, Status::Starting)).await;
        match settled.as_deref() {
            Ok(Status::Unreachable(error)) => Err(Arc::clone(error)),
            Ok(Status::Live) => Ok(()),
            _ => Err(Arc::new(Error::ShutDown { address: self.shared.address.to_string() })),
        }
    }

    fn tell(&self, event: Event) {
        let events = self.shared.events.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = &*events {
            // Nobody listening is fine.
            let _ = events.send(event);
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Tree) -> T) -> T {
        change(&mut self.shared.tree.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running watch. Dropping it ends it; [`Watch::stop`] also clears it away in vCenter.
#[derive(Debug)]
pub struct Watch {
    inventory: Inventory,
    stop: watch::Sender<bool>,
    task: JoinSet<()>,
}

impl Client {
    /// Follows what `selection` names. Returns at once; [`Inventory::ready`] waits for the first
    /// view.
    pub fn watch(&self, selection: Selection) -> Watch {
        let inventory = Inventory::new(self.address());
        let (stop, stopped) = watch::channel(false);
        let mut task = JoinSet::new();
        let ending = Ending(inventory.clone());
        let follower = Follower {
            client: self.clone(),
            selection,
            inventory: inventory.clone(),
            started: false,
            asked_hidden: Instant::now(),
            patience: Patience::default(),
            orphans: Vec::new(),
        };
        task.spawn(async move {
            let _ending = ending;
            follower.run(stopped).await;
        });
        Watch { inventory, stop, task }
    }
}

impl Watch {
    /// The view.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Ends the watch and clears it away in vCenter.
    pub async fn stop(mut self) {
        // The receiver is gone only when the task is.
        let _ = self.stop.send(true);
        while self.task.join_next().await.is_some() {}
    }
}

/// Tells everybody that the watch has ended, however it did.
struct Ending(Inventory);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.shared.status.send_replace(Status::Ended);
        *self.0.shared.events.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The task behind a watch.
struct Follower {
    client: Client,
    selection: Selection,
    inventory: Inventory,
    /// Whether there was a view before.
    started: bool,
    /// When hidden objects were last asked for.
    asked_hidden: Instant,
    patience: Patience,
    /// Collectors that failed while vCenter could not be asked to clear them away.
    orphans: Vec<Collector>,
}

impl Follower {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut failures = 0;
        loop {
            let mut collector = None;
            let error = tokio::select! {
                error = self.follow(&mut collector, &mut failures) => error,
                () = stop(&mut stopped) => {
                    if let Some(collector) = collector {
                        collector.destroy(&self.client).await;
                    }
                    return;
                }
            };
            if matches!(error, Error::ShutDown { .. }) {
                debug!(vcenter = self.client.address(), "watch ends: the client was shut down");
                return;
            }
            if let Some(collector) = collector {
                self.abandon(collector, &error).await;
            }
            failures += 1;
            if error.is_not_authenticated() && failures == 1 {
                // The session was ended, vCenter is well: a new one is opened at once.
                continue;
            }
            self.unreachable(error);
            tokio::select! {
                () = tokio::time::sleep(pause(self.client.limits(), failures)) => {}
                () = stop(&mut stopped) => return,
            }
        }
    }

    /// Follows until something fails.
    async fn follow(&mut self, made: &mut Option<Collector>, failures: &mut u32) -> Error {
        match self.try_follow(made, failures).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn try_follow(
        &mut self,
        made: &mut Option<Collector>,
        failures: &mut u32,
    ) -> Result<std::convert::Infallible, Error> {
        let collector = self.collector(made).await?;
        let tree = self.snapshot(collector).await?;
        *failures = 0;
        self.take_over(tree).await;
        loop {
            let most = self.patience.left(Instant::now());
            let waited = collector.wait::<Object>(&self.client, most).await?;
            let events = self.apply(waited)?;
            for event in events {
                self.inventory.tell(event);
            }
            let hidden_too = self.asked_hidden.elapsed() >= ASK_HIDDEN;
            self.settle(hidden_too).await;
        }
    }

    /// A new collector, in `made` as soon as it exists.
    async fn collector<'m>(
        &mut self,
        made: &'m mut Option<Collector>,
    ) -> Result<&'m mut Collector, Error> {
        let ticket = self.client.ticket().await?;
        let types = self.selection.viewed();
        let view = |root| ServerView::Container { root, types: types.clone() };
        let root = self.client.root_folder()?;
        let (objects, views) = if self.selection.wanted_datacenters().is_empty() {
            (vec![root.clone()], vec![view(root)])
        } else {
            let scope = self.client.scope(&self.selection).await?;
            let objects =
                scope.ancestors.into_iter().chain(scope.datacenters.iter().cloned()).collect();
            (objects, scope.datacenters.into_iter().map(view).collect())
        };
        let generation = ticket.generation;
        let collector = match Collector::new(&self.client, ticket.clone()).await {
            Ok(collector) => made.insert(collector),
            Err(error) => {
                if error.is_not_authenticated() {
                    self.client.expired(&ticket);
                }
                return Err(error);
            }
        };
        for orphan in std::mem::take(&mut self.orphans) {
            // Those of another session ended with it.
            if orphan.ticket().generation == generation {
                orphan.destroy(&self.client).await;
            }
        }
        collector.look_at(&self.client, self.selection.properties(), objects, views).await?;
        Ok(collector)
    }

    /// Everything there is, from the first answers of a new collector.
    async fn snapshot(&self, collector: &mut Collector) -> Result<Tree, Error> {
        let mut tree = Tree::default();
        loop {
            let waited = collector.wait::<Object>(&self.client, None).await?;
            for change in waited.changes {
                // Changes may come between the pages.
                apply(&mut tree, change).map_err(|gap| self.failure(gap))?;
            }
            if !waited.truncated {
                return Ok(tree);
            }
        }
    }

    /// Makes a new snapshot the view.
    async fn take_over(&mut self, tree: Tree) {
        let objects = tree.len();
        self.inventory.change(|view| {
            let older = std::mem::replace(view, tree);
            view.succeed(older);
        });
        self.inventory.shared.status.send_replace(Status::Live);
        let event = if self.started { Event::Resynced } else { Event::Snapshot };
        info!(vcenter = self.client.address(), objects, event = ?event, "inventory in view");
        self.started = true;
        self.inventory.tell(event);
        self.settle(true).await;
    }

    /// Applies changes to the view; returns what to tell. What left is told by
    /// [`Follower::settle`].
    fn apply(&self, waited: Waited<Object>) -> Result<Vec<Event>, Error> {
        if waited.changes.is_empty() {
            return Ok(Vec::new());
        }
        self.inventory.change(|tree| {
            let mut events = Vec::new();
            for change in waited.changes {
                events.extend(apply(tree, change).map_err(|gap| self.failure(gap))?);
            }
            Ok(events)
        })
    }

    /// Asks for what left just now, for what nobody answered for when it is time to ask again, and
    /// with `hidden_too` for all that may still exist; tells the answers that are news.
    async fn settle(&mut self, hidden_too: bool) {
        let ask_again = self.patience.is_due(Instant::now());
        let open = {
            let view = self.inventory.view();
            match (hidden_too, ask_again) {
                (true, _) => view.departed.existing(),
                (false, true) => view.departed.unanswered(),
                (false, false) => view.departed.untold(),
            }
        };
        if hidden_too {
            self.asked_hidden = Instant::now();
        }
        if !open.is_empty() {
            for (reference, standing) in self.client.ask_for(&open).await {
                let absence = match standing {
                    Standing::Absent(absence) => absence,
                    Standing::Present => Absence::Elsewhere,
                };
                let news = self.inventory.change(|tree| tree.departed.settle(&reference, absence));
                if let Some(departure) = news {
                    debug!(vcenter = self.client.address(), object = %reference, absence = ?departure.absence, "left");
                    self.inventory.tell(Event::Left(departure));
                }
            }
        }
        let unanswered = !self.inventory.view().departed.unanswered().is_empty();
        self.patience.asked(Instant::now(), unanswered, hidden_too || ask_again);
        if self.inventory.change(|tree| tree.departed.take_overflow()) {
            warn!(
                vcenter = self.client.address(),
                "more objects left than can be remembered; the view must be read again"
            );
            self.inventory.tell(Event::Resynced);
        }
    }

    fn failure(&self, Gap: Gap) -> Error {
        let words = "vCenter reported a change of an object that is not in view";
        self.client.wire().fault("WaitForUpdatesEx", crate::soap::Fault::plain(words))
    }

    /// Clears a collector away that is of no more use: at once, or when vCenter is there again.
    async fn abandon(&mut self, collector: Collector, error: &Error) {
        if error.is_not_authenticated() {
            self.client.expired(collector.ticket());
        } else if error.is_transient() {
            self.orphans.push(collector);
        } else {
            collector.destroy(&self.client).await;
        }
    }

    fn unreachable(&self, error: Error) {
        warn!(vcenter = self.client.address(), error = %error.story(), "cannot follow the inventory");
        let error = Arc::new(error);
        self.inventory.shared.status.send_replace(Status::Unreachable(Arc::clone(&error)));
        self.inventory.tell(Event::Unreachable(error));
    }
}

/// Returns when the watch is to end.
async fn stop(stopped: &mut watch::Receiver<bool>) {
    // An error means that the watch was dropped: the task is about to be aborted.
    let _ = stopped.wait_for(|stop| *stop).await;
}
