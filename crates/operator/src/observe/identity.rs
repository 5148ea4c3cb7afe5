//! The configuration of drivers not managed by VDO, and the CNS cluster id in it.

use std::collections::BTreeMap;

use catalog::Driver;
use driver_config::{SecretText, cpi::CpiConfig, csi::CsiConfig};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use plan::{
    ObjectId,
    facts::{ClusterId, DriverWorkload, InUse, RunningConfig, WorkloadOrigin, WorkloadRole},
    names,
};

/// The keys under which the drivers look for their configuration, unless their arguments name others.
const CPI_KEY: &str = "vsphere.conf";
const CSI_KEY: &str = "csi-vsphere.conf";

/// A Secret or ConfigMap with the configuration of a driver, and the key of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ConfigLocation {
    namespace: String,
    name: String,
    key: String,
}

/// The places where drivers that are not on record have their configuration. Such a driver is not managed by
/// VDO, or it is ours and the record is lost. The result has only places that VDO has permission to read.
pub(super) fn places(
    workloads: &BTreeMap<ObjectId, DriverWorkload>,
    driver: Driver,
) -> Vec<ConfigLocation> {
    let found = workloads
        .iter()
        .filter(|(_, w)| w.driver == driver && w.role == WorkloadRole::Controller)
        .filter(|(id, _)| crate::allowed_namespaces::has(&id.namespace))
        .filter_map(|(id, w)| {
            let (namespace, name) = (id.namespace.clone(), w.origin.settings.clone()?);
            Some(ConfigLocation { namespace, name, key: key(driver, &w.origin) })
        });
    let known: &[(&str, &str)] = match driver {
        Driver::Cpi => &[],
        Driver::Csi => {
            &[(names::CSI_NAMESPACE, names::CSI_SECRET), (names::KUBE_SYSTEM, names::CSI_SECRET)]
        }
    };
    let known = known.iter().map(|&(namespace, name)| ConfigLocation {
        namespace: namespace.into(),
        name: name.into(),
        key: CSI_KEY.into(),
    });
    let mut all: Vec<ConfigLocation> = Vec::new();
    for place in found.chain(known) {
        if !all.contains(&place) {
            all.push(place);
        }
    }
    all
}

/// The key that a driver reads: the file name in its arguments, or the usual one.
fn key(driver: Driver, origin: &WorkloadOrigin) -> String {
    if driver == Driver::Csi {
        return CSI_KEY.into();
    }
    let mut arguments = origin.containers.values().flat_map(|(_, arguments)| arguments);
    let file = arguments.find_map(|argument| argument.strip_prefix("--cloud-config="));
    file.and_then(|file| file.rsplit('/').next()).unwrap_or(CPI_KEY).to_owned()
}

/// The cloud controller's configuration without passwords, from a ConfigMap or a Secret.
pub(super) async fn cpi(
    client: &Client,
    places: &[ConfigLocation],
) -> Result<Option<Result<RunningConfig<CpiConfig>, String>>, kube::Error> {
    for ConfigLocation { namespace, name, key } in places {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        let text = maps.get_opt(name).await?.and_then(|map| {
            let mut data = map.data?;
            // The file name can differ from the key.
            data.remove(key).or_else(|| data.remove(CPI_KEY))
        });
        let (kind, text) = match text {
            Some(text) => ("ConfigMap", Some(Ok(SecretText::from(text)))),
            None => ("Secret", secret_text(client, namespace, name, key).await?),
        };
        let Some(text) = text else { continue };
        let read = text.and_then(|text| CpiConfig::read(text.expose()).map_err(|e| e.to_string()));
        let read = read.map(|read| {
            let mut config = read.config;
            config.global.password = SecretText::default();
            config.nsxt.password = SecretText::default();
            config.nsxt.vmc_access_token = SecretText::default();
            for vcenter in config.vcenters.values_mut() {
                vcenter.password = SecretText::default();
            }
            RunningConfig {
                config,
                unknown: read.unknown.iter().map(ToString::to_string).collect(),
            }
        });
        let place = |error| format!("{kind} {namespace}/{name} cannot be read: {error}");
        return Ok(Some(read.map_err(place)));
    }
    Ok(None)
}

/// The storage driver's configuration without passwords.
pub(super) async fn csi(
    client: &Client,
    places: &[ConfigLocation],
) -> Result<Option<Result<RunningConfig<CsiConfig>, String>>, kube::Error> {
    for ConfigLocation { namespace, name, key } in places {
        let Some(text) = secret_text(client, namespace, name, key).await? else { continue };
        let read = text.and_then(|text| CsiConfig::read(text.expose()).map_err(|e| e.to_string()));
        let read = read.map(|read| {
            let mut config = read.config;
            config.global.password = SecretText::default();
            for vcenter in config.vcenters.values_mut() {
                vcenter.password = SecretText::default();
            }
            RunningConfig {
                config,
                unknown: read.unknown.iter().map(ToString::to_string).collect(),
            }
        });
        let place =
            |error| format!("Secret {namespace}/{name} is in use and cannot be read: {error}");
        return Ok(Some(read.map_err(place)));
    }
    Ok(None)
}

async fn secret_text(
    client: &Client,
    namespace: &str,
    name: &str,
    key: &str,
) -> Result<Option<Result<SecretText, String>>, kube::Error> {
    let secret = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(name).await?;
    let text = secret.and_then(|secret| secret.data?.remove(key));
    Ok(text.map(|text| match String::from_utf8(text.0) {
        Ok(text) => Ok(SecretText::from(text)),
        Err(_) => Err(format!("its key {key} is not text")),
    }))
}

/// The cluster id in use: from the driver's configuration, otherwise the one that the driver generated. A
/// configuration that VDO cannot read is an error to report: overwriting it could silently change the cluster
/// id.
pub(super) async fn cluster_id(
    client: &Client,
    in_use: &InUse,
) -> Result<Result<Option<ClusterId>, String>, kube::Error> {
    match &in_use.csi {
        Some(Err(why)) => return Ok(Err(why.clone())),
        Some(Ok(RunningConfig { config, .. })) if !config.global.cluster_id.is_empty() => {
            let id = config.global.cluster_id.clone();
            return Ok(Ok(Some(ClusterId { id, kept_by_driver: false })));
        }
        _ => {}
    }
    let made = made_by_driver(client).await?;
    Ok(Ok(made.map(|id| ClusterId { id, kept_by_driver: true })))
}

/// The cluster id that the driver generated.
async fn made_by_driver(client: &Client) -> Result<Option<String>, kube::Error> {
    for namespace in crate::allowed_namespaces::all() {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        let map = maps.get_opt(names::CSI_CLUSTER_ID).await?;
        let id = map.and_then(|map| map.data?.remove("clusterID")).filter(|id| !id.is_empty());
        if id.is_some() {
            return Ok(id);
        }
    }
    Ok(None)
}

/// The cluster id in the configuration of a storage driver. An unreadable configuration has none.
pub(crate) async fn configured_cluster_id(
    client: &Client,
    workloads: &BTreeMap<ObjectId, DriverWorkload>,
) -> Option<String> {
    let read = csi(client, &places(workloads, Driver::Csi)).await.ok().flatten()?.ok()?;
    Some(read.config.global.cluster_id).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_a_cloud_controller_is_led_to_is_the_key_of_its_settings() {
        let origin = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
            let container = ("cpi".to_owned(), ("image".to_owned(), arguments));
            WorkloadOrigin { containers: BTreeMap::from([container]), ..WorkloadOrigin::default() }
        };
        let rancher = origin(&["--v=2", "--cloud-config=/etc/cloud/vsphere.yaml"]);
        assert_eq!(key(Driver::Cpi, &rancher), "vsphere.yaml");
        assert_eq!(key(Driver::Cpi, &origin(&["--v=2"])), "vsphere.conf");
        assert_eq!(key(Driver::Csi, &rancher), "csi-vsphere.conf");
    }
}
