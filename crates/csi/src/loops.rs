//! The loops that do the work of the upstream sidecars and of the Go driver's syncer.
//!
//! ```text
//!   Kubernetes API ──watch──► cluster ──► provision ─┐
//!         ▲                     │    ├──► reclaim    │
//!         │                     │    ├──► attach     ├──► rpc ──► Controller service
//!         │                     │    ├──► resize     │
//!         │                     │    ├──► modify     │
//!         │                     │    ├──► snapshot   │
//!         │                     │    └──► capacity  ─┘
//!         └── writer, events ◄──┴───────────┘
//! ```
//!
//! `cluster` keeps one view of the cluster for all loops. A change queues the objects that it concerns in the queues
//! of the loops (`queue`). Each loop decides with pure functions and writes only the difference (`writer`). Writes
//! and calls happen only while this process leads.

pub mod attach;
pub mod attributes_class;
pub mod cluster;
pub mod context;
pub mod events;
pub mod model;
pub mod names;
pub mod permissions;
pub mod provision;
pub mod quantity;
pub mod queue;
pub mod reclaim;
pub mod rpc;
pub mod snapshot;
pub mod writer;

use std::sync::Arc;

use kube::Client;
use runtime::{lease::Mandate, tasks::Tasks};
use snafu::{ResultExt, Snafu};
use tokio_util::sync::CancellationToken;

use self::{
    attach::Attacher,
    cluster::{Change, Cluster, Gone},
    context::{Context, Shared},
    events::Events,
    model::Metadata as _,
    provision::Provisioner,
    queue::Queue,
    reclaim::Reclaimer,
    rpc::Calls,
    writer::Writer,
};
pub use self::{
    context::{CapacitySettings, Settings},
    provision::topology::Options as TopologyOptions,
};
use crate::proto::csi::controller_server::Controller;

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

/// Runs all loops until `shutdown` is cancelled, and then lets running operations finish.
///
/// The caller holds the leader election's Lease: `mandate` is its mandate, and `shutdown` is cancelled when the
/// leadership is lost. Nothing is written and no call is sent after the mandate has ended.
pub async fn run(
    client: Client,
    controller: Arc<dyn Controller>,
    settings: Settings,
    mandate: Mandate,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let calls = Calls::new(controller, mandate.clone(), settings.call_timeout);
    let capabilities = calls.capabilities().await.context(CapabilitiesSnafu)?;
    let (events, sending) =
        Events::new(client.clone(), mandate.clone(), settings.driver.clone(), &settings.identity);
    let (cluster, watches) = Cluster::new(&settings.driver, settings.topology);
    let writer = Writer::new(client.clone(), mandate);
    let context = Arc::new(Context { settings, cluster, writer, calls, capabilities, events });
    let loops = Loops::new(&context);
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
        () = shutdown.cancelled() => {}
        Some(source) = background.first_to_end() => return Err(Error::Ended { source }),
        Some(source) = working.first_to_end(), if !shutdown.is_cancelled() => {
            return Err(Error::Ended { source });
        }
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
    claims: Arc<Queue>,
    volumes: Arc<Queue>,
    attachments: Arc<Queue>,
}

impl Loops {
    fn new(context: &Shared) -> Self {
        Self {
            context: context.clone(),
            provisioner: Arc::new(Provisioner::new(context.clone())),
            attacher: Arc::new(Attacher::new(context.clone())),
            claims: Arc::default(),
            volumes: Arc::default(),
            attachments: Arc::default(),
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
        tasks
    }

    /// Queues the objects that a change concerns.
    fn route(&self, change: Change) {
        let driver = &self.context.settings.driver;
        match change {
            Change::Claim(claim) => {
                if provision::concerns(&claim, driver) {
                    self.claims.add(&provision::key(&claim));
                }
            }
            Change::Volume(volume) => {
                self.provisioner.volume_seen(volume.name());
                if reclaim::concerns(&volume, driver) {
                    self.volumes.add(volume.name());
                }
            }
            Change::Attachment(attachment) => {
                if attach::step(&attachment, driver) != attach::Step::Nothing {
                    self.attachments.add(attachment.name());
                }
            }
            // Claims wait for their class.
            Change::Class(class) => {
                let of_class = self.context.cluster.claims.state_filter(|claim| {
                    claim.spec.storage_class_name.as_deref() == Some(class.as_str())
                        && provision::concerns(claim, driver)
                });
                of_class.iter().for_each(|claim| self.claims.add(&provision::key(claim)));
            }
            Change::CsiNode(node) => {
                let waiting = self.attacher.registered(&node);
                waiting.iter().for_each(|attachment| self.attachments.add(attachment));
            }
            Change::Gone(gone) => self.forget(&gone),
        }
    }

    fn forget(&self, gone: &Gone) {
        match gone {
            Gone::Claim(claim) => self.context.writer.forget(claim.uid()),
            Gone::Volume(volume) => {
                self.context.writer.forget(volume.uid());
                self.provisioner.volume_seen(volume.name());
            }
            Gone::Attachment(attachment) => {
                self.context.writer.forget(attachment.uid());
                // Its volume may wait for the detach.
                if let Some(volume) = &attachment.spec.source.persistent_volume_name {
                    self.volumes.add(volume);
                }
            }
        }
    }
}
