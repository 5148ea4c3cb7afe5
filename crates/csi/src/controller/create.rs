//! CreateVolume.
//!
//! ```text
//!   record: none ──► index by name ──► none: place, record, CNS, record
//!   record: success, CNS knows the volume ──► the same volume
//!   record: in progress with a task ──► wait for that task
//!   record: in progress without a task ──► the answer was lost: look for the volume and for running tasks
//! ```

use std::{pin::pin, sync::Arc, time::Duration};

use jiff::Timestamp;
use snafu::ResultExt as _;
use tokio::time::Instant;
use vsphere::{
    Error as VcenterError, FaultKind, MoRef,
    cns::{CreateSpec, Created, ExtendSpec, QueryFilter, VolumeId, VolumeOutcome, VolumeTask},
};

use super::{
    Driver, TASK_TIMEOUT, capabilities, clone,
    create_error::{
        CnsSnafu, CreateError, DifferentSnafu, RecoverSnafu, UndecidedSnafu, VcenterSnafu,
    },
    create_plan::plan,
    create_request::{Source, WantedVolume},
    failure::{self, CnsError},
    locate,
    placement::is_within,
    size,
};
use crate::{
    proto::csi::{
        CreateVolumeRequest, CreateVolumeResponse, Topology, Volume, VolumeContentSource,
    },
    records::{Operation, OperationState, PlannedVolume},
    site::{Segments, Site},
    vcenters::{Connection, KnownVolume},
};

/// A task that ends within this time is recorded with its result, in one write. Others are recorded first.
const QUICK: Duration = Duration::from_secs(1);
/// How long a lost call can take to appear among vCenter's tasks.
const LOST_CALL: Duration = Duration::from_secs(10);

pub(super) type Found = (Connection, Arc<KnownVolume>);

pub(super) async fn create(
    driver: &Driver,
    request: &CreateVolumeRequest,
    planned: Option<PlannedVolume>,
) -> Result<CreateVolumeResponse, CreateError> {
    let has_topology = !driver.settings().categories.is_empty();
    let wanted = WantedVolume::read(request, has_topology)?;
    let _lock = driver.locks.lock(format!("the volume named {}", wanted.name))?;
    let record = driver.records.find(&wanted.name).await?;
    let found = find(driver, &wanted, record.as_ref()).await?;
    let (connection, volume) = if let Some(found) = found {
        complete(driver, &wanted, record, found).await?
    } else {
        let is_repeated = record.is_some_and(|r| r.state == OperationState::InProgress);
        make(driver, &wanted, is_repeated, planned).await?
    };
    let source = request.volume_content_source.clone();
    let volume = described(driver, &connection, &volume, source, &wanted.terms);
    Ok(CreateVolumeResponse { volume: Some(volume) })
}

/// The volume that an earlier call created, or is about to create.
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
        let connection =
            recorded.or_else(|| connections.first().filter(|_| connections.len() == 1));
        if let Some(connection) = connection
            && let Some(found) = follow_record(driver, wanted, record, connection).await?
        {
            return Ok(Some((connection.clone(), found)));
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
    driver: &Driver,
    wanted: &WantedVolume,
    record: &Operation,
    connection: &Connection,
) -> Result<Option<Arc<KnownVolume>>, CreateError> {
    let name = &wanted.name;
    match (record.state, &record.volume_id, &record.task) {
        (OperationState::Success, Some(id), _) => confirm(connection, name, id).await,
        (OperationState::InProgress, _, Some(task)) => {
            let resumed = connection.client.resume_volume_task::<Created>(task.clone());
            let outcomes = match resumed.wait(TASK_TIMEOUT).await {
                Err(VcenterError::TaskLost { .. }) => {
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
            let created = created(outcomes);
            Ok(created.ok().map(|(id, datastore)| {
                let record_mib = record.capacity_mib.unwrap_or(wanted.size_mib);
                let mib = source_mib(driver, wanted).unwrap_or(record_mib);
                remember(connection, wanted, &id, mib, datastore.as_ref())
            }))
        }
        (OperationState::InProgress, _, None) => recover(wanted, record, connection).await,
        _ => Ok(None),
    }
}

/// After a call without an answer: the volume exists, or a task still creates it, or nothing happened.
async fn recover(
    wanted: &WantedVolume,
    record: &Operation,
    connection: &Connection,
) -> Result<Option<Arc<KnownVolume>>, CreateError> {
    let name = &wanted.name;
    let age = Duration::try_from(Timestamp::now().duration_since(record.started));
    let is_recent = age.is_ok_and(|age| age < LOST_CALL);
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
        None if is_creating || is_recent => UndecidedSnafu { name }.fail(),
        None => Ok(None),
    }
}

/// Checks that the existing volume is the wanted one, and does what an interrupted call left undone.
async fn complete(
    driver: &Driver,
    wanted: &WantedVolume,
    record: Option<Operation>,
    (connection, volume): Found,
) -> Result<Found, CreateError> {
    let different = |difference: &str| {
        DifferentSnafu { name: &wanted.name, id: &*volume.id, mib: volume.capacity_mib, difference }
            .fail()
    };
    let source = wanted.source.as_ref().map(Source::id);
    if let Some(record) = &record
        && record.source.is_some()
        && record.source != source
    {
        return different("it was made from another source");
    }
    let is_unfinished = record.as_ref().is_none_or(|r| r.state != OperationState::Success);
    let grows = wanted.source.is_some() && is_unfinished && volume.capacity_mib < wanted.size_mib;
    if !grows && !size::fits(wanted.range.as_ref(), volume.capacity_mib) {
        return different("its size differs");
    }
    if !is_unfinished || record.is_none() && wanted.source.is_none() {
        return Ok((connection, volume));
    }
    let begun = Operation::begin(&wanted.name, &connection.name);
    let operation = Operation { source, ..record.unwrap_or(begun) };
    finish(driver, wanted, &connection, &volume, operation).await
}

/// Creates the volume. `is_repeated` if an earlier call got no answer.
async fn make(
    driver: &Driver,
    wanted: &WantedVolume,
    is_repeated: bool,
    planned: Option<PlannedVolume>,
) -> Result<Found, CreateError> {
    let name = &wanted.name;
    let (connection, mut spec) = plan(driver, wanted).await?;
    let mut operation = Operation::begin(name, &connection.name);
    operation.capacity_mib = Some(wanted.size_mib);
    operation.source = wanted.source.as_ref().map(Source::id);
    operation.planned = planned.map(|planned| planned.0);
    driver.records.store(&operation).await?;
    if let Some(source) = &wanted.source {
        let made = clone::source(&connection, source, name, is_repeated).await;
        let source = made.context(CnsSnafu { name })?;
        operation.snapshot_id = Some(source.snapshot.id.clone());
        spec.source = Some(source);
    }
    let mib = spec.backing.capacity_mib();
    let since = Instant::now();
    let outcomes = start(driver, &connection, spec, &mut operation).await;
    let result = match outcomes {
        Ok(outcomes) => created(outcomes),
        // vCenter knows nothing of the task any more: it may have ended well.
        Err(VcenterError::TaskLost { .. }) => match recover(wanted, &operation, &connection).await?
        {
            Some(volume) => Ok((volume.id.to_string(), None)),
            None => return UndecidedSnafu { name }.fail(),
        },
        Err(source) => Err(CnsError::Call { what: "create a disk".to_owned(), source }),
    };
    connection.metrics().task_ended("create-volume", since, result.is_err());
    match result {
        Ok((id, datastore)) => {
            let volume = remember(&connection, wanted, &id, mib, datastore.as_ref());
            finish(driver, wanted, &connection, &volume, operation).await
        }
        Err(error) => {
            give_up(driver, wanted, &connection, &error, operation).await;
            connection.policies.forget();
            connection.writable_datastores.forget().await;
            Err(CreateError::Cns { name: name.clone(), source: error })
        }
    }
}

/// Calls CNS and waits. The task is recorded unless it ends quickly.
async fn start(
    driver: &Driver,
    connection: &Connection,
    spec: CreateSpec,
    operation: &mut Operation,
) -> Result<Vec<VolumeOutcome<Created>>, VcenterError> {
    let task: VolumeTask<Created> = connection.client.create_volumes(vec![spec]).await?;
    operation.task = Some(task.reference().clone());
    let mut waiting = pin!(task.wait(TASK_TIMEOUT));
    if let Ok(outcomes) = tokio::time::timeout(QUICK, &mut waiting).await
        && !matches!(outcomes, Err(VcenterError::ShutDown { .. }))
    {
        return outcomes;
    }
    if let Err(error) = driver.records.store(operation).await {
        // The first record still says that CNS was asked.
        let error = runtime::error_chain::error_chain(&error);
        tracing::warn!(volume = operation.name, error, "the task is not recorded");
    }
    waiting.await
}

/// The id and datastore of the new volume.
fn created(outcomes: Vec<VolumeOutcome<Created>>) -> Result<(String, Option<MoRef>), CnsError> {
    let what = || "create a disk".to_owned();
    let Some(outcome) = outcomes.into_iter().next() else {
        return failure::NoResultSnafu { what: what() }.fail();
    };
    match (outcome.result, outcome.volume) {
        (Ok(created), Some(volume)) => Ok((volume.id, created.datastore)),
        (Ok(_), None) => failure::NoResultSnafu { what: what() }.fail(),
        (Err(fault), volume) => match (&fault.kind, volume) {
            // An earlier call registered it.
            (
                FaultKind::CnsAlreadyRegistered { volume: Some(id) }
                | FaultKind::CnsVolumeAlreadyExists { volume: Some(id) },
                _,
            ) => Ok((id.to_string(), None)),
            _ => Err(CnsError::Refused { what: what(), source: Box::new(fault) }),
        },
    }
}

fn remember(
    connection: &Connection,
    wanted: &WantedVolume,
    id: &str,
    capacity_mib: i64,
    datastore: Option<&MoRef>,
) -> Arc<KnownVolume> {
    let url = {
        let view = connection.inventory().view();
        let datastore = datastore.and_then(|reference| view.get(reference)?.as_datastore());
        datastore.and_then(|datastore| datastore.url.clone())
    };
    connection.volumes.set(KnownVolume {
        id: id.into(),
        name: wanted.cns_name.as_str().into(),
        capacity_mib,
        datastore_url: url.unwrap_or_default(),
        problem: None,
        is_block: true,
    })
}

/// The size that a copy has at first.
fn source_mib(driver: &Driver, wanted: &WantedVolume) -> Option<i64> {
    let source = wanted.source.as_ref()?;
    let connections = driver.vcenters.all().ok()?;
    let known = connections.iter().find_map(|c| c.volumes.get(source.volume()));
    known.map(|volume| volume.capacity_mib)
}

/// Grows a copy, removes the snapshot of a clone and records the success.
async fn finish(
    driver: &Driver,
    wanted: &WantedVolume,
    connection: &Connection,
    volume: &Arc<KnownVolume>,
    mut operation: Operation,
) -> Result<Found, CreateError> {
    let name = &wanted.name;
    let mut volume = Arc::clone(volume);
    if wanted.source.is_some() && volume.capacity_mib < wanted.size_mib {
        let id = VolumeId { id: volume.id.to_string() };
        let specs = [ExtendSpec { volume: id, capacity_mib: wanted.size_mib }];
        let grow = || format!("grow the new disk to {} MiB", wanted.size_mib);
        let grown = failure::run(
            connection,
            "expand-volume",
            grow,
            connection.client.extend_volumes(&specs),
        )
        .await;
        grown.context(CnsSnafu { name })?;
        let grown = KnownVolume { capacity_mib: wanted.size_mib, ..KnownVolume::clone(&volume) };
        volume = connection.volumes.set(grown);
    }
    if let Some(Source::Volume { volume: source }) = &wanted.source {
        clone::remove_snapshot(connection, source, name).await.context(CnsSnafu { name })?;
    }
    operation.state = OperationState::Success;
    operation.volume_id = Some(volume.id.to_string());
    operation.capacity_mib = Some(volume.capacity_mib);
    driver.records.store(&operation).await?;
    Ok((connection.clone(), volume))
}

/// Records a refusal. Without an answer, the record stays "in progress".
async fn give_up(
    driver: &Driver,
    wanted: &WantedVolume,
    connection: &Connection,
    error: &CnsError,
    mut operation: Operation,
) {
    let is_final = match error {
        CnsError::Call { source, .. } => source.fault().is_some() || source.never_reached(),
        CnsError::Refused { .. } => true,
        CnsError::NoResult { .. } | CnsError::Undecided { .. } => false,
    };
    if is_final {
        if let Some(Source::Volume { volume }) = &wanted.source {
            // The caller may never try again, and the snapshot would keep the source from being deleted.
            let removed = clone::remove_snapshot(connection, volume, &wanted.name).await;
            if let Err(error) = removed {
                let error = runtime::error_chain::error_chain(&error);
                tracing::warn!(volume, error, "the snapshot of a failed clone stays");
            }
        }
        operation.state = OperationState::Error;
        operation.error = Some(runtime::error_chain::error_chain(error));
    }
    if let Err(error) = driver.records.store(&operation).await {
        let error = runtime::error_chain::error_chain(&error);
        tracing::warn!(volume = operation.name, error, "the failure is not recorded");
    }
}

/// The volume as a caller knows it. It is for the segments in `terms`, even if its datastore reaches more: a StorageClass
/// with `allowedTopologies` keeps pods in these zones. Without terms, all segments of its datastore count.
pub(super) fn described(
    driver: &Driver,
    connection: &Connection,
    volume: &KnownVolume,
    content_source: Option<VolumeContentSource>,
    terms: &[Segments],
) -> Volume {
    let settings = driver.settings();
    let accessible_topology = if settings.categories.is_empty() {
        Vec::new()
    } else {
        let (tags, nodes) = (connection.tags(), driver.nodes.get());
        let site = Site::new(connection, &tags, &settings.categories, &nodes);
        let datastore = site.datastore_at(&volume.datastore_url);
        let mut segments = datastore.map(|d| site.segments_with(d)).unwrap_or_default();
        let is_requested = |segment: &Segments| terms.iter().any(|term| is_within(segment, term));
        if segments.iter().any(is_requested) {
            segments.retain(is_requested);
        }
        segments.into_iter().map(|s| Topology { segments: s.into_iter().collect() }).collect()
    };
    Volume {
        capacity_bytes: size::bytes(volume.capacity_mib),
        volume_id: volume.id.to_string(),
        volume_context: capabilities::volume_context(),
        content_source,
        accessible_topology,
    }
}
