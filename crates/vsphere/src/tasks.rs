//! Waiting for tasks: all of a vCenter's tasks that somebody waits for are watched together, by one
//! filter.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::debug;

use crate::client::{Client, WeakClient, pause};
use crate::collector::calls::{ListView, View};
use crate::collector::spec::PropertySpec;
use crate::collector::{Change, Collector, managed};
use crate::error::Error;
use crate::moref::MoRef;
use crate::soap::codec::{data, wire_enum};
use crate::soap::{Fault, Value};
use crate::wire::Method;

wire_enum! {
    /// How far a task is.
    pub enum TaskState {
        /// Waiting for its turn.
        Queued = "queued",
        /// Under way.
        Running = "running",
        /// Done.
        Success = "success",
        /// Failed.
        Error = "error",
    }
}

data! {
    /// What vCenter says of a task.
    pub struct TaskInfo {
        /// The object it works on.
        entity: Option<MoRef> = "entity",
        /// That object's name.
        entity_name: Option<String> = "entityName",
        /// How far it is.
        state: TaskState = "state",
        /// Why it failed.
        error: Option<Fault> = "error",
        /// What it brought.
        result: Option<Value> = "result",
        /// Percent.
        progress: Option<i32> = "progress",
    }
}

managed! {
    /// A task as the property collector shows it.
    struct TaskObject of Task {
        /// All of it.
        INFO {
            /// All of it.
            info: TaskInfo = "info",
        }
    }
}

/// How long the filter is kept while nobody waits.
const LINGER: Duration = Duration::from_secs(30);

/// What is known of a task.
#[derive(Debug, Clone)]
enum Known {
    /// It goes on; percent.
    Running(u8),
    Ended(Box<TaskInfo>),
    /// vCenter does not know it.
    Lost,
    /// Nobody looks any more, and why.
    Unwatched(Box<Error>),
}

/// A task that was started. It goes on in vCenter whether or not anybody waits for it.
#[derive(Debug)]
#[must_use = "a task that nobody waits for may fail unnoticed"]
pub struct Task {
    client: Client,
    reference: MoRef,
    method: &'static str,
    known: watch::Receiver<Known>,
}

/// The tasks of one vCenter that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    shared: Arc<Shared>,
    runner: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Somebody new is waiting.
    more: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    tasks: HashMap<MoRef, watch::Sender<Known>>,
    /// Why nobody looks any more, and never will.
    closed: Option<Error>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets tasks that nobody waits for any more; returns the others.
    fn wanted(&self) -> Vec<MoRef> {
        let tasks = &mut self.lock().tasks;
        tasks.retain(|_, sender| !sender.is_closed());
        tasks.keys().cloned().collect()
    }

    /// Tells everybody who waits that nobody looks any more.
    fn give_up(&self, error: &Error) {
        for (_, sender) in self.lock().tasks.drain() {
            sender.send_replace(Known::Unwatched(Box::new(error.clone())));
        }
    }

    fn learn(&self, task: &MoRef, known: Known) {
        let waiting = &mut self.lock().tasks;
        let ended = !matches!(known, Known::Running(_));
        if let Some(sender) = waiting.get(task) {
            sender.send_if_modified(|now| {
                let same =
                    matches!((&*now, &known), (Known::Running(a), Known::Running(b)) if a == b);
                *now = known;
                !same
            });
        }
        if ended {
            waiting.remove(task);
        }
    }
}

impl Client {
    /// Takes charge of a task that `method` started.
    pub(crate) fn task(&self, method: &'static str, reference: MoRef) -> Task {
        let tasks = self.tasks();
        let known = {
            let mut waiting = tasks.shared.lock();
            if let Some(error) = &waiting.closed {
                let known = watch::channel(Known::Unwatched(Box::new(error.clone()))).1;
                return Task { client: self.clone(), reference, method, known };
            }
            let sender = waiting
                .tasks
                .entry(reference.clone())
                .or_insert_with(|| watch::channel(Known::Running(0)).0);
            sender.subscribe()
        };
        tasks.shared.more.notify_one();
        let mut runner = tasks.runner.lock().unwrap_or_else(PoisonError::into_inner);
        while runner.try_join_next().is_some() {}
        if runner.is_empty() {
            runner.spawn(run(self.downgrade(), Arc::clone(&tasks.shared), self.limits().clone()));
        }
        Task { client: self.clone(), reference, method, known }
    }

    /// Takes up a task that was started earlier, perhaps by a process that has died, to wait for
    /// it.
    pub fn resume_task(&self, reference: MoRef) -> Task {
        self.task("(resumed)", reference)
    }
}

impl Tasks {
    /// Ends the waiting of everybody, also of those who come later, because of `error`.
    pub(crate) fn stop(&self, error: &Error) {
        // First: whoever comes now must not count on a watcher that is about to end.
        self.shared.lock().closed = Some(error.clone());
        self.runner.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.shared.give_up(error);
    }
}

impl Task {
    /// What vCenter calls it. Kept somewhere safe, it lets another process wait for the same task.
    pub fn reference(&self) -> &MoRef {
        &self.reference
    }

    /// Percent done, as vCenter last said.
    pub fn progress(&self) -> u8 {
        match &*self.known.borrow() {
            Known::Running(percent) => *percent,
            Known::Ended(_) => 100,
            Known::Lost | Known::Unwatched(_) => 0,
        }
    }

    /// Waits for a change of [`Task::progress`] or the end. Returns whether the task goes on, as far
    /// as is known; if not, [`Task::wait`] tells at once how it ended.
    #[must_use = "without it, a loop would not notice the end"]
    pub async fn changed(&mut self) -> bool {
        let goes_on = |known: &Known| matches!(known, Known::Running(_));
        // An error means that nobody will ever change it again.
        goes_on(&self.known.borrow())
            && self.known.changed().await.is_ok()
            && goes_on(&self.known.borrow())
    }

    /// Waits for the end, at most `within`, and returns what the task brought.
    ///
    /// # Errors
    /// `TaskFailed` with vCenter's fault; `TaskUnfinished` when the time is up, with the task going
    /// on; `TaskLost` when vCenter no longer knows it.
    pub async fn wait(mut self, within: Duration) -> Result<Option<Value>, Error> {
        let (address, method) = (self.client.address().to_owned(), self.method.to_owned());
        let ended = self.known.wait_for(|known| !matches!(known, Known::Running(_)));
        let known = match tokio::time::timeout(within, ended).await {
            Ok(Ok(known)) => Some(known.clone()),
            Ok(Err(_)) => {
                let address = address.clone();
                Some(Known::Unwatched(Box::new(Error::ShutDown { address })))
            }
            Err(_) => None,
        };
        let Some(known) = known else {
            let progress = self.progress();
            return Err(Error::TaskUnfinished {
                address,
                method,
                task: self.reference,
                after: within,
                progress,
            });
        };
        match known {
            Known::Ended(info) => match info.error {
                Some(fault) if info.state == TaskState::Error => {
                    Err(Error::TaskFailed { address, method, source: Box::new(fault) })
                }
                None if info.state == TaskState::Error => Err(Error::TaskFailed {
                    address,
                    method,
                    source: Box::new(Fault::plain("vCenter gave no reason")),
                }),
                _ => Ok(info.result),
            },
            Known::Lost => Err(Error::TaskLost { address, method, task: self.reference }),
            Known::Unwatched(error) => Err(*error),
            Known::Running(_) => Err(Error::ShutDown { address }),
        }
    }

    /// Asks vCenter to give the task up. Not every task can be.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.client.call(Method::change("CancelTask"), &self.reference, &[]).await
    }
}

/// Watches as long as the client lives. While nobody waits, nothing is called.
async fn run(client: WeakClient, shared: Arc<Shared>, limits: crate::transport::http::Limits) {
    let mut failures = 0;
    loop {
        while shared.wanted().is_empty() {
            shared.more.notified().await;
        }
        let Some(client) = client.upgrade() else { return };
        match follow(&client, &shared, &mut failures).await {
            Ok(()) => failures = 0,
            // Waiting would bring nothing: what is told is why.
            Err(error) if is_final(&error) => shared.give_up(&error),
            Err(error) => {
                failures += 1;
                if error.is_not_authenticated() && failures == 1 {
                    // The session was ended, vCenter is well.
                    continue;
                }
                debug!(vcenter = client.address(), error = %error.error_chain(), "cannot follow tasks");
                drop(client);
                tokio::time::sleep(pause(&limits, failures)).await;
            }
        }
    }
}

/// Whether nothing will be learned of any task before somebody does something about it.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::LoginRefused { .. } | Error::ShutDown { .. } | Error::OtherVcenter { .. }
    )
}

/// Follows all tasks until nobody has waited for a while.
async fn follow(client: &Client, shared: &Shared, failures: &mut u32) -> Result<(), Error> {
    let ticket = client.ticket().await?;
    let outcome = match Collector::new(client, ticket.clone()).await {
        Ok(mut collector) => {
            let outcome = follow_with(client, shared, &mut collector, failures).await;
            if !matches!(&outcome, Err(error) if error.is_not_authenticated()) {
                collector.destroy(client).await;
            }
            outcome
        }
        Err(error) => Err(error),
    };
    if matches!(&outcome, Err(error) if error.is_not_authenticated()) {
        client.expired(&ticket);
    }
    outcome
}

async fn follow_with(
    client: &Client,
    shared: &Shared,
    collector: &mut Collector,
    failures: &mut u32,
) -> Result<(), Error> {
    let properties = vec![PropertySpec::new("Task", TaskObject::INFO.iter().copied())];
    let view = View::List { objects: Vec::new() };
    collector.look_at(client, properties, Vec::new(), vec![view]).await?;
    let Some(list) = collector.list() else { return Ok(()) };
    let mut watched = Watched::default();
    loop {
        sync(client, shared, &list, &mut watched).await?;
        if shared.wanted().is_empty() {
            if linger(client, shared).await {
                continue;
            }
            return Ok(());
        }
        watched.waits += 1;
        let waited = {
            let wait = collector.wait::<TaskObject>(client);
            tokio::pin!(wait);
            loop {
                tokio::select! {
                    waited = &mut wait => break waited?,
                    () = shared.more.notified() => sync(client, shared, &list, &mut watched).await?,
                }
            }
        };
        *failures = 0;
        for change in waited.changes {
            match change {
                Change::Enter(task) | Change::Modify(task, _) => {
                    if let Some(info) = task.info {
                        let known = known(info);
                        watched.learn(&task.reference, &known);
                        shared.learn(&task.reference, known);
                    }
                }
                Change::Leave(task) => {
                    if watched.leave(&task) {
                        shared.learn(&task, Known::Lost);
                    }
                }
                Change::Foreign => {}
            }
        }
    }
}

/// Keeps the filter for the next task, without a call: tasks seldom come alone. Returns whether one
/// came before it was time to clear the filter away.
async fn linger(client: &Client, shared: &Shared) -> bool {
    let until = Instant::now() + LINGER;
    while shared.wanted().is_empty() {
        if Instant::now() >= until || client.is_last() {
            return false;
        }
        // Now and then it is looked whether the client is still in use.
        let _ = tokio::time::timeout(Duration::from_secs(1), shared.more.notified()).await;
    }
    true
}

/// The tasks on vCenter's list.
#[derive(Debug, Default)]
struct Watched {
    tasks: HashMap<MoRef, Listed>,
    /// Waits for changes that have begun.
    waits: u64,
}

/// A task on vCenter's list.
#[derive(Debug)]
struct Listed {
    /// What vCenter last said of it. It does not say it again to somebody who takes up a task that
    /// is still on the list.
    last: Option<Known>,
    /// The waits that had begun when it was put there.
    since: u64,
}

impl Watched {
    fn add(&mut self, task: MoRef) {
        self.tasks.insert(task, Listed { last: None, since: self.waits });
    }

    fn learn(&mut self, task: &MoRef, known: &Known) {
        if let Some(listed) = self.tasks.get_mut(task) {
            listed.last = Some(known.clone());
        }
    }

    /// Takes in that a task left the list, as the wait that ends now tells; returns whether it is
    /// lost. One that was put there while the wait went on is not: what left is its earlier place.
    fn leave(&mut self, task: &MoRef) -> bool {
        let lost = self.tasks.get(task).is_some_and(|listed| listed.since < self.waits);
        if lost {
            self.tasks.remove(task);
        }
        lost
    }
}

/// Makes vCenter's list the tasks that are waited for. Those vCenter does not know are lost.
async fn sync(
    client: &Client,
    shared: &Shared,
    list: &ListView,
    watched: &mut Watched,
) -> Result<(), Error> {
    for task in shared.wanted() {
        if let Some(Listed { last: Some(known), .. }) = watched.tasks.get(&task) {
            shared.learn(&task, known.clone());
        }
    }
    let wanted: HashSet<MoRef> = shared.wanted().into_iter().collect();
    let add: Vec<MoRef> =
        wanted.iter().filter(|task| !watched.tasks.contains_key(task)).cloned().collect();
    let remove: Vec<MoRef> =
        watched.tasks.keys().filter(|task| !wanted.contains(task)).cloned().collect();
    // Tasks that ended are only taken off the list when there is something to add, or enough of
    // them.
    if add.is_empty() && remove.len() < 32 {
        return Ok(());
    }
    for task in &remove {
        watched.tasks.remove(task);
    }
    for task in &add {
        watched.add(task.clone());
    }
    for unknown in list.modify(client, &add, &remove).await? {
        watched.tasks.remove(&unknown);
        shared.learn(&unknown, Known::Lost);
    }
    Ok(())
}

fn known(info: TaskInfo) -> Known {
    match info.state {
        TaskState::Success | TaskState::Error => Known::Ended(Box::new(info)),
        _ => Known::Running(info.progress.and_then(|p| u8::try_from(p).ok()).unwrap_or(0).min(100)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_put_back_while_a_wait_goes_on_is_not_lost_by_its_earlier_leave() {
        let task = MoRef::new("Task", "task-1");
        let mut watched = Watched::default();
        watched.add(task.clone());
        watched.waits += 1;
        // Taken off and put back before the wait is answered with the leave.
        watched.tasks.remove(&task);
        watched.add(task.clone());
        assert!(!watched.leave(&task), "it is on the list");
        watched.waits += 1;
        assert!(watched.leave(&task), "what the next wait tells is true of it");
        assert!(!watched.leave(&task), "only once");
    }
}
