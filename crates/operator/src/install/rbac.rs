//! The operator's permissions. Rules list each resource and verb, and name the objects wherever their names
//! are known.
//!
//! ```text
//!   catalog ─► every release, rendered ─► names of objects ─► Role and ClusterRole `vdo`: the operator's own rules
//!                                     └─► the drivers' rules ─► Role and ClusterRole `vdo-drivers`: held to be granted
//! ```
//!
//! The operator has neither the verb `escalate` nor `bind`. Kubernetes lets an account write a role, and bind one,
//! only if the account holds every rule in it. So the operator holds the rules of the drivers' roles, and uses none
//! of them itself. A `create` rule that is limited by name works only for server-side apply, which names the
//! object in its path. The API server refuses a plain POST.

use std::collections::BTreeSet;

use catalog::manifest::CPI_ACCOUNT;
use plan::{names, written_names};
use serde_json::{Value, json};

use super::{
    Allowed, HOST_NETWORK_CONSTRAINTS, NAME, NAMESPACE, POD_NETWORK_CONSTRAINTS,
    drivers::DriverRules,
};
use crate::cluster;

/// VDO creates the role without a binding; an admin binds it.
const CSI_NODES: &str = api::CSI_NODES_ROLE;
/// The ClusterRole with the rules of cloud controllers before 1.32, which read Secrets in every namespace.
/// Only `vdoctl deploy` on such a cluster binds it.
const OLD_CLOUD_CONTROLLERS: &str = "vdo-cloud-provider-before-1.32";
/// The roles with the rules that the operator holds only to grant them.
const HELD: &str = "vdo-drivers";

const RBAC: [&str; 1] = ["rbac.authorization.k8s.io"];
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 3] = ["create", "patch", "delete"];

/// All roles of the operator and their bindings.
pub(super) fn objects(allowed: &Allowed, namespaces: &BTreeSet<&str>) -> Vec<Value> {
    let drivers = DriverRules::from_catalog();
    let mut all = Vec::new();
    all.extend(cluster_role(NAME, &cluster_rules()));
    all.extend(cluster_role(HELD, &drivers.cluster_rules));
    all.extend(cloud_controller_credentials(allowed));
    for namespace in namespaces {
        let mut rules = driver_namespace_rules(allowed, namespace);
        if *namespace == names::KUBE_SYSTEM {
            rules.extend(cluster_lease_rules());
        }
        all.extend(role(NAME, namespace, &rules));
        all.extend(role(HELD, namespace, &drivers.namespace_rules));
    }
    all.extend(role(NAME, NAMESPACE, &own_rules()));
    let csi_nodes = rule(&["storage.k8s.io"], &["csinodes"], &["patch"]);
    all.extend(cluster_role(CSI_NODES, &[csi_nodes]).into_iter().take(1));
    let bound = if allowed.old_cloud_controllers { 2 } else { 1 };
    let old = cluster_role(OLD_CLOUD_CONTROLLERS, &drivers.secrets_everywhere);
    all.extend(old.into_iter().take(bound));
    all
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn named(groups: &[&str], resources: &[&str], verbs: &[&str], names: &BTreeSet<String>) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs, "resourceNames": names})
}

fn owned(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn cluster_rules() -> Vec<Value> {
    let storage = &["storage.k8s.io"];
    let mut rules = vec![
        rule(
            &["vdo.vmware.com"],
            &["vdoconfigs", "vspherecloudconfigs", "compatibilityconfigs"],
            &READ,
        ),
        rule(
            &["vdo.vmware.com"],
            &["vdoconfigs/status", "vspherecloudconfigs/status", "compatibilityconfigs/status"],
            &["get", "patch"],
        ),
        rule(&[""], &["nodes", "pods"], &READ),
        // VDO adds a missing taint to a node if remediation.nodeTaints is Fix, and labels nodes of another
        // cloud.
        rule(&[""], &["nodes"], &["patch"]),
        rule(&["apps"], &["daemonsets", "deployments"], &READ),
        rule(storage, &["volumeattachments", "csinodes"], &READ),
        rule(&["events.k8s.io"], &["events"], &["create", "patch"]),
        // The health checks read these.
        rule(&[""], &["events", "persistentvolumes", "persistentvolumeclaims"], &READ),
        rule(&["discovery.k8s.io"], &["endpointslices"], &READ),
        rule(&["cns.vmware.com"], &["csinodetopologies"], &READ),
        rule(&["snapshot.storage.k8s.io"], &["volumesnapshotcontents"], &READ),
        rule(&["config.openshift.io"], &["infrastructures"], &READ),
        // The drivers use the proxy of the cluster.
        named(&["config.openshift.io"], &["proxies"], &READ, &owned(&cluster::site::PROXIES)),
        named(&[""], &["configmaps"], &READ, &owned(&cluster::site::CONFIG_MAPS)),
        named(
            &["coordination.k8s.io"],
            &["leases"],
            &READ,
            &owned(&cluster::events::lease_names()),
        ),
        rule(&[""], &["namespaces"], &READ),
        named(
            &[""],
            &["namespaces"],
            &["create", "patch"],
            written_names::names_in_releases("Namespace"),
        ),
        rule(storage, &["csidrivers", "storageclasses"], &READ),
        // The admin chooses their names. VDO never deletes them.
        rule(storage, &["storageclasses"], &["create", "patch"]),
        named(
            &["snapshot.storage.k8s.io"],
            &["volumesnapshotclasses"],
            &["get", "create", "patch"],
            &owned(&[names::SNAPSHOT_CLASS]),
        ),
        named(storage, &["csidrivers"], &WRITE, written_names::names_in_releases("CSIDriver")),
    ];
    rules.extend(definition_rules());
    rules
}

/// The rules for CustomResourceDefinitions, webhooks and cluster roles.
fn definition_rules() -> [Value; 7] {
    let (definitions, webhooks) = (&["apiextensions.k8s.io"], &["admissionregistration.k8s.io"]);
    let (crds, hooks) = (&["customresourcedefinitions"], &["validatingwebhookconfigurations"]);
    [
        rule(definitions, crds, &READ),
        named(
            definitions,
            crds,
            &["create", "patch"],
            written_names::names_in_releases("CustomResourceDefinition"),
        ),
        rule(webhooks, hooks, &READ),
        named(
            webhooks,
            hooks,
            &WRITE,
            written_names::names_in_releases("ValidatingWebhookConfiguration"),
        ),
        rule(&RBAC, &["clusterroles", "clusterrolebindings"], &READ),
        named(&RBAC, &["clusterroles"], &WRITE, written_names::names_in_releases("ClusterRole")),
        named(
            &RBAC,
            &["clusterrolebindings"],
            &WRITE,
            written_names::names_in_releases("ClusterRoleBinding"),
        ),
    ]
}

/// The kinds of a driver's objects in its namespace: group, resource and kind.
const PARTS: [(&str, &str, &str); 7] = [
    ("", "serviceaccounts", "ServiceAccount"),
    ("", "configmaps", "ConfigMap"),
    ("", "secrets", "Secret"),
    ("", "services", "Service"),
    ("apps", "deployments", "Deployment"),
    ("apps", "daemonsets", "DaemonSet"),
    ("policy", "poddisruptionbudgets", "PodDisruptionBudget"),
];

/// The rules in a namespace of drivers. They name no objects where an admin lets VDO adopt drivers, because
/// the names are unknown.
fn driver_namespace_rules(allowed: &Allowed, namespace: &str) -> Vec<Value> {
    let open = allowed.namespaces.contains(namespace);
    let mut rules = vec![
        rule(&[""], &["serviceaccounts", "configmaps", "services"], &READ),
        if open || namespace != names::KUBE_SYSTEM {
            rule(&[""], &["secrets"], &READ)
        } else {
            let mut names = written_names::readable_secrets();
            names.extend(allowed.names.get("Secret").into_iter().flatten().cloned());
            names.extend(allowed.credentials.iter().cloned());
            named(&[""], &["secrets"], &READ, &names)
        },
        rule(&["policy"], &["poddisruptionbudgets"], &READ),
        rule(&RBAC, &["roles", "rolebindings"], &READ),
        // The logs show why a driver crashed. VDO has no access to logs in other namespaces.
        rule(&[""], &["pods/log"], &["get"]),
    ];
    for (group, resource, kind) in PARTS {
        let mut names = written_names::names_in_releases(kind).clone();
        names.extend(written_names::settings_and_secrets(kind));
        names.extend(allowed.names.get(kind).into_iter().flatten().cloned());
        rules.push(if open {
            rule(&[group], &[resource], &WRITE)
        } else {
            named(&[group], &[resource], &WRITE, &names)
        });
    }
    rules.push(named(&RBAC, &["roles"], &WRITE, written_names::names_in_releases("Role")));
    rules.push(named(
        &RBAC,
        &["rolebindings"],
        &WRITE,
        written_names::names_in_releases("RoleBinding"),
    ));
    if open || namespace == names::CSI_NAMESPACE {
        // VDO evicts a pod of the storage driver that must register again, if remediation.csiNodes is Fix.
        rules.push(rule(&[""], &["pods/eviction"], &["create"]));
        // With an annotation, the kubelet renews the password in the files of the pod at once.
        rules.push(rule(&[""], &["pods"], &["patch"]));
    }
    rules
}

/// The rules in `kube-system`, for the Lease that all installations share. The `create` rule has no name,
/// because the election creates the Lease with a plain POST.
fn cluster_lease_rules() -> [Value; 2] {
    let (group, lease) = (&["coordination.k8s.io"], owned(&[names::CLUSTER_LEASE]));
    [
        rule(group, &["leases"], &["create"]),
        named(group, &["leases"], &["get", "list", "watch", "update"], &lease),
    ]
}

/// The rules in the operator's own namespace: its Lease, its records, and the objects it follows.
fn own_rules() -> Vec<Value> {
    vec![
        // For the finalizer, if the deletion of the VDOConfig removes the drivers.
        rule(&["vdo.vmware.com"], &["vdoconfigs"], &["patch"]),
        rule(&["coordination.k8s.io"], &["leases"], &["get", "list", "watch", "create", "update"]),
        rule(&[""], &["configmaps"], &["get", "list", "watch", "create", "patch"]),
        // The vCenter credentials, the CA certificates of vCenters, and the image pull Secrets.
        rule(&[""], &["secrets"], &READ),
        rule(&["events.k8s.io"], &["events"], &["create", "patch"]),
        // For the operator's own pods on OpenShift. On other distributions the rule is about nothing.
        named(
            &["security.openshift.io"],
            &["securitycontextconstraints"],
            &["use"],
            &owned(&[HOST_NETWORK_CONSTRAINTS, POD_NETWORK_CONSTRAINTS]),
        ),
        // Accounts of earlier VDO releases can write only this kind of event, and VDO reports missing
        // permissions with it.
        rule(&[""], &["events"], &["create", "patch"]),
    ]
}

/// Upstream's cloud controller lists the Secrets in the namespace of its credentials. The operator does not grant it
/// this permission: to do so, the operator itself would need permission to read every Secret in `kube-system`, or to
/// bind a Role that has it.
fn cloud_controller_credentials(allowed: &Allowed) -> Vec<Value> {
    let name = names::CPI_CREDENTIALS_ROLE;
    let [role, binding] = role(name, names::KUBE_SYSTEM, &[rule(&[""], &["secrets"], &READ)]);
    let account = |namespace: &str| json!({"kind": "ServiceAccount", "name": CPI_ACCOUNT, "namespace": namespace});
    let bind = |name: String, accounts: Value| {
        let mut binding = binding.clone();
        binding["metadata"]["name"] = json!(name);
        binding["subjects"] = accounts;
        binding
    };
    let usual = names::USUAL_NAMESPACES.map(account);
    let mut all = vec![role, bind(name.to_owned(), json!(usual))];
    let more =
        allowed.namespaces.iter().filter(|more| !names::USUAL_NAMESPACES.contains(&more.as_str()));
    all.extend(more.map(|more| bind(format!("{name}-{more}"), json!([account(more)]))));
    all
}

fn cluster_role(name: &str, rules: &[Value]) -> [Value; 2] {
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name}, "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
    ]
}

fn role(name: &str, namespace: &str, rules: &[Value]) -> [Value; 2] {
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": name, "namespace": namespace}, "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        super::{objects, objects_for},
        *,
    };

    /// The rules of the roles with these names, or of all roles if `names` is empty.
    fn rules(names: &[&str]) -> Vec<Value> {
        let objects = objects();
        let roles = objects.iter().filter(|o| matches!(o.kind(), "Role" | "ClusterRole"));
        let roles = roles.filter(|role| names.is_empty() || names.contains(&role.name()));
        roles.flat_map(|role| role.0["rules"].as_array().unwrap().clone()).collect()
    }

    fn has(rule: &Value, part: &str, wanted: &str) -> bool {
        rule[part].as_array().unwrap().contains(&json!(wanted))
    }

    #[test]
    fn rbac_names_every_resource_and_verb() {
        for rule in rules(&[]) {
            for part in ["apiGroups", "resources", "verbs"] {
                let named = rule[part].as_array().unwrap();
                assert!(!named.is_empty() && !named.contains(&json!("*")), "{rule}");
            }
            let names = rule["resourceNames"].as_array();
            assert!(
                names.is_none_or(|names| !names.is_empty()),
                "an empty list is no limit: {rule}"
            );
        }
    }

    #[test]
    fn the_operator_can_grant_only_permissions_that_it_holds() {
        for rule in rules(&[]) {
            assert!(!has(&rule, "verbs", "escalate") && !has(&rule, "verbs", "bind"), "{rule}");
        }
    }

    /// The test skips the rules that the operator holds for drivers: `audit_replay` shows that the operator
    /// makes no request that needs them.
    #[test]
    fn the_permissions_of_the_operator_delete_nothing_that_holds_volumes() {
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
        for rule in rules(&[NAME, CSI_NODES]) {
            let deletes = has(&rule, "verbs", "delete") || has(&rule, "verbs", "deletecollection");
            assert!(!deletes || !kept.iter().any(|kind| has(&rule, "resources", kind)), "{rule}");
        }
    }

    #[test]
    fn in_the_namespaces_of_drivers_every_write_permission_names_its_objects() {
        for object in objects() {
            if object.kind() != "Role" || object.name() != NAME || object.namespace() == NAMESPACE {
                continue;
            }
            for rule in object.0["rules"].as_array().unwrap() {
                let writes = ["create", "patch", "update", "delete", "deletecollection"];
                let writes = writes.iter().any(|verb| has(rule, "verbs", verb));
                // Kubernetes chooses the names of the pods.
                let evicts = has(rule, "resources", "pods/eviction")
                    || rule["resources"] == json!(["pods"]) && rule["verbs"] == json!(["patch"]);
                // An election creates its Lease with a plain POST, which no name can limit.
                let elects =
                    rule["resources"] == json!(["leases"]) && rule["verbs"] == json!(["create"]);
                let named = rule["resourceNames"].is_array();
                assert!(!writes || evicts || elects || named, "{rule}");
                assert!(!evicts || object.namespace() == names::CSI_NAMESPACE, "{rule}");
            }
        }
    }

    /// Writes to objects whose names VDO cannot know, and the reason.
    const UNNAMED_WRITES_OF_DRIVERS: [(&str, &[&str], &str); 3] = [
        (
            "leases",
            &["create"],
            "an election creates its Lease with a plain POST, which no name can limit",
        ),
        (
            "cnsvolumeoperationrequests",
            &["create", "delete", "patch", "update"],
            "one for each volume of the storage driver",
        ),
        (
            "csistoragecapacities",
            &["create", "delete", "patch"],
            "one for each StorageClass and segment of the topology",
        ),
    ];

    #[test]
    fn the_rules_held_for_drivers_in_their_namespaces_name_all_objects_with_known_names() {
        for object in objects() {
            if object.kind() != "Role" || object.name() != HELD {
                continue;
            }
            for rule in object.0["rules"].as_array().unwrap() {
                let writes: Vec<&str> = ["create", "delete", "deletecollection", "patch", "update"]
                    .into_iter()
                    .filter(|verb| has(rule, "verbs", verb))
                    .collect();
                let known = |resource: &Value| {
                    UNNAMED_WRITES_OF_DRIVERS
                        .iter()
                        .any(|(name, verbs, _)| resource == name && writes == *verbs)
                };
                let explained = rule["resources"].as_array().unwrap().iter().all(known);
                assert!(
                    writes.is_empty() || rule["resourceNames"].is_array() || explained,
                    "{rule}"
                );
            }
        }
    }

    #[test]
    fn an_admin_opens_a_namespace_or_adds_a_name() {
        let kube_system = |allowed: &Allowed| {
            let all = objects_for(allowed).into_iter();
            let mut own = all.filter(|o| o.kind() == "Role" && o.namespace() == "kube-system");
            own.find(|role| role.name() == NAME).unwrap().0["rules"].as_array().unwrap().clone()
        };
        let writes = |rules: &[Value], resource: &str| {
            let mut writing = rules.iter().filter(|rule| has(rule, "verbs", "create"));
            writing.find(|rule| has(rule, "resources", resource)).unwrap()["resourceNames"].clone()
        };
        let usual = kube_system(&Allowed::default());
        assert!(!writes(&usual, "secrets").as_array().unwrap().contains(&json!("harbor")));
        let names = BTreeMap::from([("Secret".to_owned(), owned(&["harbor"]))]);
        let more = kube_system(&Allowed { names, ..Allowed::default() });
        assert!(writes(&more, "secrets").as_array().unwrap().contains(&json!("harbor")));
        let open = Allowed { namespaces: owned(&["kube-system"]), ..Allowed::default() };
        let open = kube_system(&open);
        assert!(writes(&open, "daemonsets").is_null());
        assert!(writes(&open, "roles").is_array(), "permissions stay limited by name");
    }

    #[test]
    fn secrets_of_every_namespace_are_read_only_where_an_old_cloud_controller_needs_it() {
        let binds = |allowed: &Allowed| {
            objects_for(allowed).iter().any(|object| {
                object.kind() == "ClusterRoleBinding" && object.name() == OLD_CLOUD_CONTROLLERS
            })
        };
        assert!(!binds(&Allowed::default()));
        assert!(binds(&Allowed { old_cloud_controllers: true, ..Allowed::default() }));
        for object in objects().iter().filter(|object| object.kind() == "ClusterRole") {
            let rules = object.0["rules"].as_array().unwrap();
            let secrets = rules.iter().any(|rule| has(rule, "resources", "secrets"));
            assert_eq!(secrets, object.name() == OLD_CLOUD_CONTROLLERS, "{}", object.name());
        }
    }

    #[test]
    fn a_role_that_an_admin_must_ask_for_is_not_bound() {
        let objects = objects();
        let bound = |name: &str| {
            objects.iter().any(|o| o.kind() == "ClusterRoleBinding" && o.name() == name)
        };
        assert!(objects.iter().any(|o| o.kind() == "ClusterRole" && o.name() == CSI_NODES));
        assert!(!bound(CSI_NODES) && bound(NAME));
    }
}
