//! The storage driver: all objects except its controller and node pods.

use std::collections::BTreeMap;

use semver::Version;
use serde_json::{Value, json};

use super::{
    Expected, RenderError, Rendered,
    common::{
        CSI_CONTROLLER, CSI_DRIVER, CSI_FEATURES, CSI_NODE, disruption_budget, metadata, namespace,
    },
    crds, csi_controller, csi_node, csi_windows,
    profile::Profile,
    rbac::{Subject, account, named, rule},
    snapshot, webhook,
};
use crate::model::{CsiTemplate, Release};

/// The driver's default limit of volumes per node.
pub(super) const DEFAULT_MAX_VOLUMES: u32 = 59;

/// The feature switch that raises the limit to 255, in releases that have it.
const DENSITY: &str = "high-pv-node-density";

/// The leases of the syncer and of the sidecars of the upstream driver.
pub const CSI_LEASES: [&str; 5] = [
    "vsphere-syncer",
    "csi-vsphere-vmware-com",
    "external-attacher-leader-csi-vsphere-vmware-com",
    "external-resizer-csi-vsphere-vmware-com",
    "external-snapshotter-leader-csi-vsphere-vmware-com",
];

const READ: [&str; 3] = ["get", "list", "watch"];

/// The CRDs that the controller and the syncer register at startup.
const OWN_DEFINITIONS: [&str; 5] = [
    "cnsvolumeinfoes.cns.vmware.com",
    "cnsvolumeoperationrequests.cns.vmware.com",
    "cnsvspherevolumemigrations.cns.vmware.com",
    "csinodetopologies.cns.vmware.com",
    "triggercsifullsyncs.cns.vmware.com",
];

pub(super) fn render(
    release: &Release,
    template: &CsiTemplate,
    profile: &Profile,
) -> Result<Rendered, RenderError> {
    let version = &release.version;
    let driver_namespace = profile.csi.namespace.as_str();
    let mut objects = vec![
        namespace(driver_namespace, version, profile),
        // The syncer would create it, but node pods that start earlier crash without it.
        crds::csi_node_topologies(),
        csi_driver(version),
    ];
    objects.extend(controller_access(template, profile, version));
    objects.extend(node_access(profile, version));
    objects.push(feature_states(release, profile));
    objects.push(service(driver_namespace, version));
    objects.push(csi_controller::deployment(release, template, profile)?);
    let selector = json!({ "app": CSI_CONTROLLER });
    objects.push(disruption_budget(CSI_CONTROLLER, driver_namespace, version, &selector));
    objects.push(csi_node::daemon_set(release, template, profile)?);
    if profile.windows_nodes {
        objects.extend(csi_windows::daemon_set(release, template, profile)?);
    }
    let mut expects = vec![Expected {
        kind: "Secret".to_owned(),
        namespace: driver_namespace.to_owned(),
        name: profile.csi.config_secret.clone(),
        keys: vec!["csi-vsphere.conf".to_owned()],
    }];
    if let Some(wanted) = profile.csi.snapshots {
        objects.extend(snapshot::objects(release, wanted, profile)?);
    }
    if let Some(hook) = &profile.csi.webhook {
        objects.extend(webhook::objects(release, template, hook, profile)?);
        expects.push(webhook::certificate(driver_namespace));
    }
    Ok(Rendered::new(objects, expects))
}

fn csi_driver(version: &Version) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": metadata(CSI_DRIVER, "", version),
        "spec": { "attachRequired": true, "podInfoOnMount": false },
    })
}

fn controller_access(template: &CsiTemplate, profile: &Profile, version: &Version) -> Vec<Value> {
    let driver_namespace = profile.csi.namespace.as_str();
    let subject = Subject { account: CSI_CONTROLLER, namespace: driver_namespace, version };
    let snapshots = "snapshot.storage.k8s.io";
    let cns = "cns.vmware.com";
    let definitions = "apiextensions.k8s.io";
    let mut rules = vec![
        rule("", &["nodes", "pods"], &READ),
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "update"]),
        rule("", &["persistentvolumeclaims/status"], &["patch"]),
        rule(
            "",
            &["persistentvolumes"],
            &["get", "list", "watch", "create", "update", "delete", "patch"],
        ),
        rule("", &["events"], &["get", "list", "watch", "create", "update", "patch"]),
        rule("storage.k8s.io", &["storageclasses", "csinodes"], &READ),
        rule("storage.k8s.io", &["volumeattachments"], &["get", "list", "watch", "patch"]),
        rule("storage.k8s.io", &["volumeattachments/status"], &["patch"]),
        named(definitions, &["customresourcedefinitions"], &OWN_DEFINITIONS, &["get", "update"]),
        // RBAC cannot restrict `create` by name.
        rule(definitions, &["customresourcedefinitions"], &["create"]),
        rule(cns, &["triggercsifullsyncs"], &["create", "get", "update", "watch", "list"]),
        rule(
            cns,
            &["cnsvspherevolumemigrations"],
            &["create", "get", "list", "watch", "update", "delete"],
        ),
        rule(cns, &["cnsvolumeoperationrequests"], &["create", "get", "list", "update", "delete"]),
        rule(cns, &["csinodetopologies"], &["get", "update", "watch", "list"]),
        rule(snapshots, &["volumesnapshots"], &["get", "list"]),
        rule(snapshots, &["volumesnapshotclasses"], &READ),
        rule(
            snapshots,
            &["volumesnapshotcontents"],
            &["create", "get", "list", "watch", "update", "delete", "patch"],
        ),
        rule(snapshots, &["volumesnapshotcontents/status"], &["update", "patch"]),
    ];
    if template.volume_infos {
        rules.push(rule(cns, &["cnsvolumeinfoes"], &["create", "get", "list", "watch", "delete"]));
    }
    // Upstream's manifest also lets the driver create the ConfigMap of a generated cluster id. VDO always knows the id
    // before: a driver that loses it must not invent another one.
    let at_home = [
        rule("", &["configmaps"], &READ),
        // RBAC cannot restrict `create` by name.
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named(
            "coordination.k8s.io",
            &["leases"],
            &CSI_LEASES,
            &["get", "list", "watch", "update", "delete"],
        ),
    ];
    let mut objects = vec![account(CSI_CONTROLLER, driver_namespace, version)];
    objects.extend(subject.cluster_role(
        "vsphere-csi-controller-role",
        "vsphere-csi-controller-binding",
        &rules,
    ));
    objects.extend(subject.role(
        driver_namespace,
        "vsphere-csi-controller-home",
        "vsphere-csi-controller-home",
        &at_home,
    ));
    objects
}

fn node_access(profile: &Profile, version: &Version) -> Vec<Value> {
    let driver_namespace = profile.csi.namespace.as_str();
    let subject = Subject { account: CSI_NODE, namespace: driver_namespace, version };
    let rules = [
        rule("cns.vmware.com", &["csinodetopologies"], &["create", "watch", "get", "patch"]),
        rule("", &["nodes"], &["get"]),
    ];
    let at_home = [rule("", &["configmaps"], &READ)];
    let mut objects = vec![account(CSI_NODE, driver_namespace, version)];
    objects.extend(subject.cluster_role(
        "vsphere-csi-node-cluster-role",
        "vsphere-csi-node-cluster-role-binding",
        &rules,
    ));
    objects.extend(subject.role(
        driver_namespace,
        "vsphere-csi-node-role",
        "vsphere-csi-node-binding",
        &at_home,
    ));
    if profile.openshift() {
        objects.extend(subject.security_context("privileged", "vsphere-csi-node-scc"));
    }
    objects
}

/// The release's feature switches with the profile's overrides.
fn feature_states(release: &Release, profile: &Profile) -> Value {
    let mut states: BTreeMap<&str, bool> =
        release.features.iter().map(|(name, on)| (name.as_str(), *on)).collect();
    let many = profile.csi.max_volumes_per_node.is_some_and(|most| most > DEFAULT_MAX_VOLUMES);
    if let Some(density) = states.get_mut(DENSITY) {
        *density |= many;
    }
    // A switch that the release does not know is skipped: it could stop the controller.
    for (name, on) in &profile.csi.features {
        if let Some(state) = states.get_mut(name.as_str()) {
            *state = *on;
        }
    }
    let data: BTreeMap<_, _> = states.iter().map(|(name, on)| (name, on.to_string())).collect();
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(CSI_FEATURES, &profile.csi.namespace, &release.version),
        "data": data,
    })
}

fn service(driver_namespace: &str, version: &Version) -> Value {
    let port = |name: &str, port: u16| json!({ "name": name, "port": port, "targetPort": port, "protocol": "TCP" });
    let mut metadata = metadata(CSI_CONTROLLER, driver_namespace, version);
    metadata["labels"]["app"] = json!(CSI_CONTROLLER);
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": { "selector": { "app": CSI_CONTROLLER }, "ports": [port("ctlr", 2112), port("syncer", 2113)] },
    })
}
