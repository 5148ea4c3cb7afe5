use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Known, Version};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Drivers {
    /// The cloud provider (CPI); `None` if it is not installed.
    pub cloud: Known<Option<InstalledDriver>>,
    /// The storage driver (CSI); `None` if it is not installed.
    pub storage: Known<Option<InstalledDriver>>,
    /// Further copies of either driver, as `namespace/name`.
    pub others: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstalledDriver {
    /// `CPI` or `CSI`.
    pub name: String,
    pub namespace: String,
    /// Its release, read from its image.
    pub version: Option<Version>,
    /// Whether it is the upstream driver, not VDO's own.
    pub upstream: bool,
    /// The catalog's reason why the release does not fit this cluster.
    pub unsuitable: Option<String>,
    pub workloads: Vec<Workload>,
    /// Name of the Secret with its configuration, and whether it exists; none if it has no such Secret.
    pub config_secret: Known<Option<(String, bool)>>,
    /// Storage: the custom resource definitions it needs, and whether they exist.
    pub crds: Known<BTreeMap<String, bool>>,
    /// Storage: the feature switches in its ConfigMap.
    pub features: Known<BTreeMap<String, String>>,
    /// Storage: the feature switches its release ships with.
    pub release_features: BTreeMap<String, String>,
    /// Storage: whether the provisioner passes topology to the driver.
    pub provisioner_topology: Option<bool>,
    /// Storage: the provisioner's release.
    pub provisioner: Option<Version>,
    /// Level of pod security its namespace enforces, if any.
    pub pod_security: Known<Option<String>>,
    /// Storage: the kubelet directory that the node pods mount.
    pub kubelet_path: Option<String>,
    /// Storage: whether the CSIDriver object exists.
    pub registered: Known<bool>,
    /// The service accounts of a driver that VDO does not apply, compared with its release. Empty if VDO
    /// applies the driver, and restores its permissions, or if the release is unknown.
    pub accounts: Known<Vec<DriverAccount>>,
}

/// A service account of a driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriverAccount {
    /// The workload whose pods use it: `Deployment vsphere-csi-controller`.
    pub workload: String,
    pub namespace: String,
    pub name: String,
    /// The cluster-wide permissions that the release grants and the account lacks.
    pub lacks: Vec<Permission>,
    /// The ClusterRoles that are bound to it, and whether each exists.
    pub roles: BTreeMap<String, bool>,
    /// The ClusterRole that the release binds to it.
    pub release_role: String,
    pub release_role_exists: bool,
}

/// A permission in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Permission {
    pub verb: String,
    /// Empty for the core group.
    pub group: String,
    /// With its subresource: `nodes/status`.
    pub resource: String,
}

impl Permission {
    /// The resource as kubectl writes it: `volumeattachments.storage.k8s.io/status`.
    pub fn qualified_resource(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        match self.resource.split_once('/') {
            Some((resource, part)) => format!("{resource}{dot}{}/{part}", self.group),
            None => format!("{}{dot}{}", self.resource, self.group),
        }
    }
}

impl InstalledDriver {
    /// Finds a workload by the end of its name, for example `controller`.
    pub fn workload(&self, suffix: &str) -> Option<&Workload> {
        self.workloads.iter().find(|w| w.name.ends_with(suffix))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Workload {
    /// `Deployment` or `DaemonSet`.
    pub kind: String,
    pub name: String,
    /// How many pods there should be.
    pub desired: u32,
    pub ready: u32,
    /// Whether a rollout is in progress and within its timeout.
    pub changing: bool,
    /// Why the cluster rejects its pods (pod security, SCC, quota).
    pub refused: Option<String>,
    /// Healthy pods may be omitted: `ready` counts them.
    pub pods: Vec<Pod>,
    /// Fields of its pods that another manager added, although VDO applies the workload: the manager and the path.
    pub added_fields: BTreeSet<(String, String)>,
}

impl Workload {
    /// Its kind and name as kubectl takes them: `daemonset/vsphere-csi-node`.
    pub fn argument(&self) -> String {
        format!("{}/{}", self.kind.to_lowercase(), self.name)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    pub name: String,
    pub node: Option<String>,
    pub ready: bool,
    /// The scheduler's message if the pod has no node.
    pub unschedulable: Option<String>,
    pub containers: Vec<Container>,
    /// Warnings about it, newest first.
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    pub image: String,
    pub waiting: Option<Waiting>,
    pub restarts: u32,
    /// The last log lines before the crash, newest last.
    pub last_lines: Vec<String>,
    /// Why the logs of a crashed container could not be read.
    pub unread: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Waiting {
    /// For example `CrashLoopBackOff`.
    pub reason: String,
    pub message: String,
}

/// A warning event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    pub reason: String,
    pub message: String,
}
