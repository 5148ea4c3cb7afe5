//! Gathers facts: from caches that watches keep filled, and from the vCenters.

mod drivers;
mod nodes;
mod stores;

use std::{collections::BTreeMap, sync::Arc};

use api::{VDOConfig, VsphereCloudConfig};
use catalog::{Catalog, version::KubernetesVersion};
use driver_config::credentials::Credentials;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, ResourceExt};

pub use self::stores::Stores;
use crate::{
    act::Applied,
    facts::{Cluster, Facts, Platform, Vcenter, VcenterState},
    names,
    record::{Record, Records},
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
    /// The releases there are.
    pub catalog: Arc<Catalog>,
}

/// Looks around once. `None` if there is no VDOConfig.
pub async fn observe(
    client: &Client,
    around: &Surroundings,
    stores: &Stores,
    vcenters: &mut Vcenters,
    applied: &Applied,
) -> Result<Option<Facts>, kube::Error> {
    let problems = follow_vcenters(client, stores, vcenters).await?;
    let mut configs = stores.configs.state();
    // The oldest is followed; of two of the same second, the first by name.
    configs.sort_by_key(|c| (c.creation_timestamp(), c.namespace(), c.name_any()));
    let Some(config) = configs.first().cloned() else { return Ok(None) };
    let rivals = configs.iter().skip(1).map(|c| full_name(c)).collect();
    let cluster = Cluster {
        version: around.version,
        version_text: around.version_text.clone(),
        platform: around.platform,
        uid: around.uid.clone(),
        nodes: nodes::of(stores, vcenters),
    };
    Ok(Some(Facts {
        now: Timestamp::now(),
        vcenters: vcenters_of(&config, stores, vcenters, &problems),
        config,
        rivals,
        cluster,
        objects: stores.objects(applied),
        workloads: drivers::workloads(stores),
        attached: drivers::attached(stores),
        records: records(client, &around.namespace).await?,
        catalog: around.catalog.clone(),
    }))
}

fn full_name(config: &VDOConfig) -> String {
    format!("{}/{}", config.namespace().unwrap_or_default(), config.name_any())
}

/// Connects to what the VsphereCloudConfigs name; returns what is wrong with those that cannot even
/// be tried.
async fn follow_vcenters(
    client: &Client,
    stores: &Stores,
    vcenters: &mut Vcenters,
) -> Result<BTreeMap<String, VcenterState>, kube::Error> {
    let mut wanted = BTreeMap::new();
    let mut problems = BTreeMap::new();
    for config in stores.vcenters.state() {
        let name = key(&config);
        match want(client, stores, &config).await? {
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
    stores: &Stores,
    config: &VsphereCloudConfig,
) -> Result<Result<Wanted, VcenterState>, kube::Error> {
    let failed = |reason: &str, message: String| {
        Ok(Err(VcenterState::Failed { reason: reason.into(), message, transient: false }))
    };
    let name = config.spec.credentials.0.as_str();
    let Some(version) = stores.secret_version(name) else {
        let message = format!(
            "the Secret {name} does not exist in namespace {}: create it with the keys username and password",
            names::KUBE_SYSTEM
        );
        return failed("CredentialsMissing", message);
    };
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
    let ca_bundle = config.spec.ca_bundle.as_ref().and_then(|bundle| bundle.inline.clone());
    Ok(Ok(Wanted { spec: config.spec.clone(), ca_bundle, credential, version }))
}

fn vcenters_of(
    config: &VDOConfig,
    stores: &Stores,
    vcenters: &Vcenters,
    problems: &BTreeMap<String, VcenterState>,
) -> BTreeMap<String, Vcenter> {
    let namespace = config.namespace();
    let all = stores.vcenters.state().into_iter().filter(|vcc| vcc.namespace() == namespace);
    all.map(|vcc| {
        let known = vcenters.known(&key(&vcc));
        let proven = known.as_ref().and_then(|known| known.proven.clone());
        let state = known.map(|known| known.state);
        let state = state.or_else(|| problems.get(&key(&vcc)).cloned());
        let (credentials, credentials_version) = proven.unzip();
        let vcenter = Vcenter {
            spec: vcc.spec.clone(),
            state: state.unwrap_or(VcenterState::Untried),
            credentials,
            credentials_version: credentials_version.unwrap_or_default(),
            generation: vcc.metadata.generation,
            status: vcc.status.clone(),
        };
        (vcc.name_any(), vcenter)
    })
    .collect()
}

/// The name of the ConfigMap with the record of a driver.
pub(crate) fn record_name(driver: catalog::Driver) -> &'static str {
    match driver {
        catalog::Driver::Cpi => "vdo-record-cpi",
        catalog::Driver::Csi => "vdo-record-csi",
    }
}

async fn records(client: &Client, namespace: &str) -> Result<Records, kube::Error> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let read = async |driver| -> Result<Record, kube::Error> {
        let map = maps.get_opt(record_name(driver)).await?;
        let text = map.and_then(|map| map.data?.remove("record.json"));
        // A record that does not parse is no permission to forget: reading fails, nothing is done.
        text.map_or(Ok(Record::default()), |text| {
            serde_json::from_str(&text).map_err(kube::Error::SerdeError)
        })
    };
    Ok(Records { cpi: read(catalog::Driver::Cpi).await?, csi: read(catalog::Driver::Csi).await? })
}
