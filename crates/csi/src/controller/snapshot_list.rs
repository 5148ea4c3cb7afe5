//! ListSnapshots and GetSnapshot.

use std::collections::HashMap;

use snafu::{OptionExt as _, ResultExt as _, Snafu, ensure};
use tonic::Code;
use vsphere::cns::{SnapshotId, SnapshotInfo, SnapshotQuerySpec, VolumeId};

use super::{
    Driver, TASK_TIMEOUT, clone,
    failure::{CnsError, is_volume_missing},
    locate::{self, LocateError},
    paging::{self, PageError},
    size::MIB,
};
use crate::{
    proto::csi::{
        GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
        Snapshot, list_snapshots_response::Entry,
    },
    vcenters::{Connection, Unavailable},
};

#[derive(Debug, Snafu)]
pub(super) enum SnapshotListError {
    #[snafu(display("the request has no snapshot id"))]
    NoSnapshot,
    #[snafu(display("there is no snapshot {snapshot}"))]
    NotFound { snapshot: String },
    #[snafu(display("cannot list the snapshots"))]
    Vcenter { source: Unavailable },
    #[snafu(display("cannot list the snapshots"))]
    Cns { source: CnsError },
    #[snafu(transparent)]
    Locate { source: LocateError },
    #[snafu(transparent)]
    Page { source: PageError },
}

impl From<SnapshotListError> for tonic::Status {
    fn from(error: SnapshotListError) -> Self {
        let code = match &error {
            SnapshotListError::NoSnapshot
            | SnapshotListError::Page { source: PageError::Negative { .. } } => {
                Code::InvalidArgument
            }
            SnapshotListError::NotFound { .. } => Code::NotFound,
            SnapshotListError::Vcenter { .. } => Code::Unavailable,
            SnapshotListError::Cns { source } => source.code(),
            SnapshotListError::Locate { source } => source.code(),
            SnapshotListError::Page { source: PageError::Token { .. } } => Code::Aborted,
        };
        Self::new(code, runtime::error_chain::error_chain(&error))
    }
}

/// Volume and snapshot of a snapshot id.
pub(super) fn split(id: &str) -> Option<(&str, &str)> {
    id.split_once('+').filter(|(volume, snapshot)| !volume.is_empty() && !snapshot.is_empty())
}

pub(super) async fn list(
    driver: &Driver,
    request: &ListSnapshotsRequest,
) -> Result<ListSnapshotsResponse, SnapshotListError> {
    let (snapshot, volume) = (&request.snapshot_id, &request.source_volume_id);
    let mut all = match (snapshot.is_empty(), volume.is_empty()) {
        (false, _) => {
            let found = find(driver, snapshot).await?;
            found
                .filter(|s| volume.is_empty() || s.source_volume_id == *volume)
                .into_iter()
                .collect()
        }
        (true, false) => of_volume(driver, volume).await?,
        (true, true) => of_cluster(driver).await?,
    };
    all.sort_unstable_by(|a, b| a.snapshot_id.cmp(&b.snapshot_id));
    let (page, next_token) = paging::page(
        all,
        |snapshot| &snapshot.snapshot_id,
        &request.starting_token,
        request.max_entries,
    )?;
    let entries = page.into_iter().map(|snapshot| Entry { snapshot: Some(snapshot) });
    Ok(ListSnapshotsResponse { entries: entries.collect(), next_token })
}

pub(super) async fn get(
    driver: &Driver,
    request: &GetSnapshotRequest,
) -> Result<GetSnapshotResponse, SnapshotListError> {
    let snapshot = &request.snapshot_id;
    ensure!(!snapshot.is_empty(), NoSnapshotSnafu);
    let found = find(driver, snapshot).await?.context(NotFoundSnafu { snapshot })?;
    Ok(GetSnapshotResponse { snapshot: Some(found) })
}

async fn find(driver: &Driver, id: &str) -> Result<Option<Snapshot>, SnapshotListError> {
    let Some((volume, snapshot)) = split(id) else { return Ok(None) };
    let (connection, known) = match locate::volume(driver, volume).await {
        Ok(found) => found,
        Err(LocateError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let found = query(&connection, Some(volume), Some(snapshot)).await.context(CnsSnafu)?;
    let found = found.iter().find(|found| found.id.id == snapshot);
    Ok(found.map(|found| described(found, known.capacity_mib)))
}

async fn of_volume(driver: &Driver, volume: &str) -> Result<Vec<Snapshot>, SnapshotListError> {
    let (connection, known) = match locate::volume(driver, volume).await {
        Ok(found) => found,
        Err(LocateError::NotFound { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let found = query(&connection, Some(volume), None).await.context(CnsSnafu)?;
    let found = found.iter().filter(|s| !clone::is_temporary(s.description.as_deref()));
    Ok(found.map(|snapshot| described(snapshot, known.capacity_mib)).collect())
}

/// The snapshots of this cluster's volumes. CNS lists those of all clusters.
async fn of_cluster(driver: &Driver) -> Result<Vec<Snapshot>, SnapshotListError> {
    let mut all = Vec::new();
    for connection in driver.vcenters.all().context(VcenterSnafu)? {
        let volumes = connection.volumes.all();
        let sizes: HashMap<&str, i64> =
            volumes.iter().map(|volume| (&*volume.id, volume.capacity_mib)).collect();
        for snapshot in query(&connection, None, None).await.context(CnsSnafu)? {
            if let Some(size) = sizes.get(snapshot.volume.id.as_str())
                && !clone::is_temporary(snapshot.description.as_deref())
            {
                all.push(described(&snapshot, *size));
            }
        }
    }
    Ok(all)
}

/// Lists snapshots of a volume, or all. Snapshots that do not exist are left out.
pub(super) async fn query(
    connection: &Connection,
    volume: Option<&str>,
    snapshot: Option<&str>,
) -> Result<Vec<SnapshotInfo>, CnsError> {
    let specs: Vec<SnapshotQuerySpec> = volume
        .map(|volume| SnapshotQuerySpec {
            volume: VolumeId::from(volume),
            snapshot: snapshot.map(|id| SnapshotId { id: id.to_owned() }),
        })
        .into_iter()
        .collect();
    let what = || match volume {
        Some(volume) => format!("list the snapshots of the volume {volume}"),
        None => "list the snapshots".to_owned(),
    };
    let entries = connection.client.query_volume_snapshots(&specs, TASK_TIMEOUT).await;
    let entries = entries.map_err(|source| CnsError::Call { what: what(), source })?;
    let mut found = Vec::with_capacity(entries.len());
    for entry in entries {
        match (entry.error, entry.snapshot) {
            (Some(fault), _)
                if is_volume_missing(&fault)
                    || matches!(fault.kind, vsphere::FaultKind::CnsSnapshotNotFound { .. }) => {}
            (Some(fault), _) => {
                return Err(CnsError::Refused { what: what(), source: Box::new(fault) });
            }
            (None, Some(snapshot)) => found.push(snapshot),
            (None, None) => {}
        }
    }
    Ok(found)
}

/// CNS does not report the size of a snapshot. It is that of its volume, which cannot grow while it has snapshots.
pub(super) fn described(snapshot: &SnapshotInfo, capacity_mib: i64) -> Snapshot {
    let created = snapshot.created;
    Snapshot {
        size_bytes: capacity_mib * MIB,
        snapshot_id: format!("{}+{}", snapshot.volume.id, snapshot.id.id),
        source_volume_id: snapshot.volume.id.clone(),
        creation_time: Some(prost_types::Timestamp {
            seconds: created.as_second(),
            nanos: created.subsec_nanosecond(),
        }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
    }
}
