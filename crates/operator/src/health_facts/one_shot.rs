//! Assembles the facts once, without an operator, with the permissions of the current user.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api::{VDOConfig, VDOConfigSpec};
use health::{
    Examination,
    facts::{Facts, Known, Platform, Wanted},
};
use jiff::Timestamp;
use kube::Client;
use plan::{
    ObjectId,
    facts::{DriverWorkload, VcenterState},
    record::Records,
};
use runtime::{build::BuildInfo, error_chain::error_chain, tasks::Tasks};
use tokio::{sync::watch, time::Instant};
use vsphere::CallCounter;

use super::{
    assembly::Assembly,
    sources::{CollectorSettings, ConfiguredVcenter, Sources},
    wanted::both,
};
use crate::{
    audit::inventory,
    catalogs::Catalogs,
    cluster::Stores,
    followed, observe,
    remediation::Remediator,
    vcenters::{self, Vcenters},
};

/// The timeout of the whole check. Facts that are not known by then are unknown.
const TIMEOUT: Duration = Duration::from_mins(3);
/// The longest pause between two looks: not every source notifies of a failure.
const LOOK: Duration = Duration::from_millis(100);
/// The name of a vCenter that no VsphereCloudConfig describes.
const UNNAMED: &str = "vcenter";

/// The result of looking once.
pub struct Collected {
    pub facts: Facts,
    /// The open sessions by name of the VsphereCloudConfig. The caller ends them.
    pub sessions: BTreeMap<String, vsphere::Client>,
}

/// Looks at a cluster, at vCenters, or at both, until every fact is known or cannot be read.
///
/// It only reads, and it never fails: a fact that it could not read is unknown, with the reason. `cluster`
/// comes with the operator's namespace. Without a cluster, the facts about the cluster are unknown, and the
/// checks report on the vCenter alone. `vcenter` replaces the vCenters that the VsphereCloudConfigs in the
/// operator's namespace name. Without a VDOConfig, the checks assume both drivers on all vCenters.
pub async fn collect_once(
    cluster: Option<(&Client, &str)>,
    vcenter: Option<vcenters::ConnectionInputs>,
    build: BuildInfo,
) -> Collected {
    let mut check = Box::new(OneShotCheck::new(cluster, build));
    Box::pin(check.read_cluster()).await;
    Box::pin(check.connect(vcenter)).await;
    check.assemble().await;
    check.finish()
}

/// A one-shot check in progress.
struct OneShotCheck<'a> {
    cluster: Option<(&'a Client, &'a str, Stores)>,
    pool: Vcenters,
    settings: CollectorSettings,
    /// The workloads of the drivers.
    workloads: BTreeMap<ObjectId, DriverWorkload>,
    /// Whether there is no VDOConfig, so that the checks assume both drivers on all vCenters.
    assumed: bool,
    assembly: Assembly,
    changed: Arc<watch::Sender<()>>,
    news: watch::Receiver<()>,
    end: Instant,
    _watches: Tasks,
}

impl<'a> OneShotCheck<'a> {
    fn new(cluster: Option<(&'a Client, &'a str)>, build: BuildInfo) -> Self {
        let changed = Arc::new(watch::Sender::new(()));
        let mut watches = Tasks::default();
        let cluster = cluster.map(|(client, namespace)| {
            let (stores, fillers) = Stores::for_checks(client, namespace, &changed);
            for filler in fillers {
                watches.spawn("watch", filler);
            }
            (client, namespace, stores)
        });
        Self {
            cluster,
            pool: Vcenters::new(build, changed.clone(), Arc::new(CallCounter::default())),
            settings: CollectorSettings::without_cluster(),
            workloads: BTreeMap::new(),
            assumed: true,
            assembly: Assembly::default(),
            news: changed.subscribe(),
            changed,
            end: Instant::now() + TIMEOUT,
            _watches: watches,
        }
    }

    /// Waits for a change, or a moment. Returns whether there is time left.
    async fn news(&mut self) -> bool {
        // Nothing is lost if the wait ends without news.
        let _ = tokio::time::timeout(LOOK, self.news.changed()).await;
        Instant::now() < self.end
    }

    fn is_tried(&self) -> bool {
        self.cluster.as_ref().is_none_or(|(_, _, stores)| stores.is_tried())
    }

    /// Fills the caches, and reads the settings.
    async fn read_cluster(&mut self) {
        while !self.is_tried() && self.news().await {}
        if let Some((client, _, stores)) = &self.cluster {
            // Without an answer of the API server, the facts show which Secrets VDO does not see.
            let _ = stores.follow_secrets(client, &Records::default()).await;
        }
        let mut catalogs = Catalogs::new(self.changed.clone()).read_only();
        while let Some((client, namespace, stores)) = &self.cluster {
            // Without permission to read the configured catalog, the embedded one is in use.
            let _ = observe::follow_catalog(client, namespace, stores, &mut catalogs).await;
            if !catalogs.is_fetching() || !self.news().await {
                break;
            }
        }
        let Some((client, namespace, stores)) = &self.cluster else { return };
        (self.settings, self.assumed) =
            CollectorSettings::once(client, namespace, stores, &mut catalogs).await;
        // An unreadable history has no entries.
        let repaired = Remediator::default().set(client, namespace, Some(String::new())).await;
        self.assembly.remember(repaired.unwrap_or_default());
    }

    /// Connects to one vCenter, or to those that the VsphereCloudConfigs name.
    async fn connect(&mut self, vcenter: Option<vcenters::ConnectionInputs>) {
        let wanted = match (vcenter, &self.cluster) {
            (Some(vcenter), _) => {
                let configured = ConfiguredVcenter::unnamed(&vcenter);
                self.settings.vcenters.insert(UNNAMED.to_owned(), configured);
                BTreeMap::from([(self.sources().key(UNNAMED), vcenter)])
            }
            (None, Some((client, _, stores))) => {
                let (inputs, problems) =
                    observe::connection_inputs(client, stores, &self.pool).await;
                let all = observe::connections(stores, &self.pool, &problems);
                let all =
                    all.iter().map(|((_, name), v)| (name.clone(), ConfiguredVcenter::new(v)));
                self.settings.vcenters = all.collect();
                inputs
            }
            (None, None) => BTreeMap::new(),
        };
        self.follow(wanted.iter().map(|(key, inputs)| (key.clone(), everywhere(inputs)))).await;
        // The operator does not connect if a listed datacenter does not exist. Both must report the same.
        let again: Vec<_> =
            wanted.into_iter().map(|(key, inputs)| self.as_operator(key, inputs)).collect();
        self.follow(again.into_iter()).await;
        if self.assumed {
            let names: BTreeSet<String> = self.settings.vcenters.keys().cloned().collect();
            let read = self.settings.wanted.read.clone();
            let drivers = both(&names, self.settings.platform.kubelet_path());
            self.settings.wanted = Wanted { read, ..drivers };
        }
    }

    /// Connects to these vCenters, and waits for each.
    async fn follow(&mut self, inputs: impl Iterator<Item = (String, vcenters::ConnectionInputs)>) {
        self.pool.follow(inputs.collect());
        while !self.pool.all_tried() && self.news().await {}
    }

    /// The inputs that see all datacenters, unless a listed one does not exist.
    fn as_operator(
        &self,
        key: String,
        inputs: vcenters::ConnectionInputs,
    ) -> (String, vcenters::ConnectionInputs) {
        let inventory = self.pool.known(&key).and_then(|known| known.inventory);
        let listed = inputs.spec.datacenter_names();
        let complete = inventory
            .is_none_or(|inventory| inventory::has_datacenters(&inventory.view(), &listed));
        let inputs = if complete { everywhere(&inputs) } else { inputs };
        (key, inputs)
    }

    /// Updates the facts until nothing is missing.
    async fn assemble(&mut self) {
        let mut settled = false;
        loop {
            self.update();
            // The last update can have requested more: a watch of other pods, a crash log, an audit.
            let before = std::mem::replace(&mut settled, self.is_settled());
            if (before && settled) || !self.news().await {
                return;
            }
        }
    }

    fn update(&mut self) {
        self.settings.now = Timestamp::now();
        let namespace = &self.settings.namespace;
        for (name, vcenter) in &mut self.settings.vcenters {
            if let Some(known) = self.pool.known(&format!("{namespace}/{name}")) {
                vcenter.state = known.state;
            }
            // A single check cannot wait until a failure has lasted.
            vcenter.since = Timestamp::UNIX_EPOCH;
        }
        let stores = self.cluster.as_ref().map(|(_, _, stores)| stores);
        self.workloads = stores.map(observe::workloads).unwrap_or_default();
        let sources = Sources {
            settings: &self.settings,
            stores,
            workloads: &self.workloads,
            vcenters: &self.pool,
        };
        self.assembly.update(&sources, &sources.audits());
        self.assembly.ask(&sources, false);
    }

    fn is_settled(&self) -> bool {
        self.is_tried() && !self.sources().is_audit_pending()
    }

    fn sources(&self) -> Sources<'_> {
        let stores = self.cluster.as_ref().map(|(_, _, stores)| stores);
        Sources {
            settings: &self.settings,
            stores,
            workloads: &self.workloads,
            vcenters: &self.pool,
        }
    }

    fn finish(self) -> Collected {
        let session = |name: &String| self.pool.known(&self.sources().key(name))?.client;
        let names = self.settings.vcenters.keys();
        let sessions = names.filter_map(|name| Some((name.clone(), session(name)?))).collect();
        let facts = self.assembly.examination.map(Examination::into_facts).unwrap_or_default();
        Collected { facts, sessions }
    }
}

/// The operator watches only the listed datacenters. A one-shot check reads all, to find VMs outside of them.
fn everywhere(inputs: &vcenters::ConnectionInputs) -> vcenters::ConnectionInputs {
    let spec = api::VsphereCloudConfigSpec { datacenters: Vec::new(), ..inputs.spec.clone() };
    vcenters::ConnectionInputs { spec, ..inputs.clone() }
}

impl ConfiguredVcenter {
    fn unnamed(inputs: &vcenters::ConnectionInputs) -> Self {
        Self {
            spec: inputs.spec.clone(),
            secret: String::new(),
            state: VcenterState::Untried,
            since: Timestamp::UNIX_EPOCH,
        }
    }
}

impl CollectorSettings {
    fn without_cluster() -> Self {
        let catalog = Arc::new(catalog::embedded().clone());
        Self::new(&VDOConfigSpec::default(), Platform::default(), catalog, None)
    }

    /// The settings in the cluster: those of the VDOConfig that an operator would follow, and the defaults for
    /// everything that cannot be read. Also returns whether there is no VDOConfig.
    async fn once(
        client: &Client,
        namespace: &str,
        stores: &Stores,
        catalogs: &mut Catalogs,
    ) -> (Self, bool) {
        let version = client.apiserver_version().await;
        let version = match version {
            Ok(version) => Known::Known(version.git_version),
            Err(error) => Known::unknown(&error_chain(&error)),
        };
        let reported_platform = match &version {
            Known::Known(text) => observe::platform_from_api_server(client, text).await.ok(),
            Known::Unknown { .. } => None,
        };
        let platform =
            stores.platform(reported_platform.map(|(platform, _)| platform).unwrap_or_default());
        let records = observe::records(client, namespace).await.unwrap_or_default().0;
        let (config, read) = followed_config(client, namespace, stores).await;
        let reported =
            config.as_ref().and_then(|config| config.status.as_ref()?.cluster_id.clone());
        let cluster_id = match &records.csi.cluster_id {
            Some(_) => None,
            None => observe::configured_cluster_id(client, &observe::workloads(stores)).await,
        };
        let spec = config.as_ref().map(|config| config.spec.clone()).unwrap_or_default();
        let (catalog, trouble) = match &config {
            Some(config) => catalogs.in_use_for(config),
            None => (catalogs.current(), catalogs.trouble()),
        };
        let settings = Self::new(&spec, platform, catalog, trouble);
        let settings = Self {
            namespace: namespace.to_owned(),
            version,
            wanted: Wanted { read, ..settings.wanted },
            records,
            cluster_id: cluster_id.or(reported),
            ..settings
        };
        (settings, config.is_none())
    }
}

/// The VDOConfig that an operator would follow, and whether VDOConfigs can be read.
async fn followed_config(
    client: &Client,
    namespace: &str,
    stores: &Stores,
) -> (Option<VDOConfig>, Known<()>) {
    let recorded = followed::recorded_if_readable(client, namespace).await.ok().flatten();
    let (chosen, _) = observe::choose(stores, recorded.as_ref());
    match chosen.as_ref().map(|chosen| &chosen.0) {
        Some(Ok(config)) => (Some(config.clone()), ().into()),
        Some(Err(error)) => (None, Known::unknown(&error.error)),
        None => (None, stores.configs_view()),
    }
}
