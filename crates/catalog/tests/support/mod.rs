//! The cluster profiles that every release is rendered for.

#![allow(dead_code, reason = "each test program uses its own share")]

pub(crate) mod cluster;

use catalog::{
    Driver, Release, Rewrite, embedded,
    manifest::{
        Profile,
        profile::{Distribution, Placement, Snapshots, Taint, Webhook},
    },
};
use semver::Version;

/// A profile for Kubernetes 1.36.
pub(crate) fn plain() -> Profile {
    Profile::new("1.36.4".parse().unwrap())
}

/// Placeholder for a CA certificate in base64.
pub(crate) const CA: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t";

/// Every option at once.
pub(crate) fn full() -> Profile {
    let mut profile = plain();
    profile.windows_nodes = true;
    profile.topology = true;
    profile.config_digest = Some("0123456789abcdef".to_owned());
    profile.csi.snapshots = Some(Snapshots { crds: true, controller: true });
    profile.csi.webhook = Some(Webhook { ca_bundle: CA.to_owned() });
    profile.csi.max_volumes_per_node = Some(200);
    profile.cpi.keep_nodes = true;
    profile.cpi.node_labels = [("example.com/platform".to_owned(), "vsphere".to_owned())].into();
    profile
}

pub(crate) fn openshift() -> Profile {
    let mut profile = full();
    profile.distribution = Distribution::OpenShift;
    profile.placement.labels.push("node-role.kubernetes.io/master".to_owned());
    profile
}

/// A cluster without Internet access.
pub(crate) fn air_gap() -> Profile {
    let mut profile = full();
    profile.images.rewrite = Rewrite::mirror("harbor.example.com:8443/vdo");
    profile.images.pull_secrets = vec!["harbor".to_owned()];
    profile
}

/// All profiles, by name.
pub(crate) fn profiles() -> Vec<(&'static str, Profile)> {
    let mut windows = plain();
    windows.windows_nodes = true;
    let mut zones = plain();
    zones.topology = true;
    // A second vCenter changes the configuration; the objects only change through the zones it requires.
    let two_vcenters = zones.clone();
    let mut single = plain();
    single.placement.nodes = 1;
    single.kubelet_path = "/var/lib/k0s/kubelet/".to_owned();
    single.csi.health_port = 19808;
    single.cpi.port = 20258;
    let mut hosted = plain();
    hosted.placement = Placement { nodes: 40, labels: Vec::new(), taints: Vec::new() };
    hosted.cpi.namespace = "vsphere-cloud".to_owned();
    hosted.csi.namespace = "vsphere-storage".to_owned();
    hosted.csi.node_selector = [("example.com/hypervisor".to_owned(), "vsphere".to_owned())].into();
    hosted.placement.taints =
        vec![Taint { key: "example.com/infra".to_owned(), effect: "NoExecute".to_owned() }];
    vec![
        ("vanilla", plain()),
        ("openshift", openshift()),
        ("windows", windows),
        ("air gap", air_gap()),
        ("two vCenters", two_vcenters),
        ("zones", zones),
        ("one node, other kubelet path, other ports", single),
        ("hosted control plane, other namespaces", hosted),
        ("everything", full()),
    ]
}

pub(crate) fn release(driver: Driver, version: &str) -> &'static Release {
    let version: Version = version.parse().unwrap();
    embedded().find(driver, catalog::Implementation::Upstream, &version).unwrap()
}
