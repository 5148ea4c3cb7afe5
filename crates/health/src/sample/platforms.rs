//! A healthy cluster of each distribution, with its driver installation, node names, labels and network.

use std::collections::{BTreeMap, BTreeSet};

use super::{sized, workload};
use crate::facts::{
    Facts, InstalledDriver, Inventory, Known, NetworkPlugin, Node, OpenShift, Platform,
    StorageClass, Vcenter, Version,
};

/// One healthy cluster of each distribution, by name.
pub fn platforms() -> Vec<(&'static str, Facts)> {
    vec![
        ("kubeadm", kubeadm()),
        ("OpenShift, installed on vSphere", openshift_of_its_own()),
        ("OpenShift, platform None", openshift_without_vsphere()),
        ("OpenShift, failure domains on two vCenters", openshift_on_two_vcenters()),
        ("RKE2", rke2()),
        ("k3s", k3s()),
        ("Talos", talos()),
        ("k0s", k0s()),
        ("MicroK8s", microk8s()),
        ("EKS Anywhere", eks_anywhere()),
        ("Tanzu Kubernetes Grid", tkg()),
    ]
}

fn nodes(facts: &mut Facts) -> impl Iterator<Item = &mut Node> {
    facts.cluster.nodes.get_mut().into_iter().flat_map(BTreeMap::values_mut)
}

fn cloud(facts: &mut Facts) -> Option<&mut InstalledDriver> {
    facts.cluster.drivers.cloud.get_mut()?.as_mut()
}

fn storage(facts: &mut Facts) -> Option<&mut InstalledDriver> {
    facts.cluster.drivers.storage.get_mut()?.as_mut()
}

fn vcenters(facts: &mut Facts) -> impl Iterator<Item = &mut Vcenter> {
    facts.vcenters.values_mut()
}

fn inventories(facts: &mut Facts) -> impl Iterator<Item = &mut Inventory> {
    vcenters(facts).filter_map(|vcenter| vcenter.inventory.get_mut())
}

fn kubernetes(facts: &mut Facts, version: Version) {
    facts.cluster.version = version.into();
    nodes(facts).for_each(|node| node.kubelet = version);
}

fn vsphere(facts: &mut Facts, version: Version) {
    for vcenter in vcenters(facts) {
        if let Some(about) = vcenter.about.get_mut() {
            about.version = version;
        }
    }
    for host in inventories(facts).flat_map(|inventory| inventory.hosts.values_mut()) {
        host.version = version;
    }
}

fn network(facts: &mut Facts, plugin: &str) {
    facts.cluster.network = NetworkPlugin { plugin: plugin.into(), missing_on: Vec::new() }.into();
}

fn label(facts: &mut Facts, key: &str, value: &str) {
    nodes(facts).for_each(|node| drop(node.labels.insert(key.into(), value.into())));
}

/// Without zones: no tags, no labels, one datastore for all nodes.
fn without_zones(facts: &mut Facts) {
    if let Some(cloud) = &mut facts.wanted.cloud {
        (cloud.zone, cloud.region) = (None, None);
    }
    if let Some(storage) = &mut facts.wanted.storage {
        storage.categories.clear();
    }
    for node in nodes(facts) {
        node.labels.retain(|key, _| !key.starts_with("topology."));
        if let Some(Some(entry)) = node.csi.get_mut() {
            entry.topology_keys.clear();
        }
    }
    for inventory in inventories(facts) {
        if let Some(tags) = inventory.tags.get_mut() {
            tags.categories.clear();
            tags.attached.clear();
        }
    }
    if let Some(driver) = storage(facts) {
        driver.provisioner_topology = Some(false);
    }
}

/// Moves a driver and its leases to another namespace.
fn move_driver(facts: &mut Facts, name: &str, namespace: &str) {
    let drivers = &mut facts.cluster.drivers;
    let both = [&mut drivers.cloud, &mut drivers.storage];
    let all = both.into_iter().filter_map(|driver| driver.get_mut()?.as_mut());
    for driver in all.filter(|driver| driver.name == name) {
        driver.namespace = namespace.into();
    }
    for lease in facts.cluster.leases.get_mut().into_iter().flatten() {
        if lease.driver == name {
            lease.namespace = namespace.into();
        }
    }
}

/// No cloud provider at all.
fn storage_alone(facts: &mut Facts) {
    facts.wanted.cloud = None;
    facts.cluster.drivers.cloud = Known::Known(None);
    facts.cluster.leases.get_mut().into_iter().for_each(|all| all.retain(|l| l.driver != "CPI"));
}

fn without_webhooks(facts: &mut Facts) {
    facts.cluster.webhooks = Vec::new().into();
}

/// kubeadm or Cluster API: VDO manages both drivers, with zones.
fn kubeadm() -> Facts {
    let mut facts = sized(Platform::Kubernetes, 3, 5, 12);
    network(&mut facts, "Calico");
    facts
}

/// OpenShift on vSphere: the platform manages both drivers, with its own names.
fn openshift_of_its_own() -> Facts {
    let mut facts = sized(Platform::OpenShift, 3, 3, 6);
    kubernetes(&mut facts, Version::new(1, 33, 4));
    without_zones(&mut facts);
    without_webhooks(&mut facts);
    network(&mut facts, "OVN-Kubernetes");
    label(&mut facts, "node.openshift.io/os_id", "rhel");
    move_driver(&mut facts, "CPI", "openshift-cloud-controller-manager");
    move_driver(&mut facts, "CSI", "openshift-cluster-csi-drivers");
    // OpenShift names images only by digest, so the driver's release is unknown.
    let image = "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:0a1b";
    if let Some(driver) = cloud(&mut facts) {
        let name = "vsphere-cloud-controller-manager";
        driver.version = None;
        driver.config_secret = Known::Known(None);
        driver.workloads = vec![workload("Deployment", name, 2, &[("cloud-controller", image)])];
    }
    if let Some(driver) = storage(&mut facts) {
        let name = "vmware-vsphere-csi-driver";
        driver.version = None;
        driver.config_secret = Known::Known(None);
        driver.release_features.clear();
        driver.provisioner = None;
        driver.workloads = vec![
            workload("Deployment", &format!("{name}-controller"), 2, &[("csi-driver", image)]),
            workload("DaemonSet", &format!("{name}-node"), 6, &[("csi-driver", image)]),
        ];
    }
    let class = StorageClass {
        name: "thin-csi".into(),
        provisioner: "csi.vsphere.vmware.com".into(),
        parameters: BTreeMap::from([("storagepolicyname".into(), "Gold".into())]),
    };
    facts.storage.classes = vec![class].into();
    facts
}

/// OpenShift with platform None: VDO manages the drivers.
fn openshift_without_vsphere() -> Facts {
    let mut facts = sized(Platform::OpenShift, 3, 3, 6);
    facts.cluster.openshift = Known::Known(None);
    kubernetes(&mut facts, Version::new(1, 34, 1));
    network(&mut facts, "OVN-Kubernetes");
    label(&mut facts, "node.openshift.io/os_id", "rhcos");
    facts
}

/// OpenShift with failure domains in two vCenters, each with its own hosts, VMs and datastores.
fn openshift_on_two_vcenters() -> Facts {
    let mut facts = openshift_of_its_own();
    let second: BTreeSet<String> = ["worker-1", "worker-2", "worker-3"].map(str::to_owned).into();
    let Some(first) = facts.vcenters.get_mut("vcenter-a") else { return facts };
    let mut other = first.clone();
    other.name = "vcenter-b".into();
    other.address = "vc-b.example.com".into();
    other.secret = "vmware-system-vdo/vcenter-b".into();
    if let Some(about) = other.about.get_mut() {
        about.instance_uuid = "vc-b-uuid".into();
    }
    if let Some(inventory) = first.inventory.get_mut() {
        inventory.vms.retain(|_, vm| !second.contains(&vm.name));
    }
    if let Some(inventory) = other.inventory.get_mut() {
        inventory.vms.retain(|_, vm| second.contains(&vm.name));
        for datastore in inventory.datastores.values_mut() {
            datastore.url = datastore.url.replace("65f0c0de", "65f0beef");
        }
    }
    facts.vcenters.insert("vcenter-b".into(), other);
    let both: BTreeSet<String> = ["vcenter-a", "vcenter-b"].map(str::to_owned).into();
    if let Some(cloud) = &mut facts.wanted.cloud {
        cloud.vcenters.clone_from(&both);
    }
    if let Some(storage) = &mut facts.wanted.storage {
        storage.vcenters = both;
    }
    let servers = ["vc-a.example.com", "vc-b.example.com"].map(str::to_owned).to_vec();
    let datacenters: Vec<String> = servers.iter().map(|server| format!("{server}/DC0")).collect();
    facts.cluster.openshift = Some(OpenShift {
        infrastructure_vcenters: servers.clone(),
        configured_vcenters: servers,
        failure_domain_datacenters: datacenters.clone(),
        configured_datacenters: datacenters,
        runs_storage: true,
        runs_cloud: true,
    })
    .into();
    let on = |n: usize| if n < 3 { "vcenter-a" } else { "vcenter-b" };
    for (n, volume) in facts.storage.cns.get_mut().into_iter().flatten().enumerate() {
        volume.1.vcenter = on(n % 6).into();
        if on(n % 6) == "vcenter-b" {
            volume.1.datastore = volume.1.datastore.replace("65f0c0de", "65f0beef");
        }
    }
    facts.storage.cns_total =
        BTreeMap::from([("vcenter-a".to_owned(), 3), ("vcenter-b".to_owned(), 3)]).into();
    facts
}

/// RKE2 with the drivers of Rancher's charts, all in `kube-system`.
fn rke2() -> Facts {
    let mut facts = sized(Platform::Rke2, 3, 4, 8);
    kubernetes(&mut facts, Version::new(1, 33, 5));
    without_zones(&mut facts);
    without_webhooks(&mut facts);
    network(&mut facts, "Canal");
    label(&mut facts, "node-role.kubernetes.io/etcd", "true");
    move_driver(&mut facts, "CSI", "kube-system");
    let image = "rancher/mirrored-cloud-provider-vsphere:v1.33.0";
    if let Some(driver) = cloud(&mut facts) {
        let name = "rancher-vsphere-cpi-cloud-controller-manager";
        driver.version = Some(Version::new(1, 33, 0));
        driver.config_secret = Known::Known(None);
        driver.workloads = vec![workload("DaemonSet", name, 3, &[("cloud-controller", image)])];
    }
    if let Some(driver) = storage(&mut facts) {
        driver.pod_security = Known::Known(None);
    }
    facts
}

/// k3s with one server and its embedded cloud provider: only the storage driver, foreign provider ids.
fn k3s() -> Facts {
    let mut facts = sized(Platform::K3s, 1, 2, 3);
    kubernetes(&mut facts, Version::new(1, 35, 1));
    storage_alone(&mut facts);
    without_zones(&mut facts);
    without_webhooks(&mut facts);
    // Flannel is part of the k3s binary, without a DaemonSet.
    network(&mut facts, "");
    for node in nodes(&mut facts) {
        node.provider_id = Some(format!("k3s://{}", node.name));
    }
    if let Some(driver) = storage(&mut facts)
        && let Some(controller) = driver.workloads.first_mut()
    {
        (controller.desired, controller.ready) = (1, 1);
    }
    facts
}

/// Talos: namespaces reject privileged pods unless labelled.
fn talos() -> Facts {
    let mut facts = sized(Platform::Talos, 3, 3, 6);
    network(&mut facts, "Cilium");
    vsphere(&mut facts, Version::new(9, 0, 0));
    facts
}

/// k0s: the control plane has no Node objects, and the kubelet uses another directory.
fn k0s() -> Facts {
    let mut facts = sized(Platform::K0s, 0, 4, 8);
    without_zones(&mut facts);
    network(&mut facts, "kube-router");
    if let Some(driver) = cloud(&mut facts)
        && let Some(workload) = driver.workloads.first_mut()
    {
        (workload.desired, workload.ready) = (4, 4);
    }
    facts
}

/// MicroK8s: nodes have no role labels, and the kubelet's directory is in the snap.
fn microk8s() -> Facts {
    let mut facts = sized(Platform::MicroK8s, 0, 3, 6);
    kubernetes(&mut facts, Version::new(1, 34, 2));
    without_zones(&mut facts);
    without_webhooks(&mut facts);
    network(&mut facts, "Calico");
    label(&mut facts, "microk8s.io/cluster", "true");
    facts
}

/// EKS Anywhere installs the cloud provider; VDO installs the storage driver.
fn eks_anywhere() -> Facts {
    let mut facts = sized(Platform::Kubernetes, 3, 3, 6);
    kubernetes(&mut facts, Version::new(1, 33, 3));
    without_zones(&mut facts);
    network(&mut facts, "Cilium");
    let image = "public.ecr.aws/eks-anywhere/kubernetes/cloud-provider-vsphere/cpi/manager:v1.33.0-eks-1-33-9";
    if let Some(driver) = cloud(&mut facts) {
        let name = "vsphere-cloud-controller-manager";
        driver.version = Some(Version::new(1, 33, 0));
        driver.config_secret = Known::Known(None);
        driver.workloads = vec![workload("DaemonSet", name, 3, &[(name, image)])];
    }
    facts
}

/// Tanzu Kubernetes Grid on vSphere 7: its own registry, Antrea, Windows workers.
fn tkg() -> Facts {
    let mut facts = sized(Platform::Kubernetes, 3, 4, 8);
    kubernetes(&mut facts, Version::new(1, 31, 7));
    vsphere(&mut facts, Version::new(7, 0, 3));
    without_zones(&mut facts);
    without_webhooks(&mut facts);
    network(&mut facts, "Antrea");
    let registry = "projects.registry.vmware.com/tkg";
    let image = format!("{registry}/csi/vsphere-block-csi-driver:v3.3.1_vmware.1");
    if let Some(driver) = storage(&mut facts) {
        driver.version = Some(Version::new(3, 3, 1));
        driver.release_features.clear();
        driver.workloads = vec![
            workload(
                "Deployment",
                "vsphere-csi-controller",
                3,
                &[("vsphere-csi-controller", &image)],
            ),
            workload("DaemonSet", "vsphere-csi-node", 6, &[("vsphere-csi-node", &image)]),
            workload("DaemonSet", "vsphere-csi-node-windows", 1, &[("vsphere-csi-node", &image)]),
        ];
    }
    let image = format!("{registry}/ccm/manager:v1.31.1_vmware.1");
    if let Some(driver) = cloud(&mut facts) {
        let name = "vsphere-cloud-controller-manager";
        driver.version = Some(Version::new(1, 31, 1));
        driver.workloads = vec![workload("DaemonSet", name, 3, &[(name, &image)])];
    }
    if let Some(node) = nodes(&mut facts).find(|node| node.name == "worker-4") {
        node.os = "windows".into();
    }
    facts
}
