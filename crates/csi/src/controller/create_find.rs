//! The volume that an earlier CreateVolume created, or is about to create.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use snafu::ResultExt as _;
use vsphere::{
    Error as VcenterError,
    cns::{Created, QueryFilter},
};

use super::{
    Driver, TASK_TIMEOUT,
    create::{Found, created},
    create_error::{CreateError, RecoverSnafu, UndecidedSnafu, VcenterSnafu},
    create_request::WantedVolume,
    failure::{self, CnsError},
    locate,
};
use crate::{
    records::{Operation, OperationState},
    vcenters::{Connection, KnownVolume},
};

pub(super) async fn find(
    driver: &Driver,
    wanted: &WantedVolume,
    record: Option<&Operation>,
) -> Result<Option<Found>, CreateError> {
    let name = &wanted.name;
    let connections = driver.vcenters.all().context(VcenterSnafu { name })?;
    if let Some(record) = record {
        let recorded = connections.iter().find(|c| *c.name == *record.vcenter);
        // Upstream names the vCenter only if there are several.
        let only = connections.first().filter(|_| connections.len() == 1);
        let recorded = recorded.or(only.filter(|_| record.vcenter.is_empty()));
        let candidates = recorded.map_or(&connections[..], std::slice::from_ref);
        for connection in candidates {
            let found = if recorded.is_some() {
                follow_record(wanted, record, connection).await?
            } else {
                follow_elsewhere(wanted, record, connection).await?
            };
            if let Some(found) = found {
                return Ok(Some((connection.clone(), found)));
            }
        }
    }
    let foreign_changes = driver.records.foreign_changes();
    for connection in connections {
        let (client, cluster) = (&connection.client, connection.cluster_id());
        let covered = connection.volumes.cover(foreign_changes, client, cluster).await;
        covered.context(RecoverSnafu { name })?;
        if let Some(volume) = connection.volumes.named(&wanted.cns_name)
            && let Some(volume) = confirm(&connection, name, &volume.id).await?
        {
            return Ok(Some((connection, volume)));
        }
    }
    Ok(None)
}

/// Asks CNS whether a remembered volume still exists. Another controller deletes volumes without a record.
async fn confirm(
    connection: &Connection,
    name: &str,
    id: &str,
) -> Result<Option<Arc<KnownVolume>>, CreateError> {
    let found = locate::in_cns(connection, id).await.context(RecoverSnafu { name })?;
    if found.is_none() {
        connection.volumes.remove(id);
    }
    Ok(found.map(|volume| connection.volumes.set(volume.into())))
}

async fn follow_record(
    wanted: &WantedVolume,
    record: &Operation,
    connection: &Connection,
) -> Result<Option<Arc<KnownVolume>>, CreateError> {
    let name = &wanted.name;
    let (OperationState::InProgress, Some(task)) = (record.state, &record.task) else {
        return follow_elsewhere(wanted, record, connection).await;
    };
    let resumed = connection.client.resume_volume_task::<Created>(task.clone());
    let outcomes = match resumed.wait(TASK_TIMEOUT).await {
        Err(VcenterError::TaskLost { .. } | VcenterError::Unreadable { .. }) => {
            return recover(wanted, record, connection).await;
        }
        // The earlier attempt failed; this one starts again.
        Err(VcenterError::TaskFailed { .. }) => return Ok(None),
        other => other,
    };
    let outcomes = outcomes.map_err(|source| {
        let what = format!("wait for the task that creates the volume {name}");
        CreateError::Cns { name: name.clone(), source: CnsError::Call { what, source } }
    })?;
    match created(outcomes) {
        Ok(new) => {
            // A vCenter that was replaced or restored gives the same number to another task, and another volume must
            // never become this one.
            let volume = locate::in_cns(connection, &new.id).await;
            match volume.context(RecoverSnafu { name })? {
                Some(volume) if volume.name.as_deref() == Some(&wanted.cns_name) => {
                    Ok(Some(connection.volumes.set(volume.into())))
                }
                _ => recover(wanted, record, connection).await,
            }
        }
        Err(CnsError::Refused { .. }) => Ok(None),
        Err(_) => recover(wanted, record, connection).await,
    }
}

/// Follows a record whose task this vCenter does not have.
async fn follow_elsewhere(
    wanted: &WantedVolume,
    record: &Operation,
    connection: &Connection,
) -> Result<Option<Arc<KnownVolume>>, CreateError> {
    match (record.state, &record.volume_id) {
        (OperationState::Success, Some(id)) => confirm(connection, &wanted.name, id).await,
        (OperationState::InProgress, _) => recover(wanted, record, connection).await,
        _ => Ok(None),
    }
}

/// After a call without an answer: the volume exists, or a task still creates it, or nothing happened.
pub(super) async fn recover(
    wanted: &WantedVolume,
    record: &Operation,
    connection: &Connection,
) -> Result<Option<Arc<KnownVolume>>, CreateError> {
    let name = &wanted.name;
    // Tasks first: a task that ends after this has its volume in the list below.
    let is_creating = failure::is_running(connection, "createvolume").await;
    let is_creating = is_creating.context(RecoverSnafu { name })?;
    let filter = QueryFilter {
        names: vec![wanted.cns_name.clone()],
        clusters: vec![connection.cluster_id().to_owned()],
        ..QueryFilter::default()
    };
    let found = connection.client.query_volumes(&filter).await.context(RecoverSnafu { name })?;
    let found = found.into_iter().find(|volume| volume.name.as_deref() == Some(&wanted.cns_name));
    match found {
        Some(volume) => Ok(Some(connection.volumes.set(volume.into()))),
        None if is_creating || is_recent(record) => UndecidedSnafu { name }.fail(),
        None => Ok(None),
    }
}

/// How long a lost call can take to appear among vCenter's tasks. It counts from the time at which the driver gave the
/// call up: the record has that time as soon as the call has failed.
const LOST_CALL: Duration = Duration::from_secs(10);

/// Whether the recorded call may not have reached vCenter yet.
pub(super) fn is_recent(record: &Operation) -> bool {
    let age = Duration::try_from(Timestamp::now().duration_since(record.started));
    age.is_ok_and(|age| age < LOST_CALL)
}
