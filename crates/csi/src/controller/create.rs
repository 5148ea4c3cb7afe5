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
    cns::{CreateSpec, Created, ExtendSpec, VolumeId, VolumeOutcome, VolumeTask},
};

use super::{
    Driver, TASK_TIMEOUT, capabilities, clone,
    create_error::{
        CnsSnafu, CreateError, DifferentSnafu, NoSegmentSnafu, UndecidedSnafu, VcenterSnafu,
    },
    create_find::{find, recover},
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

/// A task that ends within this time is recorded with its result, in one write. Others are recorded first. Until then,
/// a crash leaves a record without a task: the next controller looks for running tasks and for the volume's name.
const QUICK: Duration = Duration::from_secs(5);

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
        make(driver, &wanted, record.as_ref(), planned).await?
    };
    let source = request.volume_content_source.clone();
    let volume = described(driver, &connection, &volume, source, &wanted.terms)?;
    Ok(CreateVolumeResponse { volume: Some(volume) })
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
    let source = wanted.source_id();
    let recorded = record.as_ref().and_then(|record| record.source.as_ref());
    if recorded.is_some_and(|recorded| *recorded != source) {
        return different("its source differs");
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
    let operation = Operation { source: Some(source), ..record.unwrap_or(begun) };
    finish(driver, wanted, &connection, &volume, operation).await
}

/// Creates the volume. `record` is the record that was found.
async fn make(
    driver: &Driver,
    wanted: &WantedVolume,
    record: Option<&Operation>,
    planned: Option<PlannedVolume>,
) -> Result<Found, CreateError> {
    let name = &wanted.name;
    // That of a call that got no answer.
    let earlier = record.filter(|record| record.state == OperationState::InProgress);
    let (connection, mut spec) = plan(driver, wanted).await?;
    let mut operation = Operation::begin(name, &connection.name);
    operation.capacity_mib = Some(wanted.size_mib);
    operation.source = Some(wanted.source_id());
    operation.planned = planned.map(|planned| planned.0);
    if let (Some(Source::Volume { .. }), Some(earlier)) = (&wanted.source, earlier) {
        // The age of the earlier call for the snapshot of the clone.
        operation.started = earlier.started;
    }
    driver.records.begin(record, &operation).await?;
    if let Some(source) = &wanted.source {
        let made = clone::source(driver, &connection, source, name, earlier).await;
        if made.as_ref().is_err_and(CnsError::is_unanswered) {
            operation.started = Timestamp::now();
            store_failure(driver, &operation).await;
        }
        let source = made.context(CnsSnafu { name })?;
        operation.snapshot_id = Some(source.snapshot.id.clone());
        spec.source = Some(source);
    }
    if let Some(Source::Volume { .. }) = &wanted.source {
        // The snapshot may have taken minutes. If another controller works on the volume now, this write fails.
        operation.started = Timestamp::now();
        driver.records.store(&operation).await?;
    }
    driver.require_mandate().context(CnsSnafu { name })?;
    let mib = spec.backing.capacity_mib();
    let since = Instant::now();
    let outcomes = start(driver, &connection, spec, &mut operation).await;
    let result = match outcomes {
        Ok(outcomes) => match created(outcomes) {
            Ok(new) => accept(&connection, wanted, &new, mib).await,
            Err(error) => Err(error),
        },
        // vCenter knows nothing of the task any more: it may have ended well.
        Err(VcenterError::TaskLost { .. }) => match recover(wanted, &operation, &connection).await?
        {
            Some(volume) => Ok(volume),
            None => return UndecidedSnafu { name }.fail(),
        },
        Err(source) => Err(CnsError::Call { what: "create a disk".to_owned(), source }),
    };
    connection.metrics().task_ended("create-volume", since, result.is_err());
    match result {
        Ok(volume) => finish(driver, wanted, &connection, &volume, operation).await,
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

/// A volume that CNS created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewVolume {
    pub(super) id: String,
    /// Its datastore, if CNS names it.
    datastore: Option<MoRef>,
}

pub(super) fn created(outcomes: Vec<VolumeOutcome<Created>>) -> Result<NewVolume, CnsError> {
    let what = || "create a disk".to_owned();
    let Some(outcome) = outcomes.into_iter().next() else {
        return failure::NoResultSnafu { what: what() }.fail();
    };
    match (outcome.result, outcome.volume) {
        (Ok(created), Some(volume)) => {
            Ok(NewVolume { id: volume.id, datastore: created.datastore })
        }
        (Ok(_), None) => failure::NoResultSnafu { what: what() }.fail(),
        (Err(fault), volume) => match (&fault.kind, volume) {
            // An earlier call registered it.
            (
                FaultKind::CnsAlreadyRegistered { volume: Some(id) }
                | FaultKind::CnsVolumeAlreadyExists { volume: Some(id) },
                _,
            ) => Ok(NewVolume { id: id.to_string(), datastore: None }),
            _ => Err(CnsError::Refused { what: what(), source: Box::new(fault) }),
        },
    }
}

/// Remembers the new volume. CNS is asked only if the result does not say everything.
async fn accept(
    connection: &Connection,
    wanted: &WantedVolume,
    new: &NewVolume,
    capacity_mib: i64,
) -> Result<Arc<KnownVolume>, CnsError> {
    let id = &new.id;
    let url = {
        let view = connection.inventory().view();
        let reference = new.datastore.as_ref();
        let datastore = reference.and_then(|reference| view.get(reference)?.as_datastore());
        datastore.and_then(|datastore| datastore.url.clone())
    };
    if let Some(datastore_url) = url {
        return Ok(connection.volumes.set(KnownVolume {
            id: id.as_str().into(),
            name: wanted.cns_name.as_str().into(),
            capacity_mib,
            datastore_url,
            problem: None,
            is_block: true,
        }));
    }
    let found = locate::in_cns(connection, id).await.context(failure::UnreadSnafu { id })?;
    match found {
        Some(volume) if volume.name.as_deref() == Some(&wanted.cns_name) => {
            Ok(connection.volumes.set(volume.into()))
        }
        Some(volume) => {
            failure::OtherVolumeSnafu { id, name: volume.name.unwrap_or_default() }.fail()
        }
        None => failure::NoResultSnafu { what: "create a disk" }.fail(),
    }
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
        driver.require_mandate().context(CnsSnafu { name })?;
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
        let removed = clone::remove_snapshot(driver, connection, source, name).await;
        removed.context(CnsSnafu { name })?;
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
        CnsError::Call { source: VcenterError::TaskFailed { .. }, .. }
        | CnsError::Refused { .. }
        | CnsError::OtherVolume { .. } => true,
        // With a task, the failure is one of the wait.
        CnsError::Call { source, .. } => {
            operation.task.is_none() && (source.fault().is_some() || source.never_reached())
        }
        CnsError::NoResult { .. }
        | CnsError::Undecided { .. }
        | CnsError::Unread { .. }
        | CnsError::NotLeading => false,
    };
    if is_final {
        if let Some(Source::Volume { volume }) = &wanted.source {
            // The caller may never try again, and the snapshot would keep the source from being deleted.
            let removed = clone::remove_snapshot(driver, connection, volume, &wanted.name).await;
            if let Err(error) = removed {
                let error = runtime::error_chain::error_chain(&error);
                tracing::warn!(volume, error, "the snapshot of a failed clone stays");
            }
        }
        operation.state = OperationState::Error;
        operation.error = Some(runtime::error_chain::error_chain(error));
    } else if operation.task.is_none() {
        // The call may have waited for its answer until now, and only now begins the time to look for its task.
        operation.started = Timestamp::now();
    }
    store_failure(driver, &operation).await;
}

async fn store_failure(driver: &Driver, operation: &Operation) {
    if let Err(error) = driver.records.store(operation).await {
        let error = runtime::error_chain::error_chain(&error);
        tracing::warn!(volume = operation.name, error, "the failure is not recorded");
    }
}

/// The volume as a caller knows it. It is for the segments in `terms`, even if its datastore reaches more: a StorageClass
/// with `allowedTopologies` keeps pods in these zones. Without terms, all segments of its datastore count.
///
/// Fails if its topology is needed and unknown: its PersistentVolume would get no node
/// affinity, and pods would start where the disk cannot be attached.
pub(super) fn described(
    driver: &Driver,
    connection: &Connection,
    volume: &KnownVolume,
    content_source: Option<VolumeContentSource>,
    terms: &[Segments],
) -> Result<Volume, CreateError> {
    let settings = driver.settings();
    let accessible_topology = if settings.categories.is_empty() {
        Vec::new()
    } else {
        let name = &*volume.name;
        let tags = connection.require_tags().context(VcenterSnafu { name })?;
        let nodes = driver.nodes.get();
        let site = Site::new(connection, &tags, &settings.categories, &nodes);
        let (id, url) = (&*volume.id, &*volume.datastore_url);
        let Some(datastore) = site.datastore_at(url) else {
            let why = format!("its datastore {url} is not in view");
            return NoSegmentSnafu { name, id, why }.fail();
        };
        let mut segments = site.segments_with(datastore);
        if segments.is_empty() {
            let why = format!("no zone has its datastore {} on all its hosts", datastore.name);
            return NoSegmentSnafu { name, id, why }.fail();
        }
        let is_requested = |segment: &Segments| terms.iter().any(|term| is_within(segment, term));
        if segments.iter().any(is_requested) {
            segments.retain(is_requested);
        }
        segments.into_iter().map(|s| Topology { segments: s.into_iter().collect() }).collect()
    };
    Ok(Volume {
        capacity_bytes: size::bytes(volume.capacity_mib),
        volume_id: volume.id.to_string(),
        volume_context: capabilities::volume_context(),
        content_source,
        accessible_topology,
    })
}
