//! Gathers facts: from caches that watches keep filled, and from the vCenters.

mod drivers;
mod identity;
mod inherited;
pub(crate) mod make;
pub(crate) mod nodes;
mod stores;
mod strangers;

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc};

use api::{
    CompatibilityConfig, VDOConfig, VsphereCloudConfig, vdo_config::CatalogSource,
    vsphere_cloud_config::KeyRef,
};
use catalog::{Driver, version::KubernetesVersion};
use driver_config::{
    SecretText,
    credentials::{Credential, Credentials},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, Resource, ResourceExt};

pub(crate) use self::drivers::{belongs_to, is_labelled, part, version};
pub(crate) use self::identity::usual as cluster_ids;
pub use self::stores::Stores;
pub(crate) use self::{inherited::Inherited, strangers::Asked};
pub(crate) use self::{make::of as make, stores::slim_pod};
use crate::{
    act::Applied,
    catalogs::{self, Catalogs},
    facts::{
        Cluster, ClusterId, Facts, InUse, ObjectId, Platform, Predecessor, PullSecret, Refusal,
        Rival, Vcenter, VcenterState, Workload,
    },
    names,
    record::{Record, Records},
    survey::Health,
    vcenters::{Vcenters, Wanted},
};

/// What is the same for as long as the process runs.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The namespace of the operator and of its records.
    pub namespace: String,
    /// The API server's version.
    pub version: KubernetesVersion,
    /// As it says it.
    pub version_text: String,
    /// What kind of cluster this is.
    pub platform: Platform,
    /// The uid of `kube-system`.
    pub uid: String,
    /// How long things may take.
    pub patience: Patience,
    /// The pod this runs in, if it runs in one.
    pub pod: Option<String>,
    /// When the operator began to look.
    pub started: Timestamp,
    /// Which build of the operator this is.
    pub build: String,
}

/// How long things may take before they are taken for broken.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// A new release, until it is healthy.
    pub rollout: SignedDuration,
    /// Everything else, in seconds, where that shall be less than each is usually given.
    pub grace: Option<u32>,
}

impl From<SignedDuration> for Patience {
    fn from(rollout: SignedDuration) -> Self {
        Self { rollout, grace: None }
    }
}

impl Surroundings {
    /// These, as they are seen after others: a platform does not turn into none while the process runs,
    /// whatever one answer of one API server leaves out.
    pub(crate) fn after(mut self, before: &Self) -> Self {
        self.started = before.started;
        if self.platform == Platform::Vanilla {
            self.platform = before.platform;
        }
        self
    }

    /// The platform: where the API server does not tell, any of the nodes may.
    pub(crate) fn platform(&self, stores: &Stores) -> Platform {
        match self.platform {
            Platform::Vanilla => stores
                .nodes(|nodes| nodes.values().find_map(|node| node.platform))
                .unwrap_or(Platform::Vanilla),
            told => told,
        }
    }
}

/// Looks around once. `None` if there is no VDOConfig to follow.
pub async fn observe(
    client: &Client,
    around: &Surroundings,
    stores: &Stores,
    vcenters: &mut Vcenters,
    catalogs: &mut Catalogs,
    applied: &Applied,
    refused: &BTreeMap<Driver, Refusal>,
) -> Result<Observed, kube::Error> {
    let compatibility = catalogs::followed(stores.compatibility_configs(), &around.namespace);
    let legacy = stores.map_version(catalogs::matrix::NAME, &around.namespace);
    catalogs.follow(client, &around.namespace, compatibility.as_ref(), legacy.as_deref()).await?;
    let problems = follow_vcenters(client, around, stores, vcenters).await?;
    let all = vcenters_of(stores, vcenters, &problems);
    let Some((config, rivals)) = followed(stores) else {
        return Ok(Observed { facts: None, vcenters: all, compatibility });
    };
    let (records, unreadable) = records(client, &around.namespace).await?;
    let cluster = Cluster {
        version: around.version,
        version_text: around.version_text.clone(),
        platform: around.platform(stores),
        uid: around.uid.clone(),
        nodes: nodes::of(stores, vcenters),
    };
    let workloads = drivers::workloads(stores);
    let pull_secrets = pull_secrets(client, &around.namespace, &config).await?;
    let (in_use, cluster_id) = in_use(client, &config, &records, &workloads).await?;
    let namespace = config.namespace().unwrap_or_default();
    let (cluster_id, strangers) = identified(stores, vcenters, &config, &records, cluster_id).await;
    let own = all.iter().filter(|((home, _), _)| *home == namespace);
    let source = config.spec.upgrades.as_ref().and_then(|upgrades| upgrades.source);
    let embedded = source == Some(CatalogSource::Embedded);
    let facts = Facts {
        now: Timestamp::now(),
        vcenters: own.map(|((_, name), vcenter)| (name.clone(), vcenter.clone())).collect(),
        cluster_id,
        strangers,
        in_use,
        predecessor: Predecessor {
            runs: stores.predecessor(around.pod.as_deref()),
            cloud_secret: stores.secret_version(names::CPI_SECRET).is_some(),
        },
        catalog: if embedded { catalogs.embedded() } else { catalogs.current() },
        catalog_trouble: catalogs.trouble().filter(|_| !embedded).cloned(),
        config,
        rivals,
        cluster,
        objects: stores.objects(applied),
        workloads,
        attached: drivers::attached(stores),
        records,
        unreadable,
        build: around.build.clone(),
        patience: around.patience.rollout,
        grace: around.patience.grace,
        refused: refused.clone(),
        fights: applied.fights(Timestamp::now()),
        pull_secrets,
        home: around.namespace.clone(),
        started: around.started,
        health: Health::default(),
    };
    Ok(Observed { facts: Some(facts), vcenters: all, compatibility })
}

/// The identity in CNS to be taken, and claims of others under it. Where neither the driver nor a record
/// tells one, the volumes that are here do.
async fn identified(
    stores: &Stores,
    vcenters: &mut Vcenters,
    config: &VDOConfig,
    records: &Records,
    told: Result<Option<ClusterId>, String>,
) -> (Result<Option<ClusterId>, String>, Result<Vec<String>, String>) {
    let Some(storage) = &config.spec.storage_provider else { return (told, Ok(Vec::new())) };
    let namespace = config.namespace().unwrap_or_default();
    let names = storage.vcenters().into_iter();
    let names: Vec<String> = names.map(|name| format!("{namespace}/{}", name.0)).collect();
    let reported = config.status.as_ref().is_some_and(|status| status.cluster_id.is_some());
    let told = match told {
        Ok(None) if records.csi.cluster_id.is_none() && !reported => {
            match inherited::of(stores, vcenters, &names).await {
                Ok(id) => Ok(id),
                Err(why) => return (Ok(None), Err(why)),
            }
        }
        told => told,
    };
    let strangers = match &told {
        Ok(Some(id)) => strangers::of(stores, vcenters, &names, &id.id).await,
        _ => Ok(Vec::new()),
    };
    (told, strangers)
}

/// The Secrets to pull images with, as far as they are beside the operator.
async fn pull_secrets(
    client: &Client,
    namespace: &str,
    config: &VDOConfig,
) -> Result<BTreeMap<String, PullSecret>, kube::Error> {
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let mut found = BTreeMap::new();
    for name in config.spec.images.iter().flat_map(|images| &images.pull_secrets) {
        let Some(secret) = secrets.get_opt(&name.0).await? else { continue };
        let metadata = &secret.metadata;
        let version = [metadata.uid.as_deref(), metadata.resource_version.as_deref()];
        let kind = secret.type_.unwrap_or_else(|| "kubernetes.io/dockerconfigjson".into());
        let version = version.map(Option::unwrap_or_default).join("/");
        let data = secret.data.unwrap_or_default();
        found.insert(name.0.as_str().to_owned(), PullSecret { kind, data, version });
    }
    Ok(found)
}

/// What drivers that are not on record are told, as long as it is not on record what ours are told.
async fn in_use(
    client: &Client,
    config: &VDOConfig,
    records: &Records,
    workloads: &BTreeMap<ObjectId, Workload>,
) -> Result<(InUse, Result<Option<ClusterId>, String>), kube::Error> {
    let mut in_use = InUse::default();
    if config.spec.cloud_provider.is_some() && records.cpi.version.is_none() {
        let places = identity::places(workloads, Driver::Cpi);
        in_use.cpi = identity::cpi(client, &places).await?;
    }
    if config.spec.storage_provider.is_none() || records.csi.cluster_id.is_some() {
        return Ok((in_use, Ok(None)));
    }
    in_use.csi = identity::csi(client, &identity::places(workloads, Driver::Csi)).await?;
    let cluster_id = identity::cluster_id(client, &in_use).await?;
    Ok((in_use, cluster_id))
}

/// What was seen: facts for the VDOConfig that is followed, and all vCenters, which are verified
/// whether a VDOConfig names them or not. By namespace and name.
pub struct Observed {
    /// None without a VDOConfig.
    pub facts: Option<Facts>,
    /// By namespace and name of their VsphereCloudConfig.
    pub vcenters: BTreeMap<(String, String), Vcenter>,
    /// The CompatibilityConfig that is followed.
    pub compatibility: Option<CompatibilityConfig>,
}

/// The drivers' workloads, by whoever installed them.
pub(crate) fn workloads(
    stores: &Stores,
) -> BTreeMap<crate::facts::ObjectId, crate::facts::Workload> {
    drivers::workloads(stores)
}

/// Of several VDOConfigs the one that is followed: the oldest; of two of the same second, the first by
/// namespace and name.
pub fn first(mut configs: Vec<VDOConfig>) -> Option<VDOConfig> {
    configs.sort_by_key(|c| (c.creation_timestamp(), c.namespace(), c.name_any()));
    configs.into_iter().next()
}

/// The oldest VDOConfig is followed; of two of the same second, the first by name. One that cannot
/// be read is followed by nothing else: what it asks for is not known, and what runs is left alone.
fn followed(stores: &Stores) -> Option<(Arc<VDOConfig>, Vec<Rival>)> {
    let mut configs = stores.configs.state();
    configs.sort_by_key(|c| (c.meta().creation_timestamp.clone(), c.namespace(), c.name_any()));
    let config = match &configs.first()?.0 {
        Ok(config) => Arc::new(config.clone()),
        Err(error) => {
            let name = error.metadata.name.as_deref().unwrap_or_default();
            tracing::error!(
                name,
                error = error.error,
                "the VDOConfig cannot be read; nothing is changed"
            );
            return None;
        }
    };
    let rivals = configs.iter().skip(1).map(|rival| Rival {
        namespace: rival.namespace().unwrap_or_default(),
        name: rival.name_any(),
        generation: rival.meta().generation,
        status: rival.0.as_ref().ok().and_then(|config| config.status.clone()),
    });
    Some((config, rivals.collect()))
}

/// Connects to what the VsphereCloudConfigs name; returns what is wrong with those that cannot even
/// be tried.
async fn follow_vcenters(
    client: &Client,
    around: &Surroundings,
    stores: &Stores,
    vcenters: &mut Vcenters,
) -> Result<BTreeMap<String, VcenterState>, kube::Error> {
    let mut wanted = BTreeMap::new();
    let mut problems = BTreeMap::new();
    for config in stores.vcenter_configs() {
        let name = key(&config);
        match want(client, around, stores, vcenters, &config).await? {
            Ok(one) => {
                wanted.insert(name, one);
            }
            Err(problem) => {
                problems.insert(name, problem);
            }
        }
    }
    vcenters.follow(wanted);
    Ok(problems)
}

fn key(config: &VsphereCloudConfig) -> String {
    format!("{}/{}", config.namespace().unwrap_or_default(), config.name_any())
}

async fn want(
    client: &Client,
    around: &Surroundings,
    stores: &Stores,
    vcenters: &Vcenters,
    config: &VsphereCloudConfig,
) -> Result<Result<Wanted, VcenterState>, kube::Error> {
    let failed = |reason: &str, message: String| {
        Ok(Err(VcenterState::Failed { reason: reason.into(), message, transient: false }))
    };
    let name = config.spec.credentials.0.as_str();
    let Some(revision) = stores.secret_version(name) else {
        let message = format!(
            "the Secret {name} does not exist in namespace {}: create it with the keys username and password",
            names::KUBE_SYSTEM
        );
        return failed("CredentialsMissing", message);
    };
    let ca_bundle = match certificates(client, config).await? {
        Ok(bundle) => bundle,
        Err(message) => return failed("CertificatesMissing", message),
    };
    let before = vcenters.wanted(&key(config));
    if let Some(before) = before.filter(|b| b.revision == revision && b.spec == config.spec) {
        return Ok(Ok(Wanted { ca_bundle, ..before.clone() }));
    }
    let secrets = Api::<Secret>::namespaced(client.clone(), names::KUBE_SYSTEM);
    let Some(secret) = secrets.get_opt(name).await? else {
        return failed("CredentialsMissing", format!("the Secret {name} is gone"));
    };
    let data = secret.data.unwrap_or_default().into_iter();
    let data = data.map(|(key, value)| (key, value.0)).collect();
    let read = Credentials::read(&data);
    let read = read.and_then(|all| all.for_server(&config.spec.vc_ip.0).cloned());
    let credential = match read {
        Ok(credential) => credential,
        Err(error) => return failed("CredentialsUnusable", error.to_string()),
    };
    let version = fingerprint(&around.uid, &credential);
    Ok(Ok(Wanted { spec: config.spec.clone(), ca_bundle, credential, version, revision }))
}

/// Stands for a credential in digests that many may read: equal for equal credentials, and slow to
/// guess from.
fn fingerprint(salt: &str, credential: &Credential) -> String {
    const ROUNDS: NonZeroU32 = NonZeroU32::new(20_000).unwrap();
    let secret = format!("{}\n{}", credential.username, credential.password.expose());
    let secret = SecretText::from(secret);
    let mut derived = [0; 16];
    let algorithm = aws_lc_rs::pbkdf2::PBKDF2_HMAC_SHA256;
    aws_lc_rs::pbkdf2::derive(
        algorithm,
        ROUNDS,
        salt.as_bytes(),
        secret.expose().as_bytes(),
        &mut derived,
    );
    derived.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The authorities a VsphereCloudConfig names, from wherever they are.
pub(crate) async fn certificates(
    client: &Client,
    config: &VsphereCloudConfig,
) -> Result<Result<Option<String>, String>, kube::Error> {
    let Some(bundle) = &config.spec.ca_bundle else { return Ok(Ok(None)) };
    let home = config.namespace().unwrap_or_default();
    let missing = |kind: &str, of: &KeyRef| {
        format!("spec.caBundle: {kind} {home}/{} has no key {}", of.name.0, of.key())
    };
    if let Some(of) = &bundle.config_map {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), &home);
        let map = maps.get_opt(&of.name.0).await?;
        let text = map.and_then(|map| map.data?.remove(of.key()));
        return Ok(text.map(Some).ok_or_else(|| missing("ConfigMap", of)));
    }
    if let Some(of) = &bundle.secret {
        let secrets = Api::<Secret>::namespaced(client.clone(), &home);
        let secret = secrets.get_opt(&of.name.0).await?;
        let text = secret.and_then(|secret| secret.data?.remove(of.key()));
        let text = text.and_then(|bytes| String::from_utf8(bytes.0).ok());
        return Ok(text.map(Some).ok_or_else(|| missing("Secret", of)));
    }
    Ok(Ok(bundle.inline.clone()))
}

fn vcenters_of(
    stores: &Stores,
    vcenters: &Vcenters,
    problems: &BTreeMap<String, VcenterState>,
) -> BTreeMap<(String, String), Vcenter> {
    let all = stores.vcenter_configs().into_iter();
    all.map(|vcc| {
        let known = vcenters.known(&key(&vcc));
        let ca_bundle = vcenters.wanted(&key(&vcc)).and_then(|wanted| wanted.ca_bundle.clone());
        let proven = known.as_ref().and_then(|known| known.proven.clone());
        let since = known.as_ref().map_or_else(Timestamp::now, |known| known.since);
        let state = known.map(|known| known.state);
        let state = state.or_else(|| problems.get(&key(&vcc)).cloned());
        let (credentials, credentials_version) = proven.unzip();
        let vcenter = Vcenter {
            spec: vcc.spec.clone(),
            state: state.unwrap_or(VcenterState::Untried),
            credentials,
            credentials_version: credentials_version.unwrap_or_default(),
            ca_bundle,
            since,
            generation: vcc.metadata.generation,
            status: vcc.status.clone(),
        };
        ((vcc.namespace().unwrap_or_default(), vcc.name_any()), vcenter)
    })
    .collect()
}

/// The name of the ConfigMap with the record of a driver.
pub(crate) fn record_name(driver: Driver) -> &'static str {
    match driver {
        Driver::Cpi => "vdo-record-cpi",
        Driver::Csi => "vdo-record-csi",
    }
}

/// The records. One that does not parse is no permission to forget: it is named, and nothing is done.
async fn records(
    client: &Client,
    namespace: &str,
) -> Result<(Records, BTreeMap<Driver, String>), kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let mut unreadable = BTreeMap::new();
    let mut read = async |driver| -> Result<Record, kube::Error> {
        let Some(map) = maps.get_opt(record_name(driver)).await? else {
            return Ok(Record::default());
        };
        let text = map.data.and_then(|mut data| data.remove("record.json"));
        let text = text.ok_or_else(|| "it has no key record.json".to_owned());
        let record = text.and_then(|text| serde_json::from_str(&text).map_err(|e| e.to_string()));
        Ok(record.unwrap_or_else(|why| {
            let name = record_name(driver);
            unreadable.insert(driver, format!("ConfigMap {name} cannot be read: {why}"));
            Record::default()
        }))
    };
    let (cpi, csi) = (read(Driver::Cpi).await?, read(Driver::Csi).await?);
    Ok((Records { cpi, csi }, unreadable))
}
