//! The kinds of the drivers' objects.

use std::sync::LazyLock;

use kube::api::{ApiResource, GroupVersionKind};
use plan::ObjectId;

/// The kinds of the drivers' objects, and whether they are namespaced.
pub(crate) static KINDS: LazyLock<Vec<(ApiResource, bool)>> = LazyLock::new(|| {
    let kind = |group: &str, version: &str, kind: &str, plural: &str, namespaced: bool| {
        let gvk = GroupVersionKind::gvk(group, version, kind);
        (ApiResource::from_gvk_with_plural(&gvk, plural), namespaced)
    };
    vec![
        kind("", "v1", "Namespace", "namespaces", false),
        kind("", "v1", "ServiceAccount", "serviceaccounts", true),
        kind("", "v1", "ConfigMap", "configmaps", true),
        kind("", "v1", "Secret", "secrets", true),
        kind("", "v1", "Service", "services", true),
        kind("apps", "v1", "Deployment", "deployments", true),
        kind("apps", "v1", "DaemonSet", "daemonsets", true),
        kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
        kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", false),
        kind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", false),
        kind("rbac.authorization.k8s.io", "v1", "Role", "roles", true),
        kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", true),
        kind("storage.k8s.io", "v1", "CSIDriver", "csidrivers", false),
        kind("storage.k8s.io", "v1", "StorageClass", "storageclasses", false),
        kind(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            false,
        ),
        kind(
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            false,
        ),
    ]
});

/// Kinds that not every cluster has. VDO applies their objects but does not watch them.
pub(crate) static UNWATCHED: LazyLock<Vec<(ApiResource, bool)>> = LazyLock::new(|| {
    let gvk = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
    vec![(ApiResource::from_gvk_with_plural(&gvk, "volumesnapshotclasses"), false)]
});

/// Every kind of the drivers' objects that VDO watches.
pub fn all() -> impl Iterator<Item = ApiResource> {
    KINDS.iter().map(|(resource, _)| resource.clone())
}

/// Whether VDO applies objects of this kind but does not watch them.
pub(crate) fn is_unwatched(id: &ObjectId) -> bool {
    definition(id).is_some()
}

/// The CustomResourceDefinition of a kind that not every cluster has.
pub(crate) fn definition(id: &ObjectId) -> Option<String> {
    let mut kinds = UNWATCHED.iter().map(|(resource, _)| resource);
    let kind = kinds.find(|r| r.kind == id.kind && r.api_version == id.api_version)?;
    Some(format!("{}.{}", kind.plural, kind.group))
}
