//! The Kubernetes permissions that the loops need: the rules of their ClusterRole.
//!
//! | group | resources | verbs | for |
//! |---|---|---|---|
//! | core | persistentvolumes | get list watch create patch delete | provision, reclaim, attach, resize, modify |
//! | core | persistentvolumeclaims | get list watch patch | provision, resize, modify |
//! | core | persistentvolumeclaims/status | patch | resize, modify |
//! | core | nodes | list watch | topology |
//! | core | pods | list watch | metadata |
//! | core | namespaces | get | metadata, only kube-system |
//! | core | events | create | all loops |
//! | storage.k8s.io | storageclasses | list watch | provision, capacity |
//! | storage.k8s.io | csinodes | list watch | provision, attach, capacity |
//! | storage.k8s.io | volumeattachments | list watch patch | attach |
//! | storage.k8s.io | volumeattachments/status | patch | attach |
//! | storage.k8s.io | volumeattributesclasses | get | provision, modify |
//! | storage.k8s.io | csistoragecapacities | list create patch delete | capacity, in the namespace of the driver |
//! | snapshot.storage.k8s.io | volumesnapshots | get patch | restore from a snapshot |
//! | snapshot.storage.k8s.io | volumesnapshotcontents | get list watch patch | snapshot, restore |
//! | snapshot.storage.k8s.io | volumesnapshotcontents/status | patch | snapshot |
//! | snapshot.storage.k8s.io | volumesnapshotclasses | get | snapshot |
//!
//! The Lease of the leader election belongs to the process, not to the loops. No loop reads Secrets: the driver's
//! credentials come from its configuration, and the vSphere driver uses no Secret of a StorageClass.
//! [`RULES`] is the same table for programs.

/// One rule of a role.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
}

const fn rule(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Rule {
    Rule { group, resource, verbs }
}

const STORAGE: &str = "storage.k8s.io";
const SNAPSHOT: &str = "snapshot.storage.k8s.io";

/// All permissions of the loops.
pub const RULES: &[Rule] = &[
    rule("", "persistentvolumes", &["get", "list", "watch", "create", "patch", "delete"]),
    rule("", "persistentvolumeclaims", &["get", "list", "watch", "patch"]),
    rule("", "persistentvolumeclaims/status", &["patch"]),
    rule("", "nodes", &["list", "watch"]),
    rule("", "pods", &["list", "watch"]),
    rule("", "namespaces", &["get"]),
    rule("", "events", &["create"]),
    rule(STORAGE, "storageclasses", &["list", "watch"]),
    rule(STORAGE, "csinodes", &["list", "watch"]),
    rule(STORAGE, "volumeattachments", &["list", "watch", "patch"]),
    rule(STORAGE, "volumeattachments/status", &["patch"]),
    rule(STORAGE, "volumeattributesclasses", &["get"]),
    rule(STORAGE, "csistoragecapacities", &["list", "create", "patch", "delete"]),
    rule(SNAPSHOT, "volumesnapshots", &["get", "patch"]),
    rule(SNAPSHOT, "volumesnapshotcontents", &["get", "list", "watch", "patch"]),
    rule(SNAPSHOT, "volumesnapshotcontents/status", &["patch"]),
    rule(SNAPSHOT, "volumesnapshotclasses", &["get"]),
];
