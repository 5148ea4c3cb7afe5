//! The properties of a cluster and the admin's settings that affect rendered objects.

use std::collections::BTreeMap;

use crate::{image::Rewrite, version::KubernetesVersion};

/// Distributions with different rules for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribution {
    /// Any Kubernetes with pod-security labels.
    #[default]
    Vanilla,
    /// Also has security context constraints and assigns user ids.
    OpenShift,
}

/// The maximum number of replicas of a controller.
pub const MOST_CONTROLLERS: u32 = 3;

/// A taint of control-plane nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    pub key: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Where controllers can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The number of nodes that can run a controller: control-plane nodes if there are any, else all nodes.
    pub nodes: u32,
    /// The labels of control-plane nodes in this cluster; any of them matches. Empty if the control plane has no
    /// nodes in the cluster; controllers then run on any Linux node.
    pub labels: Vec<String>,
    /// The taints of those nodes.
    pub taints: Vec<Taint>,
}

impl Default for Placement {
    fn default() -> Self {
        let taint = |key: &str| Taint { key: key.to_owned(), effect: "NoSchedule".to_owned() };
        Self {
            nodes: 3,
            labels: vec!["node-role.kubernetes.io/control-plane".to_owned()],
            taints: vec![taint("node-role.kubernetes.io/control-plane")],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    pub rewrite: Rewrite,
    /// The pull Secrets, in each driver's namespace.
    pub pull_secrets: Vec<String>,
    /// Add known digests to image names. False only for mirrors that copy part of a multi-platform image, whose
    /// digests therefore differ.
    pub pinned: bool,
}

impl Default for Images {
    fn default() -> Self {
        Self { rewrite: Rewrite::default(), pull_secrets: Vec::new(), pinned: true }
    }
}

/// The snapshot components that the cluster lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshots {
    /// Install the three CRDs.
    pub crds: bool,
    /// Install the snapshot controller.
    pub controller: bool,
}

/// The validating webhook of the storage driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// The CA certificate that signed the webhook's certificate, PEM in base64. After a renewal the caller
    /// renders again; the webhook reads a renewed Secret without a restart.
    pub ca_bundle: String,
}

/// Settings of the storage driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsiSettings {
    pub namespace: String,
    /// The Secret with `csi-vsphere.conf`.
    pub config_secret: String,
    /// The health port of the node driver, on the host network.
    pub health_port: u16,
    /// Overrides the driver's own limit of volumes per node.
    pub max_volumes_per_node: Option<u32>,
    /// `None` disables snapshots.
    pub snapshots: Option<Snapshots>,
    /// `None` disables the webhook.
    pub webhook: Option<Webhook>,
    /// The admin's overrides of the release's feature switches.
    pub features: BTreeMap<String, bool>,
    /// Labels that restrict the node driver to some nodes, in addition to the operating system. For clusters
    /// in which some nodes are not vSphere VMs.
    pub node_selector: BTreeMap<String, String>,
}

impl Default for CsiSettings {
    fn default() -> Self {
        Self {
            namespace: "vmware-system-csi".to_owned(),
            config_secret: "vsphere-config-secret".to_owned(),
            health_port: 9808,
            max_volumes_per_node: None,
            snapshots: None,
            webhook: None,
            features: BTreeMap::new(),
            node_selector: BTreeMap::new(),
        }
    }
}

/// Settings of the cloud controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpiSettings {
    /// Rendered with the driver unless it is `kube-system`.
    pub namespace: String,
    /// The ConfigMap with `vsphere.conf`.
    pub config_map: String,
    /// The namespaces of the Secrets that `vsphere.conf` names.
    pub secret_namespaces: Vec<String>,
    /// The Secret that `vsphere.conf` names, in each of those namespaces.
    pub secret: String,
    /// The port for health checks and metrics, on the host network.
    pub port: u16,
    /// Labels for new nodes, in releases that support them.
    pub node_labels: BTreeMap<String, String>,
    /// Keep the Node objects of deleted VMs.
    pub keep_nodes: bool,
    /// Label nodes with their ESXi host and cluster; only this project's cloud controller does.
    pub host_labels: bool,
    /// Further arguments of this project's cloud controller.
    pub arguments: Vec<String>,
}

impl Default for CpiSettings {
    fn default() -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            config_map: "vsphere-cloud-config".to_owned(),
            secret_namespaces: vec!["kube-system".to_owned()],
            secret: "cpi-global-secret".to_owned(),
            port: 10258,
            node_labels: BTreeMap::new(),
            keep_nodes: false,
            host_labels: false,
            arguments: Vec::new(),
        }
    }
}

/// The input of [`render`](super::render) next to the release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    pub distribution: Distribution,
    /// Some fields exist only in newer versions.
    pub kubernetes: KubernetesVersion,
    /// The kubelet's directory on the nodes.
    pub kubelet_path: String,
    pub placement: Placement,
    pub windows_nodes: bool,
    /// True if zones are configured.
    pub topology: bool,
    pub images: Images,
    /// A digest of the configuration. It restarts the pods when it changes.
    pub config_digest: Option<String>,
    pub csi: CsiSettings,
    pub cpi: CpiSettings,
}

impl Profile {
    /// A typical cluster: three control-plane nodes, Linux, no zones, upstream registries.
    pub fn new(kubernetes: KubernetesVersion) -> Self {
        Self {
            distribution: Distribution::default(),
            kubernetes,
            kubelet_path: "/var/lib/kubelet".to_owned(),
            placement: Placement::default(),
            windows_nodes: false,
            topology: false,
            images: Images::default(),
            config_digest: None,
            csi: CsiSettings::default(),
            cpi: CpiSettings::default(),
        }
    }

    pub(crate) fn openshift(&self) -> bool {
        self.distribution == Distribution::OpenShift
    }

    /// One replica per node that can run it, but at least one and at most `most`.
    pub(crate) fn replicas(&self, most: u32) -> u32 {
        self.placement.nodes.clamp(1, most)
    }
}
