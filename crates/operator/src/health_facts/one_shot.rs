//! Collects all facts once, without an operator, with the permissions of the current user.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{VDOConfig, VsphereCloudConfig};
use catalog::Driver as Which;
use driver_config::credentials::Credentials;
use health::facts::{
    CatalogState, Cluster, ClusterId, CsiEntry, Drivers, Facts, Known, Network, Operator, Platform,
    Storage, Vcenter, Wanted,
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
    storage::v1::{CSINode, StorageClass, VolumeAttachment},
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use plan::names;
use runtime::build::BuildInfo;
use serde::de::DeserializeOwned;
use vsphere::Error;

use super::{
    compared::{Both, Handles, put},
    kubernetes,
    vcenter::Described,
    wanted::{acknowledged, both, wanted},
};
use crate::{
    audit::{Audit, Domain, Question, Sights, audit, inventory},
    cluster::{
        access,
        crash_logs::Said,
        events,
        nodes::{self, Beside, Kept},
        password_expires,
        provenance::{Accounts, Binding, Permissions},
        releases::Releases,
        site::{self, Plugin, Site},
        volumes::{self, Attachments, Claimed},
        workloads::{self, Around},
    },
    followed, observe, vcenters,
};

/// A vCenter to look at, and the result of connecting to it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of its VsphereCloudConfig, or the name that the user chose.
    pub name: String,
    pub address: String,
    /// The Secret with its credentials, as `namespace/name`; empty if there is none.
    pub secret: String,
    pub user: String,
    /// Datacenters that the drivers are configured with; empty for all.
    pub datacenters: Vec<String>,
    /// The expiry of the password, if an admin recorded it.
    pub password_expires: Known<Option<Timestamp>>,
    /// The connection, or the reason why there is none.
    pub connection: Result<vsphere::Client, Arc<Error>>,
}

/// Looks at a cluster, at vCenters, or at both, and collects the facts for the checks.
///
/// It only reads, and it never fails: a fact that it could not read is unknown, with the reason. `cluster`
/// comes with the operator's namespace. Without a cluster, the facts about the cluster are unknown, and the
/// checks report on the vCenters alone. `desired` is the desired state of the drivers. Without `desired`, the
/// VDOConfig of the cluster applies. Without a VDOConfig, the checks assume both drivers on all vCenters.
pub async fn collect_once(
    cluster: Option<(&Client, &str)>,
    vcenters: Vec<Target>,
    desired: Option<Wanted>,
) -> Facts {
    let mut facts = Facts { now: Timestamp::now(), ..Facts::default() };
    let names: BTreeSet<String> = vcenters.iter().map(|target| target.name.clone()).collect();
    let mut seen = Seen::default();
    if let Some((client, namespace)) = cluster {
        seen = look_at_cluster(client, namespace, &mut facts).await;
    } else {
        leave_out_cluster(&mut facts);
        seen.read = ().into();
    }
    let path = facts.cluster.platform.kubelet_path();
    facts.wanted = desired.unwrap_or_else(|| match &seen.config {
        Some(config) => wanted(&config.spec, path),
        None => Wanted { read: seen.read.clone(), ..both(&names, path) },
    });
    facts.cluster.kubelet_path = kubernetes::kubelet_path(seen.platform, &facts.wanted).into();
    facts.operator = Operator {
        acknowledged: seen.config.iter().flat_map(|config| acknowledged(&config.spec)).collect(),
        // Without an operator, there is no catalog to refresh and no other field manager to conflict with.
        catalog: CatalogState::default().into(),
        conflicts: Vec::new().into(),
        grace: None,
    };
    let mut audits = BTreeMap::new();
    for target in vcenters {
        let name = target.name.clone();
        let (vcenter, audit) = Box::pin(look_at_vcenter(target, &facts, &seen)).await;
        audits.extend(audit.map(|audit| (name.clone(), audit)));
        facts.vcenters.insert(name, vcenter);
    }
    let expected = facts.wanted.storage.as_ref().map(|storage| storage.vcenters.clone());
    compare(&mut facts.storage, &audits, &expected.unwrap_or_default());
    facts
}

/// Compares the answers of CNS with the volumes and snapshots in Kubernetes.
fn compare(storage: &mut Storage, audits: &BTreeMap<String, Audit>, expected: &BTreeSet<String>) {
    let handles = map(storage.volumes.clone(), |all| Handles::of(all.keys().map(String::as_str)));
    let all: Vec<(&String, &Audit, Both)> = audits
        .iter()
        .map(|(name, audit)| (name, audit, Both::of(audit, &handles, &storage.snapshots)))
        .collect();
    put(storage, expected, all.iter().map(|(name, audit, both)| (name.as_str(), *audit, both)));
}

/// Connects to each vCenter that a VsphereCloudConfig of the cluster names, with the credentials from its
/// Secret. Only VsphereCloudConfigs in the operator's namespace count, so that nobody else decides where VDO
/// sends these credentials.
///
/// # Errors
/// Fails if the API server does not list the VsphereCloudConfigs. An unreadable Secret yields a target
/// without a connection.
pub async fn targets(
    client: &Client,
    namespace: &str,
    build: BuildInfo,
) -> Result<Vec<Target>, kube::Error> {
    let configs = Api::<VsphereCloudConfig>::namespaced(client.clone(), namespace);
    let mut targets = Vec::new();
    for config in configs.list(&ListParams::default()).await? {
        targets.push(target(client, &config, build).await);
    }
    Ok(targets)
}

async fn target(client: &Client, config: &VsphereCloudConfig, build: BuildInfo) -> Target {
    let spec = &config.spec;
    let secret = spec.credentials.0.as_str();
    let mut target = Target {
        name: config.name_any(),
        address: spec.vc_ip.0.clone(),
        secret: format!("{}/{secret}", names::KUBE_SYSTEM),
        user: String::new(),
        datacenters: spec.datacenter_names().into_iter().map(str::to_owned).collect(),
        password_expires: Known::unknown("the Secret with its credentials cannot be read"),
        connection: Err(Arc::new(Error::LoginRefused {
            address: spec.vc_ip.0.clone(),
            user: "the user of the Secret".to_owned(),
            reason: vsphere::LoginRefusal::Missing,
        })),
    };
    let secrets = Api::<Secret>::namespaced(client.clone(), names::KUBE_SYSTEM);
    let Ok(secret) = secrets.get(secret).await else { return target };
    target.password_expires = password_expires(secret.annotations());
    let data = secret.data.unwrap_or_default().into_iter();
    let data = data.map(|(key, value)| (key, value.0)).collect();
    let read = Credentials::read(&data);
    let Ok(credential) = read.and_then(|all| all.for_server(&spec.vc_ip.0).cloned()) else {
        return target;
    };
    target.user.clone_from(&credential.username);
    let ca_bundle = observe::certificates(client, config).await;
    let ca_bundle = ca_bundle.ok().and_then(Result::ok).flatten();
    target.connection = vcenters::connect(spec, ca_bundle.as_ref(), &credential, build).await;
    target
}

/// Observations of the cluster that are not facts.
#[derive(Default)]
struct Seen {
    config: Option<VDOConfig>,
    /// Known if the API server answered whether a VDOConfig exists.
    read: Known<()>,
    policies: BTreeSet<String>,
    platform: Platform,
    domains: Vec<Domain>,
}

fn leave_out_cluster(facts: &mut Facts) {
    let reason = "no cluster was looked at";
    facts.cluster = Cluster {
        platform: Platform::default(),
        version: Known::unknown(reason),
        kubelet_path: Known::unknown(reason),
        nodes: BTreeMap::new().into(),
        drivers: Drivers {
            cloud: Known::Known(None),
            storage: Known::Known(None),
            others: Vec::new(),
        },
        leases: Vec::new().into(),
        webhooks: Vec::new().into(),
        access: Vec::new().into(),
        network: Network::default().into(),
        openshift: None.into(),
    };
    facts.storage.classes = Vec::new().into();
    facts.storage.volumes = BTreeMap::new().into();
    facts.storage.attachments = Vec::new().into();
    facts.storage.pending = Vec::new().into();
    facts.storage.growing = BTreeSet::new().into();
    facts.storage.contested = BTreeMap::new().into();
    facts.storage.snapshots = BTreeMap::new().into();
}

async fn all<K>(api: Api<K>) -> Known<Vec<K>>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut parameters = ListParams::default().limit(500);
    let mut found = Vec::new();
    loop {
        match api.list(&parameters).await {
            Ok(page) => {
                let more = page.metadata.continue_.filter(|token| !token.is_empty());
                found.extend(page.items);
                match more {
                    Some(token) => parameters.continue_token = Some(token),
                    None => return Known::Known(found),
                }
            }
            Err(error) => return Known::unknown(&observe_reason(&error)),
        }
    }
}

fn observe_reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

fn map<T, R>(known: Known<T>, make: impl FnOnce(T) -> R) -> Known<R> {
    match known {
        Known::Known(value) => Known::Known(make(value)),
        Known::Unknown { reason } => Known::Unknown { reason },
    }
}

async fn look_at_cluster(client: &Client, namespace: &str, facts: &mut Facts) -> Seen {
    let (config, read) = match followed_config(client, namespace).await {
        Ok(config) => (config, ().into()),
        // Without the CRD there is no VDOConfig.
        Err(kube::Error::Api(status)) if status.code == 404 => (None, ().into()),
        Err(error) => (None, Known::unknown(&observe_reason(&error))),
    };
    let version = client.apiserver_version().await;
    let version = version.map(|version| version.git_version);
    let platform = match &version {
        Ok(version) => observe::platform_once(client, version).await.unwrap_or_default(),
        Err(_) => Platform::default(),
    };
    let site = Site::read(client).await;
    let kubernetes = version.as_ref().ok().and_then(|version| version.parse().ok());
    let nodes = all(Api::<Node>::all(client.clone())).await;
    let nodes = map(nodes, |all| -> BTreeMap<String, Kept> {
        all.iter().map(|node| (node.name_any(), Kept::of(node))).collect()
    });
    let sets = all(Api::<DaemonSet>::all(client.clone())).await;
    facts.cluster = Cluster {
        platform,
        version: match version {
            Ok(version) => kubernetes::version(&version),
            Err(error) => Known::unknown(&observe_reason(&error)),
        },
        kubelet_path: platform.kubelet_path().to_owned().into(),
        network: look_at_network(client, &nodes, &sets, facts.now).await,
        nodes: look_at_nodes(client, nodes, &site).await,
        drivers: look_at_drivers(client, sets, facts.now, &site, kubernetes).await,
        leases: look_at_leases(client).await,
        webhooks: site.webhooks(),
        access: access::access(client).await,
        openshift: site.openshift(),
    };
    facts.storage = look_at_storage(client).await;
    facts.storage.contested = site.contested();
    let classes = facts.storage.classes.get().into_iter().flatten();
    let policies = classes.filter_map(|class| class.parameter("storagepolicyname"));
    Seen {
        policies: policies.map(str::to_owned).collect(),
        config,
        read,
        platform,
        domains: site.domains(),
    }
}

async fn followed_config(
    client: &Client,
    namespace: &str,
) -> Result<Option<VDOConfig>, kube::Error> {
    let configs = Api::<VDOConfig>::namespaced(client.clone(), namespace);
    let configs = configs.list(&ListParams::default()).await?.items;
    let recorded = followed::recorded_if_readable(client, namespace).await?;
    Ok(followed::chosen(&configs, recorded.as_ref()).cloned())
}

async fn look_at_leases(client: &Client) -> Known<Vec<health::facts::Lease>> {
    let mut found = Vec::new();
    for (name, _) in events::LEASES {
        match site::lease(client, name).read(false).await {
            Known::Known(leases) => found.extend(leases.into_values()),
            Known::Unknown { reason } => return Known::Unknown { reason },
        }
    }
    found.into()
}

async fn look_at_network(
    client: &Client,
    nodes: &Known<BTreeMap<String, Kept>>,
    sets: &Known<Vec<DaemonSet>>,
    now: Timestamp,
) -> Known<Network> {
    let (nodes, sets) = match (nodes, sets) {
        (Known::Known(nodes), Known::Known(sets)) => (nodes, sets),
        (Known::Unknown { reason }, _) | (_, Known::Unknown { reason }) => {
            return Known::unknown(reason);
        }
    };
    let plugins: Vec<Plugin> = sets.iter().filter_map(Plugin::of).collect();
    let mut pods = Vec::new();
    for plugin in plugins.iter().filter(|plugin| plugin.incomplete) {
        let found = all(Api::<Pod>::namespaced(client.clone(), &plugin.namespace)).await;
        match found {
            Known::Known(found) => pods.extend(found),
            Known::Unknown { reason } => return Known::Unknown { reason },
        }
    }
    let silent = nodes::without_network(nodes.iter());
    site::network(&plugins, &pods, silent.into_iter(), now).into()
}

async fn look_at_nodes(
    client: &Client,
    seen: Known<BTreeMap<String, Kept>>,
    site: &Site,
) -> Known<BTreeMap<String, health::facts::Node>> {
    let csi = all(Api::<CSINode>::all(client.clone())).await;
    let csi = map(csi, |all| -> BTreeMap<String, CsiEntry> {
        all.iter().filter_map(|node| Some((node.name_any(), nodes::csi_entry(node)?))).collect()
    });
    let beside = Beside::of(csi, site);
    map(seen, |all| {
        let nodes = all.iter();
        nodes.map(|(name, node)| (name.clone(), nodes::node(name, node, &beside))).collect()
    })
}

/// The service accounts with the permissions of a driver.
async fn accounts(client: &Client) -> Known<Accounts> {
    let roles = all(Api::<ClusterRole>::all(client.clone())).await;
    let bindings = all(Api::<ClusterRoleBinding>::all(client.clone())).await;
    match (roles, bindings) {
        (Known::Known(roles), Known::Known(bindings)) => {
            let roles = roles.iter();
            let roles = roles.filter_map(|role| Some((role.name_any(), Permissions::of(role)?)));
            let bindings: Vec<Binding> = bindings.iter().filter_map(Binding::of).collect();
            Accounts::of(&roles.collect(), &bindings).into()
        }
        (Known::Unknown { reason }, _) | (_, Known::Unknown { reason }) => {
            Known::Unknown { reason }
        }
    }
}

async fn look_at_drivers(
    client: &Client,
    sets: Known<Vec<DaemonSet>>,
    now: Timestamp,
    site: &Site,
    kubernetes: Option<catalog::version::KubernetesVersion>,
) -> Drivers {
    let deployments = all(Api::<Deployment>::all(client.clone())).await;
    let (deployments, sets) = match (deployments, sets) {
        (Known::Known(deployments), Known::Known(sets)) => (deployments, sets),
        (Known::Unknown { reason }, _) | (_, Known::Unknown { reason }) => {
            return Drivers {
                cloud: Known::unknown(&reason),
                storage: Known::unknown(&reason),
                others: Vec::new(),
            };
        }
    };
    let parts = workloads::parts(&accounts(client).await, sets.iter(), deployments.iter());
    let allowed_namespaces: BTreeSet<&str> =
        parts.iter().map(|part| part.id.namespace.as_str()).collect();
    let (mut pods, mut warnings) = (Vec::new(), Vec::new());
    for home in allowed_namespaces {
        let found = all(Api::<Pod>::namespaced(client.clone(), home)).await;
        pods.extend(found.get().cloned().unwrap_or_default());
        let found = all(Api::<Event>::namespaced(client.clone(), home)).await;
        let found = found.get().cloned().unwrap_or_default();
        warnings.extend(found.iter().filter_map(events::warning));
    }
    let said = Said::by(client, workloads::of_drivers(&parts, pods.iter())).await;
    let catalog = catalog::embedded();
    let around = Around {
        now,
        pods: &pods,
        warnings: &warnings,
        changing: &|_| false,
        site,
        releases: &Releases { catalog, kubernetes },
        said: &said,
    };
    Drivers {
        cloud: Known::Known(workloads::driver(Which::Cpi, &parts, &around)),
        storage: Known::Known(workloads::driver(Which::Csi, &parts, &around)),
        others: workloads::others(&parts),
    }
}

async fn look_at_storage(client: &Client) -> Storage {
    let volumes = all(Api::<PersistentVolume>::all(client.clone())).await;
    let by_name = map(volumes, |all| {
        let kept = all.iter().filter_map(volumes::volume);
        kept.map(|volume| (volume.name.clone(), volume)).collect::<BTreeMap<_, _>>()
    });
    let attachments = all(Api::<VolumeAttachment>::all(client.clone())).await;
    let (volumes, attachments) = match (by_name.clone(), attachments) {
        (Known::Known(volumes), Known::Known(attachments)) => {
            let (volumes, unfinished) =
                volumes::joined(&volumes, Attachments::of(&volumes::on_nodes(&attachments)));
            (Known::Known(volumes), Known::Known(unfinished))
        }
        (Known::Known(volumes), Known::Unknown { reason }) => {
            let (volumes, _) = volumes::joined(&volumes, Attachments::default());
            (Known::Known(volumes), Known::Unknown { reason })
        }
        (Known::Unknown { reason }, _) => (Known::unknown(&reason), Known::unknown(&reason)),
    };
    let classes = all(Api::<StorageClass>::all(client.clone())).await;
    let classes = map(classes, |all| -> Vec<_> { all.iter().filter_map(volumes::class).collect() });
    let ours: BTreeSet<String> =
        classes.get().into_iter().flatten().map(|class| class.name.clone()).collect();
    let claims = all(Api::<PersistentVolumeClaim>::all(client.clone())).await;
    let claims = map(claims, |all| all.iter().filter_map(volumes::claimed).collect::<Vec<_>>());
    let growing = match (&claims, &by_name) {
        (Known::Known(claims), Known::Known(volumes)) => {
            volumes::handles_of(&volumes::growing(claims.iter()), volumes).into()
        }
        (Known::Unknown { reason }, _) | (_, Known::Unknown { reason }) => Known::unknown(reason),
    };
    let mut pending = map(claims, |claims| -> Vec<_> {
        let waiting = claims.into_iter().filter_map(|claimed| match claimed {
            Claimed::Waits(claim) => Some(claim),
            Claimed::Grows(_) => None,
        });
        waiting.filter(|claim| ours.contains(&claim.class)).collect()
    });
    for claim in pending.get_mut().into_iter().flatten() {
        let namespace = claim.name.split('/').next().unwrap_or_default();
        let events = all(Api::<Event>::namespaced(client.clone(), namespace)).await;
        let events = events.get().cloned().unwrap_or_default();
        let mut warnings = events.iter().filter_map(events::warning);
        let last = warnings.rfind(|warning| warning.object == claim.name);
        claim.message = last.map(|warning| warning.event.message).unwrap_or_default();
    }
    let (configured, generated) = observe::cluster_ids(client).await;
    let cluster_id = ClusterId {
        configured,
        generated,
        of_volumes: Known::default(),
        also_used_by: Known::default(),
    };
    Storage {
        classes,
        volumes,
        pending,
        growing,
        contested: Known::default(),
        snapshots: map(Site::contents(client).await, |all| site::tally(&all)),
        attachments,
        cluster_id,
        list_threshold: super::live::LIST_THRESHOLD,
        // `compare` adds the answers of CNS later.
        only_in_cns: Known::default(),
        cns: Known::default(),
        cns_asked: Timestamp::UNIX_EPOCH,
        orphans: Known::default(),
        cns_total: Known::default(),
    }
}

async fn look_at_vcenter(target: Target, facts: &Facts, seen: &Seen) -> (Vcenter, Option<Audit>) {
    let mut described = Described {
        name: target.name,
        address: target.address,
        secret: target.secret,
        user: target.user,
        datacenters: target.datacenters.iter().cloned().collect(),
        since: Timestamp::UNIX_EPOCH,
        password_expires: target.password_expires,
    };
    let client = match target.connection {
        Ok(client) => client,
        Err(error) => return (described.failed(&error), None),
    };
    let tree = match client.collect(&inventory::selection()).await {
        Ok(tree) => tree,
        Err(error) => return (described.failed(&error), None),
    };
    let listed: Vec<&str> = target.datacenters.iter().map(String::as_str).collect();
    described.datacenters = inventory::datacenter_names(&tree, &listed);
    let concern = super::live::Concern::of(facts);
    let vms =
        tree.vms().iter().filter(|vm| concern.is_node(vm)).map(|vm| vm.reference.clone()).collect();
    let volumes = facts.storage.volumes.get().into_iter().flat_map(BTreeMap::keys);
    let question = Question {
        wanted: facts.wanted.clone(),
        vms,
        hosts: BTreeSet::new(),
        cluster_id: facts.storage.cluster_id.current().map(str::to_owned),
        volumes: volumes.take(20).cloned().collect(),
        policies: seen.policies.clone(),
        domains: seen.domains.clone(),
        asked: String::new(),
        amiss: false,
    };
    let sights = Sights::of(&tree, &question.vms);
    let audit = Box::pin(audit(&client, &sights, &question)).await;
    let inventory = inventory::inventory(&tree, |vm| concern.is_of_interest(vm));
    (described.connected(&client, inventory.into(), Some(&audit)), Some(audit))
}
