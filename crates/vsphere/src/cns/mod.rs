//! Container volumes: the storage service that CSI drivers stand on.
//!
//! `types` and `query` say what is sent and received, field by field; here are the calls.
//! Everything that changes something is a task in vCenter: the calls return a [`VolumeTask`], which
//! can be waited for, or named and taken up again by another process. A task covers several
//! volumes, and each has its own outcome.

mod outcome;
mod query;
mod types;

use std::collections::HashSet;
use std::marker::PhantomData;
use std::time::Duration;

pub use self::outcome::{Attached, Created, Done, Outcome, SnapshotMade, VolumeOutcome};
use self::query::{
    BatchResult, QueryResult, QuerySelection, SnapshotQueryFilter, SnapshotQueryResult,
};
pub use self::query::{
    Cursor, QueryFilter, SnapshotCreateSpec, SnapshotDeleteSpec, SnapshotEntry, SnapshotInfo,
    SnapshotQuerySpec, Volume, VolumeInfo,
};
pub use self::types::{
    AttachSpec, BackingDetails, ContainerCluster, CreateSpec, EntityMetadata, EntityReference,
    ExtendSpec, FilePermission, KeyValue, PolicyProfile, SnapshotId, VolumeId, VolumeMetadata,
    VolumeMetadataUpdate, VolumeSource,
};
use crate::client::Client;
use crate::error::Error;
use crate::moref::MoRef;
use crate::soap::envelope::Args;
use crate::tasks::Task;
use crate::version::ApiVersion;
use crate::wire::{Method, Service};
use crate::xml::XmlError;
use crate::xml::codec::Encode;

/// Volumes or snapshots per reply of a query.
const PAGE: usize = 500;

/// Whether another page is worth asking for, after one of `got` entries that makes it `read` in
/// all. A service that does not say how many there are is asked until a page is not full.
fn is_more(got: usize, read: usize, total: Option<i64>) -> bool {
    match total.and_then(|total| usize::try_from(total).ok()) {
        Some(total) => got > 0 && read < total,
        None => got >= PAGE,
    }
}

const MANAGER: (&str, &str) = ("CnsVolumeManager", "cns-volume-manager");

/// A task on volumes; `T` is what a success brings.
#[derive(Debug)]
#[must_use = "a task that nobody waits for may fail unnoticed"]
pub struct VolumeTask<T> {
    client: Client,
    task: Task,
    method: &'static str,
    brings: PhantomData<T>,
}

impl<T: Outcome> VolumeTask<T> {
    /// What vCenter calls the task.
    pub fn reference(&self) -> &MoRef {
        self.task.reference()
    }

    /// Percent done, as vCenter last said.
    pub fn progress(&self) -> u8 {
        self.task.progress()
    }

    /// Waits for the end; the outcomes are in the order of the volumes asked for.
    ///
    /// # Errors
    /// Those of [`Task::wait`]. A single volume's failure is in its outcome, not here.
    pub async fn wait(self, within: Duration) -> Result<Vec<VolumeOutcome<T>>, Error> {
        let value = self.task.wait(within).await?;
        let missing = XmlError::Missing { of: "the task", field: "its result" };
        let read = value.ok_or(missing).and_then(|value| value.read::<BatchResult>());
        let batch = read.map_err(|source| self.client.cns_unreadable(self.method, source))?;
        Ok(batch.results.into_iter().map(VolumeOutcome::from).collect())
    }
}

impl Client {
    fn cns_unreadable(&self, method: &str, source: XmlError) -> Error {
        Error::Unreadable { address: self.address().to_owned(), method: method.to_owned(), source }
    }

    fn cns_needs(
        &self,
        needed: ApiVersion,
        named: &'static str,
        what: &'static str,
    ) -> Result<(), Error> {
        let found = self.api_version()?;
        if found >= needed {
            return Ok(());
        }
        let (address, found) = (self.address().to_owned(), found.to_string());
        Err(Error::Unsupported { address, what, needed: named, found })
    }

    async fn cns_task<T>(
        &self,
        name: &'static str,
        args: Args<'_>,
    ) -> Result<VolumeTask<T>, Error> {
        self.start_cns_task(Method::change(name), args).await
    }

    async fn start_cns_task<T>(
        &self,
        method: Method,
        args: Args<'_>,
    ) -> Result<VolumeTask<T>, Error> {
        let manager = MoRef::new(MANAGER.0, MANAGER.1);
        let reference = self.call(method.of(Service::Vsan), &manager, args).await?;
        let task = self.task(method.name, reference);
        Ok(VolumeTask { client: self.clone(), task, method: method.name, brings: PhantomData })
    }

    /// Takes up a task on volumes that was started earlier, to wait for it.
    pub fn resume_volume_task<T: Outcome>(&self, reference: MoRef) -> VolumeTask<T> {
        let task = self.resume_task(reference);
        VolumeTask { client: self.clone(), task, method: "(resumed)", brings: PhantomData }
    }

    /// Creates volumes. Needs `Datastore.FileManagement` on the datastores.
    pub async fn create_volumes(
        &self,
        specs: Vec<CreateSpec>,
    ) -> Result<VolumeTask<Created>, Error> {
        let version = self.api_version()?;
        let specs: Vec<CreateSpec> = specs.into_iter().map(|spec| spec.fit(version)).collect();
        self.cns_task("CnsCreateVolume", &[("createSpecs", &specs)]).await
    }

    /// Deletes volumes, with their disks if `delete_disk`.
    pub async fn delete_volumes(
        &self,
        volumes: &[VolumeId],
        delete_disk: bool,
    ) -> Result<VolumeTask<Done>, Error> {
        let args: &[(&str, &dyn Encode)] = &[("volumeIds", &volumes), ("deleteDisk", &delete_disk)];
        self.cns_task("CnsDeleteVolume", args).await
    }

    /// Attaches volumes to machines.
    pub async fn attach_volumes(
        &self,
        specs: &[AttachSpec],
    ) -> Result<VolumeTask<Attached>, Error> {
        self.cns_task("CnsAttachVolume", &[("attachSpecs", &specs)]).await
    }

    /// Detaches volumes from machines.
    pub async fn detach_volumes(&self, specs: &[AttachSpec]) -> Result<VolumeTask<Done>, Error> {
        self.cns_task("CnsDetachVolume", &[("detachSpecs", &specs)]).await
    }

    /// Makes volumes larger.
    pub async fn extend_volumes(&self, specs: &[ExtendSpec]) -> Result<VolumeTask<Done>, Error> {
        self.cns_task("CnsExtendVolume", &[("extendSpecs", &specs)]).await
    }

    /// Changes what vCenter shows of volumes.
    pub async fn update_volume_metadata(
        &self,
        updates: Vec<VolumeMetadataUpdate>,
    ) -> Result<VolumeTask<Done>, Error> {
        let version = self.api_version()?;
        let updates: Vec<VolumeMetadataUpdate> =
            updates.into_iter().map(|update| update.fit(version)).collect();
        self.cns_task("CnsUpdateVolumeMetadata", &[("updateSpecs", &updates)]).await
    }

    /// Makes snapshots of volumes.
    pub async fn create_volume_snapshots(
        &self,
        specs: &[SnapshotCreateSpec],
    ) -> Result<VolumeTask<SnapshotMade>, Error> {
        self.cns_needs(ApiVersion::V7_0U3, "7.0 Update 3", "make snapshots of volumes")?;
        self.cns_task("CnsCreateSnapshots", &[("snapshotSpecs", &specs)]).await
    }

    /// Deletes snapshots of volumes.
    pub async fn delete_volume_snapshots(
        &self,
        specs: &[SnapshotDeleteSpec],
    ) -> Result<VolumeTask<Done>, Error> {
        self.cns_needs(ApiVersion::V7_0U3, "7.0 Update 3", "delete snapshots of volumes")?;
        self.cns_task("CnsDeleteSnapshots", &[("snapshotDeleteSpecs", &specs)]).await
    }

    /// All volumes that fit `filter`, read page by page. Needs `Cns.Searchable` on the root.
    pub async fn query_volumes(&self, filter: &QueryFilter) -> Result<Vec<Volume>, Error> {
        let mut filter = filter.clone();
        let (mut found, mut seen, mut offset) = (Vec::new(), HashSet::new(), 0);
        loop {
            filter.cursor = Some(Cursor::page_at(offset));
            let method = Method::read("CnsQueryVolume").of(Service::Vsan);
            let manager = MoRef::new(MANAGER.0, MANAGER.1);
            let page: QueryResult = self.call(method, &manager, &[("filter", &filter)]).await?;
            let (before, got) = (found.len(), page.volumes.len());
            let news = page.volumes.into_iter().filter(|v| seen.insert(v.id.clone()));
            found.extend(news);
            offset += got;
            let is_new = found.len() > before;
            if !is_new || !is_more(got, offset, page.cursor.and_then(|cursor| cursor.total)) {
                return Ok(found);
            }
        }
    }

    /// How many volumes there are in all, whosever they are; none if vCenter does not say. Needs
    /// `Cns.Searchable` on the root.
    pub async fn volume_count(&self) -> Result<Option<i64>, Error> {
        let cursor = Some(Cursor { offset: 0, limit: 1, total: None });
        let filter = QueryFilter { cursor, ..QueryFilter::default() };
        let method = Method::read("CnsQueryVolume").of(Service::Vsan);
        let manager = MoRef::new(MANAGER.0, MANAGER.1);
        let page: QueryResult = self.call(method, &manager, &[("filter", &filter)]).await?;
        Ok(page.cursor.and_then(|cursor| cursor.total))
    }

    /// All volumes that fit `filter`, in one reply, with only what is named in `select`
    /// (`VOLUME_NAME`, `HEALTH_STATUS`, …) besides their ids.
    pub async fn query_all_volumes(
        &self,
        filter: &QueryFilter,
        select: &[&str],
    ) -> Result<Vec<Volume>, Error> {
        let selection = QuerySelection { names: select.iter().map(ToString::to_string).collect() };
        let args: &[(&str, &dyn Encode)] = &[("filter", filter), ("selection", &selection)];
        let method = Method::read("CnsQueryAllVolume").of(Service::Vsan);
        let result: QueryResult =
            self.call(method, &MoRef::new(MANAGER.0, MANAGER.1), args).await?;
        Ok(result.volumes)
    }

    /// The ids of all container clusters that own volumes here, each once, sorted.
    pub async fn volume_owners(&self) -> Result<Vec<String>, Error> {
        let volumes = self.query_volumes(&QueryFilter::default()).await?;
        let mut owners: Vec<String> =
            volumes.iter().flat_map(Volume::owners).map(str::to_owned).collect();
        owners.sort_unstable();
        owners.dedup();
        Ok(owners)
    }

    /// Where volumes lie: their disks as vCenter keeps them.
    pub async fn volume_info(
        &self,
        volumes: &[VolumeId],
        within: Duration,
    ) -> Result<Vec<VolumeOutcome<VolumeInfo>>, Error> {
        self.cns_needs(ApiVersion::V7_0U2, "7.0 Update 2", "tell where volumes lie")?;
        let args: &[(&str, &dyn Encode)] = &[("volumes", &volumes)];
        // It only reads, though it is a task.
        let task = self.start_cns_task::<VolumeInfo>(Method::read("CnsQueryVolumeInfo"), args);
        task.await?.wait(within).await
    }

    /// The snapshots of volumes; with no spec, of all volumes. Read page by page.
    pub async fn query_volume_snapshots(
        &self,
        specs: &[SnapshotQuerySpec],
        within: Duration,
    ) -> Result<Vec<SnapshotEntry>, Error> {
        const NAME: &str = "CnsQuerySnapshots";
        self.cns_needs(ApiVersion::V7_0U3, "7.0 Update 3", "list snapshots of volumes")?;
        let mut found: Vec<SnapshotEntry> = Vec::new();
        loop {
            let cursor = Some(Cursor::page_at(found.len()));
            let filter = SnapshotQueryFilter { specs: specs.to_vec(), cursor };
            let method = Method::read(NAME).of(Service::Vsan);
            let task = self
                .call(
                    method,
                    &MoRef::new(MANAGER.0, MANAGER.1),
                    &[("snapshotQueryFilter", &filter)],
                )
                .await?;
            let value = self.task(NAME, task).wait(within).await?;
            let missing = XmlError::Missing { of: "the task", field: "its result" };
            let read = value.ok_or(missing).and_then(|value| value.read::<SnapshotQueryResult>());
            let page = read.map_err(|source| self.cns_unreadable(NAME, source))?;
            let got = page.entries.len();
            // A page that begins as the last one did is the last one again.
            let is_new = match (page.entries.first(), found.len().checked_sub(PAGE)) {
                (Some(first), Some(at)) => found.get(at) != Some(first),
                _ => true,
            };
            if is_new {
                found.extend(page.entries);
            }
            if !is_new || !is_more(got, found.len(), page.cursor.and_then(|c| c.total)) {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hand-made: the simulator always says how many there are.
    #[test]
    fn all_pages_are_read_whether_or_not_their_number_is_told() {
        assert!(is_more(PAGE, PAGE, Some(750)), "the next page has the rest");
        assert!(!is_more(250, 750, Some(750)));
        assert!(is_more(PAGE, PAGE, None), "a full page may not be the last");
        assert!(!is_more(250, 750, None));
        assert!(!is_more(0, 0, None) && !is_more(0, PAGE, Some(750)), "an empty page is the last");
        assert!(is_more(100, 100, Some(750)), "a service may choose smaller pages");
        assert!(is_more(PAGE, PAGE, Some(-1)), "a number that is none says nothing");
    }
}
