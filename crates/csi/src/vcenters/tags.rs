//! The tags of one vCenter: of hosts, clusters, folders, datacenters and datastores.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use runtime::backoff::Backoff;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use vsphere::{Client, MoRef, inventory::Inventory};

use super::Intervals;

/// Category and name of each tag, by object.
pub type TagTable = HashMap<MoRef, Vec<(Arc<str>, Arc<str>)>>;

/// Pause before a requested read: many requests become one.
const DEBOUNCE: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(super) struct Tags {
    state: Mutex<State>,
    requested: Notify,
    settled: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    table: Arc<TagTable>,
    /// Why the tags were never read.
    problem: Option<String>,
}

impl Tags {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn table(&self) -> Arc<TagTable> {
        Arc::clone(&self.state().table)
    }

    /// Why there are no tags yet.
    pub(super) fn problem(&self) -> Option<String> {
        self.state().problem.clone()
    }

    pub(super) fn request_refresh(&self) {
        self.requested.notify_one();
    }

    /// Waits until the tags are read or the first read failed.
    pub(super) async fn first_read(&self) {
        let mut settled = self.settled.subscribe();
        // The sender lives as long as `self`.
        let _ = settled.wait_for(|settled| *settled).await;
    }

    /// Reads tags at the start, on request and now and then.
    pub(super) async fn refresh(
        self: Arc<Self>,
        client: Client,
        inventory: Inventory,
        intervals: Intervals,
    ) {
        let tags = client.tags(intervals.tag_names);
        let backoff = Backoff::new(FIRST_RETRY, MAX_RETRY);
        loop {
            let mut objects: Vec<MoRef> = {
                let view = inventory.view();
                let tagged = view.objects().filter(|object| object.as_vm().is_none());
                tagged.map(|object| object.reference().clone()).collect()
            };
            objects.sort_unstable();
            let pause = match tags.changed(&objects).await {
                Ok(changed) => {
                    let mut state = self.state();
                    if let Some(attached) = changed {
                        state.table = Arc::new(table(attached));
                    }
                    state.problem = None;
                    backoff.succeeded(&());
                    intervals.tags
                }
                Err(error) => {
                    let why = error.error_chain();
                    tracing::warn!(vcenter = client.address(), error = why, "cannot read the tags");
                    let mut state = self.state();
                    if state.table.is_empty() {
                        state.problem = Some(format!("its tags cannot be read: {why}"));
                    }
                    backoff.failed(())
                }
            };
            self.settled.send_replace(true);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.requested.notified() => sleep(DEBOUNCE).await,
            }
        }
    }
}

fn table(attached: vsphere::tags::Attached) -> TagTable {
    let tagged = attached.into_iter().filter(|(_, tags)| !tags.is_empty());
    tagged
        .map(|(object, tags)| {
            (object, tags.into_iter().map(|tag| (tag.category, tag.name)).collect())
        })
        .collect()
}
