//! What a manifest has to be made for: everything about the cluster and the wishes of its admin that
//! shows in an object.

use std::collections::BTreeMap;

use crate::{image::Rewrite, version::KubernetesVersion};

/// The kinds of cluster whose rules for pods differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribution {
    /// Any Kubernetes that judges pods by pod-security labels.
    #[default]
    Vanilla,
    /// One that also judges them by security context constraints and hands out user ids.
    OpenShift,
}

/// No driver has more controllers than this, however much room there is.
pub const MOST_CONTROLLERS: u32 = 3;

/// A taint seen on control-plane nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Where controllers may run, as the cluster shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// How many nodes may carry a controller: the control plane's where it has nodes, else all.
    pub nodes: u32,
    /// The labels by which the control plane's nodes are known here, any of which will do. Empty where it
    /// has no nodes of its own; controllers then run wherever Linux does.
    pub labels: Vec<String>,
    /// The taints on those nodes.
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

/// Where images come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// Where they really are.
    pub rewrite: Rewrite,
    /// The Secrets to pull them with, in each driver's namespace.
    pub pull_secrets: Vec<String>,
    /// Whether known digests are part of the name. Off only for mirrors that copy less than the whole
    /// image, whose digests therefore differ.
    pub pinned: bool,
}

impl Default for Images {
    fn default() -> Self {
        Self { rewrite: Rewrite::default(), pull_secrets: Vec::new(), pinned: true }
    }
}

/// The parts of the snapshot machinery that the cluster lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshots {
    /// Bring the three CRDs.
    pub crds: bool,
    /// Bring the snapshot controller.
    pub controller: bool,
}

/// The webhook that refuses what the driver cannot do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Base64 of the PEM of the authority that signed the webhook's certificate. Whoever renews the
    /// certificate renders again; the webhook itself reads a renewed Secret without a restart.
    pub ca_bundle: String,
}

/// What only concerns storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsiSettings {
    /// Where the driver lives.
    pub namespace: String,
    /// The Secret with `csi-vsphere.conf`.
    pub config_secret: String,
    /// The port on which a node's driver says it is alive: it is taken on the host.
    pub health_port: u16,
    /// Volumes per node, where the admin wants other than the driver's own limit.
    pub max_volumes_per_node: Option<u32>,
    /// Snapshots, and what of their machinery has to be brought along. None: no snapshots.
    pub snapshots: Option<Snapshots>,
    /// The validating webhook. None: none.
    pub webhook: Option<Webhook>,
    /// Feature switches the admin sets otherwise than the release does.
    pub features: BTreeMap<String, bool>,
    /// Labels of the nodes that get the node driver, beside their operating system. For clusters in
    /// which some nodes are not VMs on vSphere.
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

/// What only concerns the cloud controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpiSettings {
    /// Where it lives. Anything but `kube-system` is created with it.
    pub namespace: String,
    /// The ConfigMap with `vsphere.conf`.
    pub config_map: String,
    /// The namespaces of the Secrets that `vsphere.conf` names.
    pub secret_namespaces: Vec<String>,
    /// The Secret that `vsphere.conf` names, in each of those namespaces.
    pub secret: String,
    /// The port on which it answers health checks and metrics: it is taken on the host.
    pub port: u16,
    /// Labels for new nodes, where the release knows how.
    pub node_labels: BTreeMap<String, String>,
    /// Whether nodes whose VM is gone keep their Node object.
    pub keep_nodes: bool,
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
        }
    }
}

/// Everything a manifest is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The kind of cluster.
    pub distribution: Distribution,
    /// Its version, where an object may say more on a newer one.
    pub kubernetes: KubernetesVersion,
    /// The kubelet's directory on the nodes.
    pub kubelet_path: String,
    /// Where controllers may run.
    pub placement: Placement,
    /// Whether there are Windows nodes.
    pub windows_nodes: bool,
    /// Whether volumes and nodes are told apart by zone.
    pub topology: bool,
    /// Where images come from.
    pub images: Images,
    /// A digest of the configuration, for the pods that have to restart when it changes.
    pub config_digest: Option<String>,
    /// Storage.
    pub csi: CsiSettings,
    /// Cloud controller.
    pub cpi: CpiSettings,
}

impl Profile {
    /// A cluster like most: three control-plane nodes, Linux, no zones, images from where they are made.
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

    /// Controllers run so often where there is room, and once where there is not.
    pub(crate) fn replicas(&self, most: u32) -> u32 {
        self.placement.nodes.clamp(1, most)
    }
}
