//! Caches kept filled by watches, slimmed to what facts need.

use std::{collections::BTreeMap, fmt::Debug, future::Future, sync::Arc};

use api::{VDOConfig, VsphereCloudConfig};
use futures::StreamExt;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Node, Pod, Secret},
        storage::v1::VolumeAttachment,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::{
    act::{Applied, KINDS},
    facts::{ObjectId, Seen},
    names,
};

/// The caches.
pub struct Stores {
    pub(super) configs: Store<VDOConfig>,
    pub(super) vcenters: Store<VsphereCloudConfig>,
    pub(super) nodes: Store<Node>,
    pub(super) daemon_sets: Store<DaemonSet>,
    pub(super) deployments: Store<Deployment>,
    pub(super) pods: Store<Pod>,
    pub(super) attachments: Store<VolumeAttachment>,
    secrets: Store<PartialObjectMeta<Secret>>,
    ours: Vec<(ApiResource, Store<DynamicObject>)>,
}

/// A watch that fills a cache, to be run as a task.
pub(super) type Filler = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Stores {
    /// The caches, and the watches that fill them. `changed` is told of every change.
    pub fn new(client: &Client, changed: &Arc<watch::Sender<()>>) -> (Self, Vec<Filler>) {
        let mut fillers = Vec::new();
        let every = watcher::Config::default();
        let pods = every.clone().labels(&format!("{}={}", names::PART_OF_LABEL, names::PART_OF));
        let managed =
            every.clone().labels(&format!("{}={}", names::MANAGED_BY_LABEL, names::MANAGED_BY));
        let mut ours = Vec::new();
        let watched = KINDS.iter().flat_map(|(resource, namespaced)| {
            let homes: &[&str] = if *namespaced { &names::HOMES } else { &[""] };
            homes.iter().map(move |home| (resource, *home))
        });
        for (resource, home) in watched {
            let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(client.clone(), resource);
            let api = if home.is_empty() {
                api
            } else {
                Api::namespaced_with(client.clone(), home, resource)
            };
            let writer = reflector::store::Writer::<DynamicObject>::new(resource.clone());
            let store = writer.as_reader();
            let stream = watcher(api, managed.clone());
            let (resource_of, changed) = (resource.clone(), changed.clone());
            fillers.push(fill_dynamic(stream, writer, resource_of, changed));
            ours.push((resource.clone(), store));
        }
        let stores = Self {
            configs: typed(Api::all(client.clone()), &every, changed, &mut fillers),
            vcenters: typed(Api::all(client.clone()), &every, changed, &mut fillers),
            nodes: typed(Api::all(client.clone()), &every, changed, &mut fillers),
            daemon_sets: typed(Api::all(client.clone()), &every, changed, &mut fillers),
            deployments: typed(Api::all(client.clone()), &every, changed, &mut fillers),
            pods: typed(Api::all(client.clone()), &pods, changed, &mut fillers),
            attachments: typed(Api::all(client.clone()), &every, changed, &mut fillers),
            secrets: typed(
                Api::namespaced(client.clone(), names::KUBE_SYSTEM),
                &every,
                changed,
                &mut fillers,
            ),
            ours,
        };
        (stores, fillers)
    }

    /// Waits until every cache has its first complete view.
    pub async fn ready(&self) {
        let _ = tokio::join!(
            self.configs.wait_until_ready(),
            self.vcenters.wait_until_ready(),
            self.nodes.wait_until_ready(),
            self.daemon_sets.wait_until_ready(),
            self.deployments.wait_until_ready(),
            self.pods.wait_until_ready(),
            self.attachments.wait_until_ready(),
            self.secrets.wait_until_ready(),
        );
        for (_, store) in &self.ours {
            let _ = store.wait_until_ready().await;
        }
    }

    /// The version of a Secret in `kube-system`, if it exists.
    pub(super) fn secret_version(&self, name: &str) -> Option<String> {
        let secret = self.secrets.get(&ObjectRef::new(name).within(names::KUBE_SYSTEM))?;
        let metadata = &secret.metadata;
        Some(format!("{}/{}", metadata.uid.as_deref()?, metadata.resource_version.as_deref()?))
    }

    /// The VsphereCloudConfigs.
    pub fn vcenter_configs(&self) -> Vec<Arc<VsphereCloudConfig>> {
        self.vcenters.state()
    }

    /// The VDOConfigs.
    pub fn vdo_configs(&self) -> Vec<Arc<VDOConfig>> {
        self.configs.state()
    }

    /// Every object that carries our label.
    pub(super) fn objects(&self, applied: &Applied) -> BTreeMap<ObjectId, Seen> {
        let mut all = BTreeMap::new();
        for (resource, store) in &self.ours {
            for object in store.state() {
                let id = ObjectId {
                    api_version: resource.api_version.clone(),
                    kind: resource.kind.clone(),
                    namespace: object.namespace().unwrap_or_default(),
                    name: object.name_any(),
                };
                let digest = object.annotations().get(names::DIGEST).cloned();
                let settled = applied.is_settled(&id, &object.metadata);
                all.insert(id, Seen { digest, settled });
            }
        }
        all
    }
}

fn typed<K>(
    api: Api<K>,
    config: &watcher::Config,
    changed: &Arc<watch::Sender<()>>,
    fillers: &mut Vec<Filler>,
) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let changed = changed.clone();
    let stream = watcher(api, config.clone())
        .default_backoff()
        .modify(|object| slim(object.meta_mut()))
        .reflect(writer);
    fillers.push(Box::pin(stream.for_each(move |event| {
        if let Err(error) = &event {
            tracing::warn!(kind = %K::kind(&()), %error, "a watch was interrupted");
        }
        changed.send_replace(());
        std::future::ready(())
    })));
    store
}

fn fill_dynamic(
    stream: impl futures::Stream<
        Item = watcher::Result<watcher::Event<PartialObjectMeta<DynamicObject>>>,
    > + Send
    + 'static,
    writer: reflector::store::Writer<DynamicObject>,
    resource: ApiResource,
    changed: Arc<watch::Sender<()>>,
) -> Filler {
    let stream =
        stream.default_backoff().map(move |event| event.map(|event| as_dynamic(event, &resource)));
    let stream = stream.reflect(writer);
    Box::pin(stream.for_each(move |_| {
        changed.send_replace(());
        std::future::ready(())
    }))
}

fn as_dynamic(
    event: watcher::Event<PartialObjectMeta<DynamicObject>>,
    resource: &ApiResource,
) -> watcher::Event<DynamicObject> {
    let convert = |object: PartialObjectMeta<DynamicObject>| {
        let mut dynamic = DynamicObject::new(&object.name_any(), resource);
        dynamic.metadata = object.metadata;
        slim(&mut dynamic.metadata);
        dynamic
    };
    match event {
        watcher::Event::Apply(object) => watcher::Event::Apply(convert(object)),
        watcher::Event::Delete(object) => watcher::Event::Delete(convert(object)),
        watcher::Event::InitApply(object) => watcher::Event::InitApply(convert(object)),
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitDone => watcher::Event::InitDone,
    }
}

/// Drops what no fact is made from.
fn slim(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}
