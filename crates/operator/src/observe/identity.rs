//! The configuration of drivers not managed by VDO, and the CNS cluster id in it.

use std::collections::{BTreeMap, BTreeSet};

use catalog::Driver;
use driver_config::{SecretText, cpi::CpiConfig, csi::CsiConfig};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use plan::{
    ObjectId,
    facts::{ClusterId, DriverWorkload, InUse, RunningConfig, WorkloadOrigin, WorkloadRole},
    names,
    record::Record,
    written_names,
};
use runtime::error_chain::error_chain;

use crate::cluster::{access, driver_secrets::PasswordLocation};

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
    for place in places {
        let Some((kind, text)) = cpi_text(client, place).await? else { continue };
        let ConfigLocation { namespace, name, .. } = place;
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

/// The cloud controller's configuration, with the kind of the object that contains it.
async fn cpi_text(
    client: &Client,
    place: &ConfigLocation,
) -> Result<Option<(&'static str, Result<SecretText, String>)>, kube::Error> {
    let ConfigLocation { namespace, name, key } = place;
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let map = match permitted(maps.get_opt(name).await)? {
        Ok(map) => map,
        Err(why) => return Ok(Some(("ConfigMap", Err(why)))),
    };
    let text = map.and_then(|map| {
        let mut data = map.data?;
        // The file name can differ from the key.
        data.remove(key).or_else(|| data.remove(CPI_KEY))
    });
    if let Some(text) = text {
        return Ok(Some(("ConfigMap", Ok(SecretText::from(text)))));
    }
    let text = secret_text(client, namespace, name, key).await?;
    Ok(text.map(|text| ("Secret", text)))
}

/// The Secret from which an adopted cloud controller reads its passwords until VDO rolls out its own
/// configuration. None if VDO has applied the workload: the cloud controller then reads VDO's Secret.
pub(super) async fn adopted_cpi_secret(
    client: &Client,
    record: &Record,
    workloads: &BTreeMap<ObjectId, DriverWorkload>,
) -> Option<PasswordLocation> {
    record.version.as_ref().and(record.names.as_ref())?;
    let own = workloads.iter().filter(|(id, workload)| {
        workload.driver == Driver::Cpi && record.objects.contains(id) && !workload.labelled
    });
    let own: BTreeMap<ObjectId, DriverWorkload> =
        own.map(|(id, workload)| (id.clone(), workload.clone())).collect();
    let place = places(&own, Driver::Cpi).into_iter().next()?;
    let id = |kind: &str| core_object(kind, &place.namespace, &place.name);
    let unreadable = |kind, reason| PasswordLocation::Unusable(id(kind), reason);
    Some(match cpi_text(client, &place).await {
        Ok(Some((kind, Ok(text)))) => match CpiConfig::read(text.expose()) {
            Ok(read) => passwords_of(&read.config, id(kind)),
            Err(error) => {
                unreadable(kind, format!("VDO does not understand {}: {error}", id(kind)))
            }
        },
        Ok(Some((kind, Err(why)))) => {
            unreadable(kind, format!("VDO cannot read {}: {why}", id(kind)))
        }
        Ok(None) => unreadable(
            "ConfigMap",
            format!("the configuration of the driver, {}, does not exist", id("ConfigMap")),
        ),
        Err(error) => {
            let why =
                format!("VDO cannot read the driver's configuration: {}", error_chain(&error));
            unreadable("ConfigMap", why)
        }
    })
}

/// The place of the passwords for a configuration that the cloud controller reads from this object.
fn passwords_of(config: &CpiConfig, source: ObjectId) -> PasswordLocation {
    use PasswordLocation::{Secret, Unusable};
    let all = &config.global;
    let named = config.vcenters.values().map(|vcenter| {
        let own = (vcenter.secret_namespace.as_str(), vcenter.secret_name.as_str());
        let for_all = (all.secret_namespace.as_str(), all.secret_name.as_str());
        if own.1.is_empty() { for_all } else { own }
    });
    let named: BTreeSet<(&str, &str)> = named.collect();
    let mut named = named.into_iter();
    match (named.next(), named.next()) {
        (Some((namespace, name)), None) if !name.is_empty() && !namespace.is_empty() => {
            Secret(core_object("Secret", namespace, name))
        }
        (Some(_), Some(_)) => {
            let why = "the driver reads the passwords of its vCenters from several Secrets, and VDO \
                       writes only one. Change the password in each of them and restart the driver";
            Unusable(source, why.into())
        }
        _ if !all.secrets_directory.is_empty() => {
            let why = format!(
                "the driver reads its passwords from the folder {} in its pod. Change the password there \
                 and restart the driver",
                all.secrets_directory
            );
            Unusable(source, why)
        }
        _ if source.kind == "Secret" => Secret(source),
        _ => {
            let why = format!(
                "the password is in {source}, and VDO writes no passwords into ConfigMaps. Change the \
                 password there and restart the driver"
            );
            Unusable(source, why)
        }
    }
}

fn core_object(kind: &str, namespace: &str, name: &str) -> ObjectId {
    ObjectId {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
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
        let place = |error| format!("Secret {namespace}/{name} cannot be read: {error}");
        return Ok(Some(read.map_err(place)));
    }
    Ok(None)
}

/// Whether VDO has permission to read a Secret of a driver. In `kube-system` it has that permission by name.
async fn is_readable(client: &Client, namespace: &str, name: &str) -> Result<bool, kube::Error> {
    if namespace != names::KUBE_SYSTEM || written_names::readable_secrets().contains(name) {
        return Ok(true);
    }
    access::can_read_secret(client, namespace, name).await
}

/// A missing permission is a reason to report, and no failure of the round: somebody can have deleted a namespace of
/// the drivers, and the Role of VDO with it.
fn permitted<T>(read: Result<T, kube::Error>) -> Result<Result<T, String>, kube::Error> {
    match read {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            Ok(Err("VDO has no permission to read it; vdoctl deploy grants the permission again"
                .into()))
        }
        read => read.map(Ok),
    }
}

async fn secret_text(
    client: &Client,
    namespace: &str,
    name: &str,
    key: &str,
) -> Result<Option<Result<SecretText, String>>, kube::Error> {
    if !is_readable(client, namespace, name).await? {
        return Ok(Some(Err(format!(
            "VDO has no permission to read this Secret; allow it with vdoctl deploy --driver-namespace {namespace}"
        ))));
    }
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let secret = match permitted(secrets.get_opt(name).await)? {
        Ok(secret) => secret,
        Err(why) => return Ok(Some(Err(why))),
    };
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
    Ok(made.map(|made| made.map(|id| ClusterId { id, kept_by_driver: true })))
}

/// The cluster id that the driver generated.
async fn made_by_driver(client: &Client) -> Result<Result<Option<String>, String>, kube::Error> {
    let name = names::CSI_CLUSTER_ID;
    for namespace in crate::allowed_namespaces::all() {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        let map = match permitted(maps.get_opt(name).await)? {
            Ok(map) => map,
            Err(why) => {
                let place = core_object("ConfigMap", namespace, name);
                return Ok(Err(format!("{place} cannot be read: {why}")));
            }
        };
        let id = map.and_then(|map| map.data?.remove("clusterID")).filter(|id| !id.is_empty());
        if id.is_some() {
            return Ok(Ok(id));
        }
    }
    Ok(Ok(None))
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
    use serde_json::json;

    use super::*;
    use crate::fake_api::answering;

    #[tokio::test]
    async fn a_missing_permission_is_a_reason_with_the_command_that_grants_it() {
        let forbidden = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
            "reason": "Forbidden", "message": "refused",
        });
        let (client, _server) = answering(403, &forbidden).await;
        // The namespace of the storage driver was deleted, and the Role of VDO with it.
        let usual = places(&BTreeMap::new(), Driver::Csi);
        let csi = csi(&client, &usual).await.unwrap().unwrap().unwrap_err();
        assert!(csi.contains("Secret vmware-system-csi/vsphere-config-secret"), "{csi}");
        let place = ConfigLocation {
            namespace: "kube-system".into(),
            name: "cloud-config".into(),
            key: CPI_KEY.into(),
        };
        let cpi = cpi(&client, &[place]).await.unwrap().unwrap().unwrap_err();
        assert!(cpi.contains("ConfigMap kube-system/cloud-config"), "{cpi}");
        let id = cluster_id(&client, &InUse::default()).await.unwrap().unwrap_err();
        assert!(id.contains("ConfigMap ") && id.contains(names::CSI_CLUSTER_ID), "{id}");
        for reason in [csi, cpi, id] {
            assert!(reason.ends_with("vdoctl deploy grants the permission again"), "{reason}");
        }
        // An API server that does not work says nothing about the objects.
        let (client, _server) = answering(500, &json!({})).await;
        assert!(super::csi(&client, &usual).await.is_err());
        assert!(cluster_id(&client, &InUse::default()).await.is_err());
    }

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

    #[test]
    fn the_configuration_of_a_cloud_controller_leads_to_its_passwords() {
        let secret = |global: &str, one: &str, other: &str| {
            let text = format!(
                "global:\n  port: 443\n{global}\nvcenter:\n  a:\n    server: a\n{one}\n  b:\n    server: \
                 b\n{other}\n"
            );
            let config = CpiConfig::read(&text).unwrap().config;
            passwords_of(&config, core_object("ConfigMap", "kube-system", "conf"))
        };
        let global = "  secretName: creds\n  secretNamespace: kube-system";
        let own = "    secretName: creds\n    secretNamespace: kube-system";
        let other = "    secretName: others\n    secretNamespace: kube-system";
        let creds = PasswordLocation::Secret(core_object("Secret", "kube-system", "creds"));
        assert_eq!(secret(global, "", ""), creds);
        assert_eq!(secret("", own, own), creds);
        let reason = |place| match place {
            PasswordLocation::Unusable(id, why) => format!("{id}: {why}"),
            PasswordLocation::Secret(id) => panic!("{id}"),
        };
        let several = reason(secret(global, "", other));
        assert!(several.contains("several Secrets"), "{several}");
        let inline = "    user: k8s\n    password: hidden";
        let inline = reason(secret("", inline, inline));
        assert!(inline.starts_with("ConfigMap kube-system/conf: the password is in"), "{inline}");
        assert!(!inline.contains("hidden"));
        let folder = reason(secret("  secretsDirectory: /etc/secrets", "", ""));
        assert!(folder.contains("/etc/secrets"), "{folder}");
    }
}
