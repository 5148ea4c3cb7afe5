//! Following an inventory as it changes.
//!
//! # Flow
//! 1. One property collector with one filter is made in the session: a view of everything selected.
//! 2. Its first answers are the snapshot; when it is complete it becomes the [`Inventory`] all at
//!    once.
//! 3. Each further answer is a set of changes. What left is asked for by its reference before
//!    anything is said of it; changes of the others do not wait for that.
//! 4. Any failure ends the collector: which changes vCenter took for told is not known then. The
//!    old view stays readable, marked [`Status::Unreachable`], until step 2 is reached again; that
//!    is told as [`Event::Resynced`].

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use super::absence::Departure;
use super::follower::Follower;
use super::model::Object;
use super::selection::Selection;
use super::tree::Tree;
use crate::client::Client;
use crate::error::Error;

/// Events a slow reader may be behind before they are replaced by one [`Event::Resynced`].
const BACKLOG: usize = 1024;

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

    pub(super) fn tell(&self, event: Event) {
        let events = self.shared.events.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = &*events {
            // Nobody listening is fine.
            let _ = events.send(event);
        }
    }

    /// Tells how good the view is from here on.
    pub(super) fn set_status(&self, status: Status) {
        self.shared.status.send_replace(status);
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Tree) -> T) -> T {
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
        let follower = Follower::new(self.clone(), selection, inventory.clone());
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

    /// Ends the watch and clears it away in vCenter, with what is left of earlier attempts. Takes no
    /// longer than five seconds: what a vCenter that does not answer still holds ends with the
    /// session.
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
        self.0.set_status(Status::Ended);
        *self.0.shared.events.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
