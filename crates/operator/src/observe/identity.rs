//! What drivers by other hands are told: their configuration, and the identity of the cluster in CNS
//! that stands in it.

use std::collections::BTreeMap;

use catalog::Driver;
use driver_config::{cpi::CpiConfig, csi::CsiConfig};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};

use crate::{
    facts::{ClusterId, InUse, ObjectId, Task, Workload},
    names,
};

/// Where drivers by other hands have their configuration: namespace and name. Only places VDO may
/// look into.
pub(super) fn places(
    workloads: &BTreeMap<ObjectId, Workload>,
    driver: Driver,
) -> Vec<(String, String)> {
    let found = workloads
        .iter()
        .filter(|(_, w)| w.driver == driver && w.task == Task::Controller && !w.labelled)
        .filter(|(id, _)| names::HOMES.contains(&id.namespace.as_str()))
        .filter_map(|(id, w)| Some((id.namespace.clone(), w.make.settings.clone()?)));
    let known: &[(&str, &str)] = match driver {
        Driver::Cpi => &[],
        Driver::Csi => {
            &[(names::CSI_NAMESPACE, names::CSI_SECRET), (names::KUBE_SYSTEM, names::CSI_SECRET)]
        }
    };
    let known = known.iter().map(|(home, name)| ((*home).to_owned(), (*name).to_owned()));
    let mut all: Vec<(String, String)> = Vec::new();
    for place in found.chain(known) {
        if !all.contains(&place) {
            all.push(place);
        }
    }
    all
}

/// The cloud controller's configuration, without passwords.
pub(super) async fn cpi(
    client: &Client,
    places: &[(String, String)],
) -> Result<Option<Result<CpiConfig, String>>, kube::Error> {
    for (home, name) in places {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), home);
        let Some(map) = maps.get_opt(name).await? else { continue };
        let text = map.data.and_then(|mut data| data.remove("vsphere.conf"));
        let Some(text) = text else { continue };
        let read = CpiConfig::read(&text).map(|read| {
            let mut config = read.config;
            config.global.password = String::new().into();
            for vcenter in config.vcenters.values_mut() {
                vcenter.password = String::new().into();
            }
            config
        });
        let place = |error| format!("ConfigMap {home}/{name} cannot be read: {error}");
        return Ok(Some(read.map_err(place)));
    }
    Ok(None)
}

/// The storage driver's configuration, without passwords.
pub(super) async fn csi(
    client: &Client,
    places: &[(String, String)],
) -> Result<Option<Result<CsiConfig, String>>, kube::Error> {
    for (home, name) in places {
        let secrets = Api::<Secret>::namespaced(client.clone(), home);
        let Some(secret) = secrets.get_opt(name).await? else { continue };
        let text = secret.data.and_then(|mut data| data.remove("csi-vsphere.conf"));
        let Some(text) = text else { continue };
        let read = readable(&text.0);
        let place = |error| format!("Secret {home}/{name} is in use and cannot be read: {error}");
        return Ok(Some(read.map_err(place)));
    }
    Ok(None)
}

fn readable(text: &[u8]) -> Result<CsiConfig, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let mut config = CsiConfig::read(text).map_err(|error| error.to_string())?.config;
    config.global.password = String::new().into();
    for vcenter in config.vcenters.values_mut() {
        vcenter.password = String::new().into();
    }
    Ok(config)
}

/// The identity in use: from the driver's configuration, else the one it made itself. A
/// configuration that cannot be read is an error to be shown: whoever overwrites it may change the
/// identity without knowing.
pub(super) async fn cluster_id(
    client: &Client,
    in_use: &InUse,
) -> Result<Result<Option<ClusterId>, String>, kube::Error> {
    match &in_use.csi {
        Some(Err(why)) => return Ok(Err(why.clone())),
        Some(Ok(config)) if !config.global.cluster_id.is_empty() => {
            let id = config.global.cluster_id.clone();
            return Ok(Ok(Some(ClusterId { id, kept_by_driver: false })));
        }
        _ => {}
    }
    for home in [names::CSI_NAMESPACE, names::KUBE_SYSTEM] {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), home);
        let map = maps.get_opt(names::CSI_CLUSTER_ID).await?;
        let id = map.and_then(|map| map.data?.remove("clusterID")).filter(|id| !id.is_empty());
        if let Some(id) = id {
            return Ok(Ok(Some(ClusterId { id, kept_by_driver: true })));
        }
    }
    Ok(Ok(None))
}

/// The identity in use, by what stands in the usual places alone.
pub(crate) async fn usual(
    client: &Client,
) -> Result<Result<Option<ClusterId>, String>, kube::Error> {
    let places = places(&BTreeMap::new(), Driver::Csi);
    let in_use = InUse { csi: csi(client, &places).await?, ..InUse::default() };
    cluster_id(client, &in_use).await
}
