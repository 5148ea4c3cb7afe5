//! OpenShift's own vSphere configuration, and the configuration it writes for the cloud provider.

use driver_config::cpi::CpiConfig;
use health::facts::{Known, OpenShift};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, api::DynamicObject};
use plan::facts::ClusterProxy;
use serde_json::Value;

use super::{RelatedObjects, map};
use crate::audit::Domain;

/// The ConfigMap with the cloud provider's configuration.
pub(crate) const CLOUD_CONFIG: &str = "cloud-provider-config";
/// The only Proxy that OpenShift reads.
pub(crate) const PROXY: &str = "cluster";
/// The namespace of the original; ConfigMaps in other namespaces are copies.
const CONFIG_NAMESPACE: &str = "openshift-config";

/// The cached part of `infrastructure/cluster`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Infrastructure {
    /// Addresses of vCenters.
    vcenters: Vec<String>,
    /// Datacenters of failure domains, as `vcenter/datacenter`.
    datacenters: Vec<String>,
    /// Failure domains that are host groups.
    pub(crate) domains: Vec<Domain>,
}

/// The cloud provider's configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CloudConfig {
    vcenters: Vec<String>,
    datacenters: Vec<String>,
}

fn list<'v>(value: &'v Value, path: &str) -> &'v [Value] {
    value.pointer(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value, path: &str) -> String {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// OpenShift's view, if it runs on vSphere.
pub(crate) fn infrastructure(object: &DynamicObject) -> Option<Infrastructure> {
    let platform = object.data.pointer("/spec/platformSpec")?;
    if platform["type"] != "VSphere" {
        return None;
    }
    let domains = list(platform, "/vsphere/failureDomains");
    let own = |domain: &Value| {
        let group = text(domain, "/zoneAffinity/hostGroup/hostGroup");
        let grouped = text(domain, "/zoneAffinity/type") == "HostGroup" && !group.is_empty();
        grouped.then(|| Domain {
            name: text(domain, "/name"),
            server: text(domain, "/server"),
            cluster: text(domain, "/topology/computeCluster"),
            group,
        })
    };
    Some(Infrastructure {
        vcenters: list(platform, "/vsphere/vcenters").iter().map(|v| text(v, "/server")).collect(),
        datacenters: domains
            .iter()
            .map(|domain| {
                format!("{}/{}", text(domain, "/server"), text(domain, "/topology/datacenter"))
            })
            .collect(),
        domains: domains.iter().filter_map(own).collect(),
    })
}

/// The proxy of the whole cluster; none if there is no proxy. OpenShift validates the spec, completes it with the
/// cluster's own networks, and writes the result into the status for its components.
pub(crate) fn proxy(object: &DynamicObject) -> Option<ClusterProxy> {
    let status = object.data.get("status")?;
    let [http, https, except] =
        ["/httpProxy", "/httpsProxy", "/noProxy"].map(|path| text(status, path));
    let is_set = !http.is_empty() || !https.is_empty();
    let version = object.resource_version().unwrap_or_default();
    is_set.then_some(ClusterProxy { http, https, except, version })
}

/// The cloud provider's configuration, or the reason why VDO cannot read it.
pub(crate) fn cloud_config(map: &ConfigMap) -> Option<Result<CloudConfig, String>> {
    if map.namespace().as_deref() != Some(CONFIG_NAMESPACE) {
        return None;
    }
    let data = map.data.as_ref()?;
    let text =
        ["config", "cloud.conf", "vsphere.conf"].into_iter().find_map(|key| data.get(key))?;
    let read = CpiConfig::read(text).map(|read| {
        let (vcenters, global) = (read.config.vcenters, read.config.global);
        let address = |name: &str, server: &str| {
            if server.is_empty() { name.to_owned() } else { server.to_owned() }
        };
        let all = vcenters.iter().map(|(name, vcenter)| {
            let address = address(name, &vcenter.server);
            let own = if vcenter.datacenters.is_empty() {
                &global.datacenters
            } else {
                &vcenter.datacenters
            };
            let datacenters = own.iter().map(|dc| format!("{address}/{dc}"));
            let datacenters: Vec<String> = datacenters.collect();
            (address, datacenters)
        });
        let (vcenters, datacenters): (Vec<String>, Vec<Vec<String>>) = all.unzip();
        CloudConfig { vcenters, datacenters: datacenters.concat() }
    });
    Some(read.map_err(|error| {
        format!("ConfigMap {CONFIG_NAMESPACE}/{CLOUD_CONFIG} cannot be read: {error}")
    }))
}

pub(crate) fn openshift(site: &RelatedObjects) -> Known<Option<OpenShift>> {
    let known = map(&site.infrastructure, |all| all.values().next().cloned());
    let own = match known {
        Known::Unknown { reason } => return Known::Unknown { reason },
        Known::Known(None) => return Known::Known(None),
        Known::Known(Some(own)) => own,
    };
    let configured = match &site.cloud_config {
        // A platform that is configured with no vCenter has nothing to compare.
        _ if own.vcenters.is_empty() => CloudConfig::default(),
        Known::Unknown { reason } => return Known::unknown(reason),
        Known::Known(all) => match all.values().next() {
            Some(Err(reason)) => return Known::unknown(reason),
            Some(Ok(configured)) => configured.clone(),
            None => return Known::unknown("OpenShift has no cloud-provider-config"),
        },
    };
    Known::Known(Some(OpenShift {
        infrastructure_vcenters: own.vcenters,
        configured_vcenters: configured.vcenters,
        failure_domain_datacenters: own.datacenters,
        configured_datacenters: configured.datacenters,
        // OpenShift on vSphere always runs both.
        runs_storage: true,
        runs_cloud: true,
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn own(vsphere: &Value) -> Infrastructure {
        let object = json!({
            "metadata": {"name": "cluster"},
            "spec": {"platformSpec": {"type": "VSphere", "vsphere": vsphere}},
        });
        infrastructure(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn site(text: &str) -> RelatedObjects {
        let own = own(&json!({
            "vcenters": [{"server": "vc-a", "datacenters": ["DC0"]}],
            "failureDomains": [{
                "name": "east", "server": "vc-a",
                "topology": {"datacenter": "DC0", "computeCluster": "/DC0/host/C0"},
                "zoneAffinity": {"type": "HostGroup", "hostGroup": {"hostGroup": "rack-1"}},
            }],
        }));
        let map = json!({
            "metadata": {"name": CLOUD_CONFIG, "namespace": CONFIG_NAMESPACE},
            "data": {"config": text},
        });
        let config = cloud_config(&serde_json::from_value(map).unwrap()).unwrap();
        RelatedObjects {
            infrastructure: BTreeMap::from([("cluster".to_owned(), own)]).into(),
            cloud_config: BTreeMap::from([("map".to_owned(), config)]).into(),
            ..RelatedObjects::default()
        }
    }

    #[test]
    fn both_views_of_vsphere_are_read() {
        let site = site("[VirtualCenter \"vc-a\"]\ndatacenters = \"DC0\"\n");
        let seen = site.openshift();
        let seen = seen.get().unwrap().as_ref().unwrap();
        assert_eq!(seen.infrastructure_vcenters, seen.configured_vcenters);
        assert_eq!(seen.failure_domain_datacenters, ["vc-a/DC0"]);
        assert_eq!(seen.configured_datacenters, ["vc-a/DC0"]);
        assert_eq!(site.domains()[0].group, "rack-1");
    }

    #[test]
    fn the_proxy_is_the_one_that_openshift_validated() {
        let proxy = |object: Value| proxy(&serde_json::from_value(object).unwrap());
        let url = "http://proxy.example.com:3128";
        let spec = json!({"httpsProxy": url, "noProxy": ".example.com"});
        let metadata = json!({"name": "cluster", "resourceVersion": "7"});
        assert_eq!(proxy(json!({"metadata": metadata, "spec": spec})), None, "not validated yet");
        let status = json!({"httpsProxy": url, "noProxy": ".example.com,.svc,10.128.0.0/14"});
        let found = proxy(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap();
        assert_eq!((found.http.as_str(), found.https.as_str()), ("", url));
        assert_eq!(found.except, ".example.com,.svc,10.128.0.0/14");
        assert_eq!(found.version, "7");
        let empty = json!({"metadata": metadata, "spec": {}, "status": {"noProxy": ".svc"}});
        assert_eq!(proxy(empty), None, "every OpenShift cluster has the object");
    }

    #[test]
    fn an_unreadable_configuration_is_unknown_and_another_platform_has_none() {
        assert!(site("vcenter: [").openshift().reason().is_some());
        let elsewhere =
            RelatedObjects { infrastructure: BTreeMap::new().into(), ..RelatedObjects::default() };
        assert_eq!(elsewhere.openshift(), Known::Known(None));
        assert!(RelatedObjects::default().openshift().reason().is_some());
    }
}
