//! The node driver on Linux. It mounts disks for the kubelet, so it is as privileged as the kubelet.

use serde_json::{Value, json};

use super::{
    RenderError,
    common::{
        CSI_DRIVER, CSI_NODE, confined, env, metadata, own_namespace, pod_metadata, pull_secrets,
        requests, vsphere_nodes,
    },
    csi::DEFAULT_MAX_VOLUMES,
    csi_controller::feature_flags,
    image,
    profile::Profile,
};
use crate::model::{CsiTemplate, Release};

pub(super) fn daemon_set(
    release: &Release,
    template: &CsiTemplate,
    profile: &Profile,
) -> Result<Value, RenderError> {
    let selector = json!({ "app": CSI_NODE });
    let kubelet = profile.kubelet_path.trim_end_matches('/');
    let host = |name: &str, path: &str, kind: &str| json!({ "name": name, "hostPath": { "path": path, "type": kind } });
    let mut node_selector = json!({ "kubernetes.io/os": "linux" });
    for (key, value) in &profile.csi.node_selector {
        node_selector[key] = json!(value);
    }
    let mut spec = json!({
        "serviceAccountName": CSI_NODE,
        "priorityClassName": "system-node-critical",
        "nodeSelector": node_selector,
        "affinity": vsphere_nodes(),
        "hostNetwork": true,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "tolerations": [
            { "operator": "Exists", "effect": "NoExecute" },
            { "operator": "Exists", "effect": "NoSchedule" },
        ],
        "containers": [
            registrar(release, profile, kubelet)?,
            driver(release, template, profile, kubelet)?,
            liveness(release, profile)?,
        ],
        "volumes": [
            host("registration-dir", &format!("{kubelet}/plugins_registry"), "Directory"),
            host("plugin-dir", &format!("{kubelet}/plugins/{CSI_DRIVER}"), "DirectoryOrCreate"),
            host("pods-mount-dir", kubelet, "Directory"),
            host("device-dir", "/dev", "Directory"),
            host("blocks-dir", "/sys/block", "Directory"),
            host("sys-devices-dir", "/sys/devices", "Directory"),
        ],
    });
    pull_secrets(&mut spec, profile);
    Ok(json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(CSI_NODE, &profile.csi.namespace, &release.version),
        "spec": {
            "selector": { "matchLabels": selector },
            // An update does not affect mounted volumes; 10% at a time keeps it short on a thousand nodes.
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } },
            "template": {
                "metadata": pod_metadata(&selector, "vsphere-csi", &release.version, profile, "privileged"),
                "spec": spec,
            },
        },
    }))
}

/// The security context of a sidecar in the node driver's pod: confined, but with an SELinux label that can
/// connect to a privileged container's socket. Hosts without SELinux ignore the label.
fn sidecar_security_context(profile: &Profile) -> Value {
    let mut context = confined(None, profile);
    context["seLinuxOptions"] = json!({ "type": "spc_t" });
    context
}

fn registrar(release: &Release, profile: &Profile, kubelet: &str) -> Result<Value, RenderError> {
    let socket = format!("{kubelet}/plugins/{CSI_DRIVER}/csi.sock");
    Ok(json!({
        "name": "node-driver-registrar",
        "image": image(release, profile, "registrar")?,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--v=5", "--csi-address=/csi/csi.sock", format!("--kubelet-registration-path={socket}")],
        "livenessProbe": {
            "exec": {
                "command": [
                    "/csi-node-driver-registrar",
                    format!("--kubelet-registration-path={socket}"),
                    "--mode=kubelet-registration-probe",
                ],
            },
            "initialDelaySeconds": 30,
            "periodSeconds": 30,
            "timeoutSeconds": 15,
        },
        "resources": requests("10m", "32Mi"),
        "securityContext": sidecar_security_context(profile),
        "volumeMounts": [
            { "name": "plugin-dir", "mountPath": "/csi" },
            { "name": "registration-dir", "mountPath": "/registration" },
        ],
    }))
}

/// The environment of the driver on every kind of node.
pub(super) fn node_env(template: &CsiTemplate, profile: &Profile, endpoint: &str) -> Vec<Value> {
    let mut variables = vec![
        json!({ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }),
        env("CSI_ENDPOINT", endpoint),
        env("X_CSI_MODE", "node"),
        env("LOGGER_LEVEL", "PRODUCTION"),
        env("NODEGETINFO_WATCH_TIMEOUT_MINUTES", "1"),
        own_namespace(),
    ];
    if template.max_volumes_env {
        let most = profile.csi.max_volumes_per_node.unwrap_or(DEFAULT_MAX_VOLUMES);
        variables.push(env("MAX_VOLUMES_PER_NODE", &most.to_string()));
    }
    variables
}

/// The health port and the liveness probe for it.
pub(super) fn health(profile: &Profile) -> (Value, Value) {
    (
        json!([{ "name": "healthz", "containerPort": profile.csi.health_port, "protocol": "TCP" }]),
        json!({
            "httpGet": { "path": "/healthz", "port": "healthz" },
            "initialDelaySeconds": 10,
            "timeoutSeconds": 5,
            "periodSeconds": 5,
            "failureThreshold": 3,
        }),
    )
}

fn driver(
    release: &Release,
    template: &CsiTemplate,
    profile: &Profile,
    kubelet: &str,
) -> Result<Value, RenderError> {
    let (ports, probe) = health(profile);
    let mut variables = node_env(template, profile, "unix:///csi/csi.sock");
    variables.extend(template.godebug.node.as_deref().map(|value| env("GODEBUG", value)));
    Ok(json!({
        "name": "vsphere-csi-node",
        "image": image(release, profile, "driver")?,
        "imagePullPolicy": "IfNotPresent",
        "args": feature_flags(),
        "env": variables,
        "ports": ports,
        "livenessProbe": probe,
        "resources": requests("20m", "64Mi"),
        "securityContext": {
            "privileged": true,
            "allowPrivilegeEscalation": true,
            "capabilities": { "add": ["SYS_ADMIN"] },
        },
        "volumeMounts": [
            { "name": "plugin-dir", "mountPath": "/csi" },
            // Bidirectional: mounts inside the container must appear on the host.
            { "name": "pods-mount-dir", "mountPath": kubelet, "mountPropagation": "Bidirectional" },
            { "name": "device-dir", "mountPath": "/dev" },
            { "name": "blocks-dir", "mountPath": "/sys/block" },
            { "name": "sys-devices-dir", "mountPath": "/sys/devices" },
        ],
    }))
}

fn liveness(release: &Release, profile: &Profile) -> Result<Value, RenderError> {
    Ok(json!({
        "name": "liveness-probe",
        "image": image(release, profile, "livenessprobe")?,
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "--v=4",
            "--csi-address=/csi/csi.sock",
            format!("--health-port={}", profile.csi.health_port),
        ],
        "resources": requests("10m", "32Mi"),
        "securityContext": sidecar_security_context(profile),
        "volumeMounts": [{ "name": "plugin-dir", "mountPath": "/csi" }],
    }))
}
