//! What can be measured.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use vsphere::{Call, CallObserver, Outcome};

/// By vCenter and method.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    vcenter: String,
    request: String,
}

/// By vCenter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VcenterLabels {
    /// The vCenter.
    pub vcenter: String,
}

/// By what was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WriteLabels {
    /// `initialise`, `addresses`, `labels`, `taints`, `record`, `delete`.
    pub kind: &'static str,
}

/// All of them. Clones are one.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// From a node's creation to the removal of its taint.
    pub taint_removal_delay: Histogram,
    /// From a node's creation to the first look at it.
    pub initial_sync_delay: Histogram,
    /// Nodes that wait to be looked at.
    pub depth: Gauge,
    /// Looks at nodes that failed and are tried again.
    pub retries: Counter,
    /// Writes to nodes.
    pub writes: Family<WriteLabels, Counter>,
    /// Nodes without a tag they should have.
    pub zones_missing: Gauge,
    /// Nodes whose machine is gone and that still stand.
    pub vms_gone: Gauge,
    /// Whether a vCenter is followed.
    pub live: Family<VcenterLabels, Gauge>,
    /// When a vCenter was last heard of, in seconds since 1970.
    pub heard: Family<VcenterLabels, Gauge>,
    /// Sessions that are open in a vCenter: one for SOAP, one for tags.
    pub sessions: Family<VcenterLabels, Gauge>,
    /// Whether the configuration on disk is the one in use.
    pub configuration_current: Gauge,
    latency: Family<CallLabels, Histogram>,
    errors: Family<CallLabels, Counter>,
    in_flight: Family<VcenterLabels, Gauge>,
}

/// The call that is open while an inventory is followed: each answer makes the view as vCenter is.
const FOLLOWING: &str = "WaitForUpdatesEx";
const DELAYS: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];
const LATENCIES: [f64; 8] = [0.005, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0, 60.0];

impl Default for Metrics {
    fn default() -> Self {
        Self {
            taint_removal_delay: Histogram::new(DELAYS),
            initial_sync_delay: Histogram::new(DELAYS),
            depth: Gauge::default(),
            retries: Counter::default(),
            writes: Family::default(),
            zones_missing: Gauge::default(),
            vms_gone: Gauge::default(),
            live: Family::default(),
            heard: Family::default(),
            sessions: Family::default(),
            configuration_current: Gauge::default(),
            latency: Family::new_with_constructor(|| Histogram::new(LATENCIES)),
            errors: Family::default(),
            in_flight: Family::default(),
        }
    }
}

impl Metrics {
    /// Registers them: under the names the Kubernetes framework uses where it has one.
    pub fn register(&self, registry: &mut Registry) {
        let seconds = Unit::Seconds;
        registry.register_with_unit(
            "node_controller_cloud_provider_taint_removal_delay",
            "From a node's creation to the removal of its uninitialized taint",
            seconds.clone(),
            self.taint_removal_delay.clone(),
        );
        registry.register_with_unit(
            "node_controller_initial_node_sync_delay",
            "From a node's creation to the first look at it",
            seconds.clone(),
            self.initial_sync_delay.clone(),
        );
        registry.register("workqueue_depth", "Nodes that wait to be looked at", self.depth.clone());
        registry.register("workqueue_retries", "Looks that failed", self.retries.clone());
        registry.register_with_unit(
            "cloudprovider_vsphere_api_request_duration",
            "Calls to vCenter",
            seconds.clone(),
            self.latency.clone(),
        );
        registry.register(
            "cloudprovider_vsphere_api_request_errors",
            "Calls to vCenter that failed",
            self.errors.clone(),
        );
        let registry = registry.sub_registry_with_prefix("cloudprovider_vsphere");
        registry.register("calls_in_flight", "Calls to vCenter under way", self.in_flight.clone());
        registry.register("vcenter_live", "Whether a vCenter is followed", self.live.clone());
        registry.register_with_unit(
            "vcenter_last_heard",
            "When a vCenter last told what changed, or that nothing did, in seconds since 1970",
            seconds,
            self.heard.clone(),
        );
        registry.register("sessions", "Sessions open in a vCenter", self.sessions.clone());
        registry.register("node_writes", "Writes to nodes", self.writes.clone());
        registry.register(
            "zones_missing",
            "Nodes without a zone or region",
            self.zones_missing.clone(),
        );
        registry.register(
            "machines_gone",
            "Nodes that stand although their machine is gone",
            self.vms_gone.clone(),
        );
        registry.register(
            "configuration_current",
            "Whether the configuration on disk is in use",
            self.configuration_current.clone(),
        );
    }

    /// Counts a write.
    pub fn wrote(&self, kind: &'static str) {
        self.writes.get_or_create(&WriteLabels { kind }).inc();
    }

    /// Notes how a vCenter is.
    pub fn vcenter(&self, name: &str, live: bool) {
        let labels = VcenterLabels { vcenter: name.to_owned() };
        self.live.get_or_create(&labels).set(i64::from(live));
    }

    /// Notes how many sessions are open in a vCenter.
    pub fn count_sessions(&self, name: &str, open: usize) {
        let labels = VcenterLabels { vcenter: name.to_owned() };
        self.sessions.get_or_create(&labels).set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    /// Forgets a vCenter that is not configured any more.
    pub fn forget(&self, name: &str) {
        let labels = VcenterLabels { vcenter: name.to_owned() };
        self.live.remove(&labels);
        self.heard.remove(&labels);
        self.sessions.remove(&labels);
        self.in_flight.remove(&labels);
    }

    /// The one who is told of every call to the vCenter of this name.
    pub fn observer(&self, vcenter: &str) -> Arc<dyn CallObserver> {
        let labels = VcenterLabels { vcenter: vcenter.to_owned() };
        Arc::new(Observer { metrics: self.clone(), labels })
    }
}

/// Counts the calls to one vCenter, under the name it has in the configuration.
#[derive(Debug)]
struct Observer {
    metrics: Metrics,
    labels: VcenterLabels,
}

impl CallObserver for Observer {
    fn started(&self, _call: Call<'_>) {
        self.metrics.in_flight.get_or_create(&self.labels).inc();
    }

    fn finished(&self, call: Call<'_>, outcome: Outcome, latency: Duration) {
        let Self { metrics, labels } = self;
        metrics.in_flight.get_or_create(labels).dec();
        if call.method == FOLLOWING && outcome == Outcome::Done {
            metrics.heard.get_or_create(labels).set(jiff::Timestamp::now().as_second());
        }
        let labels =
            CallLabels { vcenter: labels.vcenter.clone(), request: call.method.to_owned() };
        metrics.latency.get_or_create(&labels).observe(latency.as_secs_f64());
        if matches!(outcome, Outcome::Refused | Outcome::Failed) {
            metrics.errors.get_or_create(&labels).inc();
        }
    }
}
