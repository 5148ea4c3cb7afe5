//! The profile of the cluster and of the spec, from which a manifest is rendered.

use api::{
    VDOConfigSpec,
    text::{InventoryPath, Span},
    vdo_config::{CloudProvider, NodeDeletionLimits},
};
use catalog::{
    Rewrite,
    manifest::{Profile, profile},
};
use health::facts::{Node, Platform, control_plane};

use crate::{facts::Facts, names};

pub(super) fn has_topology(facts: &Facts) -> bool {
    !facts.config.spec.topology_categories().is_empty()
}

/// Where the cluster pulls images from, according to `spec.images`.
pub fn rewrite(spec: &VDOConfigSpec) -> Rewrite {
    let Some(images) = &spec.images else { return Rewrite::default() };
    match &images.registry {
        Some(registry) => Rewrite::mirror(registry.0.as_str()),
        None => Rewrite::new(
            images
                .mirrors
                .iter()
                .map(|m| (m.from.0.as_str().to_owned(), m.to.0.as_str().to_owned())),
        ),
    }
}

pub(super) fn from_facts(facts: &Facts) -> Profile {
    let spec = &facts.config.spec;
    let mut profile = Profile::new(facts.cluster.version);
    if facts.cluster.platform == Platform::OpenShift {
        profile.distribution = profile::Distribution::OpenShift;
    }
    facts.cluster.platform.kubelet_path().clone_into(&mut profile.kubelet_path);
    profile.placement = placement(facts);
    profile.windows_nodes = facts.cluster.nodes().any(Node::is_windows);
    profile.topology = has_topology(facts);
    profile.images.rewrite = rewrite(spec);
    if let Some(images) = &spec.images {
        profile.images.pull_secrets =
            images.pull_secrets.iter().map(|n| n.0.as_str().into()).collect();
    }
    if let Some(storage) = &spec.storage_provider {
        if let Some(path) = &storage.custom_kubelet_path {
            path.0.as_str().clone_into(&mut profile.kubelet_path);
        }
        profile.csi.max_volumes_per_node =
            storage.max_volumes_per_node.and_then(|n| u32::try_from(n).ok());
        profile.csi.snapshots = storage.snapshots.as_ref().map(|desired| profile::Snapshots {
            crds: desired.install_controller == Some(true),
            controller: desired.install_controller == Some(true),
        });
    }
    names::CPI_SECRET.clone_into(&mut profile.cpi.secret);
    if let Some(cloud) = &spec.cloud_provider {
        profile.cpi.keep_nodes = cloud.node_deletion == Some(api::vdo_config::NodeDeletion::Never);
        profile.cpi.host_labels = cloud.host_labels == Some(true);
        let labels = cloud.node_labels.iter().map(|(key, value)| (key.clone(), value.0.clone()));
        profile.cpi.node_labels = labels.collect();
        profile.cpi.arguments = cloud_controller_arguments(cloud);
    }
    profile
}

/// The arguments of this project's cloud controller for its fields in the spec. Fields that are not set leave the
/// defaults to the program.
fn cloud_controller_arguments(cloud: &CloudProvider) -> Vec<String> {
    let mut arguments = Vec::new();
    let switches = [
        (cloud.refresh_labels, "--refresh-labels"),
        (cloud.require_zones, "--require-zones"),
        (cloud.out_of_service_taint, "--out-of-service-taint"),
    ];
    arguments.extend(
        switches.iter().filter(|(on, _)| *on == Some(true)).map(|(_, flag)| (*flag).to_owned()),
    );
    let mut set = |flag: &str, value: Option<String>| {
        arguments.extend(value.map(|value| format!("{flag}={value}")));
    };
    let paths = |paths: &[InventoryPath]| {
        let paths: Vec<&str> = paths.iter().map(|path| &**path).collect();
        (!paths.is_empty()).then(|| paths.join(","))
    };
    set("--vm-folders", paths(&cloud.vm_folders));
    set("--vm-clusters", paths(&cloud.vm_clusters));
    set("--tag-refresh-period", seconds(cloud.tag_refresh_period.as_ref()));
    if let Some(limits) = &cloud.node_deletion_limits {
        let NodeDeletionLimits { delay, count, window, share } = limits;
        set("--node-deletion-delay", seconds(delay.as_ref()));
        set("--node-deletion-limit", count.map(|count| count.to_string()));
        set("--node-deletion-window", seconds(window.as_ref()));
        set("--node-deletion-share", share.map(|share| share.to_string()));
    }
    arguments
}

/// A duration as the cloud controller reads it.
fn seconds(span: Option<&Span>) -> Option<String> {
    span.and_then(Span::duration).map(|duration| format!("{}s", duration.as_secs()))
}

fn placement(facts: &Facts) -> profile::Placement {
    let control = control_plane(facts.cluster.nodes(), facts.cluster.platform);
    let mut labels: Vec<String> = control.iter().filter_map(|n| n.control_plane.clone()).collect();
    labels.sort();
    labels.dedup();
    let mut taints: Vec<profile::Taint> = control
        .iter()
        .flat_map(|node| &node.taints)
        .filter(|taint| is_role(&taint.0) || is_lasting(taint, &control))
        .map(|(key, effect)| profile::Taint { key: key.clone(), effect: effect.clone() })
        .collect();
    taints.sort();
    taints.dedup();
    let count = if control.is_empty() {
        facts.cluster.nodes().filter(|node| !node.is_windows()).count()
    } else {
        control.len()
    };
    profile::Placement { nodes: u32::try_from(count).unwrap_or(u32::MAX), labels, taints }
}

/// Whether a taint marks the role of a node.
fn is_role(key: &str) -> bool {
    key.starts_with("node-role.kubernetes.io/") || key == "CriticalAddonsOnly"
}

/// Whether a taint is permanent: every control plane node has it, and no component sets it only temporarily.
/// A temporary taint would restart the controllers each time it comes and goes.
fn is_lasting(taint: &(String, String), control: &[&Node]) -> bool {
    const PASSING: [&str; 7] = [
        "node.kubernetes.io/",
        "node.cloudprovider.kubernetes.io/",
        "node.cilium.io/",
        "node.cluster.x-k8s.io/",
        "ToBeDeletedBy",
        "DeletionCandidateOf",
        "drain",
    ];
    let key = taint.0.as_str();
    let passes = PASSING.iter().any(|start| key.starts_with(start))
        || ["not-ready", "unreachable", "startup", "uninitialized"].iter().any(|t| key.contains(t));
    !passes && control.iter().all(|node| node.taints.contains(taint))
}
