//! What VDO reports.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Implementation, Mode};
use crate::finding::Finding;

/// What VDO reports about the cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VDOConfigStatus {
    /// State in short: `Ready`, `Progressing`, `Degraded`, `Upgradeable`, and one per part:
    /// `CloudProviderReady`, `StorageReady`, `VcenterReady`, `NetworkReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,

    /// Generation of the spec this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The cloud provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpi: Option<DriverStatus>,

    /// The storage driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi: Option<DriverStatus>,

    /// Versions of everything the choice of releases depends on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,

    /// What is wrong, worst first, each with its cause and its cure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub findings: Vec<Finding>,

    /// The findings in numbers, and when everything was looked at last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSummary>,

    /// What VDO is doing or would do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,

    /// What vCenter knows this cluster by. Never changes once volumes exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
}

/// The findings in numbers, and when everything was looked at last.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthSummary {
    /// Findings that stop a step; acknowledged ones are not counted here and below.
    #[serde(default)]
    pub blockers: i32,
    /// Findings of something that does not work.
    #[serde(default)]
    pub errors: i32,
    /// Findings of something that may not work later.
    #[serde(default)]
    pub warnings: i32,
    /// Findings somebody decided to live with.
    #[serde(default)]
    pub acknowledged: i32,
    /// When the vCenters were last asked for what is not watched: privileges, volumes, policies,
    /// sessions, certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audited: Option<Time>,
    /// The value of the annotation `vdo.vmware.com/check-now` that was last carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<String>,
    /// The ConfigMap beside the operator that lists every object of every finding, where the findings
    /// name more objects than are shown here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// What VDO could repair, by code; nothing of what `remediation` turns off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub repairs: Vec<RepairSummary>,
}

/// Repairs VDO could make about one kind of finding.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairSummary {
    /// Code of the finding.
    pub code: String,
    /// What the first of them does.
    pub does: String,
    /// How many there are.
    pub count: i32,
    /// Whether VDO makes them by itself.
    #[serde(default)]
    pub automatic: bool,
    /// What then remains to be done by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// Why VDO does not make them, whatever `remediation` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// How things are, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Health {
    /// Everything asked for is there and works.
    Healthy,
    /// Something is being changed, or the status is about an earlier wish.
    Progressing,
    /// Something is wrong.
    Degraded,
    /// VDO has not said anything yet.
    Unknown,
}

impl VDOConfigStatus {
    /// How things are, for a spec of this generation.
    pub fn verdict(&self, generation: Option<i64>) -> Health {
        use crate::condition::{DEGRADED, READY, is_true};
        if self.conditions.is_empty() {
            return Health::Unknown;
        }
        match () {
            () if is_true(&self.conditions, DEGRADED) => Health::Degraded,
            () if generation.is_some() && self.observed_generation < generation => {
                Health::Progressing
            }
            () if is_true(&self.conditions, READY) => Health::Healthy,
            () => Health::Progressing,
        }
    }
}

/// One driver.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverStatus {
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// Why it is not further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_msg: Option<String>,

    /// Nodes that are not ready yet; ready ones are only counted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 6000))]
    pub node_status: BTreeMap<String, NodeState>,

    /// The node status of earlier releases, whose key ends in a blank. Read, never written.
    #[serde(default, rename = "nodeStatus ", skip_serializing_if = "never")]
    #[schemars(extend("maxProperties" = 6000))]
    pub earlier_node_status: BTreeMap<String, NodeState>,

    /// Nodes it should serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i32>,

    /// Nodes it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_ready: Option<i32>,

    /// Release that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// Release VDO is moving to, or would; equal to `version` if it is already there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,

    /// Whose driver runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implementation: Option<Implementation>,

    /// Whether VDO runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

fn never<T>(_: &T) -> bool {
    true
}

impl DriverStatus {
    /// Node states from whichever key holds them.
    pub fn node_states(&self) -> &BTreeMap<String, NodeState> {
        if self.node_status.is_empty() { &self.earlier_node_status } else { &self.node_status }
    }
}

/// How far a driver is.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Being installed or upgraded.
    Deploying,
    /// Installed and healthy.
    Deployed,
    /// Being configured.
    Configuring,
    /// Configured, not yet healthy everywhere.
    Configured,
    /// Stopped by a fault; the message says which.
    Failed,
}

/// A node, as one driver sees it.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Not served yet.
    Pending,
    /// Served.
    Ready,
    /// Cannot be served; a finding says why.
    Failed,
}

/// Versions of everything the choice of releases depends on.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// VDO.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// The API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<String>,
    /// The distribution, for example `OpenShift 4.20`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// Every vCenter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub vcenters: Vec<VcenterVersion>,
    /// Serial number of the catalog the choice was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<i64>,
}

/// Version of one vCenter.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VcenterVersion {
    /// Name of its VsphereCloudConfig.
    pub name: String,
    /// Release, for example `8.0.3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
}

/// What VDO is doing or would do next.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// In one line, for example `storage 3.6.1 to 3.7.0, waits for Saturday 02:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Whether it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PlanState>,
    /// Its steps in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub steps: Vec<PlanStep>,
}

/// Whether a plan runs.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanState {
    /// Shown only: nothing was asked for, or VDO is paused.
    Proposed,
    /// Waits for its window.
    Waiting,
    /// A finding is in the way.
    Blocked,
    /// Being carried out.
    Running,
    /// Carried out.
    Done,
    /// Being taken back because a step did not become healthy.
    RollingBack,
}

/// One step of a plan.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanStep {
    /// What it does, for example `Upgrade the storage controller to 3.7.0`.
    pub title: String,
    /// How far it is.
    pub state: StepState,
    /// What it waits for or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it entered that state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// How far a step is.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepState {
    /// Not begun.
    Pending,
    /// Begun.
    Running,
    /// Finished.
    Done,
    /// Finished badly; the message says why.
    Failed,
}
