//! The shared watches: one view of the cluster for all loops.

use std::{fmt::Debug, hash::Hash, sync::Arc};

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store, store::Writer as StoreWriter},
        watcher,
    },
};
use serde::de::DeserializeOwned;

use super::{
    model::{Attachment, Claim, CsiNode, Metadata, Node, Volume, trim},
    snapshot::objects::{Content, GROUP},
};

const PAGE: u32 = 500;

/// A change of an object that concerns the loops.
#[derive(Clone, Debug)]
pub enum Change {
    Claim(Arc<Claim>),
    Volume(Arc<Volume>),
    Attachment(Arc<Attachment>),
    Class(String),
    /// A driver was registered on this node, or removed.
    CsiNode(String),
    Content(Arc<Content>),
    /// An object is gone.
    Gone(Gone),
}

#[derive(Clone, Debug)]
pub enum Gone {
    Claim(Arc<Claim>),
    Volume(Arc<Volume>),
    Attachment(Arc<Attachment>),
    Content(Arc<Content>),
}

/// Read access to the watched objects.
#[derive(Clone)]
pub struct Cluster {
    pub claims: Store<Claim>,
    pub volumes: Store<Volume>,
    pub classes: Store<StorageClass>,
    pub attachments: Store<Attachment>,
    pub csi_nodes: Store<CsiNode>,
    pub nodes: Store<Node>,
    /// Only in a cluster with snapshots.
    pub contents: Store<Content>,
}

/// The tasks that keep a [`Cluster`] current.
pub struct Watches {
    claims: StoreWriter<Claim>,
    volumes: StoreWriter<Volume>,
    classes: StoreWriter<StorageClass>,
    attachments: StoreWriter<Attachment>,
    csi_nodes: StoreWriter<CsiNode>,
    nodes: StoreWriter<Node>,
    contents: StoreWriter<Content>,
    driver: String,
    topology: bool,
}

impl Cluster {
    /// Also returns the watches, which the caller runs. Nodes are watched only for a driver with topology.
    pub fn new(driver: &str, topology: bool) -> (Self, Watches) {
        let ((claims, w1), (volumes, w2), (classes, w3)) =
            (reflector::store(), reflector::store(), reflector::store());
        let ((attachments, w4), (csi_nodes, w5), (nodes, w6)) =
            (reflector::store(), reflector::store(), reflector::store());
        let (contents, w7) = reflector::store();
        let cluster = Self { claims, volumes, classes, attachments, csi_nodes, nodes, contents };
        let watches = Watches {
            claims: w1,
            volumes: w2,
            classes: w3,
            attachments: w4,
            csi_nodes: w5,
            nodes: w6,
            contents: w7,
            driver: driver.into(),
            topology,
        };
        (cluster, watches)
    }

    /// Waits until every watch has delivered its first list.
    pub async fn ready(&self, topology: bool) {
        // A store reports an error only when its watch ended, and then the process ends.
        let nodes = async {
            if topology {
                let _ = self.nodes.wait_until_ready().await;
            }
        };
        let _ = tokio::join!(
            self.claims.wait_until_ready(),
            self.volumes.wait_until_ready(),
            self.classes.wait_until_ready(),
            self.attachments.wait_until_ready(),
            self.csi_nodes.wait_until_ready(),
            nodes,
        );
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Option<Arc<Claim>> {
        self.claims.get(&ObjectRef::new(name).within(namespace))
    }

    pub fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        self.volumes.get(&ObjectRef::new(name))
    }

    pub fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get(&ObjectRef::new(name))
    }

    pub fn content(&self, name: &str) -> Option<Arc<Content>> {
        self.contents.get(&ObjectRef::new(name))
    }

    pub fn attachment(&self, name: &str) -> Option<Arc<Attachment>> {
        self.attachments.get(&ObjectRef::new(name))
    }

    /// A VolumeAttachment of any driver that names this PersistentVolume.
    pub fn attachment_of(&self, volume: &str) -> Option<Arc<Attachment>> {
        let names =
            |a: &Attachment| a.spec.source.persistent_volume_name.as_deref() == Some(volume);
        self.attachments.find(names)
    }
}

impl Watches {
    /// Watches until dropped; calls `changed` for every change, after the stores have it.
    pub async fn run(self, client: Client, changed: impl Fn(Change) + Clone + Send + Sync) {
        let Self {
            claims,
            volumes,
            classes,
            attachments,
            csi_nodes,
            nodes,
            contents,
            driver,
            topology,
        } = self;
        let keep_claim = |claim: &mut Claim| trim(&mut claim.metadata);
        let keep_attachment = |attachment: &mut Attachment| trim(&mut attachment.metadata);
        let ours = driver.clone();
        let keep_volume = move |volume: &mut Volume| {
            trim(&mut volume.metadata);
            let csi = volume.spec.csi.as_mut();
            if csi.as_ref().is_none_or(|csi| csi.driver != ours) {
                volume.metadata.labels = None;
            }
            if let Some(csi) = csi.filter(|csi| csi.driver != ours) {
                csi.volume_attributes.clear();
            }
        };
        let keep_class = |class: &mut StorageClass| trim(&mut class.metadata);
        let keep_csi_node = move |node: &mut CsiNode| {
            trim(&mut node.metadata);
            node.metadata.annotations = None;
            node.spec.drivers.retain(|registered| registered.name == driver);
        };
        let keep_node = |node: &mut Node| {
            trim(&mut node.metadata);
            node.metadata.annotations = None;
        };
        let node_watch = async {
            if topology {
                drain(watch(client.clone(), nodes, keep_node, |_| None, |_| None), &changed).await;
            }
        };
        tokio::join!(
            drain(
                watch(
                    client.clone(),
                    claims,
                    keep_claim,
                    |claim| Some(Change::Claim(claim)),
                    |claim| Some(Change::Gone(Gone::Claim(claim))),
                ),
                &changed
            ),
            drain(
                watch(
                    client.clone(),
                    volumes,
                    keep_volume,
                    |volume| Some(Change::Volume(volume)),
                    |volume| Some(Change::Gone(Gone::Volume(volume))),
                ),
                &changed
            ),
            drain(
                watch(
                    client.clone(),
                    attachments,
                    keep_attachment,
                    |attachment| Some(Change::Attachment(attachment)),
                    |attachment| Some(Change::Gone(Gone::Attachment(attachment))),
                ),
                &changed
            ),
            drain(
                watch(
                    client.clone(),
                    classes,
                    keep_class,
                    |class| Some(Change::Class(class.name().into())),
                    |_| None,
                ),
                &changed
            ),
            drain(
                watch(
                    client.clone(),
                    csi_nodes,
                    keep_csi_node,
                    |node| Some(Change::CsiNode(node.name().into())),
                    |_| None,
                ),
                &changed
            ),
            node_watch,
            drain(
                watch(
                    client.clone(),
                    contents,
                    |content: &mut Content| trim(&mut content.metadata),
                    |content| Some(Change::Content(content)),
                    |content| Some(Change::Gone(Gone::Content(content))),
                ),
                &changed
            ),
        );
    }
}

/// Keeps a store current, and yields what each change means. Errors are logged and retried.
fn watch<K>(
    client: Client,
    writer: StoreWriter<K>,
    keep: impl Fn(&mut K) + Send,
    applied: impl Fn(Arc<K>) -> Option<Change> + Send,
    deleted: impl Fn(Arc<K>) -> Option<Change> + Send,
) -> impl Stream<Item = Vec<Change>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Hash + Eq,
{
    let store = writer.as_reader();
    let config = watcher::Config::default().page_size(PAGE);
    let mut before: Vec<Arc<K>> = Vec::new();
    watcher::watcher(Api::<K>::all(client), config)
        .default_backoff()
        .modify(keep)
        .reflect(writer)
        .map(move |event| match event {
            Ok(watcher::Event::Init) => {
                before = store.state();
                Vec::new()
            }
            Ok(watcher::Event::InitApply(_)) => Vec::new(),
            // Only now does the store contain the listed objects.
            Ok(watcher::Event::InitDone) => {
                let vanished = std::mem::take(&mut before)
                    .into_iter()
                    .filter(|object| store.get(&ObjectRef::from_obj(&**object)).is_none())
                    .filter_map(&deleted);
                let vanished: Vec<_> = vanished.collect();
                store.state().into_iter().filter_map(&applied).chain(vanished).collect()
            }
            Ok(watcher::Event::Apply(object)) => applied(Arc::new(object)).into_iter().collect(),
            Ok(watcher::Event::Delete(object)) => deleted(Arc::new(object)).into_iter().collect(),
            // A cluster without snapshots does not serve their kinds. They can come later.
            Err(error) if K::group(&()) == GROUP => {
                tracing::debug!(%error, "cannot watch the contents of snapshots");
                Vec::new()
            }
            Err(error) => {
                let plural = K::plural(&());
                tracing::warn!(%error, "cannot watch the {plural}");
                Vec::new()
            }
        })
}

async fn drain(changes: impl Stream<Item = Vec<Change>> + Send, handle: &(impl Fn(Change) + Sync)) {
    let mut changes = std::pin::pin!(changes);
    while let Some(changes) = changes.next().await {
        changes.into_iter().for_each(handle);
    }
}
