//! Which volume has the snapshot of a name.
//!
//! CNS cannot look for a description, so the names of all snapshots are listed once. After that this process keeps them
//! current, until another one may have made snapshots. A name that seems taken is checked in CNS before it is refused:
//! somebody else can have deleted the snapshot.

use std::{collections::HashMap, sync::Arc};

use snafu::ResultExt as _;

use super::{
    Driver,
    locate::{self, LocateError},
    snapshot_list::query,
    snapshots::{ListNamesSnafu, SnapshotError, VcenterSnafu, description},
};
use crate::{records::OperationState, vcenters::Connection};

#[derive(Debug, Default)]
pub(super) struct SnapshotNames {
    known: tokio::sync::Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    /// The count of foreign changes at the time of the list.
    covers: u64,
    /// The vCenters that were listed.
    vcenters: Vec<Arc<str>>,
    /// The volumes, by the names of their snapshots.
    volumes: HashMap<Box<str>, Box<str>>,
}

impl SnapshotNames {
    /// Another volume that has a snapshot of this name, or for which one is being made.
    pub(super) async fn other_source(
        &self,
        driver: &Driver,
        name: &str,
        volume: &str,
    ) -> Result<Option<String>, SnapshotError> {
        let connections = driver.vcenters.all().context(VcenterSnafu)?;
        let vcenters: Vec<Arc<str>> = connections.iter().map(|c| Arc::clone(&c.name)).collect();
        let changes = driver.records.foreign_changes();
        let mut known = self.known.lock().await;
        let is_current = |known: &&Known| known.covers >= changes && known.vcenters == vcenters;
        let current = if let Some(current) = known.as_ref().filter(is_current) {
            current
        } else {
            let volumes = list(driver, &connections, name).await?;
            known.insert(Known { covers: changes, vcenters, volumes })
        };
        let other = current.volumes.get(name).filter(|other| ***other != *volume);
        let other = other.map(ToString::to_string);
        drop(known);
        match other {
            Some(other) if has_snapshot(driver, name, &other).await? => Ok(Some(other)),
            _ => Ok(None),
        }
    }

    /// CNS was asked to make a snapshot of this name of the volume.
    pub(super) async fn set(&self, name: &str, volume: &str) {
        if let Some(known) = &mut *self.known.lock().await {
            known.volumes.insert(name.into(), volume.into());
        }
    }
}

/// The names of all snapshots and of those that are being made.
async fn list(
    driver: &Driver,
    connections: &[Connection],
    name: &str,
) -> Result<HashMap<Box<str>, Box<str>>, SnapshotError> {
    let mut volumes = HashMap::new();
    for connection in connections {
        let all = query(connection, None, None).await;
        for snapshot in all.context(ListNamesSnafu { name })? {
            let volume = snapshot.volume.id;
            let named = snapshot.description.as_deref().and_then(|text| name_in(text, &volume));
            if let Some(name) = named {
                volumes.insert(name.into(), volume.into());
            }
        }
    }
    for record in driver.records.all().await? {
        let volume = record.volume_id.filter(|_| record.state == OperationState::InProgress);
        if let Some(volume) = volume
            && let Some(name) = name_in(&record.name, &volume)
        {
            volumes.insert(name.into(), volume.into());
        }
    }
    Ok(volumes)
}

/// The name in the description of a snapshot.
fn name_in<'a>(description: &'a str, volume: &str) -> Option<&'a str> {
    description.strip_suffix(volume)?.strip_suffix('-')
}

/// Whether the volume has a snapshot of this name, or one is being made.
async fn has_snapshot(driver: &Driver, name: &str, volume: &str) -> Result<bool, SnapshotError> {
    let description = description(name, volume);
    let record = driver.records.find(&description).await?;
    if record.is_some_and(|record| record.state == OperationState::InProgress) {
        return Ok(true);
    }
    let connection = match locate::vcenter_of(driver, volume).await {
        Ok(connection) => connection,
        Err(LocateError::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let own = query(&connection, Some(volume), None).await.context(ListNamesSnafu { name })?;
    Ok(own.iter().any(|snapshot| snapshot.description.as_deref() == Some(&description)))
}
