//! Metrics of the controller. Upstream's names are used where upstream has the same figure.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio::time::Instant;
use vsphere::{Call, CallObserver, Outcome};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RpcLabels {
    optype: &'static str,
    /// `pass` or the gRPC code.
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    vcenter: String,
    request: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VcenterLabels {
    vcenter: String,
}

/// Clones share the metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    rpcs: Family<RpcLabels, Histogram>,
    pub in_flight: Gauge,
    /// Operation records written to the cluster.
    pub record_writes: Counter,
    live: Family<VcenterLabels, Gauge>,
    calls: Family<CallLabels, Histogram>,
    call_errors: Family<CallLabels, Counter>,
}

const SECONDS: [f64; 10] = [0.01, 0.05, 0.25, 1.0, 2.0, 5.0, 15.0, 60.0, 180.0, 300.0];

impl Default for Metrics {
    fn default() -> Self {
        Self {
            rpcs: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            in_flight: Gauge::default(),
            record_writes: Counter::default(),
            live: Family::default(),
            calls: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            call_errors: Family::default(),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "vsphere_csi_volume_ops_histogram",
            "CSI calls of the controller service, in seconds",
            self.rpcs.clone(),
        );
        registry.register_with_unit(
            "vsphere_request_ops",
            "Calls to vCenter",
            Unit::Seconds,
            self.calls.clone(),
        );
        registry.register(
            "vsphere_request_errors",
            "Calls to vCenter that failed",
            self.call_errors.clone(),
        );
        let registry = registry.sub_registry_with_prefix("vsphere_csi");
        registry.register("operations_in_flight", "CSI calls in progress", self.in_flight.clone());
        registry.register(
            "operation_record_writes",
            "Writes of operation records",
            self.record_writes.clone(),
        );
        registry.register(
            "vcenter_live",
            "Whether the inventory watch of a vCenter is live",
            self.live.clone(),
        );
    }

    pub fn set_live(&self, vcenter: &str, live: bool) {
        let labels = VcenterLabels { vcenter: vcenter.to_owned() };
        self.live.get_or_create(&labels).set(i64::from(live));
    }

    pub fn forget(&self, vcenter: &str) {
        self.live.remove(&VcenterLabels { vcenter: vcenter.to_owned() });
    }

    /// Counts a CSI call from its begin to its end.
    pub fn rpc(&self, optype: &'static str) -> RpcTimer {
        self.in_flight.inc();
        RpcTimer { metrics: self.clone(), optype, since: Instant::now(), status: "cancelled" }
    }

    pub fn observer(&self) -> Arc<dyn CallObserver> {
        Arc::new(Observer(self.clone()))
    }
}

/// Reports a CSI call when it is dropped.
#[derive(Debug)]
pub struct RpcTimer {
    metrics: Metrics,
    optype: &'static str,
    since: Instant,
    status: &'static str,
}

impl RpcTimer {
    pub fn finish<T>(mut self, result: &Result<T, tonic::Status>) {
        self.status = match result {
            Ok(_) => "pass",
            Err(status) => code_name(status.code()),
        };
    }
}

impl Drop for RpcTimer {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        let labels = RpcLabels { optype: self.optype, status: self.status };
        self.metrics.rpcs.get_or_create(&labels).observe(self.since.elapsed().as_secs_f64());
    }
}

fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "pass",
        Code::Cancelled => "Canceled",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Unavailable => "Unavailable",
        Code::Unauthenticated => "Unauthenticated",
        Code::Internal | Code::Unknown | Code::DataLoss => "Internal",
    }
}

#[derive(Debug)]
struct Observer(Metrics);

impl CallObserver for Observer {
    fn started(&self, _: Call<'_>) {}

    fn finished(&self, call: Call<'_>, outcome: Outcome, latency: Duration) {
        let labels =
            CallLabels { vcenter: call.vcenter.to_owned(), request: call.method.to_owned() };
        self.0.calls.get_or_create(&labels).observe(latency.as_secs_f64());
        if matches!(outcome, Outcome::Refused | Outcome::Failed) {
            self.0.call_errors.get_or_create(&labels).inc();
        }
    }
}
