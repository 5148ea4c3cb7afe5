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
        all.extend(role(home, &home_rules()));
    }
    all.extend(role(NAMESPACE, &own_rules()));
    all.push(deployment(more_homes));
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

/// In the operator's own namespace: its lease and its records.
fn own_rules() -> Vec<Value> {
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
    let version = env!("CARGO_PKG_VERSION");
    let labels_of_pods =
        json!({"app.kubernetes.io/name": NAME, "app.kubernetes.io/version": version});
    // Preferences, not requirements: one node must be enough. Pods of the same release keep apart first, so
    // that an upgrade does not end with both on the node that the surge pod chose.
    let apart = |weight: u8, labels: &Value| {
        json!({"weight": weight, "podAffinityTerm": {
            "labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname",
        }})
    };
    let mut variables = vec![
        json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        json!({"name": "VDO_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}),
        // On the tmpfs that every container has: a volume for it would make `kubectl drain` refuse.
        json!({"name": "VDO_SOCKET", "value": "/dev/shm/vdo.sock"}),
    ];
    if !more_homes.is_empty() {
        let more: Vec<&str> = more_homes.iter().map(String::as_str).collect();
        variables.push(json!({"name": DRIVER_NAMESPACES, "value": more.join(",")}));
    }
    // No port: pods on the network of one node would take it from each other.
    let probe = |question: &str, period: u32| {
        json!({
            "exec": {"command": ["vdo", "probe", question]},
            "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": 3,
        })
    };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            // A new version that does not become ready replaces no pod that is.
            "strategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {"labels": labels_of_pods},
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
                    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                        apart(100, &labels_of_pods), apart(50, &labels),
                    ]}},
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                        "name": NAME,
                        "image": IMAGE,
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "env": variables,
                        "livenessProbe": probe("live", 20),
                        "readinessProbe": probe("ready", 10),
                        // Working sets measured with 5,000 nodes and 20,000 volumes: 93 MiB, and 288 MiB with every
                        // volume faulty. The limit is more than twice that; see docs/benchmarks.md.
                        "resources": {
                            "requests": {"cpu": "10m", "memory": "128Mi"},
                            "limits": {"memory": "640Mi"},
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
        let own: Vec<&str> = own
            .into_iter()
            .chain(["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"])
            .collect();
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
