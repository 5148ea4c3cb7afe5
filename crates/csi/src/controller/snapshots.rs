//! CreateSnapshot and DeleteSnapshot.
//!
//! The id of a snapshot is `<volume id>+<snapshot id>`, and its description in CNS is `<name>-<volume id>`, as
//! upstream writes them.
//!
//! CreateSnapshot is recorded. DeleteSnapshot is not: the id names one snapshot for ever, so a repeated call deletes
//! the same one or finds nothing.

use jiff::Timestamp;
use snafu::{ResultExt as _, Snafu, ensure};
use tonic::Code;
use vsphere::cns::{SnapshotCreateSpec, SnapshotDeleteSpec, SnapshotId, SnapshotInfo, VolumeId};

use super::{
    Driver, clone,
    create_find::is_recent,
    failure::{self, CnsError},
    locate::{self, LocateError},
    locks::Busy,
    snapshot_list::{self, described, query},
    status_of,
};
use crate::{
    proto::csi::{
        CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest,
        DeleteSnapshotResponse,
    },
    records::{Operation, OperationState, RecordError},
    vcenters::{Connection, Unavailable},
};

/// The specification's limit for a name, in bytes.
const MAX_NAME: usize = 128;

#[derive(Debug, Snafu)]
#[snafu(visibility(pub(super)))]
pub(super) enum SnapshotError {
    #[snafu(display("the request has no snapshot name"))]
    NoName,
    #[snafu(display("the name of the snapshot has {length} bytes; at most 128 are allowed"))]
    LongName { length: usize },
    #[snafu(display("the request has no source volume id"))]
    NoVolume,
    #[snafu(display("the request has no snapshot id"))]
    NoSnapshot,
    #[snafu(display("the parameter \"{key}\" is unknown; snapshots have no parameters"))]
    Parameter { key: String },
    #[snafu(transparent)]
    Busy { source: Busy },
    #[snafu(transparent)]
    Record { source: RecordError },
    #[snafu(transparent)]
    Locate { source: LocateError },
    #[snafu(display("cannot look for the snapshot"))]
    Vcenter { source: Unavailable },
    #[snafu(display(
        "there is a snapshot {name} of the volume {other}; the name cannot be used for the volume {volume}"
    ))]
    Different { name: String, volume: String, other: String },
    #[snafu(display(
        "the volume {volume} has {count} snapshots, and the configured limit is {limit}. Delete snapshots, or raise global-max-snapshots-per-block-volume in csi-vsphere.conf, at most 32 (VDO-1521)"
    ))]
    TooMany { volume: String, count: usize, limit: u32 },
    #[snafu(display("cannot find out whether another volume has a snapshot {name}"))]
    ListNames { name: String, source: CnsError },
    #[snafu(display("cannot create the snapshot {name} of the volume {volume}"))]
    Create { name: String, volume: String, source: CnsError },
    #[snafu(display("cannot delete the snapshot {snapshot}"))]
    Delete { snapshot: String, source: CnsError },
}

impl SnapshotError {
    fn code(&self) -> Code {
        match self {
            Self::NoName
            | Self::LongName { .. }
            | Self::NoVolume
            | Self::NoSnapshot
            | Self::Parameter { .. } => Code::InvalidArgument,
            Self::Busy { .. } => Code::Aborted,
            Self::Record { source } => source.code(),
            Self::Vcenter { .. } => Code::Unavailable,
            Self::Locate { source } => source.code(),
            Self::Different { .. } => Code::AlreadyExists,
            Self::TooMany { .. } => Code::ResourceExhausted,
            Self::ListNames { source, .. }
            | Self::Create { source, .. }
            | Self::Delete { source, .. } => source.code(),
        }
    }
}
status_of!(SnapshotError);

pub(super) async fn create(
    driver: &Driver,
    request: &CreateSnapshotRequest,
) -> Result<CreateSnapshotResponse, SnapshotError> {
    let (name, volume) = (&request.name, &request.source_volume_id);
    ensure!(!name.is_empty(), NoNameSnafu);
    ensure!(name.len() <= MAX_NAME, LongNameSnafu { length: name.len() });
    ensure!(!volume.is_empty(), NoVolumeSnafu);
    let unknown = request.parameters.keys().find(|key| !key.starts_with("csi.storage.k8s.io/"));
    if let Some(key) = unknown {
        return ParameterSnafu { key }.fail();
    }
    let _name = driver.locks.lock(format!("the snapshot named {name}"))?;
    let _volume = driver.locks.volume(volume)?;
    let (connection, source) = locate::volume(driver, volume).await?;
    if let Some(other) = driver.snapshot_names.other_source(driver, name, volume).await? {
        return DifferentSnafu { name, volume, other }.fail();
    }
    let record_name = description(name, volume);
    let found = driver.records.find(&record_name).await?;
    let record = found.clone().filter(|record| record.state == OperationState::InProgress);
    let record = record.map(|record| of_vcenter(record, &connection));
    let lost = record.as_ref().filter(|record| record.task.is_none());
    // Tasks first: a task that ends after this has its snapshot in the list below.
    let is_running = match lost {
        Some(record) => {
            let is_making = is_making(&connection).await.context(CreateSnafu { name, volume })?;
            is_making || is_recent(record)
        }
        None => false,
    };
    let own = query(&connection, Some(volume), None).await.context(CreateSnafu { name, volume })?;
    let existing = own.iter().find(|s| s.description.as_deref() == Some(&record_name));
    let snapshot = match existing {
        Some(existing) => existing.clone(),
        None if is_running => {
            let what = "make a snapshot of the disk".to_owned();
            return Err(CnsError::Undecided { what }).context(CreateSnafu { name, volume });
        }
        None => {
            let records = (found.as_ref(), record);
            let made = make(driver, &connection, name, volume, &own, records).await;
            // After a failure too: CNS may still make it.
            driver.snapshot_names.set(name, volume).await;
            made?
        }
    };
    let snapshot = described(&snapshot, source.capacity_mib);
    Ok(CreateSnapshotResponse { snapshot: Some(snapshot) })
}

/// The task of another vCenter means nothing in this one.
fn of_vcenter(record: Operation, connection: &Connection) -> Operation {
    let is_own = record.vcenter.is_empty() || *record.vcenter == *connection.name;
    let task = record.task.filter(|_| is_own);
    Operation { vcenter: connection.name.to_string(), task, ..record }
}

async fn is_making(connection: &Connection) -> Result<bool, CnsError> {
    let running = failure::is_running(connection, "createsnapshot").await;
    running.map_err(|source| CnsError::Call { what: "read the running tasks".to_owned(), source })
}

pub(super) fn description(name: &str, volume: &str) -> String {
    format!("{name}-{volume}")
}

/// Makes the snapshot. The records: the one that was found, and the one to continue.
async fn make(
    driver: &Driver,
    connection: &Connection,
    name: &str,
    volume: &str,
    own: &[SnapshotInfo],
    (found, record): (Option<&Operation>, Option<Operation>),
) -> Result<SnapshotInfo, SnapshotError> {
    let limit = limit(driver, connection, volume);
    let kept = own.iter().filter(|s| !clone::is_temporary(s.description.as_deref())).count();
    if kept >= usize::try_from(limit).unwrap_or(usize::MAX) {
        return TooManySnafu { volume, count: kept, limit }.fail();
    }
    let record_name = description(name, volume);
    let mut operation = record.unwrap_or_else(|| Operation::begin(&record_name, &connection.name));
    let what = || "make a snapshot of the disk".to_owned();
    let is_resumed = operation.task.is_some();
    let started = if let Some(task) = &operation.task {
        // A task that this or an earlier process started.
        Ok(connection.client.resume_volume_task(task.clone()))
    } else {
        operation.volume_id = Some(volume.to_owned());
        operation.started = Timestamp::now();
        driver.records.begin(found, &operation).await?;
        driver.require_mandate().context(CreateSnafu { name, volume })?;
        let volume = VolumeId::from(volume);
        let specs = [SnapshotCreateSpec { volume, description: record_name.clone() }];
        connection.client.create_volume_snapshots(&specs).await
    };
    if let Ok(task) = &started {
        operation.task = Some(task.reference().clone());
    }
    let started = std::future::ready(started);
    let made = failure::run(connection, "create-snapshot", what, started).await;
    // A vCenter that was replaced or restored gives the same number to another task.
    let is_own = |snapshot: &SnapshotInfo| {
        snapshot.volume.id == volume && snapshot.description.as_deref() == Some(&record_name)
    };
    let made = made.and_then(|(_, made)| {
        let made = made.snapshot.filter(|snapshot| !is_resumed || is_own(snapshot));
        made.ok_or_else(|| CnsError::NoResult { what: what() })
    });
    match &made {
        Ok(snapshot) => {
            operation.state = OperationState::Success;
            operation.snapshot_id = Some(snapshot.id.id.clone());
        }
        Err(error) => {
            let fails = |source: &vsphere::Error| {
                matches!(source, vsphere::Error::TaskFailed { .. })
                    || operation.task.is_none() && source.fault().is_some()
            };
            match error {
                CnsError::Refused { .. } => operation.state = OperationState::Error,
                CnsError::Call { source, .. } if fails(source) => {
                    operation.state = OperationState::Error;
                }
                // The task can be followed.
                CnsError::Call { source, .. } if operation.task.is_some() && !is_lost(source) => {}
                // It cannot, or the call for it got no answer. vCenter may have made the snapshot, or still make it:
                // the next call looks for running tasks and for the description.
                _ => {
                    operation.task = None;
                    operation.started = Timestamp::now();
                }
            }
            operation.error = Some(runtime::error_chain::error_chain(error));
        }
    }
    driver.records.store(&operation).await?;
    made.context(CreateSnafu { name, volume })
}

/// Whether the result of a task can never be read.
fn is_lost(error: &vsphere::Error) -> bool {
    matches!(error, vsphere::Error::TaskLost { .. } | vsphere::Error::Unreadable { .. })
}

fn limit(driver: &Driver, connection: &Connection, volume: &str) -> u32 {
    let kind = connection.volumes.get(volume).and_then(|known| {
        let view = connection.inventory().view();
        let datastores = view.datastores();
        let own = datastores.iter().find(|d| d.url.as_deref() == Some(&*known.datastore_url))?;
        own.kind.clone()
    });
    driver.settings().max_snapshots.on(kind.as_deref().unwrap_or_default())
}

pub(super) async fn delete(
    driver: &Driver,
    request: &DeleteSnapshotRequest,
) -> Result<DeleteSnapshotResponse, SnapshotError> {
    let id = &request.snapshot_id;
    ensure!(!id.is_empty(), NoSnapshotSnafu);
    // An id of another form names no snapshot of ours.
    let Some((volume, snapshot)) = snapshot_list::split(id) else {
        return Ok(DeleteSnapshotResponse {});
    };
    let _lock = driver.locks.volume(volume)?;
    let connection = match locate::vcenter_of(driver, volume).await {
        Ok(connection) => connection,
        Err(LocateError::NotFound { .. }) => return Ok(DeleteSnapshotResponse {}),
        Err(error) => return Err(error.into()),
    };
    let specs = [SnapshotDeleteSpec {
        volume: VolumeId::from(volume),
        snapshot: SnapshotId { id: snapshot.to_owned() },
    }];
    let what = || "delete the snapshot".to_owned();
    driver.require_mandate().context(DeleteSnafu { snapshot: id })?;
    let started = connection.client.delete_volume_snapshots(&specs);
    match failure::run(&connection, "delete-snapshot", what, started).await {
        Ok(_) => Ok(DeleteSnapshotResponse {}),
        Err(error) if failure::is_snapshot_missing(&error) => Ok(DeleteSnapshotResponse {}),
        Err(source) => Err(SnapshotError::Delete { snapshot: id.clone(), source }),
    }
}
