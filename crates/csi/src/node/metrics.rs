//! The metrics of the node plugin.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use tonic::{Code, Status};

use super::tool::ToolError;
use crate::DRIVER_NAME;

/// The labels of the upstream sidecars.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    driver_name: &'static str,
    method_name: &'static str,
    grpc_status_code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    method_name: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToolLabels {
    tool: &'static str,
    /// `ok`, `failed`, `timeout` or `missing`.
    outcome: &'static str,
}

#[derive(Debug)]
pub struct Metrics {
    operations: Family<OperationLabels, Histogram>,
    in_flight: Family<MethodLabels, Gauge>,
    tools: Family<ToolLabels, Counter>,
    formatted: Counter,
}

const SECONDS: [f64; 8] = [0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0];

impl Default for Metrics {
    fn default() -> Self {
        Self {
            operations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            in_flight: Family::default(),
            tools: Family::default(),
            formatted: Counter::default(),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "csi_operations",
            "Calls of the kubelet",
            Unit::Seconds,
            self.operations.clone(),
        );
        registry.register(
            "csi_operations_in_flight",
            "Calls of the kubelet in flight",
            self.in_flight.clone(),
        );
        registry.register(
            "vsphere_csi_node_tools",
            "External tools that ended, by outcome",
            self.tools.clone(),
        );
        registry.register(
            "vsphere_csi_node_formatted_disks",
            "Disks that the node plugin formatted",
            self.formatted.clone(),
        );
    }

    pub(super) fn operation_started(&self, method_name: &'static str) {
        self.in_flight.get_or_create(&MethodLabels { method_name }).inc();
    }

    pub(super) fn operation_ended(
        &self,
        method_name: &'static str,
        seconds: f64,
        error: Option<&Status>,
    ) {
        self.in_flight.get_or_create(&MethodLabels { method_name }).dec();
        let code = error.map_or(Code::Ok, Status::code);
        let grpc_status_code = format!("{code:?}");
        let labels = OperationLabels { driver_name: DRIVER_NAME, method_name, grpc_status_code };
        self.operations.get_or_create(&labels).observe(seconds);
    }

    pub(super) fn tool_ended(&self, tool: &'static str, error: Option<&ToolError>) {
        let outcome = match error {
            None => "ok",
            Some(ToolError::Timeout { .. }) => "timeout",
            Some(ToolError::Missing { .. }) => "missing",
            Some(_) => "failed",
        };
        self.tools.get_or_create(&ToolLabels { tool, outcome }).inc();
    }

    pub(super) fn disk_formatted(&self) {
        self.formatted.inc();
    }
}
