//! `spec.overrides`: how the driver pods differ from the release.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{LabelValue, ObjectName, ProxyUrl, Quantity};

/// Settings of the driver pods that replace those of the release, or add to them. VDO keeps them in every
/// release.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!has(self.cloudController) || !has(self.cloudController.replicas)")
    .message("the cloud controller runs on every control plane node: remove cloudController.replicas"))]
#[x_kube(validation = Rule::new("!has(self.storageNode) || !has(self.storageNode.replicas)")
    .message("the storage driver runs on every node: remove storageNode.replicas"))]
#[serde(rename_all = "camelCase")]
pub struct Overrides {
    /// The proxy through which the drivers connect to the vCenters. Their connections to the API server do
    /// not use it. If omitted, the drivers use the proxy of the cluster, which only OpenShift has.
    ///
    /// Example: `{url: "http://proxy.example.com:3128", except: [10.0.0.0/8]}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Proxy>,

    /// The pods of the cloud controller.
    ///
    /// Example: `{logLevel: Debug}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_controller: Option<WorkloadOverrides>,

    /// The controller pods of the storage driver.
    ///
    /// Example: `{replicas: 2, resources: {requests: {memory: 256Mi}}}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_controller: Option<WorkloadOverrides>,

    /// The storage driver's pods on the nodes. On Windows nodes, only the proxy and the log level apply.
    ///
    /// Example: `{priorityClass: system-node-critical}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_node: Option<WorkloadOverrides>,
}

/// A proxy.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proxy {
    /// The address of the proxy, without user and password.
    ///
    /// Example: `http://proxy.example.com:3128`
    pub url: ProxyUrl,

    /// Hosts that the drivers connect to without the proxy: names, domains and networks. VDO adds the API
    /// server and the cluster's own domains.
    ///
    /// Example: `[10.0.0.0/8, .example.com]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    pub except: Vec<String>,
}

/// Settings of the pods of one workload.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadOverrides {
    /// The number of pods. If omitted, VDO derives it from the number of control plane nodes.
    ///
    /// Example: `2`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: Option<i32>,

    /// Requests and limits of the driver's container.
    ///
    /// Example: `{requests: {cpu: 100m, memory: 256Mi}, limits: {memory: 1Gi}}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Taints that the pods tolerate, in addition to those that VDO finds on the nodes.
    ///
    /// Example: `[{key: dedicated, value: infra, effect: NoSchedule}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<PodToleration>,

    /// Labels that a node must have, in addition to those that the release requires.
    ///
    /// Example: `{node-pool: infra}`
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub node_selector: BTreeMap<String, LabelValue>,

    /// The PriorityClass of the pods.
    ///
    /// Example: `system-cluster-critical`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<ObjectName>,

    /// How much the driver logs.
    ///
    /// Default: `Info`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,

    /// Additional arguments of the driver's container. VDO refuses arguments that it sets itself.
    ///
    /// Example: `["--concurrent-node-syncs=8"]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024)))]
    pub args: Vec<String>,

    /// Additional environment variables of the driver's container. VDO refuses variables that it sets
    /// itself.
    ///
    /// Example: `[{name: GOMAXPROCS, value: "2"}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub env: Vec<Variable>,

    /// The same settings for other containers of the pods, by container name.
    ///
    /// Example: `{csi-attacher: {args: ["--worker-threads=20"]}}`
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub containers: BTreeMap<String, ContainerOverrides>,
}

/// Settings of one container.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerOverrides {
    /// Requests and limits of the container.
    ///
    /// Example: `{limits: {memory: 256Mi}}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Additional arguments of the container. `--timeout`, `--worker-threads`, `--kube-api-qps`,
    /// `--kube-api-burst`, `--retry-interval-start` and `--retry-interval-max` replace those of the release.
    /// VDO refuses other arguments that it sets itself.
    ///
    /// Example: `["--worker-threads=20"]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024)))]
    pub args: Vec<String>,

    /// Additional environment variables of the container.
    ///
    /// Example: `[{name: GOMAXPROCS, value: "2"}]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub env: Vec<Variable>,
}

/// Requests and limits of a container. Amounts that you omit stay those of the release.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// The amounts that the scheduler reserves.
    ///
    /// Example: `{cpu: 100m, memory: 256Mi}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Amounts>,

    /// The amounts that the container cannot exceed.
    ///
    /// Example: `{memory: 1Gi}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Amounts>,
}

/// Amounts of CPU and memory.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Amounts {
    /// CPU.
    ///
    /// Example: `100m`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,

    /// Memory.
    ///
    /// Example: `256Mi`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// A taint that the pods tolerate.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodToleration {
    /// The key of the taint.
    ///
    /// Example: `dedicated`
    #[schemars(length(min = 1, max = 317))]
    pub key: String,

    /// The value of the taint. If omitted, the pods tolerate every value.
    ///
    /// Example: `infra`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,

    /// The effect of the taint. If omitted, the pods tolerate every effect.
    ///
    /// Example: `NoSchedule`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// The effect of a taint.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaintEffect {
    /// Pods are not scheduled to the node.
    NoSchedule,
    /// Pods are scheduled to other nodes first.
    PreferNoSchedule,
    /// Pods that run are evicted, too.
    NoExecute,
}

/// How much a driver logs.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogLevel {
    /// Changes and problems.
    #[default]
    Info,
    /// Also each step.
    Debug,
    /// Everything that the driver can log.
    Trace,
}

/// An environment variable.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Variable {
    /// The name of the variable.
    ///
    /// Example: `GOMAXPROCS`
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z_][A-Za-z0-9_]*$')")
        .message("must be the name of an environment variable, for example GOMAXPROCS"))]
    pub name: String,

    /// The value of the variable. Everybody who can read the VDOConfig can read it.
    ///
    /// Example: `"2"`
    #[schemars(length(max = 4096))]
    pub value: String,
}
