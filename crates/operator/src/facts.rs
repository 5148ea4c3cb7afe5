//! What was seen: plain data about cluster, vCenters and drivers, gathered by `observe` and judged
//! by `decide`. Nothing here holds a client, and nothing here changes.

use std::{collections::BTreeMap, sync::Arc};

use api::{VDOConfig, VsphereCloudConfigSpec};
use catalog::{Catalog, version::KubernetesVersion};
use driver_config::credentials::Credential;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::record::Records;

/// Everything `decide` looks at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// When this was seen.
    pub now: Timestamp,
    /// The VDOConfig that is followed.
    pub config: Arc<VDOConfig>,
    /// Other VDOConfigs, which are not.
    pub rivals: Vec<String>,
    /// The cluster.
    pub cluster: Cluster,
    /// By the name of their VsphereCloudConfig; only those that exist.
    pub vcenters: BTreeMap<String, Vcenter>,
    /// Objects that carry our label.
    pub objects: BTreeMap<ObjectId, Seen>,
    /// The drivers' workloads, by whoever installed them.
    pub workloads: BTreeMap<String, Workload>,
    /// Volumes that are attached by the CSI driver: persistent volume and node.
    pub attached: Vec<(String, String)>,
    /// What we wrote down about what we applied.
    pub records: Records,
    /// The releases there are.
    pub catalog: Arc<Catalog>,
}

/// The cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The API server's version.
    pub version: KubernetesVersion,
    /// As the API server says it: `v1.36.4+rke2r1`.
    pub version_text: String,
    /// What kind of cluster it is.
    pub platform: Platform,
    /// The uid of `kube-system`: as unique as a cluster can be.
    pub uid: String,
    /// Its nodes.
    pub nodes: Vec<Node>,
}

/// A kind of cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// kubeadm and the like.
    Vanilla,
    /// OpenShift.
    OpenShift {
        /// Whether the platform itself owns the vSphere drivers.
        owns_drivers: bool,
    },
    /// Rancher's RKE2.
    Rke2,
    /// k3s.
    K3s,
}

impl Platform {
    /// As conditions in the catalog call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::OpenShift { .. } => "openshift",
            Self::Rke2 => "rke2",
            Self::K3s => "k3s",
        }
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The label that makes it one of the control plane, if it is.
    pub control_plane: Option<String>,
    /// Its taints: key and effect.
    pub taints: Vec<(String, String)>,
    /// Whether it runs Windows.
    pub windows: bool,
    /// `spec.providerID`.
    pub provider_id: String,
    /// Where its virtual machine is.
    pub machine: Machine,
}

impl Node {
    /// Whether a cloud controller has seen it.
    pub fn is_initialized(&self) -> bool {
        !self.taints.iter().any(|(key, _)| key == crate::names::UNINITIALIZED)
    }

    /// Whether it belongs to another cloud and is none of our business.
    pub fn is_foreign(&self) -> bool {
        !self.provider_id.is_empty() && !self.provider_id.starts_with("vsphere://")
    }
}

/// Where the virtual machine of a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// In the vCenter of this VsphereCloudConfig.
    Found(String),
    /// In none of those that were asked, and all answered.
    Missing,
    /// Not known, for this reason.
    Unknown(String),
}

/// A vCenter.
#[derive(Clone, Debug)]
pub struct Vcenter {
    /// How to reach it.
    pub spec: VsphereCloudConfigSpec,
    /// What came of trying.
    pub state: VcenterState,
    /// The credentials that were proven, which are what drivers get.
    pub credentials: Option<Credential>,
    /// Which version of the Secret they are from: stands for them where they must not be seen.
    pub credentials_version: String,
    /// The generation of its object, and what its status says so far.
    pub generation: Option<i64>,
    /// See [`Vcenter::generation`].
    pub status: Option<api::VsphereCloudConfigStatus>,
}

/// What came of reaching a vCenter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VcenterState {
    /// Not tried yet.
    Untried,
    /// It answered, the credentials are right, the datacenters are there.
    Verified {
        /// `8.0.3`.
        version: String,
        /// `8.0.3.0`.
        api_version: String,
        /// `24022515`.
        build: String,
        /// Its own uuid.
        instance_uuid: String,
        /// What it calls itself.
        product: String,
    },
    /// It was not so.
    Failed {
        /// One word for conditions.
        reason: String,
        /// One sentence for people.
        message: String,
        /// Whether it may pass by itself.
        transient: bool,
    },
}

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectId {
    /// `apps/v1`.
    pub api_version: String,
    /// `DaemonSet`.
    pub kind: String,
    /// Empty for objects of the whole cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectId {
    /// The identity of a rendered object.
    pub fn of(object: &catalog::manifest::Object) -> Self {
        Self {
            api_version: object.api_version().into(),
            kind: object.kind().into(),
            namespace: object.namespace().into(),
            name: object.name().into(),
        }
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// An object of ours as it stands in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The digest it was last applied with.
    pub digest: Option<String>,
    /// Whether it is still as our last apply left it. False after somebody touched it, and after a
    /// restart of ours: then it is applied again, which changes nothing if nothing changed.
    pub settled: bool,
}

/// A Deployment or DaemonSet of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Where it is.
    pub namespace: String,
    /// Its kind.
    pub kind: String,
    /// Whether it is ours.
    pub ours: bool,
    /// The version of the driver: from our label, else from its image.
    pub version: Option<String>,
    /// Pods it wants.
    pub wanted: i32,
    /// Pods that are up to date and available.
    pub available: i32,
    /// Whether its controller has seen its latest change.
    pub current: bool,
    /// What keeps a pod of it from running, in words.
    pub trouble: Option<String>,
}

impl Workload {
    /// Whether all of it runs as it should.
    pub fn is_healthy(&self) -> bool {
        self.current && self.available >= self.wanted
    }
}
