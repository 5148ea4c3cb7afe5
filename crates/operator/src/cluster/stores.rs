//! Caches that watches keep filled, reduced to the fields that facts need.

mod slim;
mod views;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::{CompatibilityConfig, VDOConfig, VsphereCloudConfig};
use futures::{Stream, StreamExt};
use health::facts::{Known, Platform};
use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{ConfigMap, Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, PartialObjectMeta},
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use plan::{ObjectId, facts::AppliedObject, names, record::Records, written_names};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use self::slim::{content, plain, revision, slim_daemon_set, slim_deployment};
use super::{
    access,
    cache::{Cache, Filler, slim},
    driver_secrets::LastRead,
    events::{self, Warning},
    nodes::{self, CachedNode},
    pages::{PAGE, TENANT_PAGE, WORKLOAD_PAGE},
    password_expiry, pods,
    provenance::{Binding, CachedRole},
    site::Watched,
    volumes,
};
use crate::{applied::Applied, kinds::KINDS, probes::Interruptions};

/// The caches. Of VDO's own kinds, they hold only the objects in the operator's namespace; VDO does not
/// follow others.
pub struct Stores {
    pub(crate) configs: Store<DeserializeGuard<VDOConfig>>,
    vcenters: Store<DeserializeGuard<VsphereCloudConfig>>,
    compatibility: Store<DeserializeGuard<CompatibilityConfig>>,
    nodes: Cache<CachedNode>,
    pub(crate) daemon_sets: Store<DaemonSet>,
    pub(crate) deployments: Store<Deployment>,
    pods: Cache<pods::CachedPod>,
    /// All ClusterRoles, with their rules about resources of the drivers, and the bindings of service accounts.
    pub(crate) roles: Cache<CachedRole>,
    pub(crate) bindings: Cache<Binding>,
    pub(crate) attachments: Cache<volumes::VolumeOnNode>,
    namespace: String,
    /// The Secrets in the operator's namespace: vCenter credentials, certificates, pull Secrets.
    secrets: Store<PartialObjectMeta<Secret>>,
    /// The Secrets in `kube-system` that VDO watches in addition to those that it writes.
    watched_secrets: Mutex<BTreeSet<String>>,
    /// The ConfigMaps in the operator's namespace: a catalog, certificates, records.
    maps: Store<PartialObjectMeta<ConfigMap>>,
    ours: Vec<(ApiResource, Store<DynamicObject>)>,
    pub(crate) csi_nodes: Cache<health::facts::CsiEntry>,
    pub(crate) volumes: Cache<health::facts::Volume>,
    pub(crate) claims: Cache<volumes::Claimed>,
    pub(crate) classes: Cache<health::facts::StorageClass>,
    /// Warnings about claims.
    pub(crate) claim_warnings: Cache<Warning>,
    /// The objects around the drivers.
    pub(crate) site: Watched,
    /// The drivers' Secrets, as last read.
    pub(crate) driver_secrets: LastRead,
    /// Receives every change.
    news: watch::Receiver<()>,
    /// The interrupted watches among those that every round requires.
    pub(crate) interruptions: Interruptions,
}

impl Stores {
    /// The caches, and the watches that fill them. The watches notify `changed` of every change.
    pub fn new(
        client: &Client,
        namespace: &str,
        changed: &Arc<watch::Sender<()>>,
    ) -> (Self, Vec<Filler>) {
        Self::with(client, namespace, changed, &KINDS)
    }

    /// Like [`Self::new`], without the objects that VDO manages: the checks do not need them.
    pub(crate) fn for_checks(
        client: &Client,
        namespace: &str,
        changed: &Arc<watch::Sender<()>>,
    ) -> (Self, Vec<Filler>) {
        Self::with(client, namespace, changed, &[])
    }

    fn with(
        client: &Client,
        namespace: &str,
        changed: &Arc<watch::Sender<()>>,
        kinds: &[(ApiResource, bool)],
    ) -> (Self, Vec<Filler>) {
        let (site, mut fillers) = Watched::new(client, changed);
        let every = watcher::Config::default().page_size(PAGE);
        let of_tenants = watcher::Config::default().page_size(TENANT_PAGE);
        let workloads = watcher::Config::default().page_size(WORKLOAD_PAGE);
        let of_drivers =
            of_tenants.clone().labels(&format!("{}={}", names::PART_OF_LABEL, names::PART_OF));
        let managed = of_tenants.clone().labels(&format!(
            "{}={}",
            names::MANAGED_BY_LABEL,
            names::MANAGED_BY
        ));
        let mut ours = Vec::new();
        let interruptions = Interruptions::default();
        let watched = kinds.iter().flat_map(|(resource, namespaced)| {
            let allowed_namespaces: Vec<&str> =
                if *namespaced { crate::allowed_namespaces::all().collect() } else { vec![""] };
            allowed_namespaces.into_iter().map(move |namespace| (resource, namespace))
        });
        // VDO has permission to read these by name only: `site` watches them.
        let by_name = |resource: &ApiResource, namespace: &str| {
            resource.kind == "Secret" && namespace == names::KUBE_SYSTEM
        };
        let watched = watched.filter(|(resource, namespace)| !by_name(resource, namespace));
        for (resource, namespace) in watched {
            let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(client.clone(), resource);
            let api = if namespace.is_empty() {
                api
            } else {
                Api::namespaced_with(client.clone(), namespace, resource)
            };
            let writer = reflector::store::Writer::<DynamicObject>::new(resource.clone());
            let store = writer.as_reader();
            let stream = watcher(api, managed.clone());
            let (resource_of, changed) = (resource.clone(), changed.clone());
            let stream = noted(stream, &interruptions, &format!("{} {namespace}", resource.kind));
            fillers.push(fill_dynamic(stream, writer, resource_of, changed));
            ours.push((resource.clone(), store));
        }
        let mut watch = Watch { client, changed, fillers: &mut fillers, interruptions };
        let about_claims =
            events::with_fields("type=Warning,involvedObject.kind=PersistentVolumeClaim");
        let api = |client: &Client| client.clone();
        let stores = Self {
            interruptions: watch.interruptions.clone(),
            csi_nodes: watch.cache(Api::all(api(client)), &every, nodes::csi_entry, PartialEq::ne),
            volumes: watch.cache(Api::all(api(client)), &every, volumes::volume, PartialEq::ne),
            claims: watch.cache(
                Api::all(api(client)),
                &of_tenants,
                volumes::claimed,
                PartialEq::ne,
            ),
            classes: watch.cache(Api::all(api(client)), &every, volumes::class, PartialEq::ne),
            claim_warnings: watch.cache(
                Api::all(api(client)),
                &about_claims,
                events::warning,
                PartialEq::ne,
            ),
            configs: watch.one(Api::namespaced(api(client), namespace), &every, plain, revision),
            vcenters: watch.one(Api::namespaced(api(client), namespace), &every, plain, revision),
            compatibility: watch.one(
                Api::namespaced(api(client), namespace),
                &every,
                plain,
                revision,
            ),
            nodes: watch.required(
                Api::all(api(client)),
                &every,
                |node| Some(CachedNode::new(node)),
                PartialEq::ne,
            ),
            daemon_sets: watch.all(&workloads, slim_daemon_set, content),
            deployments: watch.all(&workloads, slim_deployment, content),
            pods: watch.required(
                Api::all(api(client)),
                &of_drivers,
                |pod: &Pod| {
                    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                    crate::allowed_namespaces::has(namespace).then(|| pods::CachedPod::new(pod))
                },
                PartialEq::ne,
            ),
            roles: watch.required(
                Api::all(api(client)),
                &every,
                |role| Some(CachedRole::from_role(role)),
                PartialEq::ne,
            ),
            bindings: watch.required(
                Api::all(api(client)),
                &every,
                Binding::from_binding,
                PartialEq::ne,
            ),
            attachments: watch.required(
                Api::all(api(client)),
                &every,
                volumes::attachment,
                PartialEq::ne,
            ),
            secrets: watch.metadata(namespace, &every),
            maps: watch.metadata(namespace, &every),
            namespace: namespace.to_owned(),
            watched_secrets: Mutex::default(),
            ours,
            site,
            driver_secrets: LastRead::default(),
            news: changed.subscribe(),
        };
        (stores, fillers)
    }

    /// Waits until every cache has its first complete view.
    pub async fn ready(&self) {
        let _ = tokio::join!(
            self.configs.wait_until_ready(),
            self.vcenters.wait_until_ready(),
            self.compatibility.wait_until_ready(),
            self.nodes.listed(self.news.clone()),
            self.daemon_sets.wait_until_ready(),
            self.deployments.wait_until_ready(),
            self.pods.listed(self.news.clone()),
            self.roles.listed(self.news.clone()),
            self.bindings.listed(self.news.clone()),
            self.attachments.listed(self.news.clone()),
            self.secrets.wait_until_ready(),
            self.maps.wait_until_ready(),
            self.site.first_proxy(self.news.clone()),
        );
        for (_, store) in &self.ours {
            let _ = store.wait_until_ready().await;
        }
    }

    /// Passes all nodes to `with`, or returns the reason why there is no view of them.
    pub(crate) fn known_nodes<R>(
        &self,
        with: impl FnOnce(&BTreeMap<String, CachedNode>) -> R,
    ) -> Known<R> {
        self.nodes.read(with)
    }

    /// The facts of all nodes.
    pub(crate) fn node_facts(&self) -> Known<BTreeMap<String, health::facts::Node>> {
        let details = nodes::NodeDetails::new(self.csi_nodes.read(Clone::clone), &self.site.site());
        self.known_nodes(|all| {
            let facts =
                |(name, node): (&String, _)| (name.clone(), nodes::node(name, node, &details));
            all.iter().map(facts).collect()
        })
    }

    /// Passes all nodes to `with`.
    pub(crate) fn nodes<R>(&self, with: impl Fn(&BTreeMap<String, CachedNode>) -> R) -> R {
        match self.nodes.read(&with) {
            Known::Known(nodes) => nodes,
            Known::Unknown { .. } => with(&BTreeMap::new()),
        }
    }

    /// Passes all pods of the drivers that VDO installed to `with`.
    pub(crate) fn pods<R>(&self, with: impl Fn(&pods::Pods) -> R) -> R {
        match self.pods.read(&with) {
            Known::Known(pods) => pods,
            Known::Unknown { .. } => with(&pods::Pods::new()),
        }
    }

    /// Numbers that change whenever the facts of any node change.
    pub(crate) fn nodes_mark(&self) -> [u64; 4] {
        let [topologies, mounts] = self.site.nodes_mark();
        [self.nodes.revision(), self.csi_nodes.revision(), topologies, mounts]
    }

    /// The platform: as the API server reports it, otherwise as most of the nodes do.
    pub(crate) fn platform(&self, reported: Platform) -> Platform {
        match reported {
            Platform::Kubernetes => self
                .nodes(|nodes| {
                    let counted = nodes.values().filter(|node| node.shows_platform());
                    Platform::of_nodes(counted.map(|node| (node.created, node.platform)))
                })
                .unwrap_or(Platform::Kubernetes),
            reported => reported,
        }
    }

    /// Watches the Secrets in `kube-system` that VDO needs, each by name: those with credentials that are not in
    /// the operator's namespace, pull Secrets, and those of adopted drivers. It does not try to watch a Secret that
    /// the account has no permission to read.
    pub(crate) async fn follow_secrets(
        &self,
        client: &Client,
        recorded: &Records,
    ) -> Result<(), kube::Error> {
        let mut more: BTreeSet<String> = self
            .vcenter_configs()
            .into_iter()
            .map(|config| config.spec.credentials.0.as_str().to_owned())
            .filter(|name| self.own_secret(name).is_none())
            .collect();
        let configs = readable(&self.configs);
        let images = configs.into_iter().filter_map(|config| config.spec.images);
        more.extend(
            images.flat_map(|images| images.pull_secrets).map(|name| name.0.as_str().to_owned()),
        );
        let objects = recorded.cpi.objects.iter().chain(&recorded.csi.objects);
        let secrets =
            objects.filter(|id| id.kind == "Secret" && id.namespace == names::KUBE_SYSTEM);
        more.extend(secrets.map(|id| id.name.clone()));
        let mut allowed = written_names::readable_secrets();
        allowed.extend(self.watched_secrets().iter().cloned());
        let mut watched = BTreeSet::new();
        for name in more {
            let known = allowed.contains(&name);
            if known || access::can_watch_secret(client, names::KUBE_SYSTEM, &name).await? {
                watched.insert(name);
            }
        }
        self.watched_secrets().clone_from(&watched);
        self.site.follow_secrets(&watched, self.news.clone()).await;
        Ok(())
    }

    fn watched_secrets(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.watched_secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_secret(&self, name: &str) -> Option<Arc<PartialObjectMeta<Secret>>> {
        self.secrets.get(&ObjectRef::new(name).within(&self.namespace))
    }

    /// The metadata of the Secret with credentials under this name: in the operator's namespace, otherwise in
    /// `kube-system`, where the Go VDO read it. None if neither has it, or VDO has no permission to read it in
    /// `kube-system`.
    pub(crate) fn credentials(&self, name: &str) -> Known<Option<ObjectMeta>> {
        if let Some(own) = self.own_secret(name) {
            return Known::Known(Some(own.metadata.clone()));
        }
        match self.secrets_view() {
            Known::Known(()) => self.site.secret(name),
            Known::Unknown { reason } => Known::Unknown { reason },
        }
    }

    /// Whether the Secret from which VDO's cloud controller reads its credentials exists.
    pub(crate) fn has_cloud_secret(&self) -> bool {
        self.site.secret(names::CPI_SECRET).get().is_some_and(Option::is_some)
    }

    /// When the password in a Secret with credentials expires, if an annotation records it.
    pub(crate) fn password_expires(&self, name: &str) -> Known<Option<Timestamp>> {
        match self.credentials(name) {
            Known::Known(Some(metadata)) => {
                password_expiry::password_expires(&metadata.annotations.unwrap_or_default())
            }
            _ => Known::unknown("there is no Secret with its credentials"),
        }
    }

    /// The version of a ConfigMap in the operator's namespace, if it exists.
    pub(crate) fn map_version(&self, name: &str, namespace: &str) -> Option<String> {
        self.maps.get(&ObjectRef::new(name).within(namespace))?.metadata.resource_version.clone()
    }

    /// The VsphereCloudConfigs that deserialize.
    pub(crate) fn vcenter_configs(&self) -> Vec<VsphereCloudConfig> {
        readable(&self.vcenters)
    }

    /// The CompatibilityConfigs that deserialize.
    pub(crate) fn compatibility_configs(&self) -> Vec<CompatibilityConfig> {
        readable(&self.compatibility)
    }

    /// Every object that carries our label.
    pub(crate) fn objects(&self, applied: &Applied) -> BTreeMap<ObjectId, AppliedObject> {
        let mut all: BTreeMap<ObjectId, AppliedObject> = applied.unwatched().into_iter().collect();
        let mut add = |api_version: &str, kind: &str, metadata: &ObjectMeta| {
            let id = ObjectId {
                api_version: api_version.to_owned(),
                kind: kind.to_owned(),
                namespace: metadata.namespace.clone().unwrap_or_default(),
                name: metadata.name.clone().unwrap_or_default(),
            };
            if applied.is_gone(&id, metadata) {
                return;
            }
            let annotations = metadata.annotations.as_ref();
            let digest = annotations.and_then(|all| all.get(names::DIGEST)).cloned();
            let settled = applied.is_settled(&id, metadata);
            let terminating = metadata.deletion_timestamp.is_some();
            let mark = crate::applied::mark(metadata);
            all.insert(id, AppliedObject { digest, settled, terminating, mark });
        };
        for (resource, store) in &self.ours {
            for object in store.state() {
                add(&resource.api_version, &resource.kind, &object.metadata);
            }
        }
        let is_ours = |metadata: &ObjectMeta| {
            let labels = metadata.labels.as_ref();
            let manager = labels.and_then(|labels| labels.get(names::MANAGED_BY_LABEL));
            manager.is_some_and(|manager| manager == names::MANAGED_BY)
        };
        for secret in self.site.seen_secrets().iter().filter(|secret| is_ours(secret)) {
            add("v1", "Secret", secret);
        }
        all
    }
}

/// The objects that deserialize. VDO treats any other object as absent, so that it does not block the rest.
fn readable<K>(store: &Store<DeserializeGuard<K>>) -> Vec<K>
where
    K: Resource<DynamicType = ()> + Clone,
{
    let all = store.state().into_iter();
    let read = all.filter_map(|object| match &object.0 {
        Ok(object) => Some(object.clone()),
        Err(error) => {
            let name = error.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(kind = %K::kind(&()), name, error = error.error, "an object cannot be read");
            None
        }
    });
    read.collect()
}

struct Watch<'a> {
    client: &'a Client,
    changed: &'a Arc<watch::Sender<()>>,
    fillers: &'a mut Vec<Filler>,
    interruptions: Interruptions,
}

impl Watch<'_> {
    /// Caches the items that `keep` extracts from each object of a kind.
    fn cache<K, T>(
        &mut self,
        api: Api<K>,
        config: &watcher::Config,
        keep: fn(&K) -> Option<T>,
        differs: fn(&T, &T) -> bool,
    ) -> Cache<T>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        T: Clone + PartialEq + Send + Sync + 'static,
    {
        let events = watcher(api, config.clone());
        let (cache, filler) = Cache::watch(events, keep, differs, self.changed.clone());
        self.fillers.push(filler);
        cache
    }

    /// Like [`Self::cache`], for a kind that every round requires.
    fn required<K, T>(
        &mut self,
        api: Api<K>,
        config: &watcher::Config,
        keep: fn(&K) -> Option<T>,
        differs: fn(&T, &T) -> bool,
    ) -> Cache<T>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        T: Clone + PartialEq + Send + Sync + 'static,
    {
        let events = noted(watcher(api, config.clone()), &self.interruptions, &K::kind(&()));
        let (cache, filler) = Cache::watch(events, keep, differs, self.changed.clone());
        self.fillers.push(filler);
        cache
    }

    /// Watches all objects of a kind and stores what `slim` leaves of them. A change that leaves `mark` the
    /// same updates the store without a notification.
    fn all<K>(
        &mut self,
        config: &watcher::Config,
        slim: fn(&mut K),
        mark: fn(&K) -> u64,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        self.one(Api::all(self.client.clone()), config, slim, mark)
    }

    /// Watches the objects of a kind in one namespace, metadata only.
    fn metadata<K>(
        &mut self,
        namespace: &str,
        config: &watcher::Config,
    ) -> Store<PartialObjectMeta<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Send
            + Sync
            + 'static,
    {
        self.one(Api::namespaced(self.client.clone(), namespace), config, plain, revision)
    }

    fn one<K>(
        &mut self,
        api: Api<K>,
        config: &watcher::Config,
        slim: fn(&mut K),
        mark: fn(&K) -> u64,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, writer) = reflector::store();
        let changed = self.changed.clone();
        let events = noted(watcher(api, config.clone()), &self.interruptions, &K::kind(&()));
        let stream = events.default_backoff().modify(slim).reflect(writer);
        let mut marks: HashMap<String, u64> = HashMap::new();
        self.fillers.push(Box::pin(stream.for_each(move |event| {
            if is_news(&event, &mut marks, mark) {
                changed.send_replace(());
            }
            std::future::ready(())
        })));
        store
    }
}

/// The same events. Records each error until the next event.
fn noted<K>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    interruptions: &Interruptions,
    watch: &str,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static {
    let (interruptions, watch) = (interruptions.clone(), watch.to_owned());
    events.inspect(move |event| interruptions.note(&watch, event.as_ref().err()))
}

/// Whether an event of a watch requires another round.
fn is_news<K: Resource<DynamicType = ()>>(
    event: &watcher::Result<watcher::Event<K>>,
    marks: &mut HashMap<String, u64>,
    mark: fn(&K) -> u64,
) -> bool {
    let key =
        |object: &K| format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
    match event {
        Ok(watcher::Event::Apply(object)) => {
            let now = mark(object);
            marks.insert(key(object), now) != Some(now)
        }
        Ok(watcher::Event::InitApply(object)) => {
            marks.insert(key(object), mark(object));
            false
        }
        Ok(watcher::Event::Delete(object)) => {
            marks.remove(&key(object));
            true
        }
        Ok(watcher::Event::Init) => {
            marks.clear();
            false
        }
        Ok(watcher::Event::InitDone) => true,
        Err(error) => {
            tracing::warn!(kind = %K::kind(&()), %error, "a watch was interrupted");
            false
        }
    }
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
    let kind = resource.kind.clone();
    let stream =
        stream.default_backoff().map(move |event| event.map(|event| as_dynamic(event, &resource)));
    let stream = stream.reflect(writer);
    Box::pin(stream.for_each(move |event| {
        if let Err(error) = event {
            tracing::warn!(kind, %error, "a watch was interrupted");
        }
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
