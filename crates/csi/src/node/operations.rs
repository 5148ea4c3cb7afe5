//! Runs the operations of the Node service: one at a time per volume, to the end even if the kubelet gives up waiting.

use std::{
    collections::BTreeSet,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, timeout},
};
use tonic::Status;

use super::metrics::Metrics;

/// The operations in progress. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Operations {
    volumes: Arc<Mutex<BTreeSet<String>>>,
    tasks: Arc<Mutex<JoinSet<()>>>,
    metrics: Arc<Metrics>,
}

/// Frees the volume for the next operation.
struct Reserved {
    volumes: Arc<Mutex<BTreeSet<String>>>,
    volume: String,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        lock(&self.volumes).remove(&self.volume);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Operations {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { volumes: Arc::default(), tasks: Arc::default(), metrics }
    }

    /// Runs `operation` on a volume, `Aborted` if another one is in progress on it.
    ///
    /// If the caller disconnects, the operation goes on: mkfs must not be killed because a deadline of the kubelet has
    /// passed. The next call then finds its result.
    pub async fn run<T: Send + 'static>(
        &self,
        method: &'static str,
        volume: &str,
        operation: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let reserved = self.reserve(method, volume)?;
        let (sender, receiver) = oneshot::channel();
        let metrics = self.metrics.clone();
        let volume = volume.to_owned();
        let task = async move {
            let started = Instant::now();
            metrics.operation_started(method);
            let outcome = operation.await;
            let took = started.elapsed();
            metrics.operation_ended(method, took.as_secs_f64(), outcome.as_ref().err());
            report(method, &volume, took, outcome.as_ref().err());
            drop(reserved);
            // Nobody may be waiting any more.
            let _ = sender.send(outcome);
        };
        {
            let mut tasks = lock(&self.tasks);
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
        receiver.await.unwrap_or_else(|_| Err(Status::unavailable("the driver is shutting down")))
    }

    fn reserve(&self, method: &str, volume: &str) -> Result<Reserved, Status> {
        if !lock(&self.volumes).insert(volume.to_owned()) {
            return Err(Status::aborted(format!(
                "{method}: another operation on the volume {volume} is in progress on this node"
            )));
        }
        Ok(Reserved { volumes: self.volumes.clone(), volume: volume.to_owned() })
    }

    /// Waits until the operations in progress have ended.
    pub async fn finish(&self, limit: Duration) {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        if timeout(limit, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
            tracing::warn!(count = tasks.len(), "operations did not end in time");
        }
    }
}

fn report(method: &str, volume: &str, took: Duration, error: Option<&Status>) {
    match error {
        None => tracing::info!(method, volume, ?took, "done"),
        Some(error) => {
            tracing::warn!(method, volume, ?took, code = ?error.code(), "{}", error.message());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_operation_on_a_volume_is_aborted() {
        let operations = Operations::new(Arc::default());
        let (go, gone) = oneshot::channel::<()>();
        let first = operations.run("NodeStageVolume", "a", async move {
            let _ = gone.await;
            Ok(1)
        });
        let mut first = std::pin::pin!(first);
        assert!(futures::poll!(first.as_mut()).is_pending());
        let second = operations.run("NodeStageVolume", "a", async { Ok(2) }).await;
        assert_eq!(second.unwrap_err().code(), tonic::Code::Aborted);
        assert_eq!(operations.run("NodeStageVolume", "b", async { Ok(3) }).await.unwrap(), 3);
        go.send(()).unwrap();
        assert_eq!(first.await.unwrap(), 1);
        assert_eq!(operations.run("NodeStageVolume", "a", async { Ok(4) }).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn an_operation_ends_although_its_caller_disconnected() {
        let operations = Operations::new(Arc::default());
        let (done, ended) = oneshot::channel();
        {
            let run = operations.run("NodeStageVolume", "a", async move {
                tokio::task::yield_now().await;
                let _ = done.send(());
                Ok(())
            });
            assert!(futures::poll!(std::pin::pin!(run)).is_pending());
        }
        operations.finish(Duration::from_secs(20)).await;
        ended.await.unwrap();
    }
}
