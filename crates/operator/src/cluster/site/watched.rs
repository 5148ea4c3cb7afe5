//! The site, cache up to date by watches.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use health::facts::{AccessReview, Known, Lease, MountFailure};
use k8s_openapi::{
    api::{
        coordination::v1::Lease as KubeLease,
        core::v1::{Event as KubeEvent, Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::{Api, Client, Resource, core::PartialObjectMeta, runtime::watcher::Config};
use plan::{facts::ClusterProxy, names, written_names};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
};

use super::{
    Content, Hook, Items, RelatedObjects, Served,
    openshift::{CloudConfig, Infrastructure},
    sources,
    webhooks::Answering,
};
use crate::cluster::{
    cache::{Cache, Filler, WatchSource, slim},
    crash_logs::CrashLogs,
    events::{self, Warning},
    pages::TENANT_PAGE,
    workloads,
};

/// How long VDO waits for the first view of a Secret or of the cluster's proxy.
const FIRST_VIEW: Duration = Duration::from_secs(5);

/// The caches of the site.
pub(crate) struct Watched {
    definitions: Vec<Cache<()>>,
    csi_driver: Cache<()>,
    features: Cache<BTreeMap<String, String>>,
    cluster_ids: Cache<String>,
    secrets: Vec<Cache<()>>,
    pod_security: Cache<String>,
    hooks: Cache<Hook>,
    certificates: Vec<Cache<Served>>,
    answering: Cache<Answering>,
    topologies: Cache<String>,
    mounts: Cache<(String, MountFailure)>,
    contests: Cache<(String, String)>,
    infrastructure: Cache<Infrastructure>,
    proxy: Cache<ClusterProxy>,
    cloud_config: Cache<Result<CloudConfig, String>>,
    leases: Vec<Cache<Lease>>,
    /// The Secrets in `kube-system` that VDO reads, each by name.
    kube_system: Follower<ObjectMeta>,
    /// Snapshots of volumes.
    pub(crate) contents: Cache<Content>,
    /// Pods that are not ready, of drivers not managed by VDO and of an incomplete network plugin.
    pub(crate) pods: Follower<Pod>,
    /// Warnings in the namespaces of drivers.
    pub(crate) warnings: Follower<Warning>,
    /// The crash logs of containers.
    pub(crate) crash_logs: CrashLogs,
}

impl Watched {
    /// The caches, and the watches that fill them. The watches notify `changed` of every change.
    pub(crate) fn new(client: &Client, changed: &Arc<watch::Sender<()>>) -> (Self, Vec<Filler>) {
        let mut fill = Fill { fillers: Vec::new(), changed };
        let definition = |fill: &mut Fill<'_>, name| fill.one(sources::definition(client, name));
        let defined = sources::DEFINITIONS.map(|name| definition(&mut fill, name));
        let [zones, snapshots, platform, proxies] = defined.clone();
        let listed = crate::allowed_namespaces::all().filter(|name| *name != names::KUBE_SYSTEM);
        let secrets = |namespace| fill.one(sources::secrets(client, namespace));
        let secrets: Vec<_> = listed.map(secrets).collect();
        let (kube_system, filler) = Follower::new(client, changed, named_secret);
        kube_system.follow(
            written_names::settings_and_secrets("Secret")
                .iter()
                .map(|name| Place::secret(name))
                .collect(),
        );
        fill.fillers.push(filler);
        let certificates = |namespace| fill.one(sources::certificates(client, namespace));
        let certificates: Vec<_> = crate::allowed_namespaces::all().map(certificates).collect();
        let leases = events::LEASES.map(|(name, _)| fill.one(lease(client, name)));
        let (pods, filler) = Follower::new(client, changed, unready_pods);
        fill.fillers.push(filler);
        let (warnings, filler) = Follower::new(client, changed, warnings);
        fill.fillers.push(filler);
        let (crash_logs, filler) = CrashLogs::new(client, changed);
        fill.fillers.push(filler);
        let watched = Self {
            csi_driver: fill.one(sources::csi_driver(client)),
            features: fill.one(sources::features(client)),
            cluster_ids: fill.one(sources::cluster_ids(client)),
            secrets,
            pod_security: fill.one(sources::namespaces(client)),
            hooks: fill.one(sources::hooks(client)),
            certificates,
            answering: fill.one(sources::answering(client)),
            topologies: fill.while_defined(sources::topologies(client), zones),
            mounts: fill.one(sources::mounts(client)),
            contests: fill.one(sources::contests(client)),
            infrastructure: fill.while_defined(sources::infrastructure(client), platform.clone()),
            proxy: fill.while_defined(sources::proxy(client), proxies),
            cloud_config: fill.while_defined(sources::cloud_config(client), platform),
            contents: fill.while_defined(sources::contents(client), snapshots),
            definitions: defined.into(),
            leases: leases.into(),
            kube_system,
            pods,
            warnings,
            crash_logs,
        };
        (watched, fill.fillers)
    }

    /// The current state of the site.
    pub(crate) fn site(&self) -> RelatedObjects {
        RelatedObjects {
            definitions: together(&self.definitions),
            csi_driver: self.csi_driver.read(Clone::clone),
            features: self.features.read(Clone::clone),
            cluster_ids: self.cluster_ids.read(Clone::clone),
            secrets: together(&self.secrets),
            kube_system_secrets: self.kube_system_secrets(),
            pod_security: self.pod_security.read(Clone::clone),
            hooks: self.hooks.read(Clone::clone),
            certificates: together(&self.certificates),
            answering: self.answering.read(Clone::clone),
            topologies: self.topologies.read(Clone::clone),
            mounts: self.mounts.read(Clone::clone),
            contests: self.contests.read(Clone::clone),
            infrastructure: self.infrastructure.read(Clone::clone),
            proxy: self.proxy.read(Clone::clone),
            cloud_config: self.cloud_config.read(Clone::clone),
        }
    }

    /// Whether every cache has a view or a reason why it has none.
    pub(crate) fn is_tried(&self) -> bool {
        let each = [&self.definitions, &self.secrets].into_iter().flatten();
        each.chain([&self.csi_driver]).all(Cache::is_tried)
            && self.certificates.iter().all(Cache::is_tried)
            && self.leases.iter().all(Cache::is_tried)
            && [&self.cluster_ids, &self.pod_security, &self.topologies]
                .into_iter()
                .all(Cache::is_tried)
            && self.features.is_tried()
            && self.hooks.is_tried()
            && self.answering.is_tried()
            && self.mounts.is_tried()
            && self.contests.is_tried()
            && self.infrastructure.is_tried()
            && self.proxy.is_tried()
            && self.cloud_config.is_tried()
            && self.contents.is_tried()
            && self.kube_system.is_tried()
            && self.pods.is_tried()
            && self.warnings.is_tried()
            && self.crash_logs.is_read()
    }

    /// The proxy of the whole cluster; none if there is no proxy. The error is the reason why VDO does not know.
    pub(crate) fn proxy(&self) -> Result<Option<ClusterProxy>, String> {
        match self.proxy.read(|all| all.values().next().cloned()) {
            Known::Known(proxy) => Ok(proxy),
            Known::Unknown { reason } => Err(reason),
        }
    }

    /// Waits for the first view of the cluster's proxy. `news` must receive every change.
    pub(crate) async fn first_proxy(&self, mut news: watch::Receiver<()>) {
        let listed = async { while !self.proxy.is_tried() && news.changed().await.is_ok() {} };
        // The drivers wait for a view that comes later.
        let _ = tokio::time::timeout(FIRST_VIEW, listed).await;
    }

    /// Watches these Secrets in `kube-system`, in addition to those that VDO writes, and waits for their first
    /// view. `news` must receive every change.
    pub(crate) async fn follow_secrets(
        &self,
        more: &BTreeSet<String>,
        mut news: watch::Receiver<()>,
    ) {
        let usual = written_names::settings_and_secrets("Secret");
        let names = usual.iter().chain(more);
        self.kube_system.follow(names.map(|name| Place::secret(name)).collect());
        let listed =
            async { while !self.kube_system.is_tried() && news.changed().await.is_ok() {} };
        // The next round sees a view that comes later.
        let _ = tokio::time::timeout(FIRST_VIEW, listed).await;
    }

    /// The metadata of a Secret in `kube-system`; none if it does not exist.
    pub(crate) fn secret(&self, name: &str) -> Known<Option<ObjectMeta>> {
        match self.kube_system.items(&Place::secret(name)) {
            Known::Known(items) => Known::Known(items.into_iter().next()),
            Known::Unknown { reason } => Known::Unknown { reason },
        }
    }

    /// All Secrets in `kube-system` that VDO sees.
    pub(crate) fn seen_secrets(&self) -> Vec<ObjectMeta> {
        self.kube_system.seen()
    }

    /// The names of the watched Secrets in `kube-system`, and whether each exists.
    fn kube_system_secrets(&self) -> BTreeMap<String, Known<bool>> {
        let places = self.kube_system.wanted.borrow();
        let there = |place: &Place| super::map(&self.secret(&place.name), Option::is_some);
        places.iter().map(|place| (place.name.clone(), there(place))).collect()
    }

    /// Numbers that change whenever the node facts from these caches change.
    pub(crate) fn nodes_mark(&self) -> [u64; 2] {
        [self.topologies.revision(), self.mounts.revision()]
    }

    /// The permissions that VDO lacks, according to failed reads.
    pub(crate) fn missing_permissions(&self) -> Vec<AccessReview> {
        self.site()
            .missing_permissions()
            .into_iter()
            .chain(self.crash_logs.read_logs().missing_permission())
            .collect()
    }

    /// The drivers' leases, in any namespace.
    pub(crate) fn leases(&self) -> Known<Vec<Lease>> {
        super::map(&together(&self.leases), |all| all.values().cloned().collect())
    }
}

fn together<T: Clone + PartialEq + Send + Sync + 'static>(caches: &[Cache<T>]) -> Items<T> {
    let mut all = Known::Known(BTreeMap::new());
    for cache in caches {
        super::merge(&mut all, cache.read(Clone::clone));
    }
    all
}

struct Fill<'a> {
    fillers: Vec<Filler>,
    changed: &'a Arc<watch::Sender<()>>,
}

impl Fill<'_> {
    fn one<K, T>(&mut self, source: WatchSource<K, T>) -> Cache<T>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        T: Clone + PartialEq + Send + Sync + 'static,
    {
        let (cache, filler) = source.watch(self.changed);
        self.fillers.push(filler);
        cache
    }

    fn while_defined<K, T>(&mut self, source: WatchSource<K, T>, definition: Cache<()>) -> Cache<T>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        T: Clone + PartialEq + Send + Sync + 'static,
    {
        let (cache, filler) = source.watch_while(definition, self.changed);
        self.fillers.push(filler);
        cache
    }
}

/// A lease by name, in any namespace. A renewal is not a change.
fn lease(client: &Client, name: &str) -> WatchSource<KubeLease, Lease> {
    let source = WatchSource::new(Api::all(client.clone()), sources::only(name), events::lease);
    source.differing(events::has_new_holder)
}

/// The objects to watch in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) namespace: String,
    /// A label selector as the API server accepts it; empty for all objects.
    pub(crate) labels: String,
    /// The name of the only object; empty for all objects.
    pub(crate) name: String,
}

impl Place {
    /// The Secret with this name in `kube-system`.
    fn secret(name: &str) -> Self {
        let namespace = names::KUBE_SYSTEM.to_owned();
        Self { namespace, name: name.to_owned(), ..Self::default() }
    }
}

/// The label selector of a workload's pods.
pub(crate) fn selector(selector: Option<&LabelSelector>) -> String {
    let labels = selector.and_then(|selector| selector.match_labels.as_ref()).into_iter().flatten();
    let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
    labels.join(",")
}

fn unready_pods(client: &Client, place: &Place) -> WatchSource<Pod, Pod> {
    let config = Config::default().labels(&place.labels).page_size(TENANT_PAGE);
    WatchSource::new(Api::namespaced(client.clone(), &place.namespace), config, workloads::unready)
}

fn warnings(client: &Client, place: &Place) -> WatchSource<KubeEvent, Warning> {
    let config = events::with_fields("type=Warning");
    let keep = |event: &KubeEvent| {
        let warning = events::warning(event)?;
        let workload = ["Pod", "DaemonSet", "Deployment", "ReplicaSet"];
        // `kube-system` also has warnings about workloads that are not the drivers'.
        let ours =
            !warning.object.starts_with(names::KUBE_SYSTEM) || warning.object.contains("vsphere");
        (ours && workload.contains(&warning.kind.as_str())).then_some(warning)
    };
    WatchSource::new(Api::namespaced(client.clone(), &place.namespace), config, keep)
}

/// The metadata of a Secret. VDO has permission to read it by name only.
fn named_secret(
    client: &Client,
    place: &Place,
) -> WatchSource<PartialObjectMeta<Secret>, ObjectMeta> {
    let config = sources::only(&place.name);
    let keep = |secret: &PartialObjectMeta<Secret>| {
        let mut metadata = secret.metadata.clone();
        slim(&mut metadata);
        Some(metadata)
    };
    WatchSource::new(Api::namespaced(client.clone(), &place.namespace), config, keep)
}

/// Watches only the requested places.
pub(crate) struct Follower<T> {
    wanted: watch::Sender<BTreeSet<Place>>,
    caches: Arc<RwLock<BTreeMap<Place, Cache<T>>>>,
}

impl<T: Clone + PartialEq + Send + Sync + 'static> Follower<T> {
    fn new<K>(
        client: &Client,
        changed: &Arc<watch::Sender<()>>,
        source: fn(&Client, &Place) -> WatchSource<K, T>,
    ) -> (Self, Filler)
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let wanted = watch::Sender::new(BTreeSet::new());
        let caches = Arc::new(RwLock::new(BTreeMap::new()));
        let (target, mut requested) = (caches.clone(), wanted.subscribe());
        let (client, changed) = (client.clone(), changed.clone());
        let filler = async move {
            let mut tasks = JoinSet::new();
            let mut running: BTreeMap<Place, AbortHandle> = BTreeMap::new();
            loop {
                let places = requested.borrow_and_update().clone();
                running.retain(|place, task| {
                    let stays = places.contains(place);
                    if !stays {
                        task.abort();
                    }
                    stays
                });
                for place in &places {
                    if running.contains_key(place) {
                        continue;
                    }
                    let (cache, filler) = source(&client, place).watch(&changed);
                    running.insert(place.clone(), tasks.spawn(filler));
                    target
                        .write()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(place.clone(), cache);
                }
                let gone = |place: &Place| !places.contains(place);
                target
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .retain(|place, _| !gone(place));
                while tasks.try_join_next().is_some() {}
                if requested.changed().await.is_err() {
                    return;
                }
            }
        };
        (Self { wanted, caches }, Box::pin(filler))
    }

    /// Replaces the set of places to watch.
    pub(crate) fn follow(&self, places: BTreeSet<Place>) {
        self.wanted.send_if_modified(|before| {
            let news = *before != places;
            *before = places;
            news
        });
    }

    /// The items of one place, or the reason why there is no view of it.
    fn items(&self, place: &Place) -> Known<Vec<T>> {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        match caches.get(place) {
            Some(cache) => cache.read(|items| items.values().cloned().collect()),
            None => Known::unknown("VDO does not watch it"),
        }
    }

    /// Whether the watch of every place has a view or a reason why it has none.
    fn is_tried(&self) -> bool {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        let places = self.wanted.borrow();
        places.iter().all(|place| caches.get(place).is_some_and(Cache::is_tried))
    }

    /// The items seen so far.
    pub(crate) fn seen(&self) -> Vec<T> {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        let all = caches
            .values()
            .map(|cache| cache.read(|items| items.values().cloned().collect::<Vec<T>>()));
        all.filter_map(|known| match known {
            Known::Known(items) => Some(items),
            Known::Unknown { .. } => None,
        })
        .flatten()
        .collect()
    }
}
