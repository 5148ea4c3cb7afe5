//! The Controller service: volumes and snapshots through CNS.
//!
//! ```text
//!   request ──► validate ──► lock ──► record ──► CNS task ──► record ──► response
//!                            │                     │
//!                            volume, name          index, placement, attach queue: no extra calls
//! ```
//!
//! A mutating call runs to its end even if the caller gives up: a task that was started must reach its record. The
//! next call for the same object is `Aborted` until then.

mod capabilities;
mod capacity;
mod clone;
pub mod command;
mod create;
mod create_error;
mod create_find;
mod create_plan;
mod create_request;
mod delete;
mod expand;
mod failure;
pub mod leader;
mod list;
mod locate;
mod locks;
mod modify;
mod paging;
mod parameters;
mod placement;
mod publish;
mod size;
mod snapshot_list;
mod snapshot_names;
mod snapshots;
mod unfinished;
mod unpublish;

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use runtime::lease::Mandate;
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use self::{failure::CnsError, locks::Locks, snapshot_names::SnapshotNames};
use crate::{
    configuration::{Category, SnapshotLimits},
    metrics::Metrics,
    node_set::NodeSet,
    proto::csi::{self, controller_server::Controller},
    records::OperationRecords,
    vcenters::Vcenters,
};

/// How long a call waits for a task: a little less than the timeout of the sidecars, so that the answer names the
/// task.
const TASK_TIMEOUT: Duration = Duration::from_secs(290);
/// How long vCenter can work on a task, by a wide margin.
const TASKS_END: Duration = Duration::from_mins(15);
/// How many mutating calls run at the same time; further ones wait.
const MAX_OPERATIONS: usize = 512;

/// The part of the configuration that the service uses.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    pub categories: Vec<Category>,
    pub max_snapshots: SnapshotLimits,
}

/// The Controller service. Clones share everything.
#[derive(Clone, Debug)]
pub struct ControllerService {
    driver: Arc<Driver>,
    metrics: Metrics,
    operations: TaskTracker,
    slots: Arc<Semaphore>,
}

#[derive(Debug)]
struct Driver {
    vcenters: Vcenters,
    records: Arc<dyn OperationRecords>,
    nodes: NodeSet,
    settings: RwLock<Arc<ControllerSettings>>,
    locks: Locks,
    snapshot_names: SnapshotNames,
    /// The mandate of the loops of this process; unlimited without loops.
    mandate: RwLock<Mandate>,
    /// Since when this process changes volumes.
    began: RwLock<Instant>,
}

impl Driver {
    fn settings(&self) -> Arc<ControllerSettings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn mandate(&self) -> Mandate {
        self.mandate.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether vCenter can still work on tasks of the controller before this one.
    fn has_predecessor(&self) -> bool {
        self.began.read().unwrap_or_else(PoisonError::into_inner).elapsed() < TASKS_END
    }

    /// Fails if another controller leads: this one must not change anything. Call it right before each call that makes
    /// vCenter change something.
    fn require_mandate(&self) -> Result<(), CnsError> {
        if self.mandate().holds() { Ok(()) } else { Err(CnsError::NotLeading) }
    }
}

impl ControllerService {
    pub fn new(
        vcenters: Vcenters,
        records: Arc<dyn OperationRecords>,
        nodes: NodeSet,
        settings: ControllerSettings,
        metrics: Metrics,
    ) -> Self {
        let driver = Driver {
            vcenters,
            records,
            nodes,
            settings: RwLock::new(Arc::new(settings)),
            locks: Locks::default(),
            snapshot_names: SnapshotNames::default(),
            mandate: RwLock::new(Mandate::unlimited()),
            began: RwLock::new(Instant::now()),
        };
        Self {
            driver: Arc::new(driver),
            metrics,
            operations: TaskTracker::new(),
            slots: Arc::new(Semaphore::new(MAX_OPERATIONS)),
        }
    }

    pub fn apply(&self, settings: ControllerSettings) {
        *self.driver.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Changes nothing in vCenter after this mandate has ended.
    pub fn lead(&self, mandate: Mandate) {
        *self.driver.mandate.write().unwrap_or_else(PoisonError::into_inner) = mandate;
        *self.driver.began.write().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until the operations in progress have ended.
    pub async fn finish_operations(&self) {
        self.operations.close();
        self.operations.wait().await;
    }

    /// Runs a mutating call to its end, whatever the caller does.
    async fn run<T, F>(&self, name: &'static str, call: F) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let (slots, timer) = (Arc::clone(&self.slots), self.metrics.rpc(name));
        let running = self.operations.spawn(async move {
            let Ok(_slot) = slots.acquire_owned().await else {
                return Err(Status::unavailable("the driver is shutting down"));
            };
            let result = call.await;
            log(name, &result);
            timer.finish(&result);
            result
        });
        match running.await {
            Ok(result) => result.map(Response::new),
            Err(_) => Err(Status::internal(format!("{name} ended unexpectedly; see the log"))),
        }
    }

    /// Runs a call that only reads; it ends with the caller.
    async fn read<T>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        let timer = self.metrics.rpc(name);
        let result = call.await;
        timer.finish(&result);
        result.map(Response::new)
    }
}

fn log<T>(name: &'static str, result: &Result<T, Status>) {
    match result {
        Ok(_) => tracing::info!(call = name, "done"),
        Err(status) => {
            tracing::warn!(call = name, code = ?status.code(), error = status.message(), "failed");
        }
    }
}

macro_rules! mutating {
    ($service:ident, $name:literal, $call:path, $request:ident) => {{
        let driver = Arc::clone(&$service.driver);
        let request = $request.into_inner();
        $service.run($name, async move { Ok($call(&driver, &request).await?) }).await
    }};
}

macro_rules! reading {
    ($service:ident, $name:literal, $call:path, $request:ident) => {{
        let request = $request.into_inner();
        $service.read($name, async { Ok($call(&$service.driver, &request).await?) }).await
    }};
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let driver = Arc::clone(&self.driver);
        let planned = request.extensions().get().cloned();
        let request = request.into_inner();
        let call = async move { Ok(create::create(&driver, &request, planned).await?) };
        self.run("create-volume", call).await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        mutating!(self, "delete-volume", delete::delete, request)
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        mutating!(self, "attach-volume", publish::publish, request)
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        mutating!(self, "detach-volume", unpublish::unpublish, request)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        reading!(self, "validate-volume-capabilities", capabilities::validate, request)
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        reading!(self, "list-volume", list::list, request)
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        reading!(self, "get-capacity", capacity::capacity, request)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        Ok(Response::new(capabilities::controller()))
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        mutating!(self, "create-snapshot", snapshots::create, request)
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        mutating!(self, "delete-snapshot", snapshots::delete, request)
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        reading!(self, "list-snapshot", snapshot_list::list, request)
    }

    async fn get_snapshot(
        &self,
        request: Request<csi::GetSnapshotRequest>,
    ) -> Result<Response<csi::GetSnapshotResponse>, Status> {
        reading!(self, "get-snapshot", snapshot_list::get, request)
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        mutating!(self, "expand-volume", expand::expand, request)
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        reading!(self, "get-volume", list::get, request)
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        mutating!(self, "modify-volume", modify::modify, request)
    }
}

/// Makes an error with a `code` method the status of a call.
macro_rules! status_of {
    ($error:ty) => {
        impl From<$error> for tonic::Status {
            fn from(error: $error) -> Self {
                Self::new(error.code(), runtime::error_chain::error_chain(&error))
            }
        }
    };
}
use status_of;
