//! The metadata loop: vCenter shows the PersistentVolume, claim and pods of each volume.
//!
//! ```text
//!   PersistentVolumes, claims, pods ──► queue ──► desired entries ─┐
//!                                                                  ├─► difference ──► CnsUpdateVolumeMetadata
//!   CNS, every 30 minutes ──────────────────────► known entries ───┘
//! ```
//!
//! A disk that an admin wrote a PersistentVolume for becomes a CNS volume. All this is what the Go driver's syncer does,
//! with one exception: it never deletes or unregisters a volume, and it never
//! removes an entry that another cluster may own, not even one of a cluster with the same cluster id.

pub mod entities;
mod pods;
mod register;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use rand::RngExt as _;
use runtime::{backoff::Backoff, lease::Mandate, queue::Queue};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;
use vsphere::{
    Error as VcenterError, FaultKind,
    cns::{EntityMetadata, QueryFilter, VolumeId, VolumeMetadata, VolumeMetadataUpdate},
};

use self::{
    entities::{Entry, Objects, Owner},
    pods::PodIndex,
};
use super::{
    context::Shared,
    events::{ObjectReference, Source},
    model::{Claim, Metadata as _, Volume},
    provision::volume::name_for,
    queue::{FIRST_RETRY, MAX_RETRY},
};
use crate::{
    metrics::LoopMetrics,
    vcenters::{Connection, Unavailable, Vcenters},
};

/// Upstream's period of a full sync.
pub const FULL_SYNC: Duration = Duration::from_mins(30);
/// Changes within this time share one call.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Volumes in one call.
const MAX_BATCH: usize = 100;
const TASK_TIMEOUT: Duration = Duration::from_mins(2);
/// Its uid is the uid of the cluster.
const CLUSTER_NAMESPACE: &str = "kube-system";

pub struct MetadataSync {
    context: Shared,
    vcenters: Vcenters,
    mandate: Mandate,
    metrics: LoopMetrics,
    /// The names of PersistentVolumes that changed.
    changed: Queue,
    backoff: Backoff<Arc<str>>,
    pods: PodIndex,
    pods_ready: watch::Sender<bool>,
    /// The entries in CNS of each volume of this cluster, by handle.
    known: Mutex<HashMap<String, Vec<Entry>>>,
}

/// The outcome of some updates.
#[derive(Default)]
struct Sent {
    /// The handles to try again.
    failed: Vec<String>,
    /// CNS does not know these volumes.
    unknown: Vec<Update>,
}

/// An update of one volume.
struct Update {
    handle: String,
    changes: Vec<EntityMetadata>,
    /// The entries in CNS after the update.
    after: Vec<Entry>,
}

impl MetadataSync {
    pub fn new(
        context: Shared,
        vcenters: Vcenters,
        mandate: Mandate,
        metrics: LoopMetrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            context,
            vcenters,
            mandate,
            changed: Queue::observed(metrics.depth("metadata")),
            metrics,
            backoff: Backoff::new(FIRST_RETRY, MAX_RETRY),
            pods: PodIndex::default(),
            pods_ready: watch::Sender::new(false),
            known: Mutex::default(),
        })
    }

    pub fn volume_changed(&self, volume: &Volume) {
        if volume.source_of(&self.context.settings.driver).is_some() {
            self.changed.add(volume.name());
        }
    }

    pub fn claim_changed(&self, claim: &Claim) {
        if let Some(volume) = claim.spec.volume_name.as_deref().filter(|name| !name.is_empty())
            && let Some(volume) = self.context.cluster.volume(volume)
        {
            self.volume_changed(&volume);
        }
    }

    fn pods_changed(&self, claim: &str) {
        if let Some((namespace, name)) = claim.split_once('/')
            && let Some(claim) = self.context.cluster.claim(namespace, name)
        {
            self.claim_changed(&claim);
        }
    }

    /// Forgets a volume whose PersistentVolume is gone.
    pub fn volume_gone(&self, volume: &Volume) {
        if let Some(source) = volume.source_of(&self.context.settings.driver) {
            self.known().remove(&source.volume_handle);
        }
    }

    /// Runs until `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let client = self.context.writer.client();
        let ready = || {
            self.pods_ready.send_replace(true);
        };
        let following = self.pods.follow(client, |claim| self.pods_changed(claim), ready);
        let syncing = self.sync();
        let both = async { tokio::join!(following, syncing) };
        stop.run_until_cancelled(Box::pin(both)).await;
    }

    async fn sync(&self) {
        // A pod that is not listed yet would look as if it were gone. The sender lives as long as `self`.
        let _ = self.pods_ready.subscribe().wait_for(|ready| *ready).await;
        let uid = self.cluster_uid().await;
        loop {
            let since = Instant::now();
            let synced = self.sync_all(uid.as_ref()).await;
            self.metrics.full_sync_ended(since, synced.is_err());
            let interval = match synced {
                Ok(()) => {
                    self.backoff.succeeded(&"full sync".into());
                    // Clusters that started together do not sync together.
                    self.context.settings.full_sync.mul_f64(rand::rng().random_range(0.8..=1.0))
                }
                Err(reason) => {
                    tracing::warn!(reason, "the metadata of volumes cannot be compared with CNS");
                    self.backoff.failed("full sync".into())
                }
            };
            let until = Instant::now() + interval;
            while let Ok(first) = timeout_at(until, self.changed.next()).await {
                sleep(DEBOUNCE).await;
                self.sync_changed(first, uid.as_ref()).await;
            }
        }
    }

    /// Without the uid, entries of pods that ended while no controller ran stay.
    async fn cluster_uid(&self) -> Option<String> {
        let namespaces = Api::<Namespace>::all(self.context.writer.client());
        match namespaces.get(CLUSTER_NAMESPACE).await {
            Ok(namespace) => namespace.metadata.uid,
            Err(error) => {
                tracing::warn!(%error, "the uid of the cluster cannot be read");
                None
            }
        }
    }

    /// Compares all volumes with CNS and updates those that differ.
    async fn sync_all(&self, uid: Option<&String>) -> Result<(), String> {
        let connections = self.vcenters.all().map_err(|error| error.to_string())?;
        let by_handle = self.volumes_by_handle();
        for connection in &connections {
            let owner = owner(connection, uid);
            let clusters = vec![owner.id.clone()];
            let filter = QueryFilter { clusters, ..QueryFilter::default() };
            let listed = connection.client.query_volumes(&filter).await;
            for volume in listed.map_err(|error| error.error_chain())? {
                // Volumes without a PersistentVolume here may belong to a cluster with the same id.
                if !by_handle.contains_key(&volume.id.id) {
                    continue;
                }
                let in_cns = volume.metadata.map(|metadata| metadata.entities).unwrap_or_default();
                let mut known = self.known();
                let entries = known.entry(volume.id.id).or_default();
                *entries = entities::known(&in_cns, entries, &owner);
            }
        }
        self.known().retain(|handle, _| by_handle.contains_key(handle));
        let failed = self.update(&connections, &by_handle, uid).await;
        for name in failed {
            self.retry(&name);
        }
        Ok(())
    }

    /// Updates the volumes that changed, in as few calls as possible.
    async fn sync_changed(&self, first: Arc<str>, uid: Option<&String>) {
        let mut names = HashSet::from([first]);
        while let Some(name) = self.changed.try_next() {
            names.insert(name);
        }
        let failed = match self.vcenters.all() {
            Ok(connections) => {
                let is_changed = |volumes: &Vec<Arc<Volume>>| {
                    volumes.iter().any(|volume| names.contains(volume.name()))
                };
                let mut by_handle = self.volumes_by_handle();
                by_handle.retain(|_, volumes| is_changed(volumes));
                self.assume_created(&connections, &by_handle, uid);
                self.update(&connections, &by_handle, uid).await
            }
            Err(Unavailable::NoVcenter) => HashSet::new(),
            Err(Unavailable::Vcenter { .. }) => names.iter().map(ToString::to_string).collect(),
        };
        for name in &names {
            if failed.contains(&**name) {
                self.retry(name);
            } else {
                self.backoff.succeeded(name);
            }
            self.changed.done(name);
        }
    }

    fn retry(&self, name: &str) {
        let name: Arc<str> = name.into();
        self.metrics.retries("metadata").inc();
        self.changed.add_at(&name, Instant::now() + self.backoff.failed(name.clone()));
    }

    /// The PersistentVolumes of each handle that is not about to be deleted.
    fn volumes_by_handle(&self) -> BTreeMap<String, Vec<Arc<Volume>>> {
        let driver = &self.context.settings.driver;
        let mut by_handle: BTreeMap<String, Vec<Arc<Volume>>> = BTreeMap::new();
        for volume in self.context.cluster.volumes.state() {
            let is_ending = volume.is_deleting()
                || volume.status.phase == "Released"
                    && volume.spec.persistent_volume_reclaim_policy == "Delete";
            if let Some(source) = volume.source_of(driver).filter(|_| !is_ending) {
                by_handle.entry(source.volume_handle.clone()).or_default().push(volume.clone());
            }
        }
        by_handle
    }

    /// CreateVolume writes the entries of the PersistentVolume and of the claim, without labels. For a volume that is
    /// new since the last full sync, CNS need not be asked.
    fn assume_created(
        &self,
        connections: &[Connection],
        by_handle: &BTreeMap<String, Vec<Arc<Volume>>>,
        uid: Option<&String>,
    ) {
        let Some(owner) = connections.first().map(|connection| owner(connection, uid)) else {
            return;
        };
        for (handle, volumes) in by_handle {
            let mut known = self.known();
            if known.contains_key(handle) {
                continue;
            }
            let [volume] = &volumes[..] else { continue };
            let claim = self.claim_of(volume);
            if claim.as_ref().is_none_or(|claim| name_for(claim.uid()) != volume.name()) {
                continue;
            }
            let (claim, pods) = (claim.as_deref(), Vec::new());
            let mut written = entities::desired(&[Objects { volume, claim, pods }], &owner);
            for entity in &mut written {
                entity.labels.clear();
            }
            let entries = written.iter().map(|entity| Entry::from_entity(entity, &owner)).collect();
            known.insert(handle.clone(), entries);
        }
    }

    fn claim_of(&self, volume: &Volume) -> Option<Arc<Claim>> {
        let reference = volume.spec.claim_ref.as_ref()?;
        let claim = self.context.cluster.claim(&reference.namespace, &reference.name)?;
        volume.is_bound_to(&claim).then_some(claim)
    }

    /// Returns the PersistentVolumes whose update failed.
    async fn update(
        &self,
        connections: &[Connection],
        by_handle: &BTreeMap<String, Vec<Arc<Volume>>>,
        uid: Option<&String>,
    ) -> HashSet<String> {
        let mut failed = HashSet::new();
        for connection in connections {
            let owner = owner(connection, uid);
            let here =
                by_handle.iter().filter(|(handle, _)| belongs(handle, connection, connections));
            let differing =
                here.filter_map(|(handle, volumes)| self.compare(handle, volumes, &owner));
            let mut updates: Vec<Update> = differing.collect();
            while !updates.is_empty() {
                let rest = updates.split_off(updates.len().min(MAX_BATCH));
                let sent = self.send(connection, updates).await;
                let mut handles = sent.failed;
                for update in sent.unknown {
                    let volumes = by_handle.get(&update.handle).map(Vec::as_slice);
                    handles.extend(
                        self.register(connection, volumes.unwrap_or_default(), update).await,
                    );
                }
                for handle in handles {
                    let names = by_handle.get(&handle).into_iter().flatten();
                    failed.extend(names.map(|volume| volume.name().to_owned()));
                }
                updates = rest;
            }
        }
        failed
    }

    /// Registers a static volume that CNS does not know. Returns its handle after a failure.
    async fn register(
        &self,
        connection: &Connection,
        volumes: &[Arc<Volume>],
        update: Update,
    ) -> Option<String> {
        let volume = volumes.iter().find(|volume| register::is_static(volume))?;
        let Update { handle, changes, after } = update;
        let registering = register::register(connection, volume, changes, TASK_TIMEOUT);
        match self.mandate.while_it_holds(registering).await? {
            Ok(()) => {
                tracing::info!(handle, volume = volume.name(), "the disk is registered in CNS");
                self.known().insert(handle, after);
                None
            }
            Err(reason) => {
                let text = format!(
                    "the disk {handle} cannot be registered in CNS: {reason}. Check the volume handle; it is the id of \
                     a first class disk"
                );
                let object = ObjectReference::to(&**volume);
                let events = &self.context.events;
                events.warning(object, Source::Provisioner, "StaticVolumeProvisioningFailed", text);
                Some(handle)
            }
        }
    }

    fn compare(&self, handle: &str, volumes: &[Arc<Volume>], owner: &Owner) -> Option<Update> {
        let claims: Vec<Option<Arc<Claim>>> =
            volumes.iter().map(|volume| self.claim_of(volume)).collect();
        let objects: Vec<Objects<'_>> = volumes
            .iter()
            .zip(&claims)
            .map(|(volume, claim)| Objects {
                volume,
                claim: claim.as_deref(),
                pods: claim.iter().flat_map(|claim| self.pods.names(&claim.path())).collect(),
            })
            .collect();
        let desired = entities::desired(&objects, owner);
        let mut known = self.known();
        let entries = known.get(handle).map(Vec::as_slice).unwrap_or_default();
        let (changes, after) = entities::difference(desired, entries, owner);
        if changes.is_empty() {
            known.insert(handle.to_owned(), after);
            return None;
        }
        Some(Update { handle: handle.to_owned(), changes, after })
    }

    /// Sends updates in one call.
    async fn send(&self, connection: &Connection, updates: Vec<Update>) -> Sent {
        let mut sent = Sent::default();
        match self.call(connection, &updates).await {
            Ok(refused) => {
                for update in updates {
                    match refused.get(&update.handle) {
                        None => {
                            self.metrics.metadata_updates.inc();
                            self.known().insert(update.handle, update.after);
                        }
                        Some(None) => sent.unknown.push(update),
                        Some(Some(reason)) => {
                            let volume = &update.handle;
                            tracing::warn!(volume, reason, "CNS refused the metadata of a volume");
                            sent.failed.push(update.handle);
                        }
                    }
                }
            }
            // One volume may be the reason; alone, the others succeed.
            Err(error) if error.fault().is_some() && updates.len() > 1 => {
                for update in updates {
                    let alone = Box::pin(self.send(connection, vec![update])).await;
                    sent.failed.extend(alone.failed);
                    sent.unknown.extend(alone.unknown);
                }
            }
            Err(error) => {
                let error = error.error_chain();
                tracing::warn!(error, "the metadata of volumes cannot be updated in CNS");
                sent.failed.extend(updates.into_iter().map(|update| update.handle));
            }
        }
        sent
    }

    /// The handles that CNS refused, with the reason; `None` for a volume that CNS does not know.
    async fn call(
        &self,
        connection: &Connection,
        updates: &[Update],
    ) -> Result<HashMap<String, Option<String>>, VcenterError> {
        let cluster = connection.container_cluster();
        let spec = |update: &Update| VolumeMetadataUpdate {
            volume: VolumeId::from(update.handle.as_str()),
            metadata: VolumeMetadata {
                cluster: Some(cluster.clone()),
                entities: update.changes.clone(),
                clusters: vec![cluster.clone()],
            },
        };
        let specs: Vec<_> = updates.iter().map(spec).collect();
        let calling = async {
            let task = connection.client.update_volume_metadata(specs).await?;
            task.wait(TASK_TIMEOUT).await
        };
        let Some(outcomes) = self.mandate.while_it_holds(calling).await else {
            // This process no longer leads, and the next leader compares everything.
            let reason = Some("this instance is no longer the leader".to_owned());
            let each = updates.iter().map(|update| (update.handle.clone(), reason.clone()));
            return Ok(each.collect());
        };
        let mut refused = HashMap::new();
        for (position, outcome) in outcomes?.into_iter().enumerate() {
            let Err(fault) = outcome.result else { continue };
            let named = outcome.volume.map(|volume| volume.id);
            let handle = named.or_else(|| Some(updates.get(position)?.handle.clone()));
            let is_unknown = fault.chain().any(|fault| {
                matches!(fault.kind, FaultKind::CnsVolumeNotFound { .. } | FaultKind::NotFound)
            });
            let reason = (!is_unknown).then(|| fault.to_string());
            refused.extend(handle.map(|handle| (handle, reason)));
        }
        Ok(refused)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Vec<Entry>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owner(connection: &Connection, uid: Option<&String>) -> Owner {
    Owner { id: connection.cluster_id().to_owned(), uid: uid.cloned() }
}

/// Whether the volume is in this vCenter, as far as known.
fn belongs(handle: &str, connection: &Connection, all: &[Connection]) -> bool {
    all.len() == 1 || connection.volumes.get(handle).is_some()
}
