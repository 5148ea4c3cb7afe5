//! The cloud controller: one pod on every control-plane node, one of them leading.
//!
//! It must run before anything else: until then nodes are tainted, DNS is pending and the CNI may be missing.
//! Hence the host network, the node's resolver and the long list of tolerations.

use serde_json::{Value, json};

use super::{
    Expected, RenderError, Rendered,
    common::{
        CPI_ACCOUNT, CPI_NAME, config_digest, confined, confined_pod, control_plane_nodes, env,
        metadata, namespace, pod_metadata, pull_secrets, requests, tolerations,
    },
    image,
    profile::Profile,
    rbac::{Subject, account, named, rule},
};
use crate::model::{CpiTemplate, Release};

/// The user in upstream's manifest.
const USER: i64 = 1001;

/// The taints of a node before the cloud controller and the CNI have initialised it.
const EARLY_TAINTS: [(&str, &str); 5] = [
    ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
    ("node.kubernetes.io/not-ready", "NoSchedule"),
    ("node.kubernetes.io/network-unavailable", "NoSchedule"),
    ("node-role.kubernetes.io/control-plane", "NoSchedule"),
    ("node-role.kubernetes.io/master", "NoSchedule"),
];

/// The Role with which upstream's cloud controller lists the Secrets in the namespace of its credentials, and the
/// name of its binding.
pub const CPI_CREDENTIALS_ROLE: &str = "vsphere-cloud-controller-manager-credentials";

pub(super) fn render(
    release: &Release,
    template: &CpiTemplate,
    profile: &Profile,
) -> Result<Rendered, RenderError> {
    let version = &release.version;
    let driver_namespace = profile.cpi.namespace.as_str();
    let mut objects = Vec::new();
    // VDO does not set labels on kube-system.
    if driver_namespace != "kube-system" {
        objects.push(namespace(driver_namespace, version, profile));
    }
    objects.push(account(CPI_ACCOUNT, driver_namespace, version));
    objects.extend(access(release, template, profile));
    objects.push(daemon_set(release, template, profile)?);
    Ok(Rendered::new(objects, expects(profile)))
}

/// The configuration that both cloud controllers read.
pub(super) fn expects(profile: &Profile) -> Vec<Expected> {
    vec![Expected {
        kind: "ConfigMap".to_owned(),
        namespace: profile.cpi.namespace.clone(),
        name: profile.cpi.config_map.clone(),
        keys: vec!["vsphere.conf".to_owned()],
    }]
}

fn access(release: &Release, template: &CpiTemplate, profile: &Profile) -> Vec<Value> {
    let version = &release.version;
    let subject = Subject { account: CPI_ACCOUNT, namespace: &profile.cpi.namespace, version };
    let mut rules = vec![
        rule("", &["nodes"], &["get", "list", "watch", "update", "patch", "delete"]),
        rule("", &["nodes/status"], &["update", "patch"]),
        rule("", &["services"], &["get", "list", "watch", "update", "patch"]),
        rule("", &["services/status"], &["update", "patch"]),
        rule("", &["events"], &["create", "update", "patch"]),
        // To authenticate and authorise requests for metrics.
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ];
    if template.endpoint_slices {
        rules.push(rule("discovery.k8s.io", &["endpointslices"], &["get", "list", "watch"]));
    }
    let read_secrets = rule("", &["secrets"], &["get", "list", "watch"]);
    if !template.namespaced_secrets {
        rules.push(read_secrets.clone());
    }
    let name = "system:cloud-controller-manager";
    let mut objects = subject.cluster_role(name, name, &rules).to_vec();
    if template.namespaced_secrets {
        for place in &profile.cpi.secret_namespaces {
            let name = CPI_CREDENTIALS_ROLE;
            objects.extend(subject.role(place, name, name, std::slice::from_ref(&read_secrets)));
        }
    }
    // The lease is always in kube-system: two cloud controllers must never both lead.
    let lease = [
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named(
            "coordination.k8s.io",
            &["leases"],
            &["cloud-controller-manager"],
            &["get", "update"],
        ),
    ];
    let name = "vsphere-cloud-controller-manager-lease";
    objects.extend(subject.role("kube-system", name, name, &lease));
    objects.push(subject.bind(
        "RoleBinding",
        "Role",
        "extension-apiserver-authentication-reader",
        "servicecatalog.k8s.io:apiserver-authentication-reader",
        "kube-system",
    ));
    if profile.openshift() {
        objects.extend(
            subject.security_context("hostnetwork-v2", "vsphere-cloud-controller-manager-scc"),
        );
    }
    objects
}

fn daemon_set(
    release: &Release,
    template: &CpiTemplate,
    profile: &Profile,
) -> Result<Value, RenderError> {
    let selector = json!({ "name": CPI_NAME });
    let cpi = &profile.cpi;
    let mut arguments = vec![
        "--cloud-provider=vsphere".to_owned(),
        "--cloud-config=/etc/cloud/vsphere.conf".to_owned(),
        format!("--secure-port={}", cpi.port),
        "--v=2".to_owned(),
    ];
    if template.node_labels && !cpi.node_labels.is_empty() {
        let pairs: Vec<_> =
            cpi.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        arguments.push(format!("--node-labels={}", pairs.join(",")));
    }
    let health = json!({ "path": "/healthz", "port": "https", "scheme": "HTTPS" });
    let mut container = json!({
        "name": CPI_NAME,
        "image": image(release, profile, "manager")?,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "ports": [{ "name": "https", "containerPort": cpi.port, "hostPort": cpi.port, "protocol": "TCP" }],
        "startupProbe": { "httpGet": health, "periodSeconds": 5, "failureThreshold": 24 },
        "livenessProbe": { "httpGet": health, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 3 },
        "resources": requests("100m", "64Mi"),
        "securityContext": confined(Some(USER), profile),
        "volumeMounts": [{ "name": "vsphere-config-volume", "mountPath": "/etc/cloud", "readOnly": true }],
    });
    if cpi.keep_nodes {
        // The program only checks that the variable exists.
        container["env"] = json!([env("SKIP_NODE_DELETION", "true")]);
    }
    Ok(one_on_each_control_plane_node(release, profile, &selector, CPI_ACCOUNT, USER, &container))
}

/// The DaemonSet of either cloud controller.
pub(super) fn one_on_each_control_plane_node(
    release: &Release,
    profile: &Profile,
    selector: &Value,
    account: &str,
    user: i64,
    container: &Value,
) -> Value {
    let cpi = &profile.cpi;
    let mut pod_context = confined_pod(Some(user), profile);
    if let Some(context) = pod_context.as_object_mut() {
        context.remove("fsGroup");
    }
    let mut spec = json!({
        "serviceAccountName": account,
        "priorityClassName": "system-node-critical",
        "hostNetwork": true,
        "dnsPolicy": "Default",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": tolerations(&EARLY_TAINTS, profile),
        "securityContext": pod_context,
        "containers": [container],
        "volumes": [{ "name": "vsphere-config-volume", "configMap": { "name": cpi.config_map } }],
    });
    if !profile.placement.labels.is_empty() {
        spec["affinity"] = json!({ "nodeAffinity": control_plane_nodes(profile) });
    }
    pull_secrets(&mut spec, profile);
    let role = "cloud-controller-manager";
    let mut pod = pod_metadata(selector, role, &release.version, profile, "hostnetwork-v2");
    config_digest(&mut pod, profile);
    pod["labels"]["component"] = json!(role);
    pod["labels"]["tier"] = json!("control-plane");
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(CPI_NAME, &cpi.namespace, &release.version),
        "spec": {
            "selector": { "matchLabels": selector },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
            "template": { "metadata": pod, "spec": spec },
        },
    })
}
