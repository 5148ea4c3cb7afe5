//! The loops that do the work of the upstream sidecars and of the Go driver's syncer.
//!
//! ```text
//!   Kubernetes API ──watch──► cluster ──► provision ─┐
//!         ▲                     │    ├──► reclaim    │
//!         │                     │    ├──► attach     ├──► rpc ──► Controller service
//!         │                     │    ├──► resize     │
//!         │                     │    ├──► modify     │
//!         │                     │    ├──► snapshot   │
//!         │                     │    ├──► orphans    │
//!         │                     │    ├──► capacity  ─┘
//!         │                     │    └──► metadata  ────► CNS
//!         └── writer, events ◄──┴───────────┘
//! ```
//!
//! `cluster` keeps one view of the cluster for all loops. A change queues the objects that it concerns in the queues
//! of the loops (`queue`). Each loop decides with pure functions and writes only the difference (`writer`). Writes
//! and calls happen only while this process leads.

pub mod attach;
pub mod attempts;
pub mod attributes_class;
pub mod capacity;
pub mod cluster;
pub mod conditions;
pub mod context;
pub mod events;
pub mod metadata;
pub mod model;
pub mod modify;
pub mod names;
pub mod orphans;
pub mod permissions;
pub mod provision;
pub mod quantity;
pub mod queue;
pub mod reclaim;
pub mod resize;
pub mod rpc;
pub mod snapshot;
pub mod writer;

use std::sync::Arc;

use kube::Client;
use runtime::{lease::Mandate, tasks::Tasks};
use snafu::{ResultExt, Snafu};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::{
    attach::Attacher,
    capacity::CapacityPublisher,
    cluster::{Change, Cluster, Gone},
    context::{Context, Shared},
    events::Events,
    metadata::MetadataSync,
    model::{Claim, Metadata as _},
    modify::Modifier,
    orphans::{Creations, OrphanFinder},
    provision::Provisioner,
    queue::{ANY, Next, Queue, Reconcile},
    reclaim::Reclaimer,
    resize::Resizer,
    rpc::Calls,
    snapshot::Snapshotter,
    writer::Writer,
};
pub use self::{
    context::{CapacitySettings, Settings},
    provision::topology::Options as TopologyOptions,
};
use crate::{
    metrics::LoopMetrics,
    proto::csi::{controller_server::Controller, controller_service_capability::rpc::Type as Rpc},
    vcenters::Vcenters,
};

#[derive(Debug, Snafu)]
pub enum Error {
    #[snafu(display("the Controller service does not report its capabilities: {}", source.message()))]
    Capabilities {
        #[snafu(source(from(tonic::Status, Box::new)))]
        source: Box<tonic::Status>,
    },

    #[snafu(display("a loop ended"))]
    Ended { source: runtime::tasks::Ended },
}

/// The services that the loops use.
pub struct Services {
    pub controller: Arc<dyn Controller>,
    /// The recorded creations; without them, creations whose claim is gone are not finished.
    pub creations: Option<Arc<dyn Creations>>,
    /// The vCenters; without them, CNS learns nothing about claims and pods.
    pub vcenters: Option<Vcenters>,
    pub metrics: LoopMetrics,
}

impl Services {
    /// Only the part that the sidecars need too.
    pub fn with_controller(controller: Arc<dyn Controller>) -> Self {
        Self { controller, creations: None, vcenters: None, metrics: LoopMetrics::default() }
    }
}

/// Runs all loops until `shutdown` is cancelled, and then lets running operations finish.
///
/// The caller holds the leader election's Lease: `mandate` is its mandate, and `shutdown` is cancelled when the
/// leadership is lost. Nothing is written and no call is sent after the mandate has ended.
pub async fn run(
    client: Client,
    services: Services,
    settings: Settings,
    mandate: Mandate,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let calls = Calls::new(services.controller.clone(), mandate.clone(), settings.call_timeout);
    let capabilities = calls.capabilities().await.context(CapabilitiesSnafu)?;
    let (events, sending) =
        Events::new(client.clone(), mandate.clone(), &settings.driver, &settings.identity);
    let (cluster, watches) = Cluster::new(&settings.driver, settings.topology);
    let writer = Writer::new(client.clone(), mandate.clone());
    let context = Arc::new(Context { settings, cluster, writer, calls, capabilities, events });
    let loops = Loops::new(&context, services, mandate);
    let mut background = Tasks::default();
    background.spawn("events", sending);
    let route = {
        let loops = loops.clone();
        move |change| loops.route(change)
    };
    background.spawn("watches", watches.run(client, route));
    let ready = context.cluster.ready(context.settings.topology);
    if shutdown.run_until_cancelled(ready).await.is_none() {
        return Ok(());
    }
    tracing::info!(
        claims = context.cluster.claims.len(),
        volumes = context.cluster.volumes.len(),
        attachments = context.cluster.attachments.len(),
        "the loops start"
    );
    let mut working = loops.start(&shutdown);
    tokio::select! {
        // The loops end because of the shutdown: that is no error.
        biased;
        () = shutdown.cancelled() => {}
        Some(source) = background.first_to_end() => return Err(Error::Ended { source }),
        Some(source) = working.first_to_end() => return Err(Error::Ended { source }),
    }
    working.all_to_end().await;
    Ok(())
}

/// The loops with their queues. Clones share them.
#[derive(Clone)]
struct Loops {
    context: Shared,
    provisioner: Arc<Provisioner>,
    attacher: Arc<Attacher>,
    changes: Arc<ClaimChanges>,
    contents: Arc<Queue>,
    capacity_changed: Arc<Notify>,
    bound_claims: Arc<Queue>,
    claims: Arc<Queue>,
    volumes: Arc<Queue>,
    attachments: Arc<Queue>,
    metadata: Option<Arc<MetadataSync>>,
    creations: Option<Arc<dyn Creations>>,
    metrics: LoopMetrics,
}

impl Loops {
    fn new(context: &Shared, services: Services, mandate: Mandate) -> Self {
        let metrics = services.metrics;
        let queue = |name| Arc::new(Queue::new(name, &metrics));
        let metadata = services
            .vcenters
            .map(|vcenters| MetadataSync::new(context.clone(), vcenters, mandate, metrics.clone()));
        Self {
            context: context.clone(),
            provisioner: Arc::new(Provisioner::new(context.clone())),
            attacher: Arc::new(Attacher::new(context.clone())),
            changes: Arc::new(ClaimChanges::new(context)),
            bound_claims: queue("change"),
            contents: queue("snapshot"),
            capacity_changed: Arc::default(),
            claims: queue("provision"),
            volumes: queue("reclaim"),
            attachments: queue("attach"),
            metadata,
            creations: services.creations,
            metrics,
        }
    }

    fn start(&self, stop: &CancellationToken) -> Tasks {
        let concurrency = self.context.settings.concurrency;
        let mut tasks = Tasks::default();
        let provisioner = self.provisioner.clone();
        tasks.spawn("provision", self.claims.clone().work(provisioner, concurrency, stop.clone()));
        let reclaimer = Arc::new(Reclaimer::new(self.context.clone()));
        tasks.spawn("reclaim", self.volumes.clone().work(reclaimer, concurrency, stop.clone()));
        let attacher = self.attacher.clone();
        tasks.spawn("attach", self.attachments.clone().work(attacher, concurrency, stop.clone()));
        let changes = self.changes.clone();
        let resizing = self.bound_claims.clone().work(changes, concurrency, stop.clone());
        tasks.spawn("resize and modify", resizing);
        let snapshotter = Arc::new(Snapshotter::new(self.context.clone()));
        tasks.spawn("snapshot", self.contents.clone().work(snapshotter, concurrency, stop.clone()));
        if self.context.capabilities.has(Rpc::ListVolumesPublishedNodes) {
            tasks.spawn("attachments", self.clone().compare_attachments(stop.clone()));
        }
        if let Some(settings) = self.context.settings.capacity.clone()
            && self.context.capabilities.has(Rpc::GetCapacity)
        {
            let trigger = self.capacity_changed.clone();
            let publisher = CapacityPublisher::new(self.context.clone(), settings, trigger);
            tasks.spawn("capacity", publisher.run(stop.clone()));
        }
        if let Some(metadata) = self.metadata.clone() {
            tasks.spawn("metadata", metadata.run(stop.clone()));
        }
        if let Some(creations) = self.creations.clone() {
            let (context, provisioner) = (self.context.clone(), self.provisioner.clone());
            let metrics = self.metrics.clone();
            let finder = OrphanFinder { context, provisioner, creations, metrics };
            tasks.spawn("orphans", finder.run(stop.clone()));
        }
        tasks
    }

    /// Finds disks that somebody detached in vCenter, now and then.
    async fn compare_attachments(self, stop: CancellationToken) {
        let comparing = async {
            loop {
                let lost = self.attacher.find_lost().await;
                for attachment in &lost {
                    self.attachments.add(attachment, ANY);
                }
                tokio::time::sleep(self.context.settings.comparison_interval).await;
            }
        };
        stop.run_until_cancelled(comparing).await;
    }

    /// Queues the objects that a change concerns.
    fn route(&self, change: Change) {
        let driver = &self.context.settings.driver;
        match change {
            Change::Claim(claim) => {
                if let Some(metadata) = &self.metadata {
                    metadata.claim_changed(&claim);
                }
                if provision::concerns(&claim, driver) {
                    self.claims.add(&provision::key(&claim), claim.revision());
                }
                if ClaimChanges::concerns(&claim) {
                    self.bound_claims.add(&claim.path(), claim.revision());
                }
            }
            Change::Volume(volume) => {
                if let Some(metadata) = &self.metadata {
                    metadata.volume_changed(&volume);
                }
                if self.provisioner.volume_seen(volume.name()) {
                    self.capacity_changed.notify_one();
                }
                if reclaim::concerns(&volume, driver) {
                    self.volumes.add(volume.name(), volume.revision());
                }
                if let Some(reference) = &volume.spec.claim_ref
                    && let Some(claim) =
                        self.context.cluster.claim(&reference.namespace, &reference.name)
                    && ClaimChanges::concerns(&claim)
                {
                    self.bound_claims.add(&claim.path(), ANY);
                }
            }
            Change::Attachment(attachment) => {
                if attach::step(&attachment, driver) != attach::Step::Nothing {
                    self.attachments.add(attachment.name(), attachment.revision());
                }
            }
            // Claims wait for their class.
            Change::Class(class) => {
                self.capacity_changed.notify_one();
                let of_class = self.context.cluster.claims.state_filter(|claim| {
                    claim.spec.storage_class_name.as_deref() == Some(class.as_str())
                        && provision::concerns(claim, driver)
                });
                for claim in &of_class {
                    self.claims.add(&provision::key(claim), ANY);
                }
            }
            Change::CsiNode(node) => {
                self.capacity_changed.notify_one();
                let waiting = self.attacher.registered(&node);
                for attachment in &waiting {
                    self.attachments.add(attachment, ANY);
                }
            }
            Change::Content(content) => {
                if snapshot::step(&content, driver) != snapshot::Step::Nothing {
                    self.contents.add(content.name(), content.revision());
                }
            }
            Change::Gone(gone) => self.forget(&gone),
        }
    }

    fn forget(&self, gone: &Gone) {
        match gone {
            Gone::Claim(claim) => {
                self.context.writer.forget(claim.uid());
                self.changes.forget(claim.uid());
                if let Some(metadata) = &self.metadata {
                    metadata.claim_changed(claim);
                }
            }
            Gone::Content(content) => self.context.writer.forget(content.uid()),
            Gone::Volume(volume) => {
                self.context.writer.forget(volume.uid());
                self.provisioner.volume_seen(volume.name());
                self.capacity_changed.notify_one();
                if let Some(metadata) = &self.metadata {
                    metadata.volume_gone(volume);
                }
            }
            Gone::Attachment(attachment) => {
                self.context.writer.forget(attachment.uid());
                // Its volume may wait for the detach.
                if let Some(volume) = &attachment.spec.source.persistent_volume_name {
                    self.volumes.add(volume, ANY);
                }
            }
        }
    }
}

/// Resizes and modifies the volumes of bound claims: one after the other, because a driver cannot do both at once.
struct ClaimChanges {
    context: Shared,
    resizer: Resizer,
    modifier: Modifier,
}

impl ClaimChanges {
    fn new(context: &Shared) -> Self {
        let (resizer, modifier) = (Resizer::new(context.clone()), Modifier::new(context.clone()));
        Self { context: context.clone(), resizer, modifier }
    }

    /// Whether the claim may ask for another size or class.
    fn concerns(claim: &Claim) -> bool {
        let status = &claim.status;
        let grows = claim.spec.resources.requests.storage > status.capacity.storage;
        let class = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
        let current = status.current_volume_attributes_class_name.as_deref().unwrap_or_default();
        let modifies = class != current || status.modify_volume_status.is_some();
        status.phase == "Bound" && (grows || modifies)
    }

    fn forget(&self, uid: &str) {
        self.resizer.forget(uid);
        self.modifier.forget(uid);
    }
}

impl Reconcile for ClaimChanges {
    async fn reconcile(&self, path: &str) -> Next {
        let Some((namespace, name)) = path.split_once('/') else { return Next::OnChange };
        let cluster = &self.context.cluster;
        let Some(claim) = cluster.claim(namespace, name) else { return Next::OnChange };
        let volume = cluster.volume(claim.spec.volume_name.as_deref().unwrap_or_default());
        let ours = volume.filter(|v| v.source_of(&self.context.settings.driver).is_some());
        let Some(volume) = ours else { return Next::OnChange };
        let is_current =
            || self.context.writer.is_current(&*claim) && self.context.writer.is_current(&*volume);
        if !is_current() {
            return Next::Conflict;
        }
        let modified = self.modifier.modify(&claim, &volume).await;
        // A write of the modification makes this view of the claim outdated.
        if !is_current() {
            return if modified == Next::OnChange { Next::Conflict } else { modified };
        }
        match (modified, self.resizer.resize(&claim, &volume).await) {
            (Next::OnChange, resized) => resized,
            (modified, Next::OnChange) => modified,
            (_, resized) => resized,
        }
    }

    fn known_version(&self, path: &str) -> u64 {
        let claim = path
            .split_once('/')
            .and_then(|(namespace, name)| self.context.cluster.claim(namespace, name));
        claim.map_or(0, |claim| self.context.writer.known_version(&*claim))
    }
}
