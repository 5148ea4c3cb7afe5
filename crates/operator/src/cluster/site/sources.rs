//! The sources of the site: the API of each kind, and the part of each object that the caches store.

use std::collections::BTreeMap;

use health::facts::MountFailure;
use k8s_openapi::{
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration,
        core::v1::{ConfigMap, Event as KubeEvent, Namespace, Secret},
        discovery::v1::EndpointSlice,
        storage::v1::CSIDriver,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta},
    runtime::watcher::Config,
};
use plan::{facts::ClusterProxy, names};

use super::{
    openshift::{self, CloudConfig, Infrastructure},
    snapshots::{self, Content},
    webhooks::{self, Answering, CertificateSecret, Hook, Served},
};
use crate::cluster::{
    cache::WatchSource,
    events,
    pages::{SMALL_PAGE, TENANT_PAGE},
    workloads,
};

/// The CRD for the storage driver's topology of a node.
pub(crate) const TOPOLOGIES: &str = "csinodetopologies.cns.vmware.com";
/// The CRD for snapshots.
pub(crate) const SNAPSHOTS: &str = "volumesnapshotcontents.snapshot.storage.k8s.io";
/// The CRD for OpenShift's view of its infrastructure.
pub(crate) const INFRASTRUCTURES: &str = "infrastructures.config.openshift.io";
/// The CRD for OpenShift's proxy of the whole cluster.
pub(crate) const PROXIES: &str = "proxies.config.openshift.io";
pub(crate) const DEFINITIONS: [&str; 4] = [TOPOLOGIES, SNAPSHOTS, INFRASTRUCTURES, PROXIES];
/// The maximum number of characters to keep of a text.
const LONGEST: usize = 600;
/// The maximum number of bytes to keep of feature switches.
const LARGEST_SWITCHES: usize = 64 * 1024;

type Metadata<K> = PartialObjectMeta<K>;

/// The objects with this name. In a list of all namespaces, tenants can have many.
pub(super) fn only(name: &str) -> Config {
    Config::default().fields(&format!("metadata.name={name}")).page_size(SMALL_PAGE)
}

#[expect(clippy::unnecessary_wraps, reason = "the signature of all functions that extract an item")]
fn there<K>(_: &K) -> Option<()> {
    Some(())
}

fn dynamic(
    client: &Client,
    group: &str,
    version: &str,
    kind: &str,
    plural: &str,
) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk(group, version, kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, plural))
}

pub(crate) fn definition(
    client: &Client,
    name: &str,
) -> WatchSource<Metadata<CustomResourceDefinition>, ()> {
    WatchSource::new(Api::all(client.clone()), only(name), there)
}

pub(crate) fn csi_driver(client: &Client) -> WatchSource<Metadata<CSIDriver>, ()> {
    WatchSource::new(Api::all(client.clone()), only(names::CSI_DRIVER), there)
}

/// The feature switches, in any namespace. The cache skips a ConfigMap that is far larger than the driver's.
pub(crate) fn features(client: &Client) -> WatchSource<ConfigMap, BTreeMap<String, String>> {
    WatchSource::new(Api::all(client.clone()), only(workloads::FEATURES), switches)
}

fn switches(map: &ConfigMap) -> Option<BTreeMap<String, String>> {
    let bytes = map.data.iter().flatten().map(|(key, value)| key.len() + value.len());
    let small = bytes.sum::<usize>() <= LARGEST_SWITCHES;
    small.then(|| map.data.clone().unwrap_or_default())
}

/// The cluster ids that the storage driver generated, in the allowed namespaces only. Elsewhere, anybody
/// could have written them.
pub(crate) fn cluster_ids(client: &Client) -> WatchSource<ConfigMap, String> {
    let keep = |map: &ConfigMap| {
        let id = map.data.as_ref()?.get("clusterID").filter(|id| !id.is_empty())?;
        crate::allowed_namespaces::has(&map.namespace().unwrap_or_default()).then(|| id.clone())
    };
    WatchSource::new(Api::all(client.clone()), only(names::CSI_CLUSTER_ID), keep)
}

pub(crate) fn secrets(client: &Client, namespace: &str) -> WatchSource<Metadata<Secret>, ()> {
    WatchSource::new(Api::namespaced(client.clone(), namespace), Config::default(), there)
}

pub(crate) fn namespaces(client: &Client) -> WatchSource<Metadata<Namespace>, String> {
    let keep =
        |namespace: &Metadata<Namespace>| namespace.labels().get(workloads::POD_SECURITY).cloned();
    let config = Config::default().page_size(TENANT_PAGE);
    WatchSource::new(Api::all(client.clone()), config, keep)
}

pub(crate) fn hooks(client: &Client) -> WatchSource<ValidatingWebhookConfiguration, Hook> {
    WatchSource::new(Api::all(client.clone()), Config::default(), webhooks::hook)
}

/// The webhook certificates. VDO keeps nothing else of the Secret in memory.
pub(crate) fn certificates(
    client: &Client,
    namespace: &str,
) -> WatchSource<CertificateSecret, Served> {
    let config = only(plan::names::WEBHOOK_SECRET);
    WatchSource::new(Api::namespaced(client.clone(), namespace), config, webhooks::served)
}

pub(crate) fn answering(client: &Client) -> WatchSource<EndpointSlice, Answering> {
    let services = webhooks::SERVICES.join(",");
    let config = Config::default().labels(&format!("kubernetes.io/service-name in ({services})"));
    let config = config.page_size(SMALL_PAGE);
    WatchSource::new(Api::all(client.clone()), config, webhooks::answering)
}

/// The topologies with an error.
pub(crate) fn topologies(client: &Client) -> WatchSource<DynamicObject, String> {
    let keep = |object: &DynamicObject| {
        let error = object.data.pointer("/status/errorMessage")?.as_str()?;
        (!error.is_empty()).then(|| short(error))
    };
    let (group, plural) = ("cns.vmware.com", "csinodetopologies");
    let api = dynamic(client, group, "v1alpha1", "CSINodeTopology", plural);
    WatchSource::new(api, Config::default(), keep)
}

/// The mount failures that name a disk held by multipathd.
pub(crate) fn mounts(client: &Client) -> WatchSource<KubeEvent, (String, MountFailure)> {
    let keep = |event: &KubeEvent| {
        let message = event.message.as_deref().filter(|text| text.contains("/dev/dm-"))?;
        let node = events::name(event.source.as_ref()?.host.as_deref()?)?.to_owned();
        let namespace = event.namespace().unwrap_or_default();
        Some((node, MountFailure { namespace, message: short(message) }))
    };
    let config = events::with_fields("type=Warning,reason=FailedMount");
    WatchSource::new(Api::all(client.clone()), config, keep)
}

/// The volume that a pod waits for because another node holds it, and the pod.
pub(crate) fn contests(client: &Client) -> WatchSource<KubeEvent, (String, String)> {
    let config = events::with_fields("type=Warning,reason=FailedAttachVolume");
    WatchSource::new(Api::all(client.clone()), config, contest)
}

fn contest(event: &KubeEvent) -> Option<(String, String)> {
    let volume_and_reason =
        event.message.as_deref()?.strip_prefix("Multi-Attach error for volume \"")?;
    let (volume, _) = volume_and_reason.split_once('"')?;
    let pod = &event.involved_object;
    let pod = format!("{}/{}", pod.namespace.as_deref()?, events::name(pod.name.as_deref()?)?);
    Some((events::name(volume)?.to_owned(), pod))
}

pub(crate) fn infrastructure(client: &Client) -> WatchSource<DynamicObject, Infrastructure> {
    let (group, plural) = ("config.openshift.io", "infrastructures");
    let api = dynamic(client, group, "v1", "Infrastructure", plural);
    WatchSource::new(api, only("cluster"), openshift::infrastructure)
}

pub(crate) fn proxy(client: &Client) -> WatchSource<DynamicObject, ClusterProxy> {
    let api = dynamic(client, "config.openshift.io", "v1", "Proxy", "proxies");
    WatchSource::new(api, only(openshift::PROXY), openshift::proxy)
}

pub(crate) fn cloud_config(client: &Client) -> WatchSource<ConfigMap, Result<CloudConfig, String>> {
    let config = only(openshift::CLOUD_CONFIG);
    WatchSource::new(Api::all(client.clone()), config, openshift::cloud_config)
}

pub(crate) fn contents(client: &Client) -> WatchSource<DynamicObject, Content> {
    let (group, plural) = ("snapshot.storage.k8s.io", "volumesnapshotcontents");
    let api = dynamic(client, group, "v1", "VolumeSnapshotContent", plural);
    WatchSource::new(api, Config::default(), snapshots::content)
}

/// The beginning of a text.
pub(crate) fn short(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tenants_huge_feature_switches_are_not_kept() {
        let map = |bytes: usize| ConfigMap {
            data: Some(BTreeMap::from([("csi-migration".to_owned(), "x".repeat(bytes))])),
            ..ConfigMap::default()
        };
        assert!(switches(&map(4)).is_some_and(|kept| kept.contains_key("csi-migration")));
        assert_eq!(switches(&map(LARGEST_SWITCHES)), None);
    }

    #[test]
    fn a_pod_that_waits_for_a_volume_of_another_node_differs_from_other_pending_pods() {
        let event = |message: &str| -> KubeEvent {
            serde_json::from_value(json!({
                "metadata": {"name": "e", "namespace": "shop"}, "message": message,
                "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web-1"},
            }))
            .unwrap()
        };
        let message =
            "Multi-Attach error for volume \"pvc-1\" Volume is already used by pod(s) web-0";
        assert_eq!(contest(&event(message)), Some(("pvc-1".into(), "shop/web-1".into())));
        let huge = format!("Multi-Attach error for volume \"{}\" is used", "x".repeat(1_000_000));
        assert_eq!(contest(&event(&huge)), None, "no volume has such a name");
        let other = "AttachVolume.Attach failed for volume \"pvc-1\" : rpc error";
        assert_eq!(contest(&event(other)), None);
    }
}
