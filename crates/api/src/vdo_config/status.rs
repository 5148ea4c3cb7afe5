//! `status` of the VDOConfig.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Implementation, Mode};
use crate::finding::Finding;

/// The state of the drivers, and the findings.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VDOConfigStatus {
    /// The state in brief: `Ready`, `Progressing`, `Degraded`, `Upgradeable`, `Followed`,
    /// `CloudProviderReady`, `StorageReady`, `VcenterReady` and `NetworkReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,

    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The state of the cloud provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpi: Option<DriverStatus>,

    /// The state of the storage driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi: Option<DriverStatus>,

    /// The versions on which the selection of releases depends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,

    /// The open findings, most severe first, each with its cause and its fix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub findings: Vec<Finding>,

    /// The number of findings by severity, and the time of the last audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSummary>,

    /// The current plan and its steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,

    /// The ID of this cluster in CNS. It never changes once volumes exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
}

/// The number of findings by severity, and the time of the last audit.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthSummary {
    /// Findings that block a step. Acknowledged findings count only under `acknowledged`.
    #[serde(default)]
    pub blockers: i32,
    /// Findings about something that does not work.
    #[serde(default)]
    pub errors: i32,
    /// Findings about something that can fail later.
    #[serde(default)]
    pub warnings: i32,
    /// Findings that an acknowledgement in the spec covers.
    #[serde(default)]
    pub acknowledged: i32,
    /// When VDO last queried the vCenters for facts that it cannot watch: privileges, volumes, policies,
    /// sessions, certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audited: Option<Time>,
    /// The last value of the annotation `vdo.vmware.com/check-now` that VDO acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<String>,
    /// The name of a ConfigMap in the namespace of the operator that lists every object of every finding.
    /// Set only if the status cannot show them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// The repairs that VDO can make, by code, without those that `remediation` turns off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub repairs: Vec<RepairSummary>,
}

/// The repairs that VDO can make for one code.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairSummary {
    /// The code of the finding.
    pub code: String,
    /// The effect of the first repair.
    pub does: String,
    /// The number of repairs.
    pub count: i32,
    /// Whether VDO makes the repairs without asking.
    #[serde(default)]
    pub automatic: bool,
    /// The manual steps that remain afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// Why VDO does not make the repairs, even if `remediation` allows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The state of the cluster in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Health {
    Healthy,
    /// A step is running, or the status describes an earlier generation of the spec.
    Progressing,
    Degraded,
    /// VDO has not written a status yet.
    Unknown,
}

impl VDOConfigStatus {
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

/// The state of one driver.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverStatus {
    /// The phase of the installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// The current step, or the reason why VDO does not continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_msg: Option<String>,

    /// The state of each node, in clusters with up to 500 nodes. Only the cloud provider reports it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 6000))]
    pub node_status: BTreeMap<String, NodeState>,

    /// The node status of the Go VDO, whose key ends in a space. VDO reads it and never writes it.
    #[serde(
        default,
        rename = "nodeStatus ",
        skip_serializing_if = "never",
        deserialize_with = "any_node_state"
    )]
    #[schemars(extend("maxProperties" = 6000))]
    pub earlier_node_status: BTreeMap<String, NodeState>,

    /// The number of nodes that the driver should serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i32>,

    /// The number of nodes that the driver serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_ready: Option<i32>,

    /// The release that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// The release that VDO installs or proposes next. Absent if it already runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,

    /// Which implementation runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implementation: Option<Implementation>,

    /// Whether VDO manages the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

fn never<T>(_: &T) -> bool {
    true
}

impl DriverStatus {
    /// The node states, from either key.
    pub fn node_states(&self) -> &BTreeMap<String, NodeState> {
        if self.node_status.is_empty() { &self.earlier_node_status } else { &self.node_status }
    }
}

/// The phase of a driver.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// VDO installs or upgrades the driver.
    Deploying,
    /// The storage driver is installed.
    Deployed,
    /// VDO waits until the driver is healthy.
    Configuring,
    /// The cloud provider is installed.
    Configured,
    /// A problem blocks VDO and the driver is unhealthy; the message names the problem.
    Failed,
}

/// The Go VDO's states, which its CRD does not limit. A state that VDO does not know, such as `failed`, must not
/// make the whole VDOConfig unreadable: the driver does not serve that node.
fn any_node_state<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, NodeState>, D::Error> {
    let states = BTreeMap::<String, String>::deserialize(deserializer)?;
    let known = |state: &str| if state == "ready" { NodeState::Ready } else { NodeState::Pending };
    Ok(states.into_iter().map(|(node, state)| (node, known(&state))).collect())
}

/// The state of a node for one driver.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// The driver does not serve the node yet.
    Pending,
    /// The driver serves the node.
    Ready,
}

/// The versions on which the selection of releases depends.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// The version of VDO.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// The version of the Kubernetes API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<String>,
    /// The distribution, for example `OpenShift 4.20`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// The version of each vCenter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub vcenters: Vec<VcenterVersion>,
    /// The serial number of the catalog that VDO selects from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog: Option<i64>,
}

/// The version of one vCenter.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VcenterVersion {
    /// The name of the VsphereCloudConfig.
    pub name: String,
    /// The version, for example `8.0.3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The build number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
}

/// A plan and its steps.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The plan in one line, for example `csi 3.6.1 to 3.7.0 (waits for Saturday 02:00)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The state of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PlanState>,
    /// The steps in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub steps: Vec<PlanStep>,
}

/// The state of a plan.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanState {
    /// The plan waits, for example for its upgrade window, or because VDO is paused.
    Waiting,
    /// A finding blocks the plan.
    Blocked,
    /// VDO executes the plan.
    Running,
    /// All steps are complete.
    Done,
    /// VDO rolls back because a step did not become healthy.
    RollingBack,
}

/// One step of a plan.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanStep {
    /// The title, for example `Upgrade the storage controller to 3.7.0`.
    pub title: String,
    /// The state of the step.
    pub state: StepState,
    /// The reason why the step waits or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the step entered this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// The state of a step.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepState {
    /// The step has not started.
    Pending,
    /// The step is running.
    Running,
    /// The step is complete.
    Done,
    /// The step failed; the message gives the reason.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_node_state_of_the_go_vdo_does_not_make_the_status_unreadable() {
        let stored = serde_json::json!({"nodeStatus ": {"a": "failed", "b": "ready", "c": ""}});
        let status: DriverStatus = serde_json::from_value(stored).unwrap();
        let read: Vec<NodeState> = status.earlier_node_status.into_values().collect();
        assert_eq!(read, [NodeState::Pending, NodeState::Ready, NodeState::Pending]);
    }
}
