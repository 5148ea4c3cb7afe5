//! Container volumes: the CNS service that CSI drivers use.
//!
//! `types` and `query` define the requests and replies; this module has the calls. Every change is
//! a task in vCenter, so the calls return a [`VolumeTask`]. Another process can resume it by its
//! reference. A task covers several volumes, and each volume has its own outcome.

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
    ExtendSpec, FilePermission, KeyValue, PolicyChange, PolicyProfile, SnapshotId, VolumeId,
    VolumeMetadata, VolumeMetadataUpdate, VolumeSource,
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

/// The number of volumes per page.
const PAGE: usize = 500;
/// The number of snapshots per page: the limit that upstream's CSI driver uses.
const SNAPSHOT_PAGE: usize = 128;

/// Whether to request another page, after a page of `got` entries and `read` entries in total.
/// Without a total, a page that is not full is the last one.
fn has_next_page(page: usize, got: usize, read: usize, total: Option<i64>) -> bool {
    match total.and_then(|total| usize::try_from(total).ok()) {
        Some(total) => got > 0 && read < total,
        None => got >= page,
    }
}

const MANAGER: (&str, &str) = ("CnsVolumeManager", "cns-volume-manager");

/// A task on volumes. `T` is the result for each volume.
#[derive(Debug)]
#[must_use = "a task without a wait may fail unnoticed"]
pub struct VolumeTask<T> {
    client: Client,
    task: Task,
    method: &'static str,
    result: PhantomData<T>,
}

impl<T: Outcome> VolumeTask<T> {
    /// vCenter's reference to the task.
    pub fn reference(&self) -> &MoRef {
        self.task.reference()
    }

    /// The percentage that vCenter last reported.
    pub fn progress(&self) -> u8 {
        self.task.progress()
    }

    /// Waits for the task to end. The outcomes are in the order of the request.
    ///
    /// # Errors
    /// The errors of [`Task::wait`]. The fault of a single volume is in its outcome.
    pub async fn wait(self, within: Duration) -> Result<Vec<VolumeOutcome<T>>, Error> {
        let value = self.task.wait(within).await?;
        let missing = XmlError::Missing { of: "the task", field: "result" };
        let read = value.ok_or(missing).and_then(|value| value.read::<BatchResult>());
        let batch = read.map_err(|source| self.client.cns_unreadable(self.method, source))?;
        Ok(batch.results.into_iter().map(VolumeOutcome::from).collect())
    }
}

impl Client {
    fn cns_unreadable(&self, method: &str, source: XmlError) -> Error {
        Error::Unreadable { address: self.address().to_owned(), method: method.to_owned(), source }
    }

    fn require_version(
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
        let reference = self.call(method.on(Service::Vsan), &manager, args).await?;
        let task = self.task(method.name, reference);
        Ok(VolumeTask { client: self.clone(), task, method: method.name, result: PhantomData })
    }

    /// Waits for a task on volumes that was started earlier.
    pub fn resume_volume_task<T: Outcome>(&self, reference: MoRef) -> VolumeTask<T> {
        let task = self.resume_task(reference);
        VolumeTask { client: self.clone(), task, method: "(resumed)", result: PhantomData }
    }

    /// Needs `Datastore.FileManagement` on the datastores.
    pub async fn create_volumes(
        &self,
        specs: Vec<CreateSpec>,
    ) -> Result<VolumeTask<Created>, Error> {
        let version = self.api_version()?;
        let specs: Vec<CreateSpec> =
            specs.into_iter().map(|spec| spec.drop_unsupported(version)).collect();
        self.cns_task("CnsCreateVolume", &[("createSpecs", &specs)]).await
    }

    pub async fn delete_volumes(
        &self,
        volumes: &[VolumeId],
        delete_disk: bool,
    ) -> Result<VolumeTask<Done>, Error> {
        let args: &[(&str, &dyn Encode)] = &[("volumeIds", &volumes), ("deleteDisk", &delete_disk)];
        self.cns_task("CnsDeleteVolume", args).await
    }

    pub async fn attach_volumes(
        &self,
        specs: &[AttachSpec],
    ) -> Result<VolumeTask<Attached>, Error> {
        self.cns_task("CnsAttachVolume", &[("attachSpecs", &specs)]).await
    }

    pub async fn detach_volumes(&self, specs: &[AttachSpec]) -> Result<VolumeTask<Done>, Error> {
        self.cns_task("CnsDetachVolume", &[("detachSpecs", &specs)]).await
    }

    pub async fn extend_volumes(&self, specs: &[ExtendSpec]) -> Result<VolumeTask<Done>, Error> {
        self.cns_task("CnsExtendVolume", &[("extendSpecs", &specs)]).await
    }

    /// Changes the storage policies of volumes.
    pub async fn change_volume_policies(
        &self,
        changes: &[PolicyChange],
    ) -> Result<VolumeTask<Done>, Error> {
        self.require_version(ApiVersion::V7_0, "7.0", "change the storage policy of volumes")?;
        let args: &[(&str, &dyn Encode)] = &[("volumePolicyReconfigSpecs", &changes)];
        self.cns_task("CnsReconfigVolumePolicy", args).await
    }

    /// Changes the metadata that vCenter shows for volumes.
    pub async fn update_volume_metadata(
        &self,
        updates: Vec<VolumeMetadataUpdate>,
    ) -> Result<VolumeTask<Done>, Error> {
        let version = self.api_version()?;
        let updates: Vec<VolumeMetadataUpdate> =
            updates.into_iter().map(|update| update.drop_unsupported(version)).collect();
        self.cns_task("CnsUpdateVolumeMetadata", &[("updateSpecs", &updates)]).await
    }

    pub async fn create_volume_snapshots(
        &self,
        specs: &[SnapshotCreateSpec],
    ) -> Result<VolumeTask<SnapshotMade>, Error> {
        self.require_version(ApiVersion::V7_0U3, "7.0 Update 3", "create snapshots of volumes")?;
        self.cns_task("CnsCreateSnapshots", &[("snapshotSpecs", &specs)]).await
    }

    pub async fn delete_volume_snapshots(
        &self,
        specs: &[SnapshotDeleteSpec],
    ) -> Result<VolumeTask<Done>, Error> {
        self.require_version(ApiVersion::V7_0U3, "7.0 Update 3", "delete snapshots of volumes")?;
        self.cns_task("CnsDeleteSnapshots", &[("snapshotDeleteSpecs", &specs)]).await
    }

    /// Lists all volumes that match `filter`, page by page. Needs `Cns.Searchable` on the root
    /// folder.
    pub async fn query_volumes(&self, filter: &QueryFilter) -> Result<Vec<Volume>, Error> {
        let mut found = Vec::new();
        self.for_each_volume(filter, |volume| found.push(volume)).await?;
        Ok(found)
    }

    /// Calls `each` for all volumes that match `filter`, page by page. A caller that needs little of
    /// each volume never has all of them in memory. Needs `Cns.Searchable` on the root folder.
    pub async fn for_each_volume(
        &self,
        filter: &QueryFilter,
        mut each: impl FnMut(Volume),
    ) -> Result<(), Error> {
        let mut filter = filter.clone();
        let (mut seen, mut offset) = (HashSet::new(), 0);
        loop {
            filter.cursor = Some(Cursor::page_at(offset, PAGE));
            let method = Method::read("CnsQueryVolume").on(Service::Vsan);
            let manager = MoRef::new(MANAGER.0, MANAGER.1);
            let page: QueryResult = self.call(method, &manager, &[("filter", &filter)]).await?;
            let (before, got) = (seen.len(), page.volumes.len());
            page.volumes.into_iter().filter(|v| seen.insert(v.id.clone())).for_each(&mut each);
            offset += got;
            let is_new = seen.len() > before;
            let total = page.cursor.and_then(|cursor| cursor.total);
            if !is_new || !has_next_page(PAGE, got, offset, total) {
                return Ok(());
            }
        }
    }

    /// The total number of volumes of all owners, if vCenter reports it. Needs `Cns.Searchable` on
    /// the root folder.
    pub async fn volume_count(&self) -> Result<Option<i64>, Error> {
        let cursor = Some(Cursor { offset: 0, limit: 1, total: None });
        let filter = QueryFilter { cursor, ..QueryFilter::default() };
        let method = Method::read("CnsQueryVolume").on(Service::Vsan);
        let manager = MoRef::new(MANAGER.0, MANAGER.1);
        let page: QueryResult = self.call(method, &manager, &[("filter", &filter)]).await?;
        Ok(page.cursor.and_then(|cursor| cursor.total))
    }

    /// Lists all volumes that match `filter` in one reply. `select` names the fields to return
    /// besides the ids: `VOLUME_NAME`, `HEALTH_STATUS`, ….
    pub async fn query_all_volumes(
        &self,
        filter: &QueryFilter,
        select: &[&str],
    ) -> Result<Vec<Volume>, Error> {
        let selection = QuerySelection { names: select.iter().map(ToString::to_string).collect() };
        let args: &[(&str, &dyn Encode)] = &[("filter", filter), ("selection", &selection)];
        let method = Method::read("CnsQueryAllVolume").on(Service::Vsan);
        let result: QueryResult =
            self.call(method, &MoRef::new(MANAGER.0, MANAGER.1), args).await?;
        Ok(result.volumes)
    }

    /// The ids of all container clusters that own volumes, sorted and unique.
    pub async fn volume_owners(&self) -> Result<Vec<String>, Error> {
        let volumes = self.query_volumes(&QueryFilter::default()).await?;
        let mut owners: Vec<String> =
            volumes.iter().flat_map(Volume::owners).map(str::to_owned).collect();
        owners.sort_unstable();
        owners.dedup();
        Ok(owners)
    }

    /// The disks behind volumes.
    pub async fn volume_info(
        &self,
        volumes: &[VolumeId],
        within: Duration,
    ) -> Result<Vec<VolumeOutcome<VolumeInfo>>, Error> {
        self.require_version(ApiVersion::V7_0U2, "7.0 Update 2", "report the disks of volumes")?;
        let args: &[(&str, &dyn Encode)] = &[("volumes", &volumes)];
        // A task that only reads.
        let task = self.start_cns_task::<VolumeInfo>(Method::read("CnsQueryVolumeInfo"), args);
        task.await?.wait(within).await
    }

    /// Lists snapshots of volumes, page by page. An empty `specs` means all volumes.
    pub async fn query_volume_snapshots(
        &self,
        specs: &[SnapshotQuerySpec],
        within: Duration,
    ) -> Result<Vec<SnapshotEntry>, Error> {
        const NAME: &str = "CnsQuerySnapshots";
        self.require_version(ApiVersion::V7_0U3, "7.0 Update 3", "list snapshots of volumes")?;
        let mut found: Vec<SnapshotEntry> = Vec::new();
        loop {
            let cursor = Some(Cursor::page_at(found.len(), SNAPSHOT_PAGE));
            let filter = SnapshotQueryFilter { specs: specs.to_vec(), cursor };
            let method = Method::read(NAME).on(Service::Vsan);
            let task = self
                .call(
                    method,
                    &MoRef::new(MANAGER.0, MANAGER.1),
                    &[("snapshotQueryFilter", &filter)],
                )
                .await?;
            let value = self.task(NAME, task).wait(within).await?;
            let missing = XmlError::Missing { of: "the task", field: "result" };
            let read = value.ok_or(missing).and_then(|value| value.read::<SnapshotQueryResult>());
            let page = read.map_err(|source| self.cns_unreadable(NAME, source))?;
            let got = page.entries.len();
            // A page with the same first entry is the previous page again.
            let is_new = match (page.entries.first(), found.len().checked_sub(SNAPSHOT_PAGE)) {
                (Some(first), Some(at)) => found.get(at) != Some(first),
                _ => true,
            };
            if is_new {
                found.extend(page.entries);
            }
            let total = page.cursor.and_then(|cursor| cursor.total);
            if !is_new || !has_next_page(SNAPSHOT_PAGE, got, found.len(), total) {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hand-made data: the simulator always reports the total.
    #[test]
    fn all_pages_are_read_with_and_without_a_total() {
        let has_next_page = |got, read, total| has_next_page(PAGE, got, read, total);
        assert!(has_next_page(PAGE, PAGE, Some(750)), "the next page has the rest");
        assert!(!has_next_page(250, 750, Some(750)));
        assert!(has_next_page(PAGE, PAGE, None), "a full page may not be the last");
        assert!(!has_next_page(250, 750, None));
        assert!(
            !has_next_page(0, 0, None) && !has_next_page(0, PAGE, Some(750)),
            "an empty page is the last"
        );
        assert!(has_next_page(100, 100, Some(750)), "a service may choose smaller pages");
        assert!(has_next_page(PAGE, PAGE, Some(-1)), "a negative total means nothing");
    }
}
