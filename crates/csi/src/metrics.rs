//! Metrics of the controller. Upstream's names are used where upstream has the same figure.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use runtime::metrics::VcenterMetrics;
use tokio::time::Instant;
use vsphere::{Call, CallObserver, Outcome};

/// Upstream's labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    voltype: &'static str,
    optype: &'static str,
    /// `pass` or `fail`.
    status: &'static str,
    /// The gRPC code of a failure.
    faulttype: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabels {
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: &'static str,
}

/// Clones share the metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    rpcs: Family<OperationLabels, Histogram>,
    tasks: Family<OperationLabels, Histogram>,
    pub in_flight: Gauge,
    /// Operation records written to the cluster.
    pub record_writes: Counter,
    /// Volumes that wait to be attached or detached, or are at it.
    pub attach_queue: Gauge,
    pub vcenters: VcenterMetrics,
    pub loops: LoopMetrics,
}

/// The metrics of the loops. Clones share them. The names of the queues are those of Kubernetes' work queues.
#[derive(Clone, Debug)]
pub struct LoopMetrics {
    depth: Family<QueueLabels, Gauge>,
    retries: Family<QueueLabels, Counter>,
    full_syncs: Family<StatusLabels, Histogram>,
    /// Volumes whose metadata was changed in CNS.
    pub metadata_updates: Counter,
    /// Volumes of deleted claims that got their PersistentVolume.
    pub orphans: Counter,
}

const SECONDS: [f64; 10] = [0.01, 0.05, 0.25, 1.0, 2.0, 5.0, 15.0, 60.0, 180.0, 300.0];

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            rpcs: Family::new_with_constructor(histogram),
            tasks: Family::new_with_constructor(histogram),
            in_flight: Gauge::default(),
            record_writes: Counter::default(),
            attach_queue: Gauge::default(),
            vcenters: VcenterMetrics::new(histogram),
            loops: LoopMetrics::default(),
        }
    }
}

impl Default for LoopMetrics {
    fn default() -> Self {
        Self {
            depth: Family::default(),
            retries: Family::default(),
            full_syncs: Family::new_with_constructor(histogram),
            metadata_updates: Counter::default(),
            orphans: Counter::default(),
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
        registry.register(
            "vsphere_cns_volume_ops_histogram",
            "CNS tasks until their result, in seconds",
            self.tasks.clone(),
        );
        let (duration, errors) = ("vsphere_request_ops", "vsphere_request_errors");
        self.vcenters.register(registry, duration, errors, "vsphere_csi");
        self.loops.register(registry);
        let registry = registry.sub_registry_with_prefix("vsphere_csi");
        registry.register("operations_in_flight", "CSI calls in progress", self.in_flight.clone());
        registry.register(
            "attach_queue_depth",
            "Volumes that wait for CNS to attach or detach them",
            self.attach_queue.clone(),
        );
        registry.register(
            "operation_record_writes",
            "Writes of operation records",
            self.record_writes.clone(),
        );
    }

    /// Counts a CSI call from its begin to its end.
    pub fn rpc(&self, optype: &'static str) -> RpcTimer {
        self.in_flight.inc();
        RpcTimer { metrics: self.clone(), optype, since: Instant::now(), code: Some("Canceled") }
    }

    /// Counts a request to attach or detach until the result is dropped.
    pub fn waiting_for_attach(&self) -> impl Drop + use<> {
        self.attach_queue.inc();
        Waiting(self.attach_queue.clone())
    }

    /// Records the time from a call to CNS to the result of its task.
    pub fn task_ended(&self, optype: &'static str, since: Instant, failed: bool) {
        let faulttype = if failed { "CnsFault" } else { "" };
        let labels = operation(optype, failed.then_some(faulttype));
        self.tasks.get_or_create(&labels).observe(since.elapsed().as_secs_f64());
    }

    pub fn observer(&self) -> Arc<dyn CallObserver> {
        Arc::new(Observer(self.vcenters.clone()))
    }
}

impl LoopMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("workqueue_depth", "Objects waiting for a loop", self.depth.clone());
        registry.register("workqueue_retries", "Failed attempts of a loop", self.retries.clone());
        registry.register(
            "vsphere_full_sync_ops_histogram",
            "Full syncs of the metadata in CNS, in seconds",
            self.full_syncs.clone(),
        );
        let registry = registry.sub_registry_with_prefix("vsphere_csi");
        registry.register(
            "metadata_updates",
            "Volumes whose metadata the driver changed in CNS",
            self.metadata_updates.clone(),
        );
        registry.register(
            "orphaned_volumes",
            "Volumes of deleted claims that got their PersistentVolume",
            self.orphans.clone(),
        );
    }

    pub fn depth(&self, name: &'static str) -> Gauge {
        self.depth.get_or_create_owned(&QueueLabels { name })
    }

    pub fn retries(&self, name: &'static str) -> Counter {
        self.retries.get_or_create_owned(&QueueLabels { name })
    }

    pub fn full_sync_ended(&self, since: Instant, failed: bool) {
        let labels = StatusLabels { status: if failed { "fail" } else { "pass" } };
        self.full_syncs.get_or_create(&labels).observe(since.elapsed().as_secs_f64());
    }
}

fn operation(optype: &'static str, fault: Option<&'static str>) -> OperationLabels {
    OperationLabels {
        voltype: "block",
        optype,
        status: if fault.is_some() { "fail" } else { "pass" },
        faulttype: fault.unwrap_or_default(),
    }
}

struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Reports a CSI call when it is dropped.
#[derive(Debug)]
pub struct RpcTimer {
    metrics: Metrics,
    optype: &'static str,
    since: Instant,
    code: Option<&'static str>,
}

impl RpcTimer {
    pub fn finish<T>(mut self, result: &Result<T, tonic::Status>) {
        self.code = result.as_ref().err().map(|status| code_name(status.code()));
    }
}

impl Drop for RpcTimer {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        let labels = operation(self.optype, self.code);
        self.metrics.rpcs.get_or_create(&labels).observe(self.since.elapsed().as_secs_f64());
    }
}

fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "",
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
struct Observer(VcenterMetrics);

impl CallObserver for Observer {
    fn started(&self, call: Call<'_>) {
        self.0.call_started(call.vcenter);
    }

    fn finished(&self, call: Call<'_>, outcome: Outcome, latency: Duration) {
        let failed = matches!(outcome, Outcome::Refused | Outcome::Failed);
        self.0.call_finished(call.vcenter, call.method, failed, latency);
    }
}
