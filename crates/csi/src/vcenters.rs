//! The configured vCenters: connections, inventories and what the driver knows about each.

mod attach_queue;
mod connection;
mod intervals;
mod policies;
mod snapshot_queue;
mod tags;
mod volume_index;
mod writable_datastores;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use snafu::Snafu;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use vsphere::LoginPace;

pub use self::{
    attach_queue::{AttachQueue, Refused},
    connection::{Connection, Vcenter},
    intervals::{Intervals, Purpose},
    policies::{Policies, PolicyError, compatible_with},
    snapshot_queue::SnapshotQueue,
    tags::TagTable,
    volume_index::{KnownVolume, VolumeIndex},
    writable_datastores::{PRIVILEGE as DATASTORE_PRIVILEGE, WritableDatastores},
};
use crate::{configuration::VcenterSettings, metrics::Metrics};

/// The settings that all vCenters share.
#[derive(Clone, Debug)]
pub struct SharedSettings {
    /// The id of this cluster in CNS.
    pub cluster_id: Arc<str>,
    pub distribution: Arc<str>,
    /// Whether tags are read.
    pub with_tags: bool,
    pub user_agent: String,
    pub intervals: Intervals,
    /// Shared by all connections, whatever settings they have.
    pub logins: LoginPace,
    pub metrics: Metrics,
}

#[derive(Clone, Debug, Snafu)]
pub enum Unavailable {
    #[snafu(display("the vCenter {vcenter} is unavailable: {why}"))]
    Vcenter { vcenter: Arc<str>, why: String },
    #[snafu(display("no vCenter is configured"))]
    NoVcenter,
}

/// Clones share one set of vCenters.
#[derive(Clone, Debug, Default)]
pub struct Vcenters {
    all: Arc<RwLock<BTreeMap<Arc<str>, Running>>>,
}

#[derive(Clone, Debug)]
struct Running {
    vcenter: Arc<Vcenter>,
    stop: CancellationToken,
}

impl Vcenters {
    /// All connections. Fails if any vCenter never connected: then the driver does not know all volumes and VMs.
    pub fn all(&self) -> Result<Vec<Connection>, Unavailable> {
        let all = self.read();
        if all.is_empty() {
            return NoVcenterSnafu.fail();
        }
        all.values().map(|running| running.vcenter.connection()).collect()
    }

    /// All connections with a current inventory. Fails if one is outdated.
    pub fn all_live(&self) -> Result<Vec<Connection>, Unavailable> {
        let all = self.all()?;
        for connection in &all {
            connection.require_live()?;
        }
        Ok(all)
    }

    pub fn get(&self, name: &str) -> Result<Connection, Unavailable> {
        match self.read().get(name) {
            Some(running) => running.vcenter.connection(),
            None => VcenterSnafu { vcenter: name, why: "it is not configured any more" }.fail(),
        }
    }

    /// Every vCenter that cannot be used now, with the reason.
    pub fn problems(&self) -> Vec<(Arc<str>, String)> {
        let all = self.read();
        let problems = all
            .iter()
            .filter_map(|(name, running)| Some((name.clone(), running.vcenter.problem()?)));
        problems.collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Arc<str>, Running>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the connections; dropping it ends them.
#[derive(Debug, Default)]
pub struct Supervisor {
    vcenters: Vcenters,
    tasks: JoinSet<()>,
}

impl Supervisor {
    pub fn new(vcenters: Vcenters) -> Self {
        Self { vcenters, tasks: JoinSet::new() }
    }

    /// Applies a configuration. A vCenter that differs only in its credentials stays connected and verifies the new
    /// ones before it uses them. Any other change reconnects.
    pub fn apply(&mut self, settings: &[VcenterSettings], shared: &SharedSettings) {
        while self.tasks.try_join_next().is_some() {}
        let mut all = self.vcenters.all.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|name, running| {
            let keep = settings.iter().any(|new| running.vcenter.can_become(new, shared));
            if !keep {
                // Other credentials are tried at once, also with other settings.
                let new = settings.iter().find(|new| new.name == *name);
                if let Some(new) = new.filter(|new| running.vcenter.has_other_credentials(new)) {
                    shared.logins.allow(&new.name, &new.credentials());
                }
                tracing::info!(vcenter = &**name, "disconnecting");
                running.stop.cancel();
                shared.metrics.vcenters.forget(name);
            }
            keep
        });
        for new in settings {
            if let Some(running) = all.get(&new.name) {
                running.vcenter.offer_credentials(new);
                continue;
            }
            let vcenter = Vcenter::new(new.clone(), shared.clone());
            let stop = CancellationToken::new();
            self.tasks.spawn(Arc::clone(&vcenter).run(stop.clone()));
            all.insert(new.name.clone(), Running { vcenter, stop });
        }
    }

    /// Logs out of all vCenters.
    pub async fn stop(mut self) {
        for running in self.vcenters.read().values() {
            running.stop.cancel();
        }
        while self.tasks.join_next().await.is_some() {}
    }
}
