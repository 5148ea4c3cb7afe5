use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Known, Version};

/// The two drivers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Drivers {
    /// The cloud provider (CPI); inner absence: it is not installed.
    pub cloud: Known<Option<Driver>>,
    /// The storage driver (CSI); inner absence: it is not installed.
    pub storage: Known<Option<Driver>>,
    /// Second copies of either driver, in other namespaces or by other hands, as `namespace/name`.
    pub others: Vec<String>,
}

/// One driver, as it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Driver {
    /// `CPI` or `CSI`.
    pub name: String,
    /// Where it runs.
    pub namespace: String,
    /// Its release, read from its image.
    pub version: Option<Version>,
    /// Whether it is the driver of the Kubernetes project.
    pub upstream: bool,
    /// Why the release does not suit this cluster, if the catalog says so.
    pub unsuitable: Option<String>,
    /// Its Deployments and DaemonSets.
    pub workloads: Vec<Workload>,
    /// Name of the Secret with its configuration, and whether it exists; none if it has no such Secret.
    pub config_secret: Known<Option<(String, bool)>>,
    /// Storage: the custom resource definitions it needs, and whether they exist.
    pub crds: Known<BTreeMap<String, bool>>,
    /// Storage: the feature switches in its ConfigMap.
    pub features: Known<BTreeMap<String, String>>,
    /// Storage: the feature switches its release ships with.
    pub release_features: BTreeMap<String, String>,
    /// Storage: whether the provisioner passes topology on.
    pub provisioner_topology: Option<bool>,
    /// Storage: the provisioner's release.
    pub provisioner: Option<Version>,
    /// Level of pod security its namespace enforces, if any.
    pub pod_security: Known<Option<String>>,
    /// Storage: kubelet's directory, as its node pods have it.
    pub kubelet_path: Option<String>,
    /// Storage: whether the CSIDriver object exists.
    pub registered: Known<bool>,
}

impl Driver {
    /// A workload by what its name ends with, for example `controller`.
    pub fn workload(&self, suffix: &str) -> Option<&Workload> {
        self.workloads.iter().find(|w| w.name.ends_with(suffix))
    }
}

/// A Deployment or DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Workload {
    /// `Deployment` or `DaemonSet`.
    pub kind: String,
    /// Name.
    pub name: String,
    /// How many pods there should be.
    pub desired: u32,
    /// How many are ready.
    pub ready: u32,
    /// Whether a change is being rolled out and still has time.
    pub changing: bool,
    /// Why its controller cannot make pods, if so (pod security, SCC, quota).
    pub refused: Option<String>,
    /// Its pods. Healthy ones may be left out: they are counted above.
    pub pods: Vec<Pod>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// Name.
    pub name: String,
    /// Node it was given to.
    pub node: Option<String>,
    /// Whether it is ready.
    pub ready: bool,
    /// The scheduler's reason why it has no node.
    pub unschedulable: Option<String>,
    /// Its containers.
    pub containers: Vec<Container>,
    /// Warnings about it, newest first.
    pub events: Vec<Event>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name.
    pub name: String,
    /// Image.
    pub image: String,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// How often it was restarted.
    pub restarts: u32,
    /// The last lines it wrote before it ended, newest last.
    pub last_lines: Vec<String>,
    /// Why these lines could not be read, though it crashed.
    pub unread: Option<String>,
}

/// Why a container waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Waiting {
    /// The word, for example `CrashLoopBackOff`.
    pub reason: String,
    /// The sentence.
    pub message: String,
}

/// A warning event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// The word.
    pub reason: String,
    /// The sentence.
    pub message: String,
}
