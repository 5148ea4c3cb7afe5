//! Waits for tasks. One property filter watches all tasks of a vCenter that callers wait for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use crate::client::{Client, WeakClient, retry_pause};
use crate::collector::calls::{ListView, View};
use crate::collector::spec::{FilterSpec, ObjectSpec, PropertySpec};
use crate::collector::{Change, Collector, managed, retrieve};
use crate::error::Error;
use crate::moref::MoRef;
use crate::soap::{Fault, Value};
use crate::task_registry::{TaskInfo, TaskState, TaskStatus, TaskWaits};
use crate::transport::http::Limits;
use crate::wire::Method;

managed! {
    struct TaskObject of Task {
        INFO {
            info: TaskInfo = "info",
        }
    }
}

/// With several tasks, the pause before a call: new tasks, and the ends of running ones, share it. A
/// single task is never delayed.
const GATHER: Duration = Duration::from_millis(50);

/// How long the watcher keeps its filter while no caller waits.
const FILTER_IDLE: Duration = Duration::from_secs(30);

/// A task that was started. It continues in vCenter even if no caller waits for it.
#[derive(Debug)]
#[must_use = "a task without a wait may fail unnoticed"]
pub struct Task {
    client: Client,
    reference: MoRef,
    method: &'static str,
    status: watch::Receiver<TaskStatus>,
}

impl Client {
    /// Watches the task that `method` started.
    pub(crate) fn task(&self, method: &'static str, reference: MoRef) -> Task {
        let status = self.task_registry().subscribe(&reference, |waits| {
            watch_tasks(self.downgrade(), waits, self.limits().clone())
        });
        Task { client: self.clone(), reference, method, status }
    }

    /// Waits for a task that was started earlier, for example by a process that has exited.
    pub fn resume_task(&self, reference: MoRef) -> Task {
        self.task("(resumed)", reference)
    }
}

managed! {
    struct TaskManager of TaskManager {
        RECENT {
            recent: Box<[MoRef]> = "recentTask",
        }
    }
}

impl Client {
    /// The tasks in vCenter's list of recent tasks: all that run or wait, and some that ended.
    pub async fn recent_tasks(&self) -> Result<Vec<TaskInfo>, Error> {
        let Some(manager) = self.content()?.task_manager else { return Ok(Vec::new()) };
        let spec = FilterSpec {
            properties: vec![PropertySpec::new("TaskManager", TaskManager::RECENT.iter().copied())],
            objects: vec![ObjectSpec::just(manager)],
            skip_missing: false,
        };
        let found = retrieve::<TaskManager>(self, &spec, None).await?;
        let recent: Vec<MoRef> =
            found.into_iter().filter_map(|found| found.value?.recent).flatten().collect();
        if recent.is_empty() {
            return Ok(Vec::new());
        }
        let spec = FilterSpec {
            properties: vec![PropertySpec::new("Task", TaskObject::INFO.iter().copied())],
            objects: recent.into_iter().map(ObjectSpec::just).collect(),
            // A task can leave the list between the two calls.
            skip_missing: true,
        };
        let found = retrieve::<TaskObject>(self, &spec, None).await?;
        Ok(found.into_iter().filter_map(|found| found.value?.info).collect())
    }
}

impl Task {
    /// vCenter's reference to the task. A process that stores it can [resume] the task later.
    ///
    /// [resume]: Client::resume_task
    pub fn reference(&self) -> &MoRef {
        &self.reference
    }

    /// The percentage that vCenter last reported.
    pub fn progress(&self) -> u8 {
        match &*self.status.borrow() {
            TaskStatus::Running(percent) => *percent,
            TaskStatus::Ended(_) => 100,
            TaskStatus::Lost | TaskStatus::Unwatched(_) => 0,
        }
    }

    /// Waits until [`Task::progress`] changes or the task ends. Returns whether the task still
    /// runs; after `false`, [`Task::wait`] returns the outcome at once.
    #[must_use = "without it, a loop would not notice the end"]
    pub async fn changed(&mut self) -> bool {
        // `changed` fails when the sender is gone: the status is final.
        self.status.borrow().is_running()
            && self.status.changed().await.is_ok()
            && self.status.borrow().is_running()
    }

    /// Waits up to `within` for the task to end, and returns its result.
    ///
    /// # Errors
    /// `TaskFailed` with vCenter's fault; `TaskUnfinished` when the time is up and the task still
    /// runs; `TaskLost` when vCenter no longer knows the task.
    pub async fn wait(mut self, within: Duration) -> Result<Option<Value>, Error> {
        let (address, method) = (self.client.address().to_owned(), self.method.to_owned());
        let ended = self.status.wait_for(|status| !status.is_running());
        let status = match tokio::time::timeout(within, ended).await {
            Ok(Ok(status)) => Some(status.clone()),
            Ok(Err(_)) => {
                let address = address.clone();
                Some(TaskStatus::Unwatched(Box::new(Error::ShutDown { address })))
            }
            Err(_) => None,
        };
        let Some(status) = status else {
            let progress = self.progress();
            return Err(Error::TaskUnfinished {
                address,
                method,
                task: self.reference,
                after: within,
                progress,
            });
        };
        match status {
            TaskStatus::Ended(info) => match info.error {
                Some(fault) if info.state == TaskState::Error => {
                    Err(Error::TaskFailed { address, method, source: Box::new(fault) })
                }
                None if info.state == TaskState::Error => Err(Error::TaskFailed {
                    address,
                    method,
                    source: Box::new(Fault::from_message("vCenter gave no reason")),
                }),
                _ => Ok(info.result),
            },
            TaskStatus::Lost => Err(Error::TaskLost { address, method, task: self.reference }),
            TaskStatus::Unwatched(error) => Err(*error),
            TaskStatus::Running(_) => Err(Error::ShutDown { address }),
        }
    }

    /// Asks vCenter to cancel the task. vCenter cannot cancel every task.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.client.call(Method::change("CancelTask"), &self.reference, &[]).await
    }
}

/// Watches tasks as long as the client lives. Makes no calls while no caller waits.
async fn watch_tasks(client: WeakClient, waits: Arc<TaskWaits>, limits: Limits) {
    let mut failures = 0;
    loop {
        while waits.wanted().is_empty() {
            waits.added.notified().await;
        }
        let Some(client) = client.upgrade() else { return };
        match watch_session(&client, &waits, &mut failures).await {
            Ok(()) => failures = 0,
            // A retry cannot succeed: callers get the reason at once.
            Err(error) if is_final(&error) => waits.fail_all(&error),
            Err(error) => {
                failures += 1;
                if error.is_not_authenticated() && failures == 1 {
                    // Only the session ended; vCenter is available.
                    continue;
                }
                debug!(vcenter = client.address(), error = %error.error_chain(), "cannot watch tasks");
                drop(client);
                tokio::time::sleep(retry_pause(&limits, failures)).await;
            }
        }
    }
}

/// Whether watching stays impossible without intervention.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::LoginRefused { .. } | Error::ShutDown { .. } | Error::OtherVcenter { .. }
    )
}

/// Watches all tasks in one session, until no caller has waited for a while.
async fn watch_session(
    client: &Client,
    waits: &TaskWaits,
    failures: &mut u32,
) -> Result<(), Error> {
    let ticket = client.ticket().await?;
    let outcome = match Collector::new(client, ticket.clone()).await {
        Ok(mut collector) => {
            let outcome = watch_with(client, waits, &mut collector, failures).await;
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

async fn watch_with(
    client: &Client,
    waits: &TaskWaits,
    collector: &mut Collector,
    failures: &mut u32,
) -> Result<(), Error> {
    let properties = vec![PropertySpec::new("Task", TaskObject::INFO.iter().copied())];
    let view = View::List { objects: Vec::new() };
    collector.create_filter(client, properties, Vec::new(), vec![view]).await?;
    let Some(list) = collector.list() else { return Ok(()) };
    let mut listed = TaskList::default();
    loop {
        gather(waits).await;
        sync_list(client, waits, &list, &mut listed).await?;
        if waits.wanted().is_empty() {
            if wait_for_next_task(client, waits).await {
                continue;
            }
            return Ok(());
        }
        listed.waits += 1;
        let updates = {
            let wait = collector.wait::<TaskObject>(client);
            tokio::pin!(wait);
            loop {
                tokio::select! {
                    updates = &mut wait => break updates?,
                    () = waits.added.notified() => {
                        gather(waits).await;
                        sync_list(client, waits, &list, &mut listed).await?;
                    }
                }
            }
        };
        *failures = 0;
        for change in updates.changes {
            match change {
                Change::Enter(task) | Change::Modify(task, _) => {
                    if let Some(info) = task.info {
                        let status = TaskStatus::from(info);
                        listed.update(&task.reference, &status);
                        waits.publish(&task.reference, status);
                    }
                }
                Change::Leave(task) => {
                    if listed.leave(&task) {
                        waits.publish(&task, TaskStatus::Lost);
                    }
                }
                Change::Foreign => {}
            }
        }
    }
}

async fn gather(waits: &TaskWaits) {
    if waits.wanted().len() > 1 {
        tokio::time::sleep(GATHER).await;
    }
}

/// Keeps the filter for the next task without a call, because tasks seldom come alone. Returns
/// whether a caller started to wait before [`FILTER_IDLE`] ran out.
async fn wait_for_next_task(client: &Client, waits: &TaskWaits) -> bool {
    let until = Instant::now() + FILTER_IDLE;
    while waits.wanted().is_empty() {
        if Instant::now() >= until || client.is_last() {
            return false;
        }
        // Wakes up every second to check that the client is still in use.
        let _ = tokio::time::timeout(Duration::from_secs(1), waits.added.notified()).await;
    }
    true
}

/// The tasks in vCenter's list view.
#[derive(Debug, Default)]
struct TaskList {
    tasks: HashMap<MoRef, ListedTask>,
    /// Waits for changes that have begun.
    waits: u64,
}

#[derive(Debug)]
struct ListedTask {
    /// The last status vCenter reported. vCenter does not repeat it for a caller that resumes a
    /// task that is still in the list.
    last: Option<TaskStatus>,
    /// The value of [`TaskList::waits`] when the task was added.
    since: u64,
}

impl TaskList {
    fn add(&mut self, task: MoRef) {
        self.tasks.insert(task, ListedTask { last: None, since: self.waits });
    }

    fn update(&mut self, task: &MoRef, status: &TaskStatus) {
        if let Some(listed) = self.tasks.get_mut(task) {
            listed.last = Some(status.clone());
        }
    }

    /// Handles a leave that the current wait reported. Returns whether the task is lost. A task that
    /// was added during this wait is not lost: the leave belongs to its earlier entry.
    fn leave(&mut self, task: &MoRef) -> bool {
        let lost = self.tasks.get(task).is_some_and(|listed| listed.since < self.waits);
        if lost {
            self.tasks.remove(task);
        }
        lost
    }
}

/// Makes vCenter's list equal to the tasks that callers wait for. Tasks unknown to vCenter are lost.
async fn sync_list(
    client: &Client,
    waits: &TaskWaits,
    list: &ListView,
    listed: &mut TaskList,
) -> Result<(), Error> {
    for task in waits.wanted() {
        if let Some(ListedTask { last: Some(status), .. }) = listed.tasks.get(&task) {
            waits.publish(&task, status.clone());
        }
    }
    let wanted: HashSet<MoRef> = waits.wanted().into_iter().collect();
    let add: Vec<MoRef> =
        wanted.iter().filter(|task| !listed.tasks.contains_key(task)).cloned().collect();
    let remove: Vec<MoRef> =
        listed.tasks.keys().filter(|task| !wanted.contains(task)).cloned().collect();
    // Ended tasks alone are worth a call only when there are many of them.
    if add.is_empty() && remove.len() < 32 {
        return Ok(());
    }
    for task in &remove {
        listed.tasks.remove(task);
    }
    for task in &add {
        listed.add(task.clone());
    }
    for unknown in list.modify(client, &add, &remove).await? {
        listed.tasks.remove(&unknown);
        waits.publish(&unknown, TaskStatus::Lost);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_added_again_during_a_wait_is_not_lost_by_its_earlier_leave() {
        let task = MoRef::new("Task", "task-1");
        let mut listed = TaskList::default();
        listed.add(task.clone());
        listed.waits += 1;
        // Removed and added again before the wait returns with the leave.
        listed.tasks.remove(&task);
        listed.add(task.clone());
        assert!(!listed.leave(&task), "the task is in the list");
        listed.waits += 1;
        assert!(listed.leave(&task), "a leave in the next wait is about the current entry");
        assert!(!listed.leave(&task), "a task is lost only once");
    }
}
