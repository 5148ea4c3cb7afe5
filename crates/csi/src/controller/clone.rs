//! The temporary snapshot that a clone is made from.
//!
//! Its description names the clone, so that a repeated call finds it after a crash.

use vsphere::cns::{
    SnapshotCreateSpec, SnapshotDeleteSpec, SnapshotId, SnapshotQuerySpec, VolumeId, VolumeSource,
};

use super::{
    Driver, TASK_TIMEOUT,
    create_find::is_recent,
    create_request::Source,
    failure::{self, CnsError},
};
use crate::{records::Operation, vcenters::Connection};

fn description(clone: &str) -> String {
    format!("clone-{clone}")
}

/// Whether a snapshot is one of an unfinished clone.
pub(super) fn is_temporary(description: Option<&str>) -> bool {
    description.is_some_and(|text| text.starts_with("clone-"))
}

/// The source of a new volume. A clone makes a snapshot of its source first. `earlier` is the record of a call that got
/// no answer.
pub(super) async fn source(
    driver: &Driver,
    connection: &Connection,
    source: &Source,
    clone: &str,
    earlier: Option<&Operation>,
) -> Result<VolumeSource, CnsError> {
    let (volume, snapshot) = match source {
        Source::Snapshot { volume, snapshot } => (volume, SnapshotId { id: snapshot.clone() }),
        Source::Volume { volume } => {
            (volume, snapshot(driver, connection, volume, clone, earlier).await?)
        }
    };
    Ok(VolumeSource { volume: VolumeId::from(volume.as_str()), snapshot })
}

/// The snapshot for this clone; it is made if it does not exist.
async fn snapshot(
    driver: &Driver,
    connection: &Connection,
    volume: &str,
    clone: &str,
    earlier: Option<&Operation>,
) -> Result<SnapshotId, CnsError> {
    let what = || format!("make a snapshot of the volume {volume} to clone it");
    // Tasks first: a task that ends after this has its snapshot in the list below.
    let call = |source| CnsError::Call { what: what(), source };
    let is_running = match earlier {
        Some(earlier) => {
            let is_running = failure::is_running(connection, "createsnapshot").await;
            is_running.map_err(call)? || is_recent(earlier)
        }
        None => false,
    };
    if let Some(existing) = find(connection, volume, clone).await?.into_iter().next() {
        return Ok(existing);
    }
    if is_running {
        return failure::UndecidedSnafu { what: what() }.fail();
    }
    let volume_id = VolumeId::from(volume);
    let specs = [SnapshotCreateSpec { volume: volume_id, description: description(clone) }];
    driver.require_mandate()?;
    let started = connection.client.create_volume_snapshots(&specs);
    let (_, made) = failure::run(connection, "create-snapshot", what, started).await?;
    match made.snapshot {
        Some(snapshot) => Ok(snapshot.id),
        None => failure::NoResultSnafu { what: what() }.fail(),
    }
}

/// Removes the snapshot of a finished clone.
pub(super) async fn remove_snapshot(
    driver: &Driver,
    connection: &Connection,
    volume: &str,
    clone: &str,
) -> Result<(), CnsError> {
    for snapshot in find(connection, volume, clone).await? {
        let specs = [SnapshotDeleteSpec { volume: VolumeId::from(volume), snapshot }];
        let what = || format!("remove the temporary snapshot of the volume {volume}");
        driver.require_mandate()?;
        let started = connection.client.delete_volume_snapshots(&specs);
        match failure::run(connection, "delete-snapshot", what, started).await {
            // The controller before this one had begun to remove it.
            Err(error) if failure::is_snapshot_missing(&error) => {}
            other => drop(other?),
        }
    }
    Ok(())
}

async fn find(
    connection: &Connection,
    volume: &str,
    clone: &str,
) -> Result<Vec<SnapshotId>, CnsError> {
    let specs = [SnapshotQuerySpec { volume: VolumeId::from(volume), snapshot: None }];
    let entries = connection.client.query_volume_snapshots(&specs, TASK_TIMEOUT).await;
    let entries = entries.map_err(|source| CnsError::Call {
        what: format!("list the snapshots of the volume {volume}"),
        source,
    })?;
    let wanted = description(clone);
    let snapshots = entries.into_iter().filter_map(|entry| entry.snapshot);
    let own = snapshots.filter(|snapshot| snapshot.description.as_deref() == Some(&wanted));
    Ok(own.map(|snapshot| snapshot.id).collect())
}
