//! Watches an inventory.
//!
//! # Flow
//! 1. The watch creates one property collector with one filter in the session.
//! 2. The first update sets form the snapshot. The watch publishes it as the [`Inventory`] when it is
//!    complete.
//! 3. Each further update set is a list of changes. The watch checks departed objects by reference
//!    before it reports them. Other changes do not wait for that.
//! 4. Any failure ends the collector, because the watch cannot know which changes vCenter considers
//!    delivered. The old view stays readable with [`Status::Unreachable`] until step 2 succeeds
//!    again. The watch then sends [`Event::Resynced`].

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use super::absence::Departure;
use super::model::Object;
use super::selection::Selection;
use super::tree::Tree;
use super::watch_task::WatchTask;
use crate::client::Client;
use crate::error::Error;

/// The number of events a slow reader can lag behind. After that it gets one [`Event::Resynced`].
const BACKLOG: usize = 1024;

/// A change of the inventory. The [`Inventory`] is never behind its events.
#[derive(Debug, Clone)]
pub enum Event {
    Snapshot,
    /// The watch rebuilt the view. Any number of changes may be missing between the last event and
    /// this one, so mirrors must read the view again.
    Resynced,
    Appeared(Object),
    Changed {
        before: Object,
        after: Object,
    },
    /// An object is no longer in view. Sent again when the reason becomes known or changes.
    Left(Departure),
    /// The watch has lost vCenter. The view keeps its last state.
    Unreachable(Arc<Error>),
}

#[derive(Debug, Clone)]
pub enum Status {
    Starting,
    /// The view is current.
    Live,
    /// The view is outdated. The watch is trying to reconnect.
    Unreachable(Arc<Error>),
    /// The view is outdated. The watch has ended.
    Ended,
}

/// A live view of a vCenter's inventory. Clones share the view.
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

/// A read lock on the inventory. Hold it briefly, because it blocks updates.
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
    /// Waits for the next event. Returns `None` when the watch has ended. A reader that falls
    /// behind gets one [`Event::Resynced`] for all missed events. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Event::Resynced),
            Err(broadcast::error::RecvError::Closed) => None,
        }
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

    pub fn view(&self) -> View<'_> {
        View(self.shared.tree.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn status(&self) -> Status {
        self.shared.status.borrow().clone()
    }

    /// Subscribes to events. Subscribe before you read the [`Inventory::view`], so that you miss
    /// none.
    pub fn events(&self) -> Events {
        let events = self.shared.events.read().unwrap_or_else(PoisonError::into_inner);
        // Without a sender, returns a receiver at its end.
        Events(
            events.as_ref().map_or_else(|| broadcast::channel(1).1, broadcast::Sender::subscribe),
        )
    }

    /// Waits for the first complete view.
    ///
    /// # Errors
    /// Why the first attempt failed. The watch keeps trying.
    pub async fn ready(&self) -> Result<(), Arc<Error>> {
        let mut status = self.shared.status.subscribe();
        let settled = status.wait_for(|status| !matches!(status, Status::Starting)).await;
        match settled.as_deref() {
            Ok(Status::Unreachable(error)) => Err(Arc::clone(error)),
            Ok(Status::Live) => Ok(()),
            _ => Err(Arc::new(Error::ShutDown { address: self.shared.address.to_string() })),
        }
    }

    pub(super) fn send(&self, event: Event) {
        let events = self.shared.events.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = &*events {
            // A send without receivers is fine.
            let _ = events.send(event);
        }
    }

    /// Publishes a new status.
    pub(super) fn set_status(&self, status: Status) {
        self.shared.status.send_replace(status);
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Tree) -> T) -> T {
        change(&mut self.shared.tree.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running watch. Dropping it ends the watch; [`Watch::stop`] also cleans up in vCenter.
#[derive(Debug)]
pub struct Watch {
    inventory: Inventory,
    stop: watch::Sender<bool>,
    task: JoinSet<()>,
}

impl Client {
    /// Watches the objects of `selection`. Returns at once; [`Inventory::ready`] waits for the
    /// snapshot.
    pub fn watch(&self, selection: Selection) -> Watch {
        let inventory = Inventory::new(self.address());
        let (stop, stopped) = watch::channel(false);
        let mut task = JoinSet::new();
        let guard = EndGuard(inventory.clone());
        let watch_task = WatchTask::new(self.clone(), selection, inventory.clone());
        task.spawn(async move {
            let _guard = guard;
            watch_task.run(stopped).await;
        });
        Watch { inventory, stop, task }
    }
}

impl Watch {
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Ends the watch and destroys its collectors in vCenter, within five seconds. If vCenter does
    /// not answer, it destroys the rest with the session.
    pub async fn stop(mut self) {
        // The receiver is gone only if the task has ended.
        let _ = self.stop.send(true);
        while self.task.join_next().await.is_some() {}
    }
}

/// Publishes the end of the watch on drop.
struct EndGuard(Inventory);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.set_status(Status::Ended);
        *self.0.shared.events.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
