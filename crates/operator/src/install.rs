//! The manifest that installs the operator: `deploy/install.yaml`.
//!
//! The operator installs the drivers, so it must start on a cluster that has no CNI, no DNS and no cloud
//! controller yet. It uses the host network and the node's resolver, and tolerates every taint of a fresh
//! node. Its permissions are in `rbac`.

use std::collections::{BTreeMap, BTreeSet};

use catalog::manifest::{Object, YamlError, to_yaml};
use k8s_openapi::api::apps::v1::Deployment;
use plan::names;
use serde_json::{Value, json};

use crate::allowed_namespaces;

mod drivers;
mod rbac;

const NAME: &str = "vdo";
const NAMESPACE: &str = api::NAMESPACE;
const IMAGE: &str = concat!("ghcr.io/vmware-tanzu/vdo:", env!("CARGO_PKG_VERSION"));

/// The environment variable with the namespaces of drivers, in addition to the usual ones.
pub const DRIVER_NAMESPACES: &str = "VDO_DRIVER_NAMESPACES";

/// All objects, in the order in which to apply them.
pub fn objects() -> Vec<Object> {
    objects_with(&BTreeSet::new())
}

/// The additional permissions of the operator in one installation.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Namespaces in which it can adopt drivers with any object names.
    pub namespaces: BTreeSet<String>,
    /// Names of additional objects, by kind, that it can write in the usual namespaces of drivers.
    pub names: BTreeMap<String, BTreeSet<String>>,
    /// Whether it can grant cloud controllers before 1.32 the permission that they need: to read every
    /// Secret.
    pub old_cloud_controllers: bool,
}

/// Like [`objects`], for an operator that can also adopt drivers in these namespaces.
pub fn objects_with(more_namespaces: &BTreeSet<String>) -> Vec<Object> {
    objects_for(&Allowed { namespaces: more_namespaces.clone(), ..Allowed::default() })
}

/// Like [`objects`], with the additional permissions of one installation.
pub fn objects_for(allowed: &Allowed) -> Vec<Object> {
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
    let mut namespaces: BTreeSet<&str> = allowed_namespaces::all().collect();
    namespaces.extend(allowed.namespaces.iter().map(String::as_str));
    all.extend(rbac::objects(allowed, &namespaces));
    all.push(deployment(&allowed.namespaces));
    all.into_iter().map(Object).collect()
}

/// The namespaces, in addition to the usual ones, in which a Deployment lets the operator adopt drivers.
pub fn more_namespaces(deployment: &Deployment) -> BTreeSet<String> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let variables = pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|c| &c.env).flatten();
    let values = variables.filter(|variable| variable.name == DRIVER_NAMESPACES);
    let values = values.filter_map(|variable| variable.value.as_deref());
    values.flat_map(|value| value.split(',')).filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

/// `deploy/install.yaml`.
pub fn manifest() -> Result<String, YamlError> {
    to_yaml(&objects())
}

/// The manifest to uninstall only the operator: its Deployment, its account and its permissions. The drivers
/// keep running. The namespaces stay because they contain the storage driver and the records. The
/// CustomResourceDefinitions stay because the deletion of one deletes every object of its kind.
pub fn uninstall() -> Result<String, YamlError> {
    to_yaml(&uninstall_objects())
}

fn uninstall_objects() -> Vec<Object> {
    let kept = ["Namespace", "CustomResourceDefinition"];
    let removed = objects().into_iter().filter(|object| !kept.contains(&object.kind()));
    removed
        .map(|object| {
            let mut identity = json!({
                "apiVersion": object.api_version(), "kind": object.kind(),
                "metadata": {"name": object.name()},
            });
            if !object.namespace().is_empty() {
                identity["metadata"]["namespace"] = json!(object.namespace());
            }
            Object(identity)
        })
        .collect()
}

fn namespace(name: &str, level: &str) -> Value {
    // The operator uses the host network, which only the privileged level allows.
    let level = if name == NAMESPACE { "privileged" } else { level };
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}},
    })
}

fn deployment(more_namespaces: &BTreeSet<String>) -> Value {
    let labels = json!({"app.kubernetes.io/name": NAME});
    let version = env!("CARGO_PKG_VERSION");
    let labels_of_pods =
        json!({"app.kubernetes.io/name": NAME, "app.kubernetes.io/version": version});
    // Preferences, not requirements: one node must be enough. Pods of the same release spread first.
    // Otherwise an upgrade could end with both pods on the node that the surge pod chose.
    let apart = |weight: u8, labels: &Value| {
        json!({"weight": weight, "podAffinityTerm": {
            "labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname",
        }})
    };
    let mut variables = vec![
        json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        json!({"name": "VDO_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}),
        // Every container has this tmpfs. With a volume for the socket, `kubectl drain` would refuse.
        json!({"name": "VDO_SOCKET", "value": "/dev/shm/vdo.sock"}),
    ];
    if !more_namespaces.is_empty() {
        let more: Vec<&str> = more_namespaces.iter().map(String::as_str).collect();
        variables.push(json!({"name": DRIVER_NAMESPACES, "value": more.join(",")}));
    }
    // The probes use no port: pods on the host network of one node would compete for it.
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
            // A new version that does not become ready replaces no ready pod.
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
                        // Working sets measured with 5,000 nodes and 20,000 volumes: 93 MiB, and 288 MiB
                        // with every volume faulty. The limit is more than twice that; see docs/benchmarks.md.
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
    fn uninstalling_the_operator_deletes_no_namespace_and_no_definition() {
        let objects = uninstall_objects();
        let kinds: BTreeSet<&str> = objects.iter().map(Object::kind).collect();
        assert!(!kinds.contains("Namespace") && !kinds.contains("CustomResourceDefinition"));
        assert!(kinds.contains("Deployment") && kinds.contains("ClusterRoleBinding"));
    }

    #[test]
    fn generated_manifests_read_back_as_the_same_objects() {
        let read = |text: String| -> Vec<Object> {
            let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
            objects.into_iter().map(Object).collect()
        };
        assert_eq!(read(manifest().unwrap()), objects());
        assert_eq!(read(uninstall().unwrap()), uninstall_objects());
        assert_eq!(read(crate::alerts::manifest().unwrap()), [crate::alerts::rule()]);
    }

    #[test]
    fn generated_files_named_yaml_are_yaml_and_not_json() {
        let mut folders = vec![testkit::repository().join("deploy")];
        let mut files = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "yaml") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    assert!(!text.starts_with('{'), "{} is JSON", path.display());
                    files += 1;
                }
            }
        }
        assert!(files > 3, "only {files} files below deploy");
    }

    #[test]
    fn the_operator_has_no_access_to_its_host() {
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
