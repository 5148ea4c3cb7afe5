//! The cloud controller of this project: one pod on every control-plane node, one of them leading.
//!
//! It takes the place of upstream's in the same DaemonSet and under the same lease, so that changing from
//! one to the other is a rolling update like any other, in which two never lead. Account and roles have
//! names of their own: while both kinds of pods run each has exactly its own rights, and those of the one
//! that left are removed afterwards.

use serde_json::{Value, json};

use super::{
    RenderError, Rendered,
    common::{CPI_NAME, confined, env, metadata, namespace, requests},
    cpi, image,
    profile::Profile,
    rbac::{Subject, account, named, rule},
};
use crate::model::Release;

/// Its account.
const ACCOUNT: &str = "vsphere-cloud-controller-manager";
/// Its roles, in every namespace.
const ROLE: &str = "vdo:vsphere-cloud-controller-manager";
/// The user it runs as: any but root will do.
const USER: i64 = 65532;
/// Probes and metrics are for this machine; the log level can be changed there too.
const ADDRESS: &str = "127.0.0.1";

pub(super) fn render(release: &Release, profile: &Profile) -> Result<Rendered, RenderError> {
    let version = &release.version;
    let home = profile.cpi.namespace.as_str();
    let selector = json!({ "name": CPI_NAME });
    let mut objects = Vec::new();
    // The labels of kube-system are not ours to set.
    if home != "kube-system" {
        objects.push(namespace(home, version, profile));
    }
    objects.push(account(ACCOUNT, home, version));
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

/// All it may do: it looks at nodes, writes what it knows of them, says why in events, and reads the one
/// Secret its configuration names.
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
    // Its lease is in kube-system wherever it lives itself: two of them must not both lead.
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
    let mut environment = vec![json!({
        "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } },
    })];
    if cpi.keep_nodes {
        // Its presence is what counts, whatever its value.
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
        // A vCenter that is away for less than two minutes is no trouble yet.
        "readinessProbe": { "httpGet": asks("/readyz"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 12 },
        "resources": requests("20m", "64Mi"),
        "securityContext": confined(Some(USER), profile),
        "volumeMounts": [{ "name": "vsphere-config-volume", "mountPath": "/etc/cloud", "readOnly": true }],
    }))
}

/// One stays, by number: the pods of a DaemonSet cannot be counted by percentage or by how many may go.
fn disruption_budget(release: &Release, profile: &Profile, selector: &Value) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(CPI_NAME, &profile.cpi.namespace, &release.version),
        "spec": { "minAvailable": 1, "selector": { "matchLabels": selector } },
    })
}
