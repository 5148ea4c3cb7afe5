//! The temporary snapshot that a clone is made from.
//!
//! Its description names the clone, so that a repeated call finds it after a crash.

use vsphere::cns::{
    SnapshotCreateSpec, SnapshotDeleteSpec, SnapshotId, SnapshotQuerySpec, VolumeId,
};

use super::{
    TASK_TIMEOUT,
    failure::{self, CnsError},
};
use crate::vcenters::Connection;

fn description(clone: &str) -> String {
    format!("clone-{clone}")
}

/// Whether a snapshot is one of an unfinished clone.
pub(super) fn is_temporary(description: Option<&str>) -> bool {
    description.is_some_and(|text| text.starts_with("clone-"))
}

/// The snapshot for this clone; it is made if it does not exist.
pub(super) async fn snapshot(
    connection: &Connection,
    volume: &str,
    clone: &str,
) -> Result<String, CnsError> {
    if let Some(existing) = find(connection, volume, clone).await?.into_iter().next() {
        return Ok(existing.id);
    }
    let volume_id = VolumeId::from(volume);
    let specs = [SnapshotCreateSpec { volume: volume_id, description: description(clone) }];
    let what = || format!("make a snapshot of the volume {volume} to clone it");
    let started = connection.client.create_volume_snapshots(&specs).await;
    let (_, made) = failure::finish(what, started).await?;
    let Some(snapshot) = made.snapshot else {
        return failure::NoResultSnafu { what: what() }.fail();
    };
    Ok(snapshot.id.id)
}

/// Removes the snapshot of a finished clone.
pub(super) async fn remove_snapshot(
    connection: &Connection,
    volume: &str,
    clone: &str,
) -> Result<(), CnsError> {
    for snapshot in find(connection, volume, clone).await? {
        let specs = [SnapshotDeleteSpec { volume: VolumeId::from(volume), snapshot }];
        let what = || format!("remove the temporary snapshot of the volume {volume}");
        let started = connection.client.delete_volume_snapshots(&specs).await;
        failure::finish(what, started).await?;
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
