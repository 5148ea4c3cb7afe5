//! The tasks of one vCenter that callers wait for, with the last status vCenter reported.
//!
//! The client owns the registry. The `tasks` module fills it and waits on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::error::Error;
use crate::moref::MoRef;
use crate::soap::{Fault, Value};
use crate::xml::codec::{data, wire_enum};

wire_enum! {
    pub enum TaskState {
        Queued = "queued",
        Running = "running",
        Success = "success",
        Error = "error",
    }
}

data! {
    pub struct TaskInfo {
        /// The method, such as `CnsCreateVolume`.
        name: Option<String> = "name",
        /// The method in the form of vCenter's catalog, such as `com.vmware.cns.tasks.createvolume`.
        description_id: Option<String> = "descriptionId",
        /// The object the task works on.
        entity: Option<MoRef> = "entity",
        entity_name: Option<String> = "entityName",
        state: TaskState = "state",
        /// Why the task failed.
        error: Option<Fault> = "error",
        result: Option<Value> = "result",
        /// Percent.
        progress: Option<i32> = "progress",
    }
}

#[derive(Debug, Clone)]
pub(crate) enum TaskStatus {
    /// Percent done.
    Running(u8),
    Ended(Box<TaskInfo>),
    /// vCenter does not know the task.
    Lost,
    /// The client no longer watches the task, and why.
    Unwatched(Box<Error>),
}

impl TaskStatus {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }
}

impl From<TaskInfo> for TaskStatus {
    fn from(info: TaskInfo) -> Self {
        match info.state {
            TaskState::Success | TaskState::Error => Self::Ended(Box::new(info)),
            _ => {
                let percent = info.progress.and_then(|percent| u8::try_from(percent).ok());
                Self::Running(percent.unwrap_or(0).min(100))
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct TaskRegistry {
    waits: Arc<TaskWaits>,
    watcher: Mutex<JoinSet<()>>,
}

impl TaskRegistry {
    /// Registers a wait for `task`. `start_watcher` makes the future that watches vCenter; it runs
    /// only while no other watcher does.
    pub(crate) fn subscribe<W: Future<Output = ()> + Send + 'static>(
        &self,
        task: &MoRef,
        start_watcher: impl FnOnce(Arc<TaskWaits>) -> W,
    ) -> watch::Receiver<TaskStatus> {
        let status = {
            let mut state = self.waits.lock();
            if let Some(error) = &state.closed {
                return watch::channel(TaskStatus::Unwatched(Box::new(error.clone()))).1;
            }
            let sender = state
                .tasks
                .entry(task.clone())
                .or_insert_with(|| watch::channel(TaskStatus::Running(0)).0);
            sender.subscribe()
        };
        self.waits.added.notify_one();
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        while watcher.try_join_next().is_some() {}
        if watcher.is_empty() {
            watcher.spawn(start_watcher(Arc::clone(&self.waits)));
        }
        status
    }

    /// Ends all waits, and every later one, with `error`.
    pub(crate) fn stop(&self, error: &Error) {
        // Close first: a later caller must not count on a watcher that is about to end.
        self.waits.lock().closed = Some(error.clone());
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.waits.fail_all(error);
    }
}

/// The half of the registry that callers and the watcher share.
#[derive(Debug, Default)]
pub(crate) struct TaskWaits {
    state: Mutex<WaitState>,
    /// Notified when a caller starts to wait for another task.
    pub(crate) added: Notify,
}

#[derive(Debug, Default)]
struct WaitState {
    tasks: HashMap<MoRef, watch::Sender<TaskStatus>>,
    /// Set once the client stops watching for good.
    closed: Option<Error>,
}

impl TaskWaits {
    fn lock(&self) -> MutexGuard<'_, WaitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the tasks that callers wait for. Forgets all others.
    pub(crate) fn wanted(&self) -> Vec<MoRef> {
        let tasks = &mut self.lock().tasks;
        tasks.retain(|_, sender| !sender.is_closed());
        tasks.keys().cloned().collect()
    }

    /// Ends all current waits with `error`.
    pub(crate) fn fail_all(&self, error: &Error) {
        for (_, sender) in self.lock().tasks.drain() {
            sender.send_replace(TaskStatus::Unwatched(Box::new(error.clone())));
        }
    }

    pub(crate) fn publish(&self, task: &MoRef, status: TaskStatus) {
        let tasks = &mut self.lock().tasks;
        let ended = !status.is_running();
        if let Some(sender) = tasks.get(task) {
            sender.send_if_modified(|current| {
                let unchanged = matches!(
                    (&*current, &status),
                    (TaskStatus::Running(a), TaskStatus::Running(b)) if a == b
                );
                *current = status;
                !unchanged
            });
        }
        if ended {
            tasks.remove(task);
        }
    }
}
