//! The names of the objects that VDO writes for a driver in the usual namespaces. The operator's roles grant
//! access to exactly these names. VDO adopts a driver whose objects have other names only after an admin
//! allows it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use catalog::manifest::{self, Object, Profile, profile};

use crate::names;

/// Workloads that charts of other projects install. VDO adopts them under these names.
const OF_CHARTS: [&str; 2] = ["rancher-vsphere-cpi-cloud-controller-manager", "vsphere-cpi"];

/// Whether VDO writes an object with this name in the usual namespaces.
pub fn is_known(kind: &str, name: &str) -> bool {
    names_in_releases(kind).contains(name) || settings_and_secrets(kind).contains(name)
}

/// The names of all objects of a kind in all releases of the embedded catalog.
pub fn names_in_releases(kind: &str) -> &'static BTreeSet<String> {
    static NONE: BTreeSet<String> = BTreeSet::new();
    static ALL: LazyLock<BTreeMap<String, BTreeSet<String>>> = LazyLock::new(|| {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for object in objects_of_every_release() {
            let names = all.entry(object.kind().to_owned()).or_default();
            names.insert(object.name().to_owned());
        }
        for kind in ["Deployment", "DaemonSet"] {
            all.entry(kind.to_owned()).or_default().extend(OF_CHARTS.map(str::to_owned));
        }
        all
    });
    ALL.get(kind).unwrap_or(&NONE)
}

/// The names of the objects that the operator itself writes for a driver.
pub fn settings_and_secrets(kind: &str) -> BTreeSet<String> {
    match kind {
        // From upstream's manifests, the Go VDO, and the Rancher chart.
        "ConfigMap" => {
            owned(&["vsphere-cloud-config", "cloud-config", "rancher-vsphere-cpi-cloud-config"])
        }
        "Secret" => {
            let settings = [names::CPI_SECRET, names::CSI_SECRET, names::WEBHOOK_SECRET];
            owned(&settings).into_iter().chain(owned(&PULL_SECRETS)).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// The names of the Secrets in `kube-system` that the operator can read without a second `vdoctl deploy`: those
/// that it writes, those of well-known charts, and those with vCenter credentials under a documented name.
pub fn readable_secrets() -> BTreeSet<String> {
    settings_and_secrets("Secret").into_iter().chain(owned(&READ_SECRETS)).collect()
}

/// The Secrets of the Rancher chart and of upstream's manifests, OpenShift's own, and the names that earlier
/// documentation of VDO and earlier `vdoctl configure` used.
const READ_SECRETS: [&str; 7] = [
    "vsphere-cpi-creds",
    "vsphere-cloud-secret",
    "vsphere-creds",
    "vcenter",
    "vcenter-2",
    "vcenter-a",
    "vcenter-b",
];

/// The Role with which upstream's cloud controller lists the Secrets in `kube-system`, and its binding. The
/// operator does not have this permission, so it cannot grant it. The installation manifest contains a Role for
/// it instead; see [`names::CPI_CREDENTIALS_ROLE`].
pub fn is_granted_by_installation(kind: &str, name: &str) -> bool {
    matches!(kind, "Role" | "RoleBinding") && name == manifest::CPI_CREDENTIALS_ROLE
}

/// The names in `spec.images.pullSecrets` that need no second `vdoctl deploy`: those of the samples and of
/// the documentation.
const PULL_SECRETS: [&str; 2] = ["registry", "vdo-pull-secret"];

/// All objects of all releases in the embedded catalog.
pub fn objects_of_every_release() -> Vec<Object> {
    let mut all = Vec::new();
    for release in &catalog::embedded().releases {
        for distribution in [profile::Distribution::Vanilla, profile::Distribution::OpenShift] {
            let mut everything =
                Profile::new(catalog::version::KubernetesVersion { major: 1, minor: 36, patch: 0 });
            everything.distribution = distribution;
            everything.windows_nodes = true;
            everything.topology = true;
            everything.csi.snapshots = Some(profile::Snapshots { crds: true, controller: true });
            everything.csi.webhook = Some(profile::Webhook { ca_bundle: String::new() });
            let rendered = manifest::render(release, &everything);
            all.extend(rendered.map(|rendered| rendered.objects).unwrap_or_default());
        }
    }
    all
}

fn owned(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_of_every_release_have_known_names() {
        for (kind, name) in [
            ("DaemonSet", "vsphere-csi-node"),
            ("DaemonSet", "vsphere-csi-node-windows"),
            ("DaemonSet", "vsphere-cloud-controller-manager"),
            ("Deployment", "vsphere-csi-controller"),
            ("Deployment", "snapshot-controller"),
            ("ClusterRole", "vsphere-csi-node-scc"),
            ("ValidatingWebhookConfiguration", "validation.csi.vsphere.vmware.com"),
        ] {
            assert!(is_known(kind, name), "{kind} {name}");
        }
    }
}
