//! Creations whose claim is gone: their caller will not repeat the call.

use snafu::{ResultExt as _, Snafu};
use tonic::{Code, Status};
use vsphere::cns::Volume as CnsVolume;

use super::{
    ControllerService, Driver, clone, create,
    create_error::{CnsSnafu, CreateError, RecoverSnafu, SourceSnafu, UndecidedSnafu},
    create_find,
    create_request::{Source, WantedVolume},
    failure,
    locate::{self, LocateError},
    status_of,
};
use crate::{
    loops::orphans::{Creation, Creations},
    proto::csi::Volume,
    records::{Operation, OperationState},
};

#[derive(Debug, Snafu)]
enum UnfinishedError {
    #[snafu(transparent)]
    Create { source: CreateError },
    #[snafu(display(
        "the volume {id} ({name}) belongs to the clusters {owners} too; this cluster leaves it alone"
    ))]
    Shared { name: String, id: String, owners: String },
}

impl UnfinishedError {
    fn code(&self) -> Code {
        match self {
            Self::Create { source } => source.code(),
            Self::Shared { .. } => Code::FailedPrecondition,
        }
    }
}
status_of!(UnfinishedError);

#[tonic::async_trait]
impl Creations for ControllerService {
    async fn list(&self) -> Result<Vec<Creation>, Status> {
        let records = self.driver.records.all().await.map_err(CreateError::from)?;
        let driver = &self.driver;
        let open = records.into_iter().filter(|record| may_have_volume(driver, record));
        Ok(open.filter_map(creation).collect())
    }

    async fn settle(&self, name: &str) -> Result<Option<Volume>, Status> {
        Ok(settle(&self.driver, name).await?)
    }

    async fn close(&self, name: &str, volume: &str) -> Result<(), Status> {
        Ok(close(&self.driver, name, volume).await?)
    }
}

fn creation(record: Operation) -> Option<Creation> {
    let is_finished = record.state == OperationState::Success;
    Some(Creation { name: record.name, planned: record.planned?, is_finished })
}

/// A finished creation counts as long as this process knows the volume: most volumes of old records are deleted, and
/// no call to vCenter is needed to know it.
fn may_have_volume(driver: &Driver, record: &Operation) -> bool {
    match record.state {
        OperationState::InProgress => true,
        OperationState::Success => {
            let connections = driver.vcenters.all().unwrap_or_default();
            let id = record.volume_id.as_deref().unwrap_or_default();
            connections.iter().any(|connection| connection.volumes.get(id).is_some())
        }
        OperationState::Error => false,
    }
}

/// The volume that the recorded call made. Without a volume, the record ends here.
async fn settle(driver: &Driver, name: &str) -> Result<Option<Volume>, UnfinishedError> {
    let _lock = driver.locks.lock(format!("the volume named {name}")).map_err(CreateError::from)?;
    let record = driver.records.find(name).await.map_err(CreateError::from)?;
    let Some(record) = record else { return Ok(None) };
    let wanted = WantedVolume::recorded(&record);
    let found = create_find::find(driver, &wanted, Some(&record)).await?;
    if let Some(Source::Volume { volume }) = &wanted.source
        && record.state == OperationState::InProgress
    {
        remove_temporary_snapshot(driver, name, volume).await?;
    }
    let Some((connection, volume)) = found else {
        driver.records.remove(name).await.map_err(CreateError::from)?;
        return Ok(None);
    };
    let in_cns = locate::in_cns(&connection, &volume.id).await.context(RecoverSnafu { name })?;
    require_own(name, connection.cluster_id(), in_cns.as_ref())?;
    Ok(Some(create::described(driver, &connection, &volume, None, &[])?))
}

/// The source of a clone cannot be deleted while it has the temporary snapshot.
async fn remove_temporary_snapshot(
    driver: &Driver,
    name: &str,
    origin: &str,
) -> Result<(), CreateError> {
    let connection = match locate::volume(driver, origin).await {
        Ok((connection, _)) => connection,
        Err(LocateError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error).context(SourceSnafu { name, origin }),
    };
    // A task of the killed controller may still make it.
    let is_running = failure::is_running(&connection, "createsnapshot").await;
    if is_running.context(RecoverSnafu { name })? {
        return UndecidedSnafu { name }.fail();
    }
    let removed = clone::remove_snapshot(driver, &connection, origin, name).await;
    removed.context(CnsSnafu { name })
}

fn require_own(
    name: &str,
    cluster: &str,
    volume: Option<&CnsVolume>,
) -> Result<(), UnfinishedError> {
    let Some(volume) = volume else { return Ok(()) };
    let mut owners: Vec<&str> = volume.owners().filter(|owner| *owner != cluster).collect();
    owners.dedup();
    if owners.is_empty() {
        return Ok(());
    }
    SharedSnafu { name, id: &volume.id.id, owners: owners.join(", ") }.fail()
}

async fn close(driver: &Driver, name: &str, volume: &str) -> Result<(), CreateError> {
    let _lock = driver.locks.lock(format!("the volume named {name}"))?;
    if let Some(record) = driver.records.find(name).await?
        && record.state == OperationState::InProgress
    {
        let volume_id = Some(volume.to_owned());
        let ended = Operation { state: OperationState::Success, volume_id, ..record };
        driver.records.store(&ended).await?;
    }
    Ok(())
}
