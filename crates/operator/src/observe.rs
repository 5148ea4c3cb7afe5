//! Gathers facts from the caches that watches keep filled, and from the vCenters.

mod cns_ownership;
mod drivers;
mod identity;
mod platform;
mod surroundings;
mod vcenters;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{CompatibilityConfig, VDOConfig, VsphereCloudConfig, vdo_config::Adoption};
use catalog::Driver;
use health::facts::Platform;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams, core::DeserializeGuard};
use plan::{
    ObjectId,
    facts::{
        AppliedObject, ApplyFailure, ClusterId, DriverWorkload, Facts, Health, InUse,
        NodePlacement, Predecessor, PullSecret, Rival, TargetCluster, VcenterConnection,
        WorkloadRole,
    },
    names,
    record::{Record, Records, record_name},
};

pub use self::surroundings::{Surroundings, Timeouts};
pub(crate) use self::{
    identity::configured_cluster_id,
    platform::from_api_server as platform_from_api_server,
    surroundings::surroundings,
    vcenters::{CREDENTIALS_MISSING, CREDENTIALS_UNUSABLE, connection_inputs, connections},
};
use crate::{
    applied::Applied,
    catalogs::{self, Catalogs},
    cluster::{Stores, driver_secrets, pods::Pods},
    followed::{self, Candidate, FollowedConfig},
    unreadable::Spoilt,
    vcenters::Vcenters,
};

/// Gathers all facts once. [`Observed::facts`] is `None` if there is no VDOConfig to follow.
pub async fn observe(
    client: &Client,
    around: &Surroundings,
    stores: &Stores,
    vcenters: &mut Vcenters,
    catalogs: &mut Catalogs,
    applied: &Applied,
    refused: &BTreeMap<Driver, ApplyFailure>,
) -> Result<Observed, kube::Error> {
    let compatibility = follow_catalog(client, &around.namespace, stores, catalogs).await?;
    let (records, unreadable) = records(client, &around.namespace).await?;
    stores.follow_secrets(client, &records).await?;
    let (inputs, problems) = vcenters::connection_inputs(client, stores, vcenters).await;
    vcenters.follow(inputs);
    let all = vcenters::connections(stores, vcenters, &problems);
    let unsure = problems.values().any(vcenters::Problem::may_pass);
    let recorded = followed::recorded(client, &around.namespace).await?;
    let (chosen, rivals) = choose(stores, recorded.as_ref());
    let follow = chosen.as_ref().map(|config| FollowedConfig::new(config.meta()));
    let observed = Observed {
        facts: None,
        vcenters: all,
        unsure,
        unreadable: None,
        compatibility,
        new: follow.filter(|follow| Some(follow) != recorded.as_ref()),
        rivals: rivals.clone(),
    };
    let Some(chosen) = chosen else { return Ok(observed) };
    let config = match &chosen.0 {
        Ok(config) => Arc::new(config.clone()),
        Err(error) => {
            let unreadable = Some(Spoilt::new(chosen.object_ref(&()), &error.error));
            return Ok(Observed { unreadable, ..observed });
        }
    };
    let platform = around.platform(stores);
    let cluster = TargetCluster {
        version: around.version.version,
        version_text: around.version.text.clone(),
        platform,
        owns_drivers: around.owns_drivers,
        uid: around.uid.clone(),
        nodes: placements(stores, vcenters),
        // Elsewhere, a missing permission to read OpenShift's objects must not hold up the drivers.
        proxy: if platform == Platform::OpenShift { stores.site.proxy() } else { Ok(None) },
    };
    let drivers::FoundWorkloads { mut workloads, mut lookalikes } =
        drivers::find_with_adopted_pods(client, stores).await;
    let (go_vdo, disguised) = stores.go_vdo(&around.namespace, around.pod.as_deref());
    lookalikes.extend(disguised);
    lookalikes.sort();
    let pull_secrets = pull_secrets(client, &around.namespace, &config).await?;
    let (in_use, cluster_id) = in_use(client, &config, &records, &workloads).await?;
    // A permission can come back, and no watch reports that.
    let unsure = observed.unsure || cluster_id.is_err() || matches!(in_use.cpi, Some(Err(_)));
    let cluster_id = match cluster_id {
        Ok(None) => Ok(unproven(&config, &records, &around.uid)),
        cluster_id => cluster_id,
    };
    let proposal = is_proposal(&config, &records.csi, &workloads);
    let identified =
        identified(stores, vcenters, &config, &records, &around.uid, cluster_id, proposal).await;
    let own = observed.vcenters.iter();
    let objects = stores.objects(applied);
    forget_passing_fields(&mut workloads, &objects);
    let adopted = identity::adopted_cpi_secret(client, &records.cpi, &workloads).await;
    let (driver_secrets, unusable_secrets) =
        driver_secrets::read_all(client, &stores.driver_secrets, &objects, &records, adopted).await;
    let (catalog, catalog_trouble) = catalogs.in_use_for(&config);
    let facts = Facts {
        now: Timestamp::now(),
        vcenters: own.map(|((_, name), vcenter)| (name.clone(), vcenter.clone())).collect(),
        cluster_id: identified.id,
        foreign_volumes: identified.foreign_volumes,
        ambiguous: identified.ambiguous,
        in_use,
        predecessor: Predecessor { runs: go_vdo, cloud_secret: stores.has_cloud_secret() },
        catalog,
        catalog_trouble: catalog_trouble.cloned(),
        config,
        rivals,
        cluster,
        objects,
        workloads,
        lookalikes,
        attached: drivers::attached(stores),
        records,
        unreadable,
        build: around.build.clone(),
        rollout_timeout: around.timeouts.rollout,
        grace: around.timeouts.grace,
        refused: refused.clone(),
        conflicts: applied.conflicts(Timestamp::now()),
        renewed_files: applied.renewed(),
        pull_secrets,
        driver_secrets,
        unusable_secrets,
        operator_namespace: around.namespace.clone(),
        allowed_namespaces: crate::allowed_namespaces::all().map(str::to_owned).collect(),
        open_namespaces: around.open_namespaces.clone(),
        started: around.started,
        health: Health::default(),
    };
    Ok(Observed { facts: Some(facts), unsure, ..observed })
}

/// All nodes, and the locations of their VMs.
fn placements(stores: &Stores, vcenters: &Vcenters) -> Vec<NodePlacement> {
    let nodes = stores.node_facts().ok().unwrap_or_default().into_values();
    nodes.map(|node| NodePlacement { vm: vcenters.vm(&node.system_uuid), node }).collect()
}

/// Follows the CompatibilityConfig, or the ConfigMap of the Go VDO, to the catalog in use.
pub(crate) async fn follow_catalog(
    client: &Client,
    namespace: &str,
    stores: &Stores,
    catalogs: &mut Catalogs,
) -> Result<Option<CompatibilityConfig>, kube::Error> {
    let compatibility = catalogs::followed(stores.compatibility_configs(), namespace);
    let legacy = stores.map_version(catalogs::matrix::NAME, namespace);
    catalogs.follow(client, namespace, compatibility.as_ref(), legacy.as_deref()).await?;
    Ok(compatibility)
}

/// The CNS cluster id from the record of another cluster, or from the status alone. Somebody may have
/// restored either from a cluster that still uses the id.
fn unproven(config: &VDOConfig, records: &Records, cluster: &str) -> Option<ClusterId> {
    let record = &records.csi;
    if record.is_of_another(cluster) {
        let id = record.cluster_id.clone()?;
        return Some(ClusterId { id, kept_by_driver: record.cluster_id_kept_by_driver });
    }
    let reported = config.status.as_ref().and_then(|status| status.cluster_id.clone());
    let reported = reported.filter(|_| record.cluster_id.is_none());
    reported.map(|id| ClusterId { id, kept_by_driver: false })
}

/// The facts about the cluster's id in CNS; see the fields of [`Facts`].
struct Identified {
    id: Result<Option<ClusterId>, String>,
    foreign_volumes: Result<Vec<String>, String>,
    ambiguous: Vec<String>,
}

/// The CNS cluster id to use, and foreign claims under it. If neither the driver nor a record has an id, the
/// existing volumes determine it.
async fn identified(
    stores: &Stores,
    vcenters: &mut Vcenters,
    config: &VDOConfig,
    records: &Records,
    cluster: &str,
    configured: Result<Option<ClusterId>, String>,
    proposal: bool,
) -> Identified {
    let known = |id, foreign_volumes| Identified { id, foreign_volumes, ambiguous: Vec::new() };
    let Some(storage) = &config.spec.storage_provider else {
        return known(configured, Ok(Vec::new()));
    };
    let namespace = config.namespace().unwrap_or_default();
    let names = storage.vcenters().into_iter();
    let names: Vec<String> = names.map(|name| format!("{namespace}/{}", name.0)).collect();
    let configured = match configured {
        Ok(None) if records.csi.cluster_id.is_none() => {
            match cns_ownership::inherited_ids(stores, vcenters, config, &names).await {
                Ok(ids) if ids.len() > 1 => {
                    return Identified { ambiguous: ids, ..known(Ok(None), Ok(Vec::new())) };
                }
                Ok(ids) => {
                    let id = ids.into_iter().next();
                    Ok(id.map(|id| ClusterId { id, kept_by_driver: false }))
                }
                Err(why) => return known(Ok(None), Err(why)),
            }
        }
        configured => configured,
    };
    let foreign_volumes = match &configured {
        // The list of all volumes is expensive for vCenter, and an adopted driver can wait for months.
        _ if records.csi.has_locked_cluster_id(cluster) => Ok(Vec::new()),
        Ok(Some(id)) => {
            cns_ownership::foreign_claims(stores, vcenters, config, &names, &id.id, proposal).await
        }
        _ => Ok(Vec::new()),
    };
    known(configured, foreign_volumes)
}

/// Whether VDO does not adopt the running storage driver before an admin asks for it. VDO adopts the driver of the Go VDO
/// without a request.
fn is_proposal(
    config: &VDOConfig,
    record: &Record,
    workloads: &BTreeMap<ObjectId, DriverWorkload>,
) -> bool {
    let storage = || workloads.values().filter(|workload| workload.driver == Driver::Csi);
    let mut controllers = storage().filter(|workload| workload.role == WorkloadRole::Controller);
    let by_predecessor = |workload: &DriverWorkload| {
        workload.origin.field_managers.iter().eq([names::PREDECESSOR_MANAGER])
    };
    *record == Record::default()
        && !storage().any(|workload| workload.labelled)
        && match config.spec.adoption {
            Some(Adoption::Automatic) => false,
            Some(Adoption::Propose | Adoption::Never) => controllers.next().is_some(),
            None => controllers.any(|controller| !by_predecessor(controller)),
        }
}

/// The image pull Secrets that exist in the operator's namespace.
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

/// The configuration of drivers that VDO has not configured: they are not on record, or VDO adopted them and
/// has changed nothing yet.
async fn in_use(
    client: &Client,
    config: &VDOConfig,
    records: &Records,
    workloads: &BTreeMap<ObjectId, DriverWorkload>,
) -> Result<(InUse, Result<Option<ClusterId>, String>), kube::Error> {
    let mut in_use = InUse::default();
    let Records { cpi, csi, .. } = records;
    if config.spec.cloud_provider.is_some() && (cpi.version.is_none() || cpi.untouched) {
        let places = identity::places(workloads, Driver::Cpi);
        in_use.cpi = identity::cpi(client, &places).await?;
    }
    if config.spec.storage_provider.is_none() || csi.cluster_id.is_some() && !csi.untouched {
        return Ok((in_use, Ok(None)));
    }
    in_use.csi = identity::csi(client, &identity::places(workloads, Driver::Csi)).await?;
    let cluster_id = identity::cluster_id(client, &in_use).await?;
    Ok((in_use, cluster_id))
}

/// The observed facts: for the VDOConfig that VDO follows, and for all vCenters in the operator's namespace.
/// VDO verifies a vCenter even if no VDOConfig names it.
pub struct Observed {
    /// `None` without a VDOConfig to follow.
    pub facts: Option<Facts>,
    /// The vCenters by namespace and name of their VsphereCloudConfig.
    pub vcenters: BTreeMap<(String, String), VcenterConnection>,
    /// Whether a read failed that may succeed soon. No watch reports when it does.
    pub unsure: bool,
    /// The VDOConfig that VDO would follow, but cannot read.
    pub unreadable: Option<Spoilt>,
    /// The CompatibilityConfig that VDO follows.
    pub compatibility: Option<CompatibilityConfig>,
    /// The VDOConfig that VDO follows, if that is not on record yet.
    pub new: Option<FollowedConfig>,
    /// The other VDOConfigs in the operator's namespace.
    pub rivals: Vec<Rival>,
}

/// A field that somebody changed is not VDO's until VDO applies the workload again. It is no added field.
fn forget_passing_fields(
    workloads: &mut BTreeMap<ObjectId, DriverWorkload>,
    objects: &BTreeMap<ObjectId, AppliedObject>,
) {
    for (id, workload) in workloads {
        let seen = objects.get(id);
        if !seen.is_some_and(|seen| seen.settled && seen.mark == workload.mark) {
            workload.origin.added_fields.clear();
        }
    }
}

/// The drivers' workloads, whether VDO installed them or not.
pub(crate) fn workloads(stores: &Stores) -> BTreeMap<ObjectId, DriverWorkload> {
    drivers::find(stores, &Pods::new()).workloads
}

/// The VDOConfig in the operator's namespace that VDO follows, and the others. No other VDOConfig replaces
/// one that VDO cannot read: its spec is unknown, so VDO leaves the running drivers alone.
pub(crate) fn choose(
    stores: &Stores,
    recorded: Option<&FollowedConfig>,
) -> (Option<Arc<DeserializeGuard<VDOConfig>>>, Vec<Rival>) {
    let mut configs = stores.configs.state();
    configs.sort_by_key(|config| config.name_any());
    let status = |config: &DeserializeGuard<VDOConfig>| {
        config.0.as_ref().ok().map(|config| config.status.clone().unwrap_or_default())
    };
    let candidates: Vec<Candidate> = configs
        .iter()
        .map(|config| Candidate::new(config.meta(), status(config).as_ref()))
        .collect();
    let chosen = followed::choose(&candidates, recorded).map(|place| configs.remove(place));
    let rivals = configs.iter().map(|rival| Rival {
        namespace: rival.namespace().unwrap_or_default(),
        name: rival.name_any(),
        uid: rival.uid().unwrap_or_default(),
        generation: rival.meta().generation,
        status: status(rival),
    });
    (chosen, rivals.collect())
}

/// The namespaces of adopted drivers, from the records.
pub async fn recorded_namespaces(
    client: &Client,
    namespace: &str,
) -> Result<BTreeSet<String>, kube::Error> {
    let (records, _) = records(client, namespace).await?;
    let names = [records.cpi.names, records.csi.names].into_iter().flatten();
    Ok(names.map(|names| names.namespace).collect())
}

/// The names that the operator writes in this cluster only, by kind: those of objects on record, and of the
/// image pull Secrets.
pub async fn names_in_use(
    client: &Client,
    namespace: &str,
) -> Result<BTreeMap<String, BTreeSet<String>>, kube::Error> {
    let (records, _) = records(client, namespace).await?;
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for object in records.cpi.objects.into_iter().chain(records.csi.objects) {
        if crate::allowed_namespaces::has(&object.namespace) {
            names.entry(object.kind).or_default().insert(object.name);
        }
    }
    let configs = Api::<VDOConfig>::namespaced(client.clone(), namespace);
    let configs = match configs.list(&ListParams::default()).await {
        // The CRD is not installed yet.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        configs => configs?.items,
    };
    let images = configs.into_iter().filter_map(|config| config.spec.images);
    let secrets = images.flat_map(|images| images.pull_secrets);
    let secrets: BTreeSet<String> = secrets.map(|name| name.0.as_str().to_owned()).collect();
    names.entry("Secret".to_owned()).or_default().extend(secrets);
    Ok(names)
}

/// The names of the Secrets with vCenter credentials that are in `kube-system` and not in the operator's namespace.
pub async fn credentials_in_kube_system(
    client: &Client,
    namespace: &str,
) -> Result<BTreeSet<String>, kube::Error> {
    let configs = Api::<VsphereCloudConfig>::namespaced(client.clone(), namespace);
    let configs = match configs.list(&ListParams::default()).await {
        // The CRD is not installed yet.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        configs => configs?.items,
    };
    let mut found = BTreeSet::new();
    for config in configs {
        let name = config.spec.credentials.0.as_str();
        let is_there = async |namespace: &str| {
            let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
            match secrets.get_metadata_opt(name).await {
                Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
                there => there.map(|there| Some(there.is_some())),
            }
        };
        // A user who cannot read Secrets does not take the permission away from the operator.
        if is_there(namespace).await? != Some(true)
            && is_there(names::KUBE_SYSTEM).await? != Some(false)
        {
            found.insert(name.to_owned());
        }
    }
    Ok(found)
}

/// The records. VDO must not forget a record that does not parse: the result names it, and VDO takes no
/// action.
pub(crate) async fn records(
    client: &Client,
    namespace: &str,
) -> Result<(Records, BTreeMap<Driver, String>), kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let (mut unreadable, mut versions) = (BTreeMap::new(), BTreeMap::new());
    let mut read = async |driver| -> Result<Record, kube::Error> {
        let Some(map) = maps.get_opt(record_name(driver)).await? else {
            return Ok(Record::default());
        };
        versions.extend(map.metadata.resource_version.map(|version| (driver, version)));
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
    Ok((Records { cpi, csi, versions }, unreadable))
}
