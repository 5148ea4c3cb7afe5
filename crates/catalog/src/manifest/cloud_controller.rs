//! This project's cloud controller: one pod on every control-plane node, one of them leading.
//!
//! It uses the same DaemonSet and the same lease as upstream's, so a change from one to the other is a normal
//! rolling update in which two never lead. Account and roles have names of their own: while both kinds of pods
//! run, each has exactly its own permissions. VDO then removes those of the old one.

use serde_json::{Value, json};

use super::{
    RenderError, Rendered,
    common::{CPI_NAME, confined, env, metadata, namespace, requests},
    cpi, image,
    profile::Profile,
    rbac::{Subject, account, named, rule},
};
use crate::model::Release;

const ACCOUNT: &str = "vsphere-cloud-controller-manager";
const ROLE: &str = "vdo:vsphere-cloud-controller-manager";
/// Any user but root works.
const USER: i64 = 65532;
/// Probes, metrics and the log level are reachable from this node only.
const ADDRESS: &str = "127.0.0.1";

pub(super) fn render(release: &Release, profile: &Profile) -> Result<Rendered, RenderError> {
    let version = &release.version;
    let driver_namespace = profile.cpi.namespace.as_str();
    let selector = json!({ "name": CPI_NAME });
    let mut objects = Vec::new();
    // VDO does not set labels on kube-system.
    if driver_namespace != "kube-system" {
        objects.push(namespace(driver_namespace, version, profile));
    }
    objects.push(account(ACCOUNT, driver_namespace, version));
    objects.extend(access(release, profile));
    let container = container(release, profile)?;
    objects.push(cpi::one_on_each_control_plane_node(
        release, profile, &selector, ACCOUNT, USER, &container,
    ));
    if profile.placement.nodes > 1 {
        objects.push(disruption_budget(release, profile, &selector));
    }
    Ok(Rendered::new(objects, cpi::expects(profile)))
}

/// Its permissions: it reads nodes, updates them, writes events, and reads the one Secret that its
/// configuration names.
fn access(release: &Release, profile: &Profile) -> Vec<Value> {
    let version = &release.version;
    let subject = Subject { account: ACCOUNT, namespace: &profile.cpi.namespace, version };
    let nodes = [
        rule("", &["nodes"], &["get", "list", "watch", "patch", "delete"]),
        rule("", &["nodes/status"], &["patch"]),
        rule("", &["events"], &["create"]),
    ];
    let mut objects = subject.cluster_role(ROLE, ROLE, &nodes).to_vec();
    let read_secret =
        || named("", &["secrets"], &[profile.cpi.secret.as_str()], &["get", "list", "watch"]);
    // The lease is always in kube-system: two cloud controllers must never both lead.
    let lease = ["cloud-controller-manager"];
    let mut rules = vec![
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named("coordination.k8s.io", &["leases"], &lease, &["get", "list", "watch", "update"]),
    ];
    let here = |place: &&String| *place == "kube-system";
    if profile.cpi.secret_namespaces.iter().any(|place| here(&place)) {
        rules.push(read_secret());
    }
    objects.extend(subject.role("kube-system", ROLE, ROLE, &rules));
    for place in profile.cpi.secret_namespaces.iter().filter(|place| !here(place)) {
        objects.extend(subject.role(place, ROLE, ROLE, &[read_secret()]));
    }
    if profile.openshift() {
        objects.extend(subject.security_context("hostnetwork-v2", &format!("{ROLE}-scc")));
    }
    objects
}

fn container(release: &Release, profile: &Profile) -> Result<Value, RenderError> {
    let cpi = &profile.cpi;
    let mut arguments = vec![
        "--cloud-provider=vsphere".to_owned(),
        "--cloud-config=/etc/cloud/vsphere.conf".to_owned(),
        format!("--bind-address={ADDRESS}"),
        format!("--secure-port={}", cpi.port),
        "--log-format=json".to_owned(),
    ];
    if !cpi.node_labels.is_empty() {
        let pairs: Vec<_> =
            cpi.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        arguments.push(format!("--node-labels={}", pairs.join(",")));
    }
    if cpi.host_labels {
        arguments.push("--host-labels".to_owned());
    }
    arguments.extend(cpi.arguments.iter().cloned());
    let mut environment = vec![json!({
        "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } },
    })];
    if cpi.keep_nodes {
        // The program only checks that the variable exists.
        environment.push(env("SKIP_NODE_DELETION", "true"));
    }
    let asks = |path: &str| json!({ "host": ADDRESS, "path": path, "port": "http" });
    Ok(json!({
        "name": CPI_NAME,
        "image": image(release, profile, "manager")?,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "env": environment,
        "ports": [{ "name": "http", "containerPort": cpi.port, "hostPort": cpi.port, "protocol": "TCP" }],
        "startupProbe": { "httpGet": asks("/livez"), "periodSeconds": 2, "failureThreshold": 60 },
        "livenessProbe": { "httpGet": asks("/livez"), "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 3 },
        // A vCenter that is unreachable for less than two minutes does not make the pod unready.
        "readinessProbe": { "httpGet": asks("/readyz"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 12 },
        "resources": requests("20m", "64Mi"),
        "securityContext": confined(Some(USER), profile),
        "volumeMounts": [{ "name": "vsphere-config-volume", "mountPath": "/etc/cloud", "readOnly": true }],
    }))
}

/// By number: for the pods of a DaemonSet, Kubernetes supports neither percentages nor `maxUnavailable`.
fn disruption_budget(release: &Release, profile: &Profile, selector: &Value) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(CPI_NAME, &profile.cpi.namespace, &release.version),
        "spec": { "minAvailable": 1, "selector": { "matchLabels": selector } },
    })
}
