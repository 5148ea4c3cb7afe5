//! The manifest that installs the operator: `deploy/install.yaml`.
//!
//! The operator installs the drivers, so it must start on a cluster that has no CNI, no DNS and no cloud
//! controller yet. It uses the host network and the node's resolver, and tolerates every taint of a fresh
//! node. On a cluster that has a CNI, [`use_pod_network`] moves it to the pod network. Its permissions are in `rbac`.

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
/// The published image of the operator, of this version.
pub const IMAGE: &str = concat!("ghcr.io/vmware-tanzu/vdo:", env!("CARGO_PKG_VERSION"));

/// The annotation with the only SecurityContextConstraints under which OpenShift admits a pod. Other distributions
/// ignore it.
const REQUIRED_SCC: &str = "openshift.io/required-scc";
/// The SecurityContextConstraints of OpenShift for a pod on the host network that needs nothing else of its host.
const HOST_NETWORK_CONSTRAINTS: &str = "hostnetwork-v2";
/// The SecurityContextConstraints of OpenShift for a pod that needs nothing of its host.
const POD_NETWORK_CONSTRAINTS: &str = "restricted-v2";

/// The annotation with the checks of kube-score that do not fit an object. `docs/install.md` has the reason for each.
const KUBE_SCORE_IGNORE: &str = "kube-score/ignore";
/// The checks of pods that do not fit the operator.
const IGNORED_OF_PODS: [&str; 4] = [
    "container-image-pull-policy",
    "container-resources",
    "container-security-context-user-group-id",
    "pod-networkpolicy",
];
/// The check of Deployments that does not fit the operator.
const IGNORED_OF_DEPLOYMENTS: &str = "deployment-has-poddisruptionbudget";

/// The label with the pod security level of a namespace.
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";

/// The taints of a node without a pod network. Only pods on the host network tolerate them.
pub const WITHOUT_POD_NETWORK: [&str; 2] =
    ["node.kubernetes.io/not-ready", "node.kubernetes.io/network-unavailable"];

/// The labels of control-plane nodes: of Kubernetes, of Kubernetes before 1.24 and OpenShift, and of RKE1.
const CONTROL_PLANE: [&str; 3] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "node-role.kubernetes.io/controlplane",
];

/// The environment variable with the address of the metrics.
pub const LISTEN: &str = "VDO_LISTEN";
/// The port of the metrics, unless an admin chooses another.
pub const PORT: u16 = 8089;
/// The label with the version of the operator that a pod runs.
pub const VERSION: &str = "app.kubernetes.io/version";

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
    /// Names of the Secrets with vCenter credentials that it can read in `kube-system`.
    pub credentials: BTreeSet<String>,
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
    // The operator uses the host network, which only the privileged level allows.
    all.extend([NAMESPACE, names::CSI_NAMESPACE].map(|name| namespace(name, "privileged")));
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

/// The head of `deploy/install.yaml`.
const HEAD: &str = "\
# Installs the operator of VDO.
#
# The operator uses the host network, so that it also starts in a cluster without a CNI. Its namespace therefore allows
# privileged pods. In a cluster that has a CNI, `vdoctl deploy` installs the operator on the pod network instead, in a
# namespace with the pod security level `restricted`. `vdoctl deploy --host-network never -o yaml` prints that manifest.
";

/// `deploy/install.yaml`.
pub fn manifest() -> Result<String, YamlError> {
    manifest_of(&objects())
}

/// Like [`manifest`], of objects that a release has changed.
pub fn manifest_of(objects: &[Object]) -> Result<String, YamlError> {
    Ok(HEAD.to_owned() + &to_yaml(objects)?)
}

/// The manifest to uninstall only the operator: its Deployment, its account and its permissions. The drivers
/// keep running, so the cloud controller's permission to read its credentials stays. The namespaces stay because they
/// contain the storage driver and the records. The CustomResourceDefinitions stay because the deletion of one deletes
/// every object of its kind.
pub fn uninstall() -> Result<String, YamlError> {
    to_yaml(&uninstall_objects())
}

/// Whether an object of the manifest stays when the operator is uninstalled, although it contains no data: the drivers
/// keep running, and the cloud controller needs its permission to read its credentials.
pub fn is_needed_by_drivers(name: &str) -> bool {
    name.starts_with(names::CPI_CREDENTIALS_ROLE)
}

fn uninstall_objects() -> Vec<Object> {
    let kept = ["Namespace", "CustomResourceDefinition"];
    let removed = objects()
        .into_iter()
        .filter(|object| !kept.contains(&object.kind()) && !is_needed_by_drivers(object.name()));
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
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {POD_SECURITY: level}},
    })
}

/// Moves the operator in these objects to the pod network, for a cluster that has a CNI. Its namespace then enforces
/// the pod security level `restricted`. The operator serves its metrics on the address of its pod.
pub fn use_pod_network(objects: &mut [Object]) {
    for Object(object) in objects {
        if object["kind"] == "Namespace" && object["metadata"]["name"] == NAMESPACE {
            object["metadata"]["labels"][POD_SECURITY] = json!("restricted");
        }
        let is_operator = object["kind"] == "Deployment" && object["metadata"]["name"] == NAME;
        if !is_operator || serde_json::from_value::<Deployment>(object.clone()).is_err() {
            continue;
        }
        let template = &mut object["spec"]["template"];
        template["metadata"]["annotations"][REQUIRED_SCC] = json!(POD_NETWORK_CONSTRAINTS);
        let pod = &mut template["spec"];
        // Not removed: another way to install VDO can have set it, and would keep it.
        pod["hostNetwork"] = json!(false);
        // Such a node has no pod network yet: the pod would wait there instead of starting elsewhere.
        if let Some(tolerations) = pod["tolerations"].as_array_mut() {
            tolerations.retain(|one| !WITHOUT_POD_NETWORK.iter().any(|key| one["key"] == *key));
        }
        let variables = pod.pointer_mut("/containers/0/env").and_then(Value::as_array_mut);
        let Some(variables) = variables else { continue };
        let listen = json!({"name": LISTEN, "value": listen_on_pod_network(PORT)});
        match variables.iter_mut().find(|variable| variable["name"] == LISTEN) {
            Some(known) => *known = listen,
            None => variables.push(listen),
        }
    }
}

/// The address of the metrics on the host network: only the node itself reaches it.
pub fn listen_on_host_network(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// The address of the metrics on the pod network: those of the pod, of either IP family.
pub fn listen_on_pod_network(port: u16) -> String {
    format!("[::]:{port}")
}

/// Whether the operator of this Deployment uses the host network.
pub fn uses_host_network(deployment: &Deployment) -> bool {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    pod.and_then(|pod| pod.host_network).unwrap_or(false)
}

/// Labels the pods of a Deployment as those of this version, so that they spread over nodes apart from those of other
/// versions.
pub fn set_version(deployment: &mut Object, version: &str) {
    let Some(template) = deployment.0.pointer_mut("/spec/template") else { return };
    let terms = "/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution";
    let terms = template.pointer_mut(terms).and_then(Value::as_array_mut);
    for term in terms.into_iter().flatten() {
        let labels = term.pointer_mut("/podAffinityTerm/labelSelector/matchLabels");
        if let Some(label) = labels.and_then(|labels| labels.get_mut(VERSION)) {
            *label = json!(version);
        }
    }
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.insert(VERSION.to_owned(), json!(version));
    }
}

fn deployment(more_namespaces: &BTreeSet<String>) -> Value {
    let labels = json!({"app.kubernetes.io/name": NAME});
    let version = env!("CARGO_PKG_VERSION");
    let labels_of_pods = json!({"app.kubernetes.io/name": NAME, VERSION: version});
    // Preferences, not requirements: one node must be enough. Only pods of the same release spread: otherwise an
    // upgrade could end with both pods on the node that the surge pod chose, or on workers.
    let apart = json!({"weight": 100, "podAffinityTerm": {
        "labelSelector": {"matchLabels": labels_of_pods}, "topologyKey": "kubernetes.io/hostname",
    }});
    // The pods hold vCenter credentials, and a worker also runs the pods of tenants. Each label is a term of its own: a
    // node has one of them.
    let prefer = |label: &str| {
        let expression = json!({"key": label, "operator": "Exists"});
        json!({"weight": 100, "preference": {"matchExpressions": [expression]}})
    };
    let mut variables = vec![
        json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        json!({"name": "VDO_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}),
        // Every container has this tmpfs. With a volume for the socket, `kubectl drain` would refuse.
        json!({"name": "VDO_SOCKET", "value": "/dev/shm/vdo.sock"}),
        // The default of the program. It replaces the address that another way to install VDO left behind. The port is
        // not declared: as a port of the node, it would let only one of the operator's pods run there.
        json!({"name": LISTEN, "value": listen_on_host_network(PORT)}),
    ];
    if !more_namespaces.is_empty() {
        let more: Vec<&str> = more_namespaces.iter().map(String::as_str).collect();
        variables.push(json!({"name": DRIVER_NAMESPACES, "value": more.join(",")}));
    }
    // The probes use no port: pods on the host network of one node would compete for it.
    let probe = |question: &str, period: u32, failures: u32| {
        json!({
            "exec": {"command": ["vdo", "probe", question]},
            "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures,
        })
    };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": NAME, "namespace": NAMESPACE, "labels": labels,
            "annotations": {KUBE_SCORE_IGNORE: IGNORED_OF_DEPLOYMENTS},
        },
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            // A new version that does not become ready replaces no ready pod.
            "strategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {
                    "labels": labels_of_pods,
                    "annotations": {
                        REQUIRED_SCC: HOST_NETWORK_CONSTRAINTS,
                        KUBE_SCORE_IGNORE: IGNORED_OF_PODS.join(","),
                    },
                },
                "spec": {
                    "serviceAccountName": NAME,
                    "hostNetwork": true,
                    "dnsPolicy": "Default",
                    // The image has no variant for Windows.
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "priorityClassName": "system-cluster-critical",
                    "tolerations": [
                        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
                        {"key": "node-role.kubernetes.io/master", "operator": "Exists"},
                        {"key": names::UNINITIALIZED, "operator": "Exists"},
                        {"key": WITHOUT_POD_NETWORK[0], "operator": "Exists"},
                        {"key": WITHOUT_POD_NETWORK[1], "operator": "Exists"},
                    ],
                    "affinity": {
                        "nodeAffinity": {
                            "preferredDuringSchedulingIgnoredDuringExecution": CONTROL_PLANE.map(prefer),
                        },
                        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]},
                    },
                    "securityContext": {
                        // No user id: the image has one, and OpenShift assigns its own.
                        "runAsNonRoot": true,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                        "name": NAME,
                        "image": IMAGE,
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "env": variables,
                        "startupProbe": probe("live", 2, 60),
                        "livenessProbe": probe("live", 20, 3),
                        "readinessProbe": probe("ready", 10, 3),
                        // Working sets measured with 5,000 nodes and 20,000 volumes: 141 MiB, or 197 MiB and at most
                        // 202 MiB with every volume faulty. The limit is three times that; see docs/benchmarks.md.
                        // On a full disk, the kubelet first evicts pods that use more than they request. Only the
                        // log takes space: the kubelet keeps 50 MiB of it by default, and OpenShift 250 MiB.
                        "resources": {
                            "requests": {"cpu": "10m", "memory": "144Mi", "ephemeral-storage": "64Mi"},
                            "limits": {"memory": "640Mi", "ephemeral-storage": "1Gi"},
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
    fn on_the_pod_network_the_operator_needs_nothing_of_its_host() {
        let mut objects = objects();
        use_pod_network(&mut objects);
        let find = |kind: &str, name: &str| {
            let found = objects.iter().find(|o| o.kind() == kind && o.name() == name);
            found.unwrap().0.clone()
        };
        assert_eq!(find("Namespace", NAMESPACE)["metadata"]["labels"][POD_SECURITY], "restricted");
        let csi = find("Namespace", names::CSI_NAMESPACE);
        assert_eq!(csi["metadata"]["labels"][POD_SECURITY], "privileged");
        let deployment = find("Deployment", NAME);
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["hostNetwork"], false);
        let listen = json!({"name": LISTEN, "value": "[::]:8089"});
        assert!(pod["containers"][0]["env"].as_array().unwrap().contains(&listen), "{pod}");
        let tolerations = pod["tolerations"].to_string();
        assert!(!tolerations.contains(WITHOUT_POD_NETWORK[0]), "{tolerations}");
        assert!(tolerations.contains(names::UNINITIALIZED), "{tolerations}");
        assert!(!uses_host_network(&serde_json::from_value(deployment).unwrap()));
        let host = self::objects().into_iter().find(|o| o.kind() == "Deployment").unwrap();
        assert!(uses_host_network(&serde_json::from_value(host.0).unwrap()));
    }

    #[test]
    fn the_operator_runs_on_linux_nodes_only() {
        let deployment = deployment(&BTreeSet::new());
        let selector = &deployment["spec"]["template"]["spec"]["nodeSelector"];
        assert_eq!(selector, &json!({"kubernetes.io/os": "linux"}));
    }

    #[test]
    fn the_operator_prefers_control_plane_nodes_and_one_node_is_enough() {
        let mut own = Object(deployment(&BTreeSet::new()));
        set_version(&mut own, "9.9.9");
        let affinity = &own.0["spec"]["template"]["spec"]["affinity"];
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let nodes = affinity["nodeAffinity"][preferred].as_array().unwrap();
        let terms = nodes.iter().map(|term| {
            let expressions = term["preference"]["matchExpressions"].as_array().unwrap();
            assert_eq!(expressions.len(), 1, "a node has one of the labels: {term}");
            assert_eq!(
                (&term["weight"], &expressions[0]["operator"]),
                (&json!(100), &json!("Exists"))
            );
            expressions[0]["key"].as_str().unwrap()
        });
        let roles = ["control-plane", "master", "controlplane"];
        let roles = roles.map(|role| format!("node-role.kubernetes.io/{role}"));
        assert_eq!(terms.collect::<Vec<_>>(), roles);
        let apart = affinity["podAntiAffinity"][preferred].as_array().unwrap();
        let version = &apart[0]["podAffinityTerm"]["labelSelector"]["matchLabels"][VERSION];
        assert_eq!(version, "9.9.9");
        assert!(!affinity.to_string().contains("required"), "{affinity}");
    }

    #[tokio::test]
    async fn on_the_pod_network_both_ip_families_reach_the_metrics() {
        let address = listen_on_pod_network(0).parse().unwrap();
        let server = runtime::server::Server::bind(address).await.unwrap();
        for host in ["127.0.0.1", "::1"] {
            let reached = tokio::net::TcpStream::connect((host, server.address().port())).await;
            assert!(reached.is_ok(), "{host}: {reached:?}");
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
