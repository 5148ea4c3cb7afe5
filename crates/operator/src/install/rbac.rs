//! The operator's rights: each resource and verb by name, and the right to grant the drivers' roles
//! limited to those roles.

use std::collections::BTreeSet;

use catalog::manifest::{self, Profile, profile};
use serde_json::{Value, json};

use super::{NAME, NAMESPACE};
use crate::{names, survey};

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn named(groups: &[&str], resources: &[&str], verbs: &[&str], names: &BTreeSet<String>) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs, "resourceNames": names})
}

fn own(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

const READ: [&str; 3] = ["get", "list", "watch"];
const KEEP: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];

/// The names of every object of a kind that any release of the catalog has, on any platform.
fn names_of(kind: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for release in &catalog::embedded().releases {
        for distribution in [profile::Distribution::Vanilla, profile::Distribution::OpenShift] {
            let mut everything =
                Profile::new(catalog::version::KubernetesVersion { major: 1, minor: 36, patch: 0 });
            everything.distribution = distribution;
            everything.windows_nodes = true;
            everything.topology = true;
            everything.csi.snapshots = Some(profile::Snapshots { crds: true, controller: true });
            everything.csi.webhook = Some(profile::Webhook { ca_bundle: String::new() });
            let rendered = manifest::render(release, &everything);
            let objects = rendered.map(|rendered| rendered.objects).unwrap_or_default();
            names.extend(objects.iter().filter(|o| o.kind() == kind).map(|o| o.name().to_owned()));
        }
    }
    names
}

pub fn cluster_role() -> [Value; 2] {
    let rbac = &["rbac.authorization.k8s.io"];
    let granted = names_of("ClusterRole");
    let rules = vec![
        rule(
            &["vdo.vmware.com"],
            &["vdoconfigs", "vspherecloudconfigs", "compatibilityconfigs"],
            &READ,
        ),
        // The finalizer, where the drivers are to go with the VDOConfig.
        rule(&["vdo.vmware.com"], &["vdoconfigs"], &["patch"]),
        rule(
            &["vdo.vmware.com"],
            &["vdoconfigs/status", "vspherecloudconfigs/status", "compatibilityconfigs/status"],
            &["get", "patch"],
        ),
        rule(&[""], &["nodes", "pods"], &READ),
        // The taint a node lacks, where remediation.nodeTaints is Fix, and the label of one that is of
        // another cloud.
        rule(&[""], &["nodes"], &["patch"]),
        rule(&["apps"], &["daemonsets", "deployments"], &READ),
        rule(&["storage.k8s.io"], &["volumeattachments", "csinodes"], &READ),
        // An entry that names a machine which is gone, where remediation.csiNodes is Fix.
        rule(&["storage.k8s.io"], &["csinodes"], &["patch"]),
        rule(&["events.k8s.io"], &["events"], &["create", "patch"]),
        // What the checks look at.
        rule(&[""], &["events", "persistentvolumes", "persistentvolumeclaims"], &READ),
        rule(&["discovery.k8s.io"], &["endpointslices"], &READ),
        rule(&["cns.vmware.com"], &["csinodetopologies"], &READ),
        rule(&["snapshot.storage.k8s.io"], &["volumesnapshotcontents"], &READ),
        rule(&["config.openshift.io"], &["infrastructures"], &READ),
        named(&[""], &["configmaps"], &READ, &own(&survey::site::CONFIG_MAPS)),
        // Who leads.
        named(&["coordination.k8s.io"], &["leases"], &READ, &own(&survey::cluster::lease_names())),
        rule(&[""], &["namespaces"], &READ),
        named(&[""], &["namespaces"], &["create", "patch"], &names_of("Namespace")),
        rule(&["storage.k8s.io"], &["csidrivers", "storageclasses"], &READ),
        // Their names are the admin's. They are never deleted.
        rule(&["storage.k8s.io"], &["storageclasses"], &["create", "patch"]),
        named(
            &["snapshot.storage.k8s.io"],
            &["volumesnapshotclasses"],
            &["get", "create", "patch"],
            &BTreeSet::from([names::SNAPSHOT_CLASS.to_owned()]),
        ),
        named(
            &["storage.k8s.io"],
            &["csidrivers"],
            &["create", "patch", "delete"],
            &names_of("CSIDriver"),
        ),
        rule(&["apiextensions.k8s.io"], &["customresourcedefinitions"], &READ),
        named(
            &["apiextensions.k8s.io"],
            &["customresourcedefinitions"],
            &["create", "patch"],
            &names_of("CustomResourceDefinition"),
        ),
        rule(&["admissionregistration.k8s.io"], &["validatingwebhookconfigurations"], &READ),
        named(
            &["admissionregistration.k8s.io"],
            &["validatingwebhookconfigurations"],
            &["create", "patch", "delete"],
            &names_of("ValidatingWebhookConfiguration"),
        ),
        rule(rbac, &["clusterroles", "clusterrolebindings"], &READ),
        named(
            rbac,
            &["clusterroles"],
            &["create", "patch", "delete", "escalate", "bind"],
            &granted,
        ),
        named(
            rbac,
            &["clusterrolebindings"],
            &["create", "patch", "delete"],
            &names_of("ClusterRoleBinding"),
        ),
    ];
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": NAME}, "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
    ]
}

/// In the namespaces of the drivers.
pub fn home_rules() -> Vec<Value> {
    let rbac = &["rbac.authorization.k8s.io"];
    // What may be granted: the drivers' own Roles, and one of Kubernetes' that a driver is bound to.
    let mut roles = names_of("Role");
    roles.insert("extension-apiserver-authentication-reader".into());
    vec![
        rule(&[""], &["serviceaccounts", "configmaps", "secrets", "services"], &KEEP),
        rule(&["apps"], &["deployments", "daemonsets"], &["create", "patch", "delete"]),
        rule(&["policy"], &["poddisruptionbudgets"], &KEEP),
        // The last words of a driver that crashes. Not everywhere: logs of others are none of our business.
        rule(&[""], &["pods/log"], &["get"]),
        // A driver's pod that has to register anew, where remediation.csiNodes is Fix.
        rule(&[""], &["pods/eviction"], &["create"]),
        rule(rbac, &["roles", "rolebindings"], &KEEP),
        named(rbac, &["roles"], &["escalate", "bind"], &roles),
    ]
}

/// In the operator's own namespace: its lease and its records.
pub fn own_rules() -> Vec<Value> {
    vec![
        rule(&["coordination.k8s.io"], &["leases"], &["get", "list", "watch", "create", "update"]),
        rule(&[""], &["configmaps"], &["get", "list", "watch", "create", "patch"]),
        // Certificate authorities of vCenters.
        rule(&[""], &["secrets"], &["get"]),
        rule(&["events.k8s.io"], &["events"], &["create", "patch"]),
        // The word about missing rights is one that the accounts of earlier VDOs may write too.
        rule(&[""], &["events"], &["create", "patch"]),
    ]
}

pub fn role(namespace: &str, rules: &[Value]) -> [Value; 2] {
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": NAME, "namespace": namespace}, "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": NAME, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::objects;
    use super::*;

    fn rules() -> Vec<Value> {
        let objects = objects();
        let roles = objects.iter().filter(|o| matches!(o.kind(), "Role" | "ClusterRole"));
        roles.flat_map(|role| role.0["rules"].as_array().unwrap().clone()).collect()
    }

    #[test]
    fn rbac_names_every_resource_and_verb() {
        for rule in rules() {
            for part in ["apiGroups", "resources", "verbs"] {
                let named = rule[part].as_array().unwrap();
                assert!(!named.is_empty() && !named.contains(&json!("*")), "{rule}");
            }
        }
    }

    #[test]
    fn the_right_to_grant_rights_is_limited_to_the_drivers_roles_by_name() {
        let grants = |rule: &&Value| {
            let verbs = rule["verbs"].as_array().unwrap();
            verbs.contains(&json!("escalate")) || verbs.contains(&json!("bind"))
        };
        let rules = rules();
        let granting: Vec<&Value> = rules.iter().filter(grants).collect();
        assert!(!granting.is_empty());
        for rule in granting {
            assert!(!rule["resourceNames"].as_array().unwrap().is_empty(), "{rule}");
        }
    }

    #[test]
    fn nothing_that_holds_volumes_can_be_deleted_with_the_operators_rights() {
        let kept = [
            "namespaces",
            "nodes",
            "pods",
            "persistentvolumes",
            "persistentvolumeclaims",
            "volumeattachments",
            "customresourcedefinitions",
            "storageclasses",
        ];
        for rule in rules() {
            let verbs = rule["verbs"].as_array().unwrap();
            let deletes =
                verbs.contains(&json!("delete")) || verbs.contains(&json!("deletecollection"));
            let of = |kind: &str| rule["resources"].as_array().unwrap().contains(&json!(kind));
            assert!(!deletes || !kept.iter().any(|kind| of(kind)), "{rule}");
        }
    }
}
