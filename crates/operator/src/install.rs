//! What a user applies to get the operator: `deploy/install.yaml`.
//!
//! It starts on a cluster that has no CNI, no DNS and no cloud controller yet, because that is the
//! state before the drivers it installs: host network, the node's resolver, and tolerations for
//! every taint of a fresh node. Its RBAC names each resource and verb; the right to grant the
//! drivers' roles is limited to those roles by name.

use std::collections::BTreeSet;

use catalog::manifest::{self, Object, Profile, profile};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

use crate::{homes, names, survey};

const NAME: &str = "vdo";
const NAMESPACE: &str = api::NAMESPACE;
const IMAGE: &str = concat!("ghcr.io/vmware-tanzu/vdo:", env!("CARGO_PKG_VERSION"));

/// The variable that names the namespaces of drivers beside the usual ones.
pub const DRIVER_NAMESPACES: &str = "VDO_DRIVER_NAMESPACES";

/// All objects, in the order in which they are applied.
pub fn objects() -> Vec<Object> {
    objects_with(&BTreeSet::new())
}

/// The same for an operator that may adopt drivers in these namespaces too.
pub fn objects_with(more_homes: &BTreeSet<String>) -> Vec<Object> {
    let mut all: Vec<Value> = api::crds()
        .into_iter()
        .filter_map(|crd| serde_json::to_value(crd).ok())
        .map(|mut crd| {
            crd["apiVersion"] = json!("apiextensions.k8s.io/v1");
            crd["kind"] = json!("CustomResourceDefinition");
            crd
        })
        .collect();
    all.extend([namespace(NAMESPACE, "restricted"), namespace(names::CSI_NAMESPACE, "privileged")]);
    all.push(json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
    }));
    all.extend(cluster_role());
    let mut all_homes: BTreeSet<&str> = homes::all().collect();
    all_homes.extend(more_homes.iter().map(String::as_str));
    for home in all_homes {
        let mut rules = home_rules();
        if home == names::KUBE_SYSTEM {
            rules.extend(cluster_lease_rules());
        }
        all.extend(role(home, &rules));
    }
    all.extend(role(NAMESPACE, &own_rules()));
    all.extend([deployment(more_homes), disruption_budget()]);
    all.into_iter().map(Object).collect()
}

/// The namespaces beside the usual ones that a Deployment lets the operator adopt drivers in.
pub fn more_homes(deployment: &Deployment) -> BTreeSet<String> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let variables = pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|c| &c.env).flatten();
    let said = variables.filter(|variable| variable.name == DRIVER_NAMESPACES);
    let said = said.filter_map(|variable| variable.value.as_deref());
    said.flat_map(|value| value.split(',')).filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

/// The whole manifest as one text.
pub fn manifest() -> Result<String, serde_json::Error> {
    let documents: Result<Vec<String>, _> =
        objects().iter().map(|object| serde_json::to_string_pretty(&object.0)).collect();
    // JSON is YAML, and stays readable when a tool rewrites it.
    Ok(documents?.join("\n---\n") + "\n")
}

/// What takes the operator away and nothing else: its Deployment, its account and its rights. The
/// drivers run on; the namespaces stay because the storage driver and the records are in them, and the
/// definitions stay because deleting one deletes every object of its kind.
pub fn uninstall() -> Result<String, serde_json::Error> {
    let kept = ["Namespace", "CustomResourceDefinition"];
    let going =
        objects().into_iter().filter(|object| !kept.contains(&object.kind())).map(|object| {
            let mut identity = json!({
                "apiVersion": object.api_version(), "kind": object.kind(),
                "metadata": {"name": object.name()},
            });
            if !object.namespace().is_empty() {
                identity["metadata"]["namespace"] = json!(object.namespace());
            }
            serde_json::to_string_pretty(&identity)
        });
    let documents: Result<Vec<String>, _> = going.collect();
    Ok(documents?.join("\n---\n") + "\n")
}

fn namespace(name: &str, level: &str) -> Value {
    // The operator uses the host's network, which only the privileged level allows.
    let level = if name == NAMESPACE { "privileged" } else { level };
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}},
    })
}

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

fn cluster_role() -> [Value; 2] {
    let rbac = &["rbac.authorization.k8s.io"];
    let granted = names_of("ClusterRole");
    let rules = vec![
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
fn home_rules() -> Vec<Value> {
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

/// In `kube-system`: the Lease that all installations share. A right to create cannot be limited by name.
fn cluster_lease_rules() -> [Value; 2] {
    let (group, lease) = (&["coordination.k8s.io"], own(&[names::CLUSTER_LEASE]));
    [
        rule(group, &["leases"], &["create"]),
        named(group, &["leases"], &["get", "list", "watch", "update"], &lease),
    ]
}

/// In the operator's own namespace: its lease, its records, and the objects it follows.
fn own_rules() -> Vec<Value> {
    vec![
        // The finalizer, where the drivers are to go with the VDOConfig.
        rule(&["vdo.vmware.com"], &["vdoconfigs"], &["patch"]),
        rule(&["coordination.k8s.io"], &["leases"], &["get", "list", "watch", "create", "update"]),
        rule(&[""], &["configmaps"], &["get", "list", "watch", "create", "patch"]),
        // Certificate authorities of vCenters.
        rule(&[""], &["secrets"], &["get"]),
        rule(&["events.k8s.io"], &["events"], &["create", "patch"]),
        // The word about missing rights is one that the accounts of earlier VDOs may write too.
        rule(&[""], &["events"], &["create", "patch"]),
    ]
}

fn role(namespace: &str, rules: &[Value]) -> [Value; 2] {
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

fn deployment(more_homes: &BTreeSet<String>) -> Value {
    let labels = json!({"app.kubernetes.io/name": NAME});
    let mut variables = vec![
        json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        json!({"name": "VDO_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}),
    ];
    if !more_homes.is_empty() {
        let more: Vec<&str> = more_homes.iter().map(String::as_str).collect();
        variables.push(json!({"name": DRIVER_NAMESPACES, "value": more.join(",")}));
    }
    let probe = |path: &str| json!({"httpGet": {"host": "127.0.0.1", "path": path, "port": 8089}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": NAME,
                    "hostNetwork": true,
                    "dnsPolicy": "Default",
                    "priorityClassName": "system-cluster-critical",
                    "tolerations": [
                        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
                        {"key": "node-role.kubernetes.io/master", "operator": "Exists"},
                        {"key": names::UNINITIALIZED, "operator": "Exists"},
                        {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
                        {"key": "node.kubernetes.io/network-unavailable", "operator": "Exists"},
                    ],
                    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                        {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"},
                    ]}},
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                        "name": NAME,
                        "image": IMAGE,
                        "env": variables,
                        "livenessProbe": probe("/livez"),
                        "resources": {
                            "requests": {"cpu": "10m", "memory": "32Mi"},
                            "limits": {"memory": "128Mi"},
                        },
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }],
                },
            },
        },
    })
}

fn disruption_budget() -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
        },
    })
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn the_operator_starts_where_there_is_no_network_no_dns_and_no_initialised_node() {
        let deployment = deployment(&BTreeSet::new());
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["hostNetwork"], true);
        assert_eq!(pod["dnsPolicy"], "Default");
        let tolerated: Vec<&str> = pod["tolerations"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|t| t["key"].as_str())
            .collect();
        let fresh = [
            names::UNINITIALIZED,
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/network-unavailable",
            "node-role.kubernetes.io/control-plane",
        ];
        for taint in fresh {
            assert!(tolerated.contains(&taint), "{taint}");
        }
        let own = ["CustomResourceDefinition", "Namespace", "ServiceAccount", "Deployment"];
        let own = own.into_iter().chain(["PodDisruptionBudget"]);
        let own: Vec<&str> =
            own.chain(["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]).collect();
        for object in objects() {
            assert!(own.contains(&object.kind()), "{} needs somebody else", object.kind());
        }
    }

    #[test]
    fn taking_the_operator_away_takes_no_namespace_and_no_definition() {
        let text = uninstall().unwrap();
        assert!(!text.contains("\"Namespace\"") && !text.contains("CustomResourceDefinition"));
        assert!(text.contains("\"Deployment\"") && text.contains("\"ClusterRoleBinding\""));
    }

    #[test]
    fn the_operator_may_do_nothing_to_the_machine_it_runs_on() {
        let deployment = deployment(&BTreeSet::new());
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod.get("volumes"), None, "no hostPath, nothing mounted");
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        let container = &pod["containers"][0]["securityContext"];
        assert_eq!(container["readOnlyRootFilesystem"], true);
        assert_eq!(container["allowPrivilegeEscalation"], false);
        assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
    }
}
