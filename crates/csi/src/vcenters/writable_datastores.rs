//! The datastores on which the driver's user has the privilege to create volumes, cached.

use std::{collections::HashSet, sync::Arc};

use tokio::time::Instant;
use vsphere::{Client, Error, MoRef};

use super::{Intervals, Purpose};

/// The privileges that CNS needs on a datastore.
pub const PRIVILEGE: &str = "Datastore.FileManagement";

#[derive(Debug)]
pub struct WritableDatastores {
    client: Client,
    intervals: Intervals,
    known: tokio::sync::Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    read: Option<Instant>,
    checked: HashSet<MoRef>,
    writable: Arc<HashSet<MoRef>>,
}

impl WritableDatastores {
    pub fn new(client: Client, intervals: Intervals) -> Self {
        Self { client, intervals, known: tokio::sync::Mutex::default() }
    }

    /// Those of all `datastores` of the vCenter that the user can use.
    pub async fn among(
        &self,
        datastores: &[MoRef],
        purpose: Purpose,
    ) -> Result<Arc<HashSet<MoRef>>, Error> {
        let mut known = self.known.lock().await;
        let fresh_for = self.intervals.fresh_for(purpose);
        let fresh = known.read.is_some_and(|read| read.elapsed() < fresh_for);
        if !fresh || datastores.iter().any(|datastore| !known.checked.contains(datastore)) {
            let privileges = [PRIVILEGE.to_owned()];
            let checks = self.client.check_privileges(datastores, &privileges).await?;
            let writable = checks.iter().filter(|check| check.missing().next().is_none());
            known.writable = Arc::new(writable.map(|check| check.entity.clone()).collect());
            known.checked = datastores.iter().cloned().collect();
            known.read = Some(Instant::now());
        }
        Ok(Arc::clone(&known.writable))
    }

    /// Checks again at the next request, after CNS contradicted what is known.
    pub async fn forget(&self) {
        self.known.lock().await.read = None;
    }
}
