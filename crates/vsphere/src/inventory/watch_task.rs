//! The task behind a watch: applies vCenter's changes and checks objects that left.
//!
//! ```text
//!   wait for changes ──► apply ───────────► events         never blocked
//!   existence check ───► record_results ──► Event::Left    concurrently, one check at a time
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::absence::{Absence, Standing};
use super::apply::apply;
use super::model::Object;
use super::retry_window::RetryWindow;
use super::selection::Selection;
use super::tree::Tree;
use super::watch::{Event, Inventory, Status};
use crate::client::{Client, retry_pause};
use crate::collector::Collector;
use crate::collector::calls::{UpdateSet, View as ServerView};
use crate::error::Error;
use crate::moref::MoRef;

/// How often the watch checks objects that exist but are not in view. vCenter does not report when
/// they are deleted.
const RECHECK_INTERVAL: Duration = Duration::from_mins(5);

/// The maximum time for cleanup at the end of a watch.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct WatchTask {
    client: Client,
    selection: Selection,
    inventory: Inventory,
    /// Whether a snapshot was published before.
    has_snapshot: bool,
    /// When all departed objects were last checked.
    last_recheck: Instant,
    retry_window: RetryWindow,
    /// Failed collectors that still exist in vCenter.
    orphans: Vec<Collector>,
}

/// A running existence check of departed objects.
struct ExistenceCheck {
    /// The objects to check, with the number of each departure.
    objects: HashMap<MoRef, u64>,
    /// Whether the check repeats earlier unanswered ones.
    again: bool,
    results: BoxFuture<'static, Vec<(MoRef, Standing)>>,
}

impl WatchTask {
    pub(super) fn new(client: Client, selection: Selection, inventory: Inventory) -> Self {
        Self {
            client,
            selection,
            inventory,
            has_snapshot: false,
            last_recheck: Instant::now(),
            retry_window: RetryWindow::default(),
            orphans: Vec::new(),
        }
    }

    /// Runs until the watch stops or the client shuts down.
    pub(super) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut failures = 0;
        loop {
            let mut collector = None;
            let error = tokio::select! {
                error = self.watch_until_failure(&mut collector, &mut failures) => error,
                () = stop(&mut stopped) => return self.clean_up(collector).await,
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
                // Only the session ended; vCenter is available. Opens a new session at once.
                continue;
            }
            self.report_failure(error);
            tokio::select! {
                () = tokio::time::sleep(retry_pause(self.client.limits(), failures)) => {}
                () = stop(&mut stopped) => return self.clean_up(None).await,
            }
        }
    }

    async fn watch_until_failure(
        &mut self,
        created: &mut Option<Collector>,
        failures: &mut u32,
    ) -> Error {
        match self.try_watch(created, failures).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn try_watch(
        &mut self,
        created: &mut Option<Collector>,
        failures: &mut u32,
    ) -> Result<Infallible, Error> {
        let collector = self.create_collector(created).await?;
        let tree = self.snapshot(collector).await?;
        self.publish_snapshot(tree);
        let mut check = self.start_check(true);
        let mut not_before = Instant::now();
        loop {
            let updates = self.wait(collector, &mut check, not_before).await?;
            not_before = Instant::now() + self.selection.gather();
            // Resets the counter only here. A vCenter that delivers a snapshot and then fails,
            // again and again, needs growing pauses.
            *failures = 0;
            for event in self.apply(updates)? {
                self.inventory.send(event);
            }
            if check.is_none() {
                check = self.start_check(false);
            }
        }
    }

    /// Waits for the next changes, and asks for them at `not_before`. Meanwhile runs existence checks
    /// and reports their results.
    async fn wait(
        &mut self,
        collector: &mut Collector,
        check: &mut Option<ExistenceCheck>,
        not_before: Instant,
    ) -> Result<UpdateSet<Object>, Error> {
        let client = self.client.clone();
        let wait = async {
            sleep_until(not_before).await;
            collector.wait::<Object>(&client).await
        };
        tokio::pin!(wait);
        loop {
            let next = self.next_check();
            tokio::select! {
                updates = &mut wait => return updates,
                results = check_results(check) => {
                    if let Some(finished) = check.take() {
                        self.record_results(&finished, results);
                    }
                    *check = self.start_check(false);
                }
                () = sleep_until(next), if check.is_none() => *check = self.start_check(false),
            }
        }
    }

    /// Creates a collector. Stores it in `created` as soon as it exists, so that the caller can
    /// destroy it.
    async fn create_collector<'m>(
        &mut self,
        created: &'m mut Option<Collector>,
    ) -> Result<&'m mut Collector, Error> {
        let ticket = self.client.ticket().await?;
        let types = self.selection.view_types();
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
        let collector = match Collector::new(&self.client, ticket.clone()).await {
            Ok(collector) => created.insert(collector),
            Err(error) => {
                if error.is_not_authenticated() {
                    self.client.expired(&ticket);
                }
                return Err(error);
            }
        };
        self.destroy_orphans(Some(ticket.generation)).await;
        collector.create_filter(&self.client, self.selection.properties(), objects, views).await?;
        Ok(collector)
    }

    /// Reads the complete inventory from the first update sets of a new collector.
    async fn snapshot(&self, collector: &mut Collector) -> Result<Tree, Error> {
        let mut tree = Tree::default();
        loop {
            let updates = collector.wait::<Object>(&self.client).await?;
            for mut change in updates.changes {
                self.selection.trim(&mut change);
                // Changes can arrive between the pages.
                apply(&mut tree, change).map_err(|_| self.missed_update())?;
            }
            if !updates.truncated {
                return Ok(tree);
            }
        }
    }

    /// Replaces the view with a new snapshot.
    fn publish_snapshot(&mut self, tree: Tree) {
        let objects = tree.len();
        self.inventory.change(|view| {
            let older = std::mem::replace(view, tree);
            view.carry_over(older);
        });
        self.inventory.set_status(Status::Live);
        let event = if self.has_snapshot { Event::Resynced } else { Event::Snapshot };
        info!(vcenter = self.client.address(), objects, event = ?event, "inventory in view");
        self.has_snapshot = true;
        self.inventory.send(event);
    }

    /// Applies changes to the view and returns the events to send. [`WatchTask::record_results`] reports
    /// departures.
    fn apply(&self, updates: UpdateSet<Object>) -> Result<Vec<Event>, Error> {
        if updates.changes.is_empty() {
            return Ok(Vec::new());
        }
        self.inventory.change(|tree| {
            let mut events = Vec::new();
            for mut change in updates.changes {
                self.selection.trim(&mut change);
                events.extend(apply(tree, change).map_err(|_| self.missed_update())?);
            }
            Ok(events)
        })
    }

    /// When the next existence check is due if no object leaves.
    fn next_check(&self) -> Instant {
        let now = Instant::now();
        let hidden = self.last_recheck + RECHECK_INTERVAL;
        self.retry_window.left(now).map_or(hidden, |left| hidden.min(now + left))
    }

    /// Starts a check of the objects that just left. Includes unanswered ones when their retry is
    /// due, and all that may still exist with `all` or when the recheck is due. Returns `None` if
    /// there is nothing to check.
    fn start_check(&mut self, all: bool) -> Option<ExistenceCheck> {
        let now = Instant::now();
        let all = all || now >= self.last_recheck + RECHECK_INTERVAL;
        let retry_due = self.retry_window.is_due(now);
        if all {
            self.last_recheck = now;
        }
        let objects: HashMap<MoRef, u64> = {
            let departed = &self.inventory.view().departed;
            let open = match (all, retry_due) {
                (true, _) => departed.possibly_existing(),
                (false, true) => departed.unanswered(),
                (false, false) => departed.unreported(),
            };
            let numbers = open.iter().filter_map(|object| departed.number(object));
            open.iter().cloned().zip(numbers).collect()
        };
        let again = all || retry_due;
        if objects.is_empty() {
            self.schedule_recheck(again);
            return None;
        }
        let (client, references) =
            (self.client.clone(), objects.keys().cloned().collect::<Vec<_>>());
        let results = async move { client.ask_for_once(&references).await }.boxed();
        Some(ExistenceCheck { objects, again, results })
    }

    /// Records the results of a check and sends events for new ones.
    fn record_results(&mut self, check: &ExistenceCheck, results: Vec<(MoRef, Standing)>) {
        for (reference, standing) in results {
            let absence = match standing {
                Standing::Absent(absence) => absence,
                Standing::Present => Absence::Elsewhere,
            };
            let new = self.inventory.change(|tree| {
                // The object came back and left again in the meantime: this result is outdated.
                if tree.departed.number(&reference) != check.objects.get(&reference).copied() {
                    return None;
                }
                tree.departed.settle(&reference, absence)
            });
            if let Some(departure) = new {
                debug!(vcenter = self.client.address(), object = %reference, absence = ?departure.absence, "object left the view");
                self.inventory.send(Event::Left(departure));
            }
        }
        self.schedule_recheck(check.again);
    }

    /// Records a finished check and schedules the next one.
    fn schedule_recheck(&mut self, again: bool) {
        let unanswered = !self.inventory.view().departed.unanswered().is_empty();
        self.retry_window.record_check(Instant::now(), unanswered, again);
        if self.inventory.change(|tree| tree.departed.take_overflow()) {
            warn!(
                vcenter = self.client.address(),
                "too many departed objects to remember; readers must resync"
            );
            self.inventory.send(Event::Resynced);
        }
    }

    fn missed_update(&self) -> Error {
        let message = "vCenter reported a change of an object that is not in view";
        self.client.wire().fault("WaitForUpdatesEx", crate::soap::Fault::from_message(message))
    }

    /// Destroys a failed collector now, or later if vCenter is unreachable.
    async fn abandon(&mut self, collector: Collector, error: &Error) {
        if error.is_not_authenticated() {
            self.client.expired(collector.ticket());
        } else if error.is_transient() {
            self.orphans.push(collector);
        } else {
            collector.destroy(&self.client).await;
        }
    }

    /// Destroys collectors of earlier attempts in the session `generation`. Collectors of other
    /// sessions ended with them.
    async fn destroy_orphans(&mut self, generation: Option<u64>) {
        for orphan in std::mem::take(&mut self.orphans) {
            if Some(orphan.ticket().generation) == generation {
                orphan.destroy(&self.client).await;
            }
        }
    }

    /// Destroys all collectors in vCenter, within [`CLEANUP_TIMEOUT`].
    async fn clean_up(mut self, collector: Option<Collector>) {
        self.orphans.extend(collector);
        let generation = self.client.generation();
        if tokio::time::timeout(CLEANUP_TIMEOUT, self.destroy_orphans(generation)).await.is_err() {
            debug!(
                vcenter = self.client.address(),
                "cleanup of a watch timed out; vCenter destroys it with the session"
            );
        }
    }

    fn report_failure(&self, error: Error) {
        warn!(vcenter = self.client.address(), error = %error.error_chain(), "cannot watch the inventory");
        let error = Arc::new(error);
        self.inventory.set_status(Status::Unreachable(Arc::clone(&error)));
        self.inventory.send(Event::Unreachable(error));
    }
}

/// Waits for the results of the running check, forever if none runs. Cancel-safe.
async fn check_results(check: &mut Option<ExistenceCheck>) -> Vec<(MoRef, Standing)> {
    match check {
        Some(check) => (&mut check.results).await,
        None => std::future::pending().await,
    }
}

/// Waits until the watch is stopped.
async fn stop(stopped: &mut watch::Receiver<bool>) {
    // An error means that the watch was dropped and this task is about to be aborted.
    let _ = stopped.wait_for(|stop| *stop).await;
}
