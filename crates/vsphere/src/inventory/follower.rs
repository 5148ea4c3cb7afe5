//! The task behind a watch: takes in what vCenter tells, and asks for what left.
//!
//! ```text
//!   wait for changes ──► apply ──► events          never held up
//!   question under way ─► settle ─► Event::Left    beside it, one at a time
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
use super::apply::{Gap, apply};
use super::model::Object;
use super::retry_window::RetryWindow;
use super::selection::Selection;
use super::tree::Tree;
use super::watch::{Event, Inventory, Status};
use crate::client::{Client, retry_pause};
use crate::collector::Collector;
use crate::collector::calls::{View as ServerView, Waited};
use crate::error::Error;
use crate::moref::MoRef;

/// Objects that exist but cannot be seen may cease to exist unseen: they are asked for this often.
const ASK_HIDDEN: Duration = Duration::from_mins(5);

/// How long clearing away may take at the end of a watch.
const FAREWELL: Duration = Duration::from_secs(5);

/// The task behind a watch.
pub(super) struct Follower {
    client: Client,
    selection: Selection,
    inventory: Inventory,
    /// Whether there was a view before.
    started: bool,
    /// When hidden objects were last asked for.
    asked_hidden: Instant,
    retry_window: RetryWindow,
    /// Collectors that failed while vCenter could not be asked to clear them away.
    orphans: Vec<Collector>,
}

/// A question to vCenter for objects that left.
struct Question {
    /// What it is about: the number of each departure.
    about: HashMap<MoRef, u64>,
    /// Whether those that nobody answered for before are among them.
    again: bool,
    answers: BoxFuture<'static, Vec<(MoRef, Standing)>>,
}

impl Follower {
    pub(super) fn new(client: Client, selection: Selection, inventory: Inventory) -> Self {
        Self {
            client,
            selection,
            inventory,
            started: false,
            asked_hidden: Instant::now(),
            retry_window: RetryWindow::default(),
            orphans: Vec::new(),
        }
    }

    /// Follows until told to stop or until the client is shut down.
    pub(super) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut failures = 0;
        loop {
            let mut collector = None;
            let error = tokio::select! {
                error = self.follow(&mut collector, &mut failures) => error,
                () = stop(&mut stopped) => return self.clear_away(collector).await,
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
                () = tokio::time::sleep(retry_pause(self.client.limits(), failures)) => {}
                () = stop(&mut stopped) => return self.clear_away(None).await,
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
    ) -> Result<Infallible, Error> {
        let collector = self.collector(made).await?;
        let tree = self.snapshot(collector).await?;
        self.take_over(tree);
        let mut question = self.question(true);
        loop {
            let waited = self.wait(collector, &mut question).await?;
            // Only now: a vCenter that gives a first view and then fails, again and again, is not
            // well.
            *failures = 0;
            for event in self.apply(waited)? {
                self.inventory.tell(event);
            }
            if question.is_none() {
                question = self.question(false);
            }
        }
    }

    /// The next changes. While there are none, questions are asked and answers told.
    async fn wait(
        &mut self,
        collector: &mut Collector,
        question: &mut Option<Question>,
    ) -> Result<Waited<Object>, Error> {
        let client = self.client.clone();
        let wait = collector.wait::<Object>(&client);
        tokio::pin!(wait);
        loop {
            let next = self.next_question();
            tokio::select! {
                waited = &mut wait => return waited,
                answers = answers(question) => {
                    if let Some(asked) = question.take() {
                        self.settle(&asked, answers);
                    }
                    *question = self.question(false);
                }
                () = sleep_until(next), if question.is_none() => *question = self.question(false),
            }
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
        let collector = match Collector::new(&self.client, ticket.clone()).await {
            Ok(collector) => made.insert(collector),
            Err(error) => {
                if error.is_not_authenticated() {
                    self.client.expired(&ticket);
                }
                return Err(error);
            }
        };
        self.clear_orphans(Some(ticket.generation)).await;
        collector.create_filter(&self.client, self.selection.properties(), objects, views).await?;
        Ok(collector)
    }

    /// Everything there is, from the first answers of a new collector.
    async fn snapshot(&self, collector: &mut Collector) -> Result<Tree, Error> {
        let mut tree = Tree::default();
        loop {
            let waited = collector.wait::<Object>(&self.client).await?;
            for mut change in waited.changes {
                self.selection.trim(&mut change);
                // Changes may come between the pages.
                apply(&mut tree, change).map_err(|gap| self.failure(gap))?;
            }
            if !waited.truncated {
                return Ok(tree);
            }
        }
    }

    /// Makes a new snapshot the view.
    fn take_over(&mut self, tree: Tree) {
        let objects = tree.len();
        self.inventory.change(|view| {
            let older = std::mem::replace(view, tree);
            view.succeed(older);
        });
        self.inventory.set_status(Status::Live);
        let event = if self.started { Event::Resynced } else { Event::Snapshot };
        info!(vcenter = self.client.address(), objects, event = ?event, "inventory in view");
        self.started = true;
        self.inventory.tell(event);
    }

    /// Applies changes to the view; returns what to tell. What left is told by
    /// [`Follower::settle`].
    fn apply(&self, waited: Waited<Object>) -> Result<Vec<Event>, Error> {
        if waited.changes.is_empty() {
            return Ok(Vec::new());
        }
        self.inventory.change(|tree| {
            let mut events = Vec::new();
            for mut change in waited.changes {
                self.selection.trim(&mut change);
                events.extend(apply(tree, change).map_err(|gap| self.failure(gap))?);
            }
            Ok(events)
        })
    }

    /// When there is something to ask for even if nothing leaves.
    fn next_question(&self) -> Instant {
        let now = Instant::now();
        let hidden = self.asked_hidden + ASK_HIDDEN;
        self.retry_window.left(now).map_or(hidden, |left| hidden.min(now + left))
    }

    /// Asks for what left just now, for what nobody answered for when it is time to ask again, and
    /// with `all`, or when it is time for that, for all that may still exist. `None` when there is
    /// nothing to ask for.
    fn question(&mut self, all: bool) -> Option<Question> {
        let now = Instant::now();
        let all = all || now >= self.asked_hidden + ASK_HIDDEN;
        let ask_again = self.retry_window.is_due(now);
        if all {
            self.asked_hidden = now;
        }
        let about: HashMap<MoRef, u64> = {
            let departed = &self.inventory.view().departed;
            let open = match (all, ask_again) {
                (true, _) => departed.existing(),
                (false, true) => departed.unanswered(),
                (false, false) => departed.untold(),
            };
            let numbers = open.iter().filter_map(|object| departed.number(object));
            open.iter().cloned().zip(numbers).collect()
        };
        let again = all || ask_again;
        if about.is_empty() {
            self.asked(again);
            return None;
        }
        let (client, objects) = (self.client.clone(), about.keys().cloned().collect::<Vec<_>>());
        let answers = async move { client.ask_once_for(&objects).await }.boxed();
        Some(Question { about, again, answers })
    }

    /// Takes in the answers to a question; tells those that are news.
    fn settle(&mut self, asked: &Question, answers: Vec<(MoRef, Standing)>) {
        for (reference, standing) in answers {
            let absence = match standing {
                Standing::Absent(absence) => absence,
                Standing::Present => Absence::Elsewhere,
            };
            let news = self.inventory.change(|tree| {
                // One that came back and left again since is another question.
                if tree.departed.number(&reference) != asked.about.get(&reference).copied() {
                    return None;
                }
                tree.departed.settle(&reference, absence)
            });
            if let Some(departure) = news {
                debug!(vcenter = self.client.address(), object = %reference, absence = ?departure.absence, "left");
                self.inventory.tell(Event::Left(departure));
            }
        }
        self.asked(asked.again);
    }

    /// Notes that vCenter was asked, with those asked for before or without them.
    fn asked(&mut self, again: bool) {
        let unanswered = !self.inventory.view().departed.unanswered().is_empty();
        self.retry_window.asked(Instant::now(), unanswered, again);
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
        self.client.wire().fault("WaitForUpdatesEx", crate::soap::Fault::from_message(words))
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

    /// Clears away what earlier attempts left in the session `generation`. What was in another
    /// ended with it.
    async fn clear_orphans(&mut self, generation: Option<u64>) {
        for orphan in std::mem::take(&mut self.orphans) {
            if Some(orphan.ticket().generation) == generation {
                orphan.destroy(&self.client).await;
            }
        }
    }

    /// Clears everything away in vCenter, for no longer than [`FAREWELL`].
    async fn clear_away(mut self, collector: Option<Collector>) {
        self.orphans.extend(collector);
        let generation = self.client.generation();
        if tokio::time::timeout(FAREWELL, self.clear_orphans(generation)).await.is_err() {
            debug!(vcenter = self.client.address(), "a watch is left for vCenter to clear away");
        }
    }

    fn unreachable(&self, error: Error) {
        warn!(vcenter = self.client.address(), error = %error.error_chain(), "cannot follow the inventory");
        let error = Arc::new(error);
        self.inventory.set_status(Status::Unreachable(Arc::clone(&error)));
        self.inventory.tell(Event::Unreachable(error));
    }
}

/// The answers to a question; never, without one. Safe to drop and call again.
async fn answers(question: &mut Option<Question>) -> Vec<(MoRef, Standing)> {
    match question {
        Some(question) => (&mut question.answers).await,
        None => std::future::pending().await,
    }
}

/// Returns when the watch is to end.
async fn stop(stopped: &mut watch::Receiver<bool>) {
    // An error means that the watch was dropped: the task is about to be aborted.
    let _ = stopped.wait_for(|stop| *stop).await;
}
