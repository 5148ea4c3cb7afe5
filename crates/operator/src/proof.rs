//! Verifies a vCenter before anything is written about it: whether it answers, is the right one, and accepts
//! the user and the password. Also lists the inventory to choose from.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use catalog::manifest::Object;
use driver_config::credentials::Credentials;
use k8s_openapi::ByteString;
use plan::{ObjectId, names};
use runtime::build::BuildInfo;
use snafu::{ResultExt, Snafu};
use vsphere::{
    AboutInfo,
    inventory::{Cluster, Datastore, Selection},
};

use crate::vcenters::{ConnectionInputs, connect};

/// The timeout for reading the inventory.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The reason why the described vCenter cannot be used.
#[derive(Debug, Snafu)]
#[allow(missing_docs, reason = "a field is named as in the text it stands in")]
pub enum Error {
    #[snafu(transparent)]
    Vcenter { source: Arc<vsphere::Error> },
    #[snafu(display(
        "the datacenter \"{name}\" does not exist or this user cannot see it; there are {known}"
    ))]
    Datacenter { name: String, known: String },
    #[snafu(display("its inventory was not read within two minutes"))]
    Slow { source: tokio::time::error::Elapsed },
}

/// The properties of a verified vCenter.
#[derive(Clone, Debug)]
pub struct VerifiedVcenter {
    /// The vCenter's own description.
    pub about: AboutInfo,
    /// The inventory paths of the datacenters without the leading slash. For a datacenter outside of a
    /// folder, that is its name.
    pub datacenters: Vec<String>,
    /// The number of clusters.
    pub clusters: usize,
    pub datastores: Vec<Store>,
    /// Tag categories that can serve as zones or regions, with their tags on datacenters, clusters or hosts.
    pub categories: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    pub name: String,
    /// `VMFS`, `NFS` or `vsan`.
    pub kind: String,
    /// The URL, as storage configuration names it.
    pub url: String,
    /// Whether several hosts mount it.
    pub shared: bool,
}

/// Verifies a vCenter with one login, and logs out at the end.
pub async fn prove(inputs: &ConnectionInputs, build: BuildInfo) -> Result<VerifiedVcenter, Error> {
    let ConnectionInputs { spec, ca_bundle, credential, .. } = inputs;
    let client = connect(spec, ca_bundle.as_ref(), credential, build).await?;
    let proof = read(&client, inputs).await;
    client.shut_down().await;
    proof
}

async fn read(
    client: &vsphere::Client,
    inputs: &ConnectionInputs,
) -> Result<VerifiedVcenter, Error> {
    // Reads all datacenters, not only the named ones, so that the error can list the existing ones.
    let selection = Selection::new()
        .datacenter_folders()
        .clusters(&[Cluster::IDENTITY])
        .datastores(&[Datastore::IDENTITY, Datastore::STATE]);
    let watch = client.watch(selection);
    let inventory = watch.inventory().clone();
    tokio::time::timeout(TIMEOUT, inventory.ready()).await.context(SlowSnafu)??;
    let (datacenters, clusters, datastores, places) = {
        let view = inventory.view();
        let places = view.datacenters().into_iter().map(|d| d.reference.clone());
        let places = places.chain(view.clusters().into_iter().map(|c| c.reference.clone()));
        let places: Vec<_> = places.collect();
        let mut datacenters: Vec<String> = view
            .datacenters()
            .iter()
            .filter_map(|d| view.path_of(&d.reference))
            .map(|path| path.trim_start_matches('/').to_owned())
            .collect();
        datacenters.sort();
        let mut stores: Vec<Store> = view.datastores().iter().map(|d| store(d)).collect();
        stores.sort_by(|a, b| a.name.cmp(&b.name));
        (datacenters, view.clusters().len(), stores, places)
    };
    for name in inputs.spec.datacenter_names() {
        let plain = name.trim_start_matches('/');
        let found = |path: &String| path == plain || path.rsplit('/').next() == Some(plain);
        if !datacenters.iter().any(found) {
            let known = if datacenters.is_empty() { "none".into() } else { datacenters.join(", ") };
            return DatacenterSnafu { name, known }.fail();
        }
    }
    let about = client.about().map_err(Arc::new)?;
    // Tags are optional: a user who lacks the privilege to read them can continue.
    let categories = zones(client, &places).await.unwrap_or_default();
    Ok(VerifiedVcenter { about, datacenters, clusters, datastores, categories })
}

fn store(datastore: &Datastore) -> Store {
    Store {
        name: datastore.name.as_deref().unwrap_or_default().to_owned(),
        kind: datastore.kind.as_deref().unwrap_or_default().to_owned(),
        url: datastore.url.as_deref().unwrap_or_default().to_owned(),
        shared: datastore.multiple_host_access.unwrap_or_default(),
    }
}

async fn zones(
    client: &vsphere::Client,
    places: &[vsphere::MoRef],
) -> Result<BTreeMap<String, Vec<String>>, vsphere::Error> {
    let attached = client.tags(Duration::ZERO).attached(places).await?;
    let mut categories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for tag in attached.values().flatten() {
        let names = categories.entry(tag.category.to_string()).or_default();
        if !names.iter().any(|name| **name == *tag.name) {
            names.push(tag.name.to_string());
        }
    }
    for names in categories.values_mut() {
        names.sort();
    }
    Ok(categories)
}

/// Collects everything that a connection to a vCenter needs. The user's objects describe the vCenter, and
/// some of them may not be in the cluster yet. The error is a sentence about the missing part.
pub async fn connection_inputs(
    client: Option<&kube::Client>,
    objects: &[Object],
    vcenter: &api::VsphereCloudConfig,
) -> Result<ConnectionInputs, String> {
    let name = vcenter.spec.credentials.0.as_str();
    let namespace = vcenter.metadata.namespace.as_deref().unwrap_or(api::NAMESPACE);
    let mut data = find(client, objects, "Secret", namespace, name).await?;
    if data.is_none() {
        data = find(client, objects, "Secret", names::KUBE_SYSTEM, name).await?;
    }
    let data = data.ok_or_else(|| {
        format!(
            "the Secret {name} is neither here nor in namespace {namespace}: add it with the keys username and password"
        )
    })?;
    let read =
        Credentials::read(&data).and_then(|all| all.for_server(&vcenter.spec.vc_ip.0).cloned());
    let credential = read.map_err(|error| format!("Secret {name}: {error}"))?;
    let ca_bundle = bundle(client, objects, vcenter).await?;
    Ok(ConnectionInputs {
        spec: vcenter.spec.clone(),
        ca_bundle,
        credential,
        version: String::new(),
        revision: String::new(),
        refused: None,
    })
}

async fn bundle(
    client: Option<&kube::Client>,
    objects: &[Object],
    vcenter: &api::VsphereCloudConfig,
) -> Result<Option<String>, String> {
    let Some(bundle) = &vcenter.spec.ca_bundle else { return Ok(None) };
    let namespace = vcenter.metadata.namespace.as_deref().unwrap_or(api::NAMESPACE);
    let named = [("ConfigMap", &bundle.config_map), ("Secret", &bundle.secret)];
    let mut named = named.into_iter().filter_map(|(kind, of)| Some((kind, of.as_ref()?)));
    if let Some((kind, of)) = named.next() {
        let data = find(client, objects, kind, namespace, &of.name.0).await?.unwrap_or_default();
        let text = data.get(of.key()).and_then(|bytes| String::from_utf8(bytes.clone()).ok());
        let missing =
            || format!("spec.caBundle: {kind} {namespace}/{} has no key {}", of.name.0, of.key());
        return text.map(Some).ok_or_else(missing);
    }
    Ok(bundle.inline.clone())
}

/// The data of a Secret or ConfigMap, from the user's objects or else from the cluster.
async fn find(
    client: Option<&kube::Client>,
    objects: &[Object],
    kind: &str,
    namespace: &str,
    name: &str,
) -> Result<Option<BTreeMap<String, Vec<u8>>>, String> {
    let given =
        objects.iter().find(|o| o.kind() == kind && o.name() == name && o.namespace() == namespace);
    let object = match (given, client) {
        (Some(object), _) => object.0.clone(),
        (None, None) => return Ok(None),
        (None, Some(client)) => {
            let id = ObjectId {
                api_version: "v1".into(),
                kind: kind.into(),
                namespace: namespace.into(),
                name: name.into(),
            };
            let api = crate::act::api_of(client, &id).map_err(|e| e.to_string())?;
            match api.get_opt(name).await {
                Ok(Some(object)) => object.data,
                Ok(None) => return Ok(None),
                Err(error) => return Err(format!("{id} cannot be read: {error}")),
            }
        }
    };
    let mut data = BTreeMap::new();
    for (key, value) in object["data"].as_object().into_iter().flatten() {
        let text = value.as_str().unwrap_or_default();
        let bytes = if kind == "Secret" {
            serde_json::from_value::<ByteString>(value.clone())
                .map_err(|_| format!("Secret {name}: data.{key} is not base64; plain text belongs into stringData"))?
                .0
        } else {
            text.as_bytes().to_vec()
        };
        data.insert(key.clone(), bytes);
    }
    for (key, value) in object["stringData"].as_object().into_iter().flatten() {
        data.insert(key.clone(), value.as_str().unwrap_or_default().as_bytes().to_vec());
    }
    Ok(Some(data))
}
