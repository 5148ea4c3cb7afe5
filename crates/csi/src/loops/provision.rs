//! The provision loop: claims get volumes.
//!
//! The controller-manager asks for a volume with an annotation on the claim. The loop sends CreateVolume and creates
//! the PersistentVolume; the controller-manager binds it. Both have the name `pvc-<uid of the claim>`: after a
//! restart the loop repeats the call under that name, and the driver finds the volume it made before.

pub mod outcome;
pub mod parameters;
pub mod request;
pub mod source;
pub mod topology;
pub mod volume;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::{core::v1::PersistentVolume, storage::v1::StorageClass};
use serde_json::json;
use tokio::time::Instant;
use tonic::{Request, Status};

use self::{
    outcome::{Failure, failure},
    request::{Draft, Requirements},
    source::{DataSource, data_source},
};
use super::{
    attributes_class,
    context::{ClusterTopology, Shared},
    events::{ObjectReference, Source},
    model::{Claim, Metadata as _},
    names::{CLONING_PROTECTION, SELECTED_NODE},
    queue::{Next, Reconcile},
    writer::{after_failure, already_exists, remove_finalizers},
};
use crate::{
    proto::csi::{
        CreateVolumeResponse, DeleteVolumeRequest, Volume as CsiVolume,
        controller_service_capability::rpc::Type as Rpc,
    },
    records::PlannedVolume,
};

/// How long a request that can never succeed is not repeated.
const INFEASIBLE_PAUSE: Duration = Duration::from_mins(5);

pub struct Provisioner {
    context: Shared,
    /// Written into each PersistentVolume.
    identity: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Requests without a final answer. They are repeated unchanged.
    pending: HashMap<String, Arc<Pending>>,
    /// Claims whose class cannot work, with the uid of the class.
    infeasible: HashMap<String, (String, Instant)>,
    /// Volumes that were created and that the watch has not delivered yet.
    created: HashSet<String>,
}

struct Pending {
    claim: Arc<Claim>,
    class: Arc<StorageClass>,
    source: DataSource,
    draft: Draft,
}

/// Why a claim gets no volume now.
struct Rejected {
    message: String,
    reschedule: bool,
}

impl From<String> for Rejected {
    fn from(message: String) -> Self {
        Self { message, reschedule: false }
    }
}

/// The key of a claim: `namespace/name/uid`. Work on a deleted claim can continue while another one has its name.
pub fn key(claim: &Claim) -> String {
    format!("{}/{}", claim.path(), claim.uid())
}

impl Provisioner {
    pub fn new(context: Shared) -> Self {
        let now = jiff::Timestamp::now().as_millisecond();
        let identity =
            format!("{now}-{}-{}", rand::random::<u16>() % 10_000, context.settings.driver);
        Self { context, identity, state: Mutex::default() }
    }

    /// A volume is in the view of the watches, or gone. Returns whether this loop made it just now.
    pub fn volume_seen(&self, name: &str) -> bool {
        self.state().created.remove(name)
    }

    /// Whether a request for the volume of this name has no final answer yet, or its PersistentVolume is not seen yet.
    pub fn is_working_on(&self, name: &str) -> bool {
        let state = self.state();
        let uid = name.strip_prefix("pvc-").unwrap_or(name);
        let is_of = |key: &String| key.rsplit('/').next() == Some(uid);
        state.created.contains(name) || state.pending.keys().any(is_of)
    }

    async fn provision(&self, key: &str) -> Next {
        let pending = self.state().pending.get(key).cloned();
        if let Some(pending) = pending {
            return self.create(key, &pending).await;
        }
        let Some((claim, class)) = self.due(key) else { return Next::OnChange };
        if let Some(pause) = self.pause_of_infeasible(key, &class) {
            return Next::After(pause);
        }
        let provisioning =
            format!("External provisioner is provisioning volume for claim \"{}\"", claim.path());
        let source = match data_source(&claim) {
            Ok(DataSource::Populator(_)) => {
                let text = "Assuming an external populator will provision the volume".to_owned();
                self.report(&claim, false, "Provisioning", text);
                return Next::OnChange;
            }
            Ok(source) => source,
            Err(message) => return self.reject(&claim, message.into()).await,
        };
        self.report(&claim, false, "Provisioning", provisioning);
        match self.draft(&claim, &class, &source).await {
            Ok(draft) => {
                let pending = Arc::new(Pending { claim, class, source, draft });
                self.create(key, &pending).await
            }
            Err(rejected) => self.reject(&claim, rejected).await,
        }
    }

    /// The claim of a key, if it still exists.
    fn claim(&self, key: &str) -> Option<Arc<Claim>> {
        let mut parts = key.splitn(3, '/');
        let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
        self.context.cluster.claim(namespace, name).filter(|claim| claim.uid() == uid)
    }

    /// The claim of a key and its class, if a volume must be made now.
    fn due(&self, key: &str) -> Option<(Arc<Claim>, Arc<StorageClass>)> {
        let cluster = &self.context.cluster;
        let driver = &self.context.settings.driver;
        let claim = self.claim(key)?;
        if !request::is_requested(&claim, driver) {
            return None;
        }
        // A class that appears later queues its claims.
        let class = cluster.class(claim.spec.storage_class_name.as_deref()?)?;
        if class.provisioner != *driver || request::waits_for_consumer(&claim, &class) {
            return None;
        }
        let volume = volume::name_for(claim.uid());
        let exists = cluster.volume(&volume).is_some() || self.state().created.contains(&volume);
        (!exists).then_some((claim, class))
    }

    fn pause_of_infeasible(&self, key: &str, class: &StorageClass) -> Option<Duration> {
        let mut state = self.state();
        let (class_uid, since) = state.infeasible.get(key)?;
        let rest = INFEASIBLE_PAUSE.checked_sub(since.elapsed());
        let same = class_uid == class.uid();
        if !same || rest.is_none() {
            state.infeasible.remove(key);
        }
        rest.filter(|_| same)
    }

    /// Makes the request, after all checks.
    async fn draft(
        &self,
        claim: &Arc<Claim>,
        class: &Arc<StorageClass>,
        source: &DataSource,
    ) -> Result<Draft, Rejected> {
        let context = &self.context;
        let mutable_parameters = self.mutable_parameters(claim).await?;
        let content_source = context.content_source(claim, source).await?;
        let topology = if context.settings.topology {
            let nodes =
                ClusterTopology { cluster: &context.cluster, driver: &context.settings.driver };
            let selected = request::selected_node(claim).filter(|_| request::is_delayed(class));
            let options = context.settings.topology_options;
            topology::requirement(claim.name(), class, selected, &nodes, options).map_err(|e| {
                Rejected { message: e.message, reschedule: e.reschedule && selected.is_some() }
            })?
        } else {
            None
        };
        let single_node_modes = context.capabilities.has(Rpc::SingleNodeMultiWriter);
        let draft = request::draft(
            claim,
            class,
            &context.settings,
            single_node_modes,
            Requirements { topology, content_source, mutable_parameters },
        );
        Ok(draft?)
    }

    async fn mutable_parameters(&self, claim: &Claim) -> Result<HashMap<String, String>, String> {
        let name = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return Ok(HashMap::new());
        }
        if !self.context.capabilities.has(Rpc::ModifyVolume) {
            return Err(format!(
                "the claim names the VolumeAttributesClass {name}, but the driver cannot modify volumes: remove it"
            ));
        }
        let class = attributes_class::get(self.context.writer.client(), name).await;
        let class = class
            .map_err(|error| format!("the VolumeAttributesClass {name} cannot be read: {error}"))?
            .ok_or_else(|| format!("the VolumeAttributesClass {name} does not exist"))?;
        if class.driver_name != self.context.settings.driver {
            return Err(format!(
                "the VolumeAttributesClass {name} belongs to the driver {}: use one of this driver",
                class.driver_name
            ));
        }
        Ok(class.parameters)
    }

    /// Sends the request. It stays pending until its answer is final and the volume is saved.
    async fn create(&self, key: &str, pending: &Arc<Pending>) -> Next {
        self.state().pending.insert(key.into(), pending.clone());
        let calls = &self.context.calls;
        let mut request = Request::new(pending.draft.request.clone());
        // For the next leader, should this process end before the PersistentVolume exists and the claim be deleted.
        let planned = serde_json::to_string(&self.plan(pending)).ok().map(PlannedVolume);
        if let Some(planned) = planned {
            request.extensions_mut().insert(planned);
        }
        let answer = calls.send(calls.service().create_volume(request)).await;
        let answer = answer.map_err(|status| (status, None));
        match answer.and_then(|answer| checked(answer, &pending.draft)) {
            Ok(volume) => self.save(key, pending, &volume).await,
            Err((status, useless)) => {
                if let Some(volume) = useless {
                    self.discard(volume).await;
                }
                self.failed(key, pending, &status).await
            }
        }
    }

    /// Deletes a volume that does not fit the request.
    async fn discard(&self, volume: CsiVolume) {
        let calls = &self.context.calls;
        let request =
            DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() };
        let deleted = calls.send(calls.service().delete_volume(Request::new(request))).await;
        if let Err(status) = deleted {
            let handle = volume.volume_id;
            tracing::warn!(
                handle,
                "a volume that does not fit its claim remains: {}",
                status.message()
            );
        }
    }

    fn plan(&self, pending: &Pending) -> PersistentVolume {
        let Pending { claim, class, draft, .. } = pending;
        volume::plan(claim, class, &draft.parameters, draft.requested, &self.identity)
    }

    async fn save(&self, key: &str, pending: &Pending, volume: &CsiVolume) -> Next {
        let Pending { claim, source, draft, .. } = pending;
        let mut object = self.plan(pending);
        volume::complete(&mut object, volume);
        let name = draft.request.name.clone();
        self.state().created.insert(name.clone());
        match self.context.writer.create(&object).await {
            Ok(_) => {}
            Err(error) if already_exists(&error) => {}
            Err(error) => {
                self.state().created.remove(&name);
                let text = format!("the PersistentVolume {name} cannot be created: {error}");
                self.report(claim, true, "ProvisioningFailed", text);
                return Next::Retry;
            }
        }
        self.finish(key);
        let text = format!("Successfully provisioned volume {name}");
        self.report(claim, false, "ProvisioningSucceeded", text);
        if let DataSource::Snapshot(snapshot) = source
            && let Err(error) = self.context.release_snapshot(claim, snapshot).await
        {
            tracing::warn!(%error, snapshot, "the protection of a snapshot cannot be removed");
        }
        Next::OnChange
    }

    async fn failed(&self, key: &str, pending: &Pending, status: &Status) -> Next {
        let claim = &pending.claim;
        let delayed = request::is_delayed(&pending.class);
        let has_node = delayed && request::selected_node(claim).is_some();
        let has_topology = pending.draft.request.accessibility_requirements.is_some();
        let outcome = failure(status, has_topology, has_node);
        if outcome != Failure::InProgress {
            self.finish(key);
        }
        let reason = format!(
            "failed to provision volume with StorageClass \"{}\": {}",
            pending.class.name(),
            status.message()
        );
        match outcome {
            Failure::InProgress | Failure::Final => {
                self.report(claim, true, "ProvisioningFailed", reason);
                Next::Retry
            }
            Failure::Infeasible => {
                let uid = pending.class.uid().to_owned();
                self.state().infeasible.insert(key.into(), (uid, Instant::now()));
                let text = format!(
                    "Volume provisioning failed with infeasible error. Retries will be delayed. {reason}"
                );
                self.report(claim, true, "ProvisioningFailed", text);
                Next::After(INFEASIBLE_PAUSE)
            }
            Failure::Reschedule => {
                self.reject(claim, Rejected { message: reason, reschedule: true }).await
            }
        }
    }

    async fn reject(&self, claim: &Claim, rejected: Rejected) -> Next {
        self.report(claim, true, "ProvisioningFailed", rejected.message);
        if rejected.reschedule { self.reschedule(claim).await } else { Next::Retry }
    }

    /// Lets the scheduler select another node.
    async fn reschedule(&self, claim: &Claim) -> Next {
        let patch = json!({"metadata": {"annotations": {SELECTED_NODE: null}}});
        match self.context.writer.replace_fields(claim, patch).await {
            Ok(_) => Next::OnChange,
            Err(error) => after_failure(&error),
        }
    }

    /// Lets the source of a clone be deleted, once no claim needs it any more.
    async fn release_clone_source(&self, claim: &Claim) -> Next {
        let needed = self.context.cluster.claims.find(|other| {
            other.metadata.namespace == claim.metadata.namespace
                && other.spec.volume_name.as_deref().unwrap_or_default().is_empty()
                && data_source(other) == Ok(DataSource::Claim(claim.name().into()))
        });
        if needed.is_some() {
            // The bound claim does not queue its source.
            return Next::Retry;
        }
        let patch = remove_finalizers(&[CLONING_PROTECTION]);
        match self.context.writer.patch_namespaced(claim, patch).await {
            Ok(_) => Next::OnChange,
            Err(error) => after_failure(&error),
        }
    }

    fn finish(&self, key: &str) {
        self.state().pending.remove(key);
    }

    fn report(&self, claim: &Claim, is_warning: bool, reason: &'static str, text: String) {
        let object = ObjectReference::to(claim);
        if is_warning {
            self.context.events.warning(object, Source::Provisioner, reason, text);
        } else {
            self.context.events.normal(object, Source::Provisioner, reason, text);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares the answer with the request. On an error, also returns the volume that is of no use.
fn checked(
    answer: CreateVolumeResponse,
    draft: &Draft,
) -> Result<CsiVolume, (Status, Option<CsiVolume>)> {
    let Some(volume) = answer.volume else {
        return Err((Status::internal("the driver returned no volume"), None));
    };
    if volume.capacity_bytes != 0 && volume.capacity_bytes < draft.requested.0 {
        let text = format!(
            "the driver made a volume of {} bytes, but the claim requests {}",
            volume.capacity_bytes, draft.requested
        );
        return Err((Status::aborted(text), Some(volume)));
    }
    if draft.request.volume_content_source.is_some() && volume.content_source.is_none() {
        let text = "the driver made an empty volume, but the claim names a data source";
        return Err((Status::aborted(text), Some(volume)));
    }
    Ok(volume)
}

impl Reconcile for Provisioner {
    async fn reconcile(&self, key: &str) -> Next {
        if let Some(claim) = self.claim(key) {
            if !self.context.writer.is_current(&*claim) {
                return Next::Conflict;
            }
            if claim.is_deleting() && claim.has_finalizer(CLONING_PROTECTION) {
                return self.release_clone_source(&claim).await;
            }
        }
        self.provision(key).await
    }

    fn known_version(&self, key: &str) -> u64 {
        let claim = self.claim(key);
        claim.map_or(0, |claim| self.context.writer.known_version(&*claim))
    }
}

/// Whether a change of the claim can concern this loop.
pub fn concerns(claim: &Claim, driver: &str) -> bool {
    request::is_requested(claim, driver)
        || (claim.is_deleting() && claim.has_finalizer(CLONING_PROTECTION))
}
