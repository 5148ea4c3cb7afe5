//! Named long-running tasks. The end of any of them is reported.

use std::{collections::HashMap, future::Future};

use snafu::Snafu;
use tokio::task::{Id, JoinError, JoinSet};

/// The long-running tasks of a process. Dropping this aborts them.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

/// The unexpected end of a task.
#[derive(Debug, Snafu)]
pub enum Ended {
    #[snafu(display("the task {name} panicked: this is a bug, please report it with the log"))]
    Panicked { name: &'static str, source: JoinError },
    #[snafu(display("the task {name} ended although it should run as long as the process"))]
    Early { name: &'static str },
}

impl Tasks {
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.set.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Waits until the first task ends, which is an error: every task should keep running.
    pub async fn first_to_end(&mut self) -> Option<Ended> {
        let joined = self.set.join_next_with_id().await?;
        let name = |id: &Id| self.names.get(id).copied().unwrap_or("(unnamed)");
        Some(match joined {
            Ok((id, ())) => Ended::Early { name: name(&id) },
            Err(source) => Ended::Panicked { name: name(&source.id()), source },
        })
    }

    /// Waits until all tasks have ended. The caller has already requested that.
    pub async fn all_to_end(&mut self) {
        while self.set.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_task_is_reported_with_its_name() {
        let mut tasks = Tasks::default();
        tasks.spawn("watch", std::future::pending());
        tasks.spawn("report", async {});
        let ended = tasks.first_to_end().await.map(|e| e.to_string());
        assert_eq!(
            ended.as_deref(),
            Some("the task report ended although it should run as long as the process")
        );
    }

    #[tokio::test]
    async fn a_panic_is_reported_with_the_name_of_the_task() {
        let mut tasks = Tasks::default();
        tasks.spawn("act", async { panic!("out of cheese") });
        let ended = tasks.first_to_end().await;
        assert!(matches!(ended, Some(Ended::Panicked { name: "act", .. })), "{ended:?}");
    }
}
