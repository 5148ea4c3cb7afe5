//! Volumes whose claim was deleted while a controller that no longer runs created them.
//!
//! external-provisioner repeats CreateVolume until its answer is final even if the claim is gone, and then creates the
//! PersistentVolume; the controller-manager marks it as released, and its reclaim policy decides. But it keeps such
//! requests in memory only. Here the operation record contains the PersistentVolume, so that the next leader does the
//! same. No volume is deleted here: the reclaim loop deletes it if the policy of its PersistentVolume is Delete.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::PersistentVolume;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

use super::{
    context::Shared,
    model::Metadata as _,
    provision::{Provisioner, volume},
    writer::already_exists,
};
use crate::{metrics::LoopMetrics, proto::csi::Volume};

/// The pause after a failure, for example while a vCenter is not connected yet.
const RETRY: Duration = Duration::from_secs(5);

/// A creation that the driver recorded for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// The name of the volume, `pvc-<uid of the claim>`.
    pub name: String,
    /// Its PersistentVolume, as JSON.
    pub planned: String,
    /// Whether the driver has answered the call with a volume.
    pub is_finished: bool,
}

/// The creations that the driver recorded.
#[tonic::async_trait]
pub trait Creations: Send + Sync {
    /// The creations that have made a volume, or may make one.
    async fn list(&self) -> Result<Vec<Creation>, Status>;

    /// Waits until the creation has ended. Returns its volume, if this cluster alone owns it.
    async fn settle(&self, name: &str) -> Result<Option<Volume>, Status>;

    /// Records that the creation has ended with this volume.
    async fn close(&self, name: &str, volume: &str) -> Result<(), Status>;
}

pub struct OrphanFinder {
    pub context: Shared,
    pub provisioner: Arc<Provisioner>,
    pub creations: Arc<dyn Creations>,
    pub metrics: LoopMetrics,
}

impl OrphanFinder {
    /// Looks at all recorded creations now and then, until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let finding = async {
            // A crash between the answer of the driver and the PersistentVolume can only be that of an earlier leader.
            let mut with_finished = true;
            loop {
                let interval = self.context.settings.orphan_interval;
                let is_done = self.finish_all(with_finished).await;
                with_finished &= !is_done;
                tokio::time::sleep(if is_done { interval } else { interval.min(RETRY) }).await;
            }
        };
        stop.run_until_cancelled(Box::pin(finding)).await;
    }

    /// Looks at all recorded creations once. Returns whether no orphan is left.
    async fn finish_all(&self, with_finished: bool) -> bool {
        let creations = match self.creations.list().await {
            Ok(creations) => creations,
            Err(status) => {
                tracing::warn!("the operation records cannot be read: {}", status.message());
                return false;
            }
        };
        let mut is_done = true;
        for creation in creations {
            if creation.is_finished && !with_finished || self.is_wanted(&creation.name) {
                continue;
            }
            if let Err(reason) = self.finish(&creation).await {
                let volume = creation.name;
                tracing::warn!(volume, reason, "a volume without a claim is not handled yet");
                is_done = false;
            }
        }
        is_done
    }

    /// Whether somebody else takes care of the volume: it has a PersistentVolume, or the provision loop works on it.
    fn is_wanted(&self, name: &str) -> bool {
        let cluster = &self.context.cluster;
        if cluster.volume(name).is_some() || self.provisioner.is_working_on(name) {
            return true;
        }
        let claim = cluster.claims.find(|claim| volume::name_for(claim.uid()) == name);
        claim.is_some_and(|claim| {
            let bound_to = claim.spec.volume_name.as_deref().unwrap_or_default();
            bound_to.is_empty() || bound_to == name
        })
    }

    async fn finish(&self, creation: &Creation) -> Result<(), String> {
        let name = &creation.name;
        let calls = &self.context.calls;
        let settled = calls.send(async { self.creations.settle(name).await.map(Response::new) });
        let settled = settled.await.map_err(|status| status.message().to_owned())?;
        let Some(made) = settled else {
            tracing::info!(volume = name, "the creation for a deleted claim made no volume");
            return Ok(());
        };
        let driver = &self.context.settings.driver;
        let used = self.context.cluster.volumes.find(|other| {
            other.source_of(driver).is_some_and(|source| source.volume_handle == made.volume_id)
        });
        if used.is_none() {
            let planned: PersistentVolume = serde_json::from_str(&creation.planned)
                .map_err(|error| format!("its record is not readable: {error}"))?;
            self.save(planned, &made, creation.is_finished).await?;
        }
        let closed = self.creations.close(name, &made.volume_id).await;
        closed.map_err(|status| status.message().to_owned())
    }

    async fn save(
        &self,
        mut planned: PersistentVolume,
        made: &Volume,
        is_finished: bool,
    ) -> Result<(), String> {
        volume::complete(&mut planned, made);
        if is_finished && let Some(spec) = &mut planned.spec {
            // It may have had a PersistentVolume that an admin deleted to keep the data.
            spec.persistent_volume_reclaim_policy = Some("Retain".into());
        }
        match self.context.writer.create(&planned).await {
            Ok(_) => {
                self.metrics.orphans.inc();
                let (name, handle) = (planned.name(), &made.volume_id);
                tracing::info!(
                    name,
                    handle,
                    "the volume of a deleted claim has its PersistentVolume"
                );
                Ok(())
            }
            Err(error) if already_exists(&error) => Ok(()),
            Err(error) => Err(format!("its PersistentVolume cannot be created: {error}")),
        }
    }
}
