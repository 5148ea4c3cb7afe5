//! This project's storage driver: a controller of one container and a node plugin of one container.
//!
//! The controller does the work of upstream's sidecars and syncer itself, and the node plugin registers itself with
//! the kubelet. Workloads and the name of the driver are the same as upstream's; accounts and roles have names of
//! their own, because their permissions differ.

use semver::Version;
use serde_json::{Value, json};

use super::{
    Expected, RenderError, Rendered,
    common::{
        CSI_CONTROLLER, CSI_DRIVER, CSI_NODE, Controller, confined, disruption_budget, env,
        metadata, namespace, own_namespace, pod_metadata, pull_secrets, requests, vsphere_nodes,
    },
    crds,
    csi::DEFAULT_MAX_VOLUMES,
    image,
    profile::{MOST_CONTROLLERS, Profile},
    rbac::{Subject, account, named, rule},
    snapshot,
};
use crate::model::Release;

const CONTROLLER_ROLE: &str = "vdo:vsphere-csi-controller";
const NODE_ROLE: &str = "vdo:vsphere-csi-node";
/// Any user but root works for the controller.
const USER: i64 = 65532;
/// Probes and metrics of the controller.
const PORT: u16 = 2112;
const LEASE: &str = "vsphere-csi-controller";
const READ: [&str; 3] = ["get", "list", "watch"];

pub(super) fn render(release: &Release, profile: &Profile) -> Result<Rendered, RenderError> {
    let version = &release.version;
    let driver_namespace = profile.csi.namespace.as_str();
    let mut objects = vec![
        namespace(driver_namespace, version, profile),
        crds::csi_node_topologies(),
        crds::volume_operation_requests(),
        csi_driver(profile, version),
    ];
    objects.extend(controller_access(profile, version));
    objects.extend(node_access(profile, version));
    objects.push(controller(release, profile)?);
    let selector = json!({ "app": CSI_CONTROLLER });
    objects.push(disruption_budget(CSI_CONTROLLER, driver_namespace, version, &selector));
    objects.push(node_plugin(release, profile)?);
    if let Some(wanted) = profile.csi.snapshots {
        objects.extend(snapshot::objects(release, wanted, profile)?);
    }
    let config = Expected {
        kind: "Secret".to_owned(),
        namespace: driver_namespace.to_owned(),
        name: profile.csi.config_secret.clone(),
        keys: vec!["csi-vsphere.conf".to_owned()],
    };
    Ok(Rendered::new(objects, vec![config]))
}

/// How often the kubelet asks again how many volumes fit on its node.
const LIMIT_PERIOD_SECONDS: u32 = 300;

fn csi_driver(profile: &Profile, version: &Version) -> Value {
    // The controller publishes the free space of each StorageClass, and the scheduler reads it.
    let mut spec = json!({
        "attachRequired": true,
        "podInfoOnMount": false,
        "fsGroupPolicy": "File",
        "storageCapacity": true,
    });
    // Older API servers do not know the field, and their kubelets ask only once.
    if (profile.kubernetes.major, profile.kubernetes.minor) >= (1, 34) {
        spec["nodeAllocatableUpdatePeriodSeconds"] = json!(LIMIT_PERIOD_SECONDS);
    }
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": metadata(CSI_DRIVER, "", version),
        "spec": spec,
    })
}

fn controller_access(profile: &Profile, version: &Version) -> Vec<Value> {
    let driver_namespace = profile.csi.namespace.as_str();
    let subject = Subject { account: CSI_CONTROLLER, namespace: driver_namespace, version };
    let (storage, cns) = ("storage.k8s.io", "cns.vmware.com");
    let snapshots = "snapshot.storage.k8s.io";
    let rules = [
        rule("", &["nodes"], &READ),
        // vCenter shows the pods of a volume.
        rule("", &["pods"], &["list", "watch"]),
        // Its uid is the uid of the cluster.
        named("", &["namespaces"], &["kube-system"], &["get"]),
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "patch"]),
        rule("", &["persistentvolumeclaims/status"], &["patch"]),
        rule("", &["persistentvolumes"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", &["events"], &["create"]),
        rule(storage, &["storageclasses", "csinodes"], &["list", "watch"]),
        rule(storage, &["volumeattributesclasses"], &["get"]),
        rule(storage, &["volumeattachments"], &["list", "watch", "patch"]),
        rule(storage, &["volumeattachments/status"], &["patch"]),
        rule(cns, &["csinodetopologies"], &["get", "list", "watch", "update", "patch"]),
        named(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            &["cnsvolumeoperationrequests.cns.vmware.com", "csinodetopologies.cns.vmware.com"],
            &["get"],
        ),
        rule(snapshots, &["volumesnapshots"], &["get", "patch"]),
        rule(snapshots, &["volumesnapshotclasses"], &["get"]),
        rule(snapshots, &["volumesnapshotcontents"], &["get", "list", "watch", "patch"]),
        rule(snapshots, &["volumesnapshotcontents/status"], &["patch"]),
    ];
    let at_home = [
        rule(
            cns,
            &["cnsvolumeoperationrequests"],
            &["get", "list", "watch", "create", "update", "patch", "delete"],
        ),
        rule(storage, &["csistoragecapacities"], &["list", "create", "patch", "delete"]),
        named("apps", &["deployments"], &[CSI_CONTROLLER], &["get"]),
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named("coordination.k8s.io", &["leases"], &[LEASE], &["get", "list", "watch", "update"]),
        named("", &["configmaps"], &["vsphere-csi-cluster-id"], &["get"]),
    ];
    let mut objects = vec![account(CSI_CONTROLLER, driver_namespace, version)];
    objects.extend(subject.cluster_role(CONTROLLER_ROLE, CONTROLLER_ROLE, &rules));
    objects.extend(subject.role(driver_namespace, CONTROLLER_ROLE, CONTROLLER_ROLE, &at_home));
    objects
}

fn node_access(profile: &Profile, version: &Version) -> Vec<Value> {
    let driver_namespace = profile.csi.namespace.as_str();
    let subject = Subject { account: CSI_NODE, namespace: driver_namespace, version };
    let rules = [
        rule(
            "cns.vmware.com",
            &["csinodetopologies"],
            &["create", "list", "watch", "get", "patch"],
        ),
        rule("", &["nodes"], &["get"]),
    ];
    let mut objects = vec![account(CSI_NODE, driver_namespace, version)];
    objects.extend(subject.cluster_role(NODE_ROLE, NODE_ROLE, &rules));
    if profile.openshift() {
        objects.extend(subject.security_context("privileged", "vsphere-csi-node-scc"));
    }
    objects
}

fn controller(release: &Release, profile: &Profile) -> Result<Value, RenderError> {
    let asks = |path: &str| json!({ "path": path, "port": "http" });
    let container = json!({
        "name": "vsphere-csi-controller",
        "image": image(release, profile, "driver")?,
        "imagePullPolicy": "IfNotPresent",
        "args": ["controller"],
        "env": [
            env("CSI_ENDPOINT", "unix:///csi/csi.sock"),
            env("VSPHERE_CSI_CONFIG", "/etc/cloud/csi-vsphere.conf"),
            own_namespace(),
            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
        ],
        "ports": [{ "name": "http", "containerPort": PORT, "protocol": "TCP" }],
        "startupProbe": { "httpGet": asks("/livez"), "periodSeconds": 2, "failureThreshold": 60 },
        "livenessProbe": { "httpGet": asks("/livez"), "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 3 },
        "readinessProbe": { "httpGet": asks("/readyz"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 12 },
        "resources": requests("20m", "64Mi"),
        "securityContext": confined(Some(USER), profile),
        "volumeMounts": [
            { "name": "vsphere-config-volume", "mountPath": "/etc/cloud", "readOnly": true },
            { "name": "socket-dir", "mountPath": "/csi" },
        ],
    });
    let controller = Controller {
        name: CSI_CONTROLLER,
        namespace: &profile.csi.namespace,
        version: &release.version,
        selector: json!({ "app": CSI_CONTROLLER }),
        role: "vsphere-csi",
        account: CSI_CONTROLLER,
        replicas: profile.replicas(MOST_CONTROLLERS),
        priority: "system-cluster-critical",
        user: Some(USER),
        reads_config: false,
        containers: vec![container],
        volumes: json!([
            {
                "name": "vsphere-config-volume",
                "secret": { "secretName": profile.csi.config_secret, "defaultMode": 0o440 },
            },
            { "name": "socket-dir", "emptyDir": {} },
        ]),
    };
    Ok(controller.build(profile))
}

/// It mounts disks for the kubelet, so it is as privileged as the kubelet.
fn node_plugin(release: &Release, profile: &Profile) -> Result<Value, RenderError> {
    let selector = json!({ "app": CSI_NODE });
    let kubelet = profile.kubelet_path.trim_end_matches('/');
    let plugin = format!("{kubelet}/plugins/{CSI_DRIVER}");
    let registry = format!("{kubelet}/plugins_registry");
    let port = profile.csi.health_port;
    let most = profile.csi.max_volumes_per_node.unwrap_or(DEFAULT_MAX_VOLUMES);
    let asks = |path: &str| json!({ "host": "127.0.0.1", "path": path, "port": "http" });
    let mount = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
    let mut kubelet_mount = mount("kubelet-dir", kubelet);
    kubelet_mount["mountPropagation"] = json!("Bidirectional");
    let container = json!({
        "name": "vsphere-csi-node",
        "image": image(release, profile, "driver")?,
        "imagePullPolicy": "IfNotPresent",
        "args": ["node"],
        "env": [
            { "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
            env("CSI_ENDPOINT", "unix:///csi/csi.sock"),
            env("KUBELET_REGISTRATION_PATH", &format!("{plugin}/csi.sock")),
            env("PLUGINS_REGISTRY", "/registration"),
            env("MAX_VOLUMES_PER_NODE", &most.to_string()),
            env("CSI_TOPOLOGY", if profile.topology { "true" } else { "false" }),
            env("CSI_SYS_ROOT", "/host/sys"),
            env("CSI_BIND_ADDRESS", "127.0.0.1"),
            env("CSI_NODE_PORT", &port.to_string()),
        ],
        "ports": [{ "name": "http", "containerPort": port, "hostPort": port, "protocol": "TCP" }],
        "livenessProbe": { "httpGet": asks("/livez"), "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 3 },
        "readinessProbe": { "httpGet": asks("/readyz"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3 },
        "resources": requests("10m", "32Mi"),
        "securityContext": { "privileged": true, "runAsUser": 0, "readOnlyRootFilesystem": true },
        "volumeMounts": [
            mount("plugin-dir", "/csi"),
            mount("registration-dir", "/registration"),
            kubelet_mount,
            mount("device-dir", "/dev"),
            { "name": "sys-dir", "mountPath": "/host/sys" },
            mount("run-dir", "/run"),
        ],
    });
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
        "containers": [container],
        "volumes": [
            host("plugin-dir", &plugin, "DirectoryOrCreate"),
            host("registration-dir", &registry, "Directory"),
            host("kubelet-dir", kubelet, "Directory"),
            host("device-dir", "/dev", "Directory"),
            host("sys-dir", "/sys", "Directory"),
            // Tools keep their locks and tables here.
            { "name": "run-dir", "emptyDir": {} },
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
