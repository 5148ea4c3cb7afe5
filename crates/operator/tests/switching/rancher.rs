//! The drivers as Rancher's charts install them: names, labels, images and accounts differ from upstream's manifests, and
//! everything is in kube-system. The tests have no Helm.

use serde_json::{Value, json};

const NAMESPACE: &str = "kube-system";
/// The name of all objects of the cloud provider.
pub(super) const CPI: &str = "rancher-vsphere-cpi-cloud-controller-manager";
/// The credentials Secret of the cloud provider.
pub(super) const CREDENTIALS: &str = "vsphere-cpi-creds";

/// The labels of all objects of a chart. The version is that of the newest driver that the chart supports; the cluster
/// decides which driver it installs.
fn labels(chart: &str) -> Value {
    let newest = if chart.contains("csi") { "3.7.2" } else { "1.36.0" };
    json!({
        "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/version": newest, "helm.sh/chart": chart,
    })
}

fn merged(mut into: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        into[name] = value.clone();
    }
    into
}

fn metadata(name: &str, chart: &str, more: &Value) -> Value {
    let release = chart.trim_end_matches(|c: char| c == '-' || c == '.' || c.is_ascii_digit());
    json!({
        "name": name, "namespace": NAMESPACE, "labels": merged(labels(chart), more),
        "annotations": {
            "meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": NAMESPACE,
        },
    })
}

fn on_control_plane() -> Value {
    let on = |label: &str| {
        json!({"matchExpressions": [
            {"key": label, "operator": "In", "values": ["true"]},
            {"key": "kubernetes.io/os", "operator": "NotIn", "values": ["windows"]},
        ]})
    };
    let terms =
        [on("node-role.kubernetes.io/controlplane"), on("node-role.kubernetes.io/control-plane")];
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
}

fn tolerations() -> Value {
    json!([
        {"key": "node-role.kubernetes.io/master", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "node-role.kubernetes.io/controlplane", "value": "true", "effect": "NoSchedule"},
        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "node-role.kubernetes.io/etcd", "operator": "Exists", "effect": "NoExecute"},
    ])
}

pub(super) fn cpi() -> Vec<Value> {
    let chart = "rancher-vsphere-cpi-1.15.3";
    let component = json!({"component": CPI});
    let conf = format!(
        "global:\n  secretName: \"{CREDENTIALS}\"\n  secretNamespace: \"{NAMESPACE}\"\n  port: 443\n  \
         insecureFlag: true\nvcenter:\n  \"vc.example.com\":\n    server: \"vc.example.com\"\n    \
         datacenters:\n      - \"DC0\"\n"
    );
    let pod = json!({
        "affinity": on_control_plane(), "tolerations": tolerations(),
        "securityContext": {"runAsUser": 1001}, "serviceAccountName": CPI,
        "hostNetwork": true, "dnsPolicy": "Default",
        "containers": [{
            "name": CPI, "image": "rancher/mirrored-cloud-provider-vsphere:v1.35.1",
            "args": ["--cloud-provider=vsphere", "--v=2", "--cloud-config=/etc/cloud/vsphere.yaml"],
            "volumeMounts": [{"mountPath": "/etc/cloud", "name": "vsphere-config-volume", "readOnly": true}],
            "resources": {"requests": {"cpu": "200m"}},
        }],
        "volumes": [{"name": "vsphere-config-volume", "configMap": {"name": "vsphere-cloud-config"}}],
    });
    let of_pod = json!({"name": CPI, "component": CPI, "tier": "control-plane"});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(CPI, chart, &component)}),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata(CREDENTIALS, chart, &component),
            "stringData": {"vc.example.com.username": "them", "vc.example.com.password": "theirs"},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": metadata("vsphere-cloud-config", chart, &component),
            "data": {"vsphere.yaml": conf},
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata(CPI, chart, &of_pod),
            "spec": {
                "selector": {"matchLabels": {"name": CPI}},
                "template": {"metadata": {"labels": merged(labels(chart), &of_pod)}, "spec": pod},
            },
        }),
    ]
}

fn sidecar(name: &str, image: &str) -> Value {
    json!({
        "name": name, "image": format!("rancher/mirrored-sig-storage-{image}"),
        "args": ["--v=4", "--csi-address=$(ADDRESS)"],
        "env": [{"name": "ADDRESS", "value": "/csi/csi.sock"}],
        "volumeMounts": [{"mountPath": "/csi", "name": "socket-dir"}],
    })
}

/// A container with the image of the driver.
fn driver(name: &str, image: &str, mode: &str, mounts: &Value) -> Value {
    json!({
        "name": name, "image": format!("rancher/mirrored-cloud-provider-vsphere-csi-release-{image}"),
        "args": [
            "--fss-name=internal-feature-states.csi.vsphere.vmware.com", "--fss-namespace=$(CSI_NAMESPACE)",
        ],
        "env": [
            {"name": "CSI_ENDPOINT", "value": "unix:///csi/csi.sock"},
            {"name": "X_CSI_MODE", "value": mode},
            {"name": "X_CSI_SERIAL_VOL_ACCESS_TIMEOUT", "value": "3m"},
            {"name": "VSPHERE_CSI_CONFIG", "value": "/etc/cloud/csi-vsphere.conf"},
            {"name": "CSI_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "volumeMounts": mounts,
    })
}

/// The storage driver, release 3.6.3.
pub(super) fn csi() -> Vec<Value> {
    let chart = "rancher-vsphere-csi-3.7.2";
    let of_pod = |part: &str| merged(labels(chart), &json!({"app": part, "role": "vsphere-csi"}));
    let (controller, node) = ("vsphere-csi-controller", "vsphere-csi-node");
    let mounts = json!([
        {"mountPath": "/etc/cloud", "name": "vsphere-config-volume", "readOnly": true},
        {"mountPath": "/csi", "name": "socket-dir"},
    ]);
    let controllers = json!({
        "serviceAccountName": controller, "dnsPolicy": "Default",
        "affinity": on_control_plane(), "tolerations": tolerations(),
        "containers": [
            sidecar("csi-attacher", "csi-attacher:v4.9.0"),
            driver(controller, "driver:v3.6.3-rancher1", "controller", &mounts),
            sidecar("liveness-probe", "livenessprobe:v2.14.0"),
            driver("vsphere-syncer", "syncer:v3.6.3-rancher1", "controller", &mounts),
            sidecar("csi-provisioner", "csi-provisioner:v4.0.1"),
        ],
        "volumes": [
            {"name": "vsphere-config-volume", "secret": {"secretName": "vsphere-config-secret"}},
            {"name": "socket-dir", "emptyDir": {}},
        ],
    });
    let host = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path}});
    let mounts = json!([
        {"mountPath": "/csi", "name": "socket-dir"},
        {"mountPath": "/var/lib/kubelet", "name": "pods-mount-dir", "mountPropagation": "Bidirectional"},
    ]);
    let mut privileged = driver(node, "driver:v3.6.3-rancher1", "node", &mounts);
    privileged["securityContext"] = json!({"privileged": true});
    let nodes = json!({
        "serviceAccountName": node, "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet",
        "tolerations": tolerations(),
        "containers": [
            sidecar("node-driver-registrar", "csi-node-driver-registrar:v2.12.0"),
            privileged,
            sidecar("liveness-probe", "livenessprobe:v2.14.0"),
        ],
        "volumes": [
            host("socket-dir", "/var/lib/kubelet/plugins/csi.vsphere.vmware.com"),
            host("pods-mount-dir", "/var/lib/kubelet"),
        ],
    });
    let nothing = json!({});
    let account = |name: &str| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, chart, &nothing)});
    vec![
        account(controller),
        account(node),
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": "csi.vsphere.vmware.com"},
            "spec": {"attachRequired": true, "podInfoOnMount": false},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "internal-feature-states.csi.vsphere.vmware.com", "namespace": NAMESPACE},
            "data": {"csi-migration": "false", "multi-vcenter-csi-topology": "true"},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata(controller, chart, &nothing),
            "spec": {"selector": {"app": controller}, "ports": [
                {"name": "ctlr", "port": 2112}, {"name": "syncer", "port": 2113},
            ]},
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(controller, chart, &nothing),
            "spec": {
                "replicas": 3, "selector": {"matchLabels": {"app": controller}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
                "template": {"metadata": {"labels": of_pod(controller)}, "spec": controllers},
            },
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata(node, chart, &nothing),
            "spec": {
                "selector": {"matchLabels": {"app": node}},
                "template": {"metadata": {"labels": of_pod(node)}, "spec": nodes},
            },
        }),
    ]
}

/// The configuration of the storage driver: all settings are in the global section.
pub(super) const CONF: &str = "[Global]\ncluster-id = \"prod-7\"\nuser = \"them@vsphere.local\"\npassword = \"theirs\"\n\
    port = \"443\"\ninsecure-flag = \"1\"\n\n[VirtualCenter \"vc.example.com\"]\ndatacenters = \"DC0\"\n";
