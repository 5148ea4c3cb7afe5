//! Reduces objects to the fields that facts need, and tells whether they changed.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::{
    api::apps::v1::{DaemonSet, Deployment},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Resource, ResourceExt};
use plan::names;
use serde::Serialize;

use crate::cluster::{cache::slim, drivers::is_relevant, site::is_plugin};

pub(super) fn plain<K: Resource>(object: &mut K) {
    slim(object.meta_mut());
}

/// The maximum number of bytes to keep of a workload outside the allowed namespaces. A driver's workload has
/// 20 KB; a far larger one is a tenant's attempt to fill the operator's memory.
const LARGEST: usize = 32 * 1024;

fn is_oversized<K: Resource + Serialize>(object: &K) -> bool {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    !crate::allowed_namespaces::has(namespace)
        && serde_json::to_vec(object).is_ok_and(|bytes| bytes.len() > LARGEST)
}

/// Keeps only the name of a workload that belongs to no driver.
pub(super) fn slim_daemon_set(set: &mut DaemonSet) {
    let managers = plan::facts::WorkloadOrigin::spec_managers(&set.metadata);
    plain(set);
    let template = set.spec.as_ref().map(|spec| &spec.template);
    if is_relevant("DaemonSet", set, template) && !is_oversized(set) {
        set.metadata.managed_fields = managers;
    } else if !is_plugin(set) {
        (set.spec, set.status) = (None, None);
        keep_name(&mut set.metadata);
    }
}

pub(super) fn slim_deployment(deployment: &mut Deployment) {
    let managers = plan::facts::WorkloadOrigin::spec_managers(&deployment.metadata);
    plain(deployment);
    let template = deployment.spec.as_ref().map(|spec| &spec.template);
    let looks_like_go_vdo = deployment.name_any() == names::PREDECESSOR;
    let relevant = is_relevant("Deployment", deployment, template);
    if (relevant || looks_like_go_vdo) && !is_oversized(deployment) {
        deployment.metadata.managed_fields = managers;
    } else {
        (deployment.spec, deployment.status) = (None, None);
        keep_name(&mut deployment.metadata);
    }
}

/// Keeps only what identifies an object. Kubernetes limits the size of annotations, but not that of labels.
fn keep_name(metadata: &mut ObjectMeta) {
    *metadata = ObjectMeta {
        name: metadata.name.take(),
        namespace: metadata.namespace.take(),
        uid: metadata.uid.take(),
        resource_version: metadata.resource_version.take(),
        ..ObjectMeta::default()
    };
}

/// A number that changes with every write.
pub(super) fn revision<K: Resource>(object: &K) -> u64 {
    hash(object.meta().resource_version.as_deref().unwrap_or_default())
}

/// A number that changes with the stored content.
pub(super) fn content<K: Resource + Serialize + Clone>(object: &K) -> u64 {
    let mut object = object.clone();
    object.meta_mut().resource_version = None;
    hash(&serde_json::to_string(&object).unwrap_or_default())
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A workload like the storage driver's, with a variable of this many bytes.
    fn workload<K: serde::de::DeserializeOwned>(namespace: &str, bytes: usize) -> K {
        let variable = json!({"name": "FILLER", "value": "x".repeat(bytes)});
        serde_json::from_value(json!({
            "metadata": {"name": "vsphere-csi-node", "namespace": namespace},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{
                "name": "driver", "image": "registry.k8s.io/csi-vsphere/driver:v3.7.0",
                "env": [variable],
            }]}}},
        }))
        .unwrap()
    }

    #[test]
    fn of_a_tenants_huge_workload_only_the_name_is_kept() {
        for (namespace, bytes, kept) in [
            ("tenant", 20 * 1024, true),
            ("tenant", LARGEST, false),
            (names::KUBE_SYSTEM, LARGEST, true),
        ] {
            let mut set: DaemonSet = workload(namespace, bytes);
            slim_daemon_set(&mut set);
            assert_eq!(set.spec.is_some(), kept, "{namespace}, {bytes} bytes");
            let mut deployment: Deployment = workload(namespace, bytes);
            slim_deployment(&mut deployment);
            assert_eq!(deployment.spec.is_some(), kept, "{namespace}, {bytes} bytes");
            assert_eq!(deployment.name_any(), "vsphere-csi-node");
        }
    }

    #[test]
    fn of_a_tenants_workload_with_huge_labels_only_the_name_is_kept() {
        let labels: serde_json::Map<_, _> =
            (0..2000).map(|n| (format!("label-{n}"), json!("x".repeat(60)))).collect();
        for name in ["web", "vsphere-csi-node", "cilium"] {
            let mut set: DaemonSet = workload("tenant", 0);
            set.metadata.name = Some(name.to_owned());
            set.metadata.labels = serde_json::from_value(json!(labels)).unwrap();
            set.metadata.finalizers = Some(vec!["example.com/x".repeat(1000)]);
            slim_daemon_set(&mut set);
            let kept = serde_json::to_vec(&set).unwrap().len();
            assert!(kept < 500, "{name}: {kept} bytes");
            assert_eq!(set.name_any(), name);
        }
    }
}
