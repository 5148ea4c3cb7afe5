//! Shared by the templates: names, labels, security contexts, placement.

use semver::Version;
use serde_json::{Map, Value, json};

use super::profile::Profile;

/// The name of the CSIDriver object.
pub(crate) const CSI_DRIVER: &str = "csi.vsphere.vmware.com";
/// The DaemonSet of the cloud controller.
pub(crate) const CPI_NAME: &str = "vsphere-cloud-controller-manager";
/// The ServiceAccount of the cloud controller.
/// The service account of upstream's cloud controller.
pub const CPI_ACCOUNT: &str = "cloud-controller-manager";
/// The storage controller: Deployment, ServiceAccount, Service.
pub(crate) const CSI_CONTROLLER: &str = "vsphere-csi-controller";
/// The node driver: DaemonSet, ServiceAccount.
pub(crate) const CSI_NODE: &str = "vsphere-csi-node";
/// The ConfigMap with the feature switches of the storage driver.
pub(crate) const CSI_FEATURES: &str = "internal-feature-states.csi.vsphere.vmware.com";
/// The webhook: Deployment, ServiceAccount.
pub(crate) const CSI_WEBHOOK: &str = "vsphere-csi-webhook";

/// The labels of every object.
pub(crate) fn labels(name: &str, version: &Version) -> Map<String, Value> {
    let pairs = [
        // Role names contain colons, label values must not.
        ("app.kubernetes.io/name", name.replace(':', "-")),
        ("app.kubernetes.io/version", version.to_string().replace('+', "_")),
        ("app.kubernetes.io/part-of", "vsphere-kubernetes-drivers".to_owned()),
        ("app.kubernetes.io/managed-by", "vdo".to_owned()),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value))).collect()
}

/// Metadata of an object; cluster-scoped if `namespace` is empty.
pub(crate) fn metadata(name: &str, namespace: &str, version: &Version) -> Value {
    let mut metadata = json!({ "name": name, "labels": labels(name, version) });
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

/// Metadata of a pod template: the labels of its selector, and annotations if there are any.
pub(crate) fn pod_metadata(
    selector: &Value,
    role: &str,
    version: &Version,
    profile: &Profile,
    scc: &str,
) -> Value {
    let name =
        selector.as_object().and_then(|labels| labels.values().next()).and_then(Value::as_str);
    let mut all = labels(name.unwrap_or_default(), version);
    all.extend(selector.as_object().cloned().unwrap_or_default());
    all.insert("role".to_owned(), json!(role));
    let mut annotations = Map::new();
    if profile.openshift() {
        annotations.insert("openshift.io/required-scc".to_owned(), json!(scc));
        annotations.insert(
            "target.workload.openshift.io/management".to_owned(),
            json!(r#"{"effect":"PreferredDuringScheduling"}"#),
        );
    }
    let mut metadata = json!({ "labels": all });
    if !annotations.is_empty() {
        metadata["annotations"] = Value::Object(annotations);
    }
    metadata
}

/// Restarts the pods after a configuration change that they do not notice themselves.
pub(crate) fn config_digest(metadata: &mut Value, profile: &Profile) {
    if let Some(digest) = &profile.config_digest {
        metadata["annotations"]["vdo.vmware.com/config-digest"] = json!(digest);
    }
}

/// A namespace that allows privileged pods, because the node driver is privileged.
pub(crate) fn namespace(name: &str, version: &Version, profile: &Profile) -> Value {
    let mut labels = labels(name, version);
    for mode in ["enforce", "audit", "warn"] {
        labels.insert(format!("pod-security.kubernetes.io/{mode}"), json!("privileged"));
    }
    let mut metadata = json!({ "name": name });
    if profile.openshift() {
        labels.insert("openshift.io/cluster-monitoring".to_owned(), json!("true"));
        metadata["annotations"] = json!({ "openshift.io/node-selector": "", "workload.openshift.io/allowed": "management" });
    }
    metadata["labels"] = Value::Object(labels);
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
}

/// The security context of a container that needs nothing from the node.
///
/// OpenShift assigns user ids itself, so `user` is omitted there.
pub(crate) fn confined(user: Option<i64>, profile: &Profile) -> Value {
    let mut context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "readOnlyRootFilesystem": true,
    });
    if let Some(user) = user {
        context["runAsNonRoot"] = json!(true);
        if !profile.openshift() {
            context["runAsUser"] = json!(user);
            context["runAsGroup"] = json!(user);
        }
    }
    context
}

/// The security context of a pod with [`confined`] containers.
pub(crate) fn confined_pod(user: Option<i64>, profile: &Profile) -> Value {
    let mut context = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
    if let Some(user) = user {
        context["runAsNonRoot"] = json!(true);
        if !profile.openshift() {
            context["fsGroup"] = json!(user);
        }
    }
    context
}

/// Resource requests. No limits: a throttled or killed driver stalls every volume.
pub(crate) fn requests(cpu: &str, memory: &str) -> Value {
    json!({ "requests": { "cpu": cpu, "memory": memory } })
}

/// An environment value: the pod's own namespace.
pub(crate) fn own_namespace() -> Value {
    json!({ "name": "CSI_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } })
}

pub(crate) fn env(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

/// Makes the kubelet store the end of a failed container's log in the pod's status. The drivers write no
/// termination message of their own. A container with its own policy keeps it.
pub(crate) fn keep_crash_logs(object: &mut Value) {
    for container in containers(object) {
        let policy = container.entry("terminationMessagePolicy");
        policy.or_insert_with(|| json!("FallbackToLogsOnError"));
    }
}

/// All containers of an object with a pod template.
fn containers(object: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let spec = object.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut);
    let lists = spec.into_iter().flatten();
    let lists = lists.filter(|(name, _)| ["containers", "initContainers"].contains(&name.as_str()));
    let all = lists.filter_map(|(_, list)| list.as_array_mut()).flatten();
    all.filter_map(Value::as_object_mut)
}

/// Adds the pull secrets to a pod spec.
pub(crate) fn pull_secrets(spec: &mut Value, profile: &Profile) {
    if !profile.images.pull_secrets.is_empty() {
        let names = profile.images.pull_secrets.iter().map(|name| json!({ "name": name }));
        spec["imagePullSecrets"] = names.collect();
    }
}

/// Places a controller on control-plane nodes, if the cluster has any, each replica on its own node.
pub(crate) fn affinity(selector: &Value, profile: &Profile) -> Value {
    let mut affinity = json!({
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": { "matchLabels": selector },
                "topologyKey": "kubernetes.io/hostname",
            }],
        },
    });
    if !profile.placement.labels.is_empty() {
        affinity["nodeAffinity"] = control_plane_nodes(profile);
    }
    affinity
}

/// With the value `false`, the admin marks a node that is not a vSphere VM.
const VSPHERE_LABEL: &str = "vdo.vmware.com/vsphere";
/// OpenShift's label for the platform of a node in a mixed cluster.
const PLATFORM_LABEL: &str = "node.openshift.io/platform-type";

/// Every node that is not known to run on another platform than vSphere.
pub(crate) fn vsphere_nodes() -> Value {
    let ours = json!({ "key": VSPHERE_LABEL, "operator": "NotIn", "values": ["false"] });
    let unlabelled = json!({ "key": PLATFORM_LABEL, "operator": "DoesNotExist" });
    let labelled = json!({ "key": PLATFORM_LABEL, "operator": "In", "values": ["vsphere"] });
    let terms =
        [unlabelled, labelled].map(|platform| json!({ "matchExpressions": [ours, platform] }));
    let required =
        json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
    json!({ "nodeAffinity": required })
}

/// Every node with a label of the control plane.
pub(crate) fn control_plane_nodes(profile: &Profile) -> Value {
    let term =
        |label: &String| json!({ "matchExpressions": [{ "key": label, "operator": "Exists" }] });
    let terms: Value = profile.placement.labels.iter().map(term).collect();
    json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } })
}

/// The given tolerations, then those for the taints of the control plane.
pub(crate) fn tolerations(always: &[(&str, &str)], profile: &Profile) -> Value {
    let seen =
        profile.placement.taints.iter().map(|taint| (taint.key.as_str(), taint.effect.as_str()));
    let mut all: Vec<(&str, &str)> = Vec::new();
    for pair in always.iter().copied().chain(seen) {
        if !all.contains(&pair) {
            all.push(pair);
        }
    }
    all.iter()
        .map(|(key, effect)| json!({ "key": key, "operator": "Exists", "effect": effect }))
        .collect()
}

pub(crate) struct Controller<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
    pub version: &'a Version,
    pub selector: Value,
    pub role: &'a str,
    pub account: &'a str,
    pub replicas: u32,
    pub priority: &'a str,
    pub user: Option<i64>,
    /// True if its pods read the driver's configuration.
    pub reads_config: bool,
    pub containers: Vec<Value>,
    pub volumes: Value,
}

impl Controller<'_> {
    pub(crate) fn build(self, profile: &Profile) -> Value {
        let mut spec = json!({
            "serviceAccountName": self.account,
            "priorityClassName": self.priority,
            "nodeSelector": { "kubernetes.io/os": "linux" },
            "affinity": affinity(&self.selector, profile),
            "tolerations": tolerations(&[], profile),
            // The node's resolver: pods must resolve vCenter before the cluster has a DNS.
            "dnsPolicy": "Default",
            "securityContext": confined_pod(self.user, profile),
            "containers": self.containers,
            "volumes": self.volumes,
        });
        pull_secrets(&mut spec, profile);
        let mut pod =
            pod_metadata(&self.selector, self.role, self.version, profile, "restricted-v2");
        if self.reads_config {
            config_digest(&mut pod, profile);
        }
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata(self.name, self.namespace, self.version),
            "spec": {
                "replicas": self.replicas,
                // Each replica has a node to itself, so a new one needs the place of an old one.
                "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1, "maxSurge": 0 } },
                "selector": { "matchLabels": self.selector },
                "template": { "metadata": pod, "spec": spec },
            },
        })
    }
}

/// A disruption budget that allows draining one node at a time, even with a single replica.
pub(crate) fn disruption_budget(
    name: &str,
    namespace: &str,
    version: &Version,
    selector: &Value,
) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(name, namespace, version),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": selector } },
    })
}
