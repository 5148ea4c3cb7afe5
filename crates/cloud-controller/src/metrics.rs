use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use runtime::metrics::{VcenterLabels, VcenterMetrics};
use vsphere::{Call, CallObserver, Outcome};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WriteLabels {
    /// `initialise`, `addresses`, `labels`, `taints`, `record`, `delete`.
    pub kind: &'static str,
}

/// Clones share the metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// From a node's creation to the removal of its taint `uninitialized`.
    pub taint_removal_delay: Histogram,
    /// From a node's creation to its first sync.
    pub initial_sync_delay: Histogram,
    /// Nodes waiting for a sync.
    pub depth: Gauge,
    /// Syncs that failed and are retried.
    pub retries: Counter,
    pub writes: Family<WriteLabels, Counter>,
    /// Nodes without a zone or region although one is configured.
    pub zones_missing: Gauge,
    /// Nodes that still exist although their VM is gone.
    pub vms_gone: Gauge,
    /// When a vCenter last answered the watch, in seconds since 1970.
    pub last_heard: Family<VcenterLabels, Gauge>,
    /// Open sessions per vCenter: one for SOAP, one for tags.
    pub sessions: Family<VcenterLabels, Gauge>,
    /// Whether the configuration on disk is the one in use.
    pub configuration_current: Gauge,
    pub vcenters: VcenterMetrics,
}

/// The long poll of the inventory watch: each answer makes the inventory current.
const WATCH_METHOD: &str = "WaitForUpdatesEx";
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
            last_heard: Family::default(),
            sessions: Family::default(),
            configuration_current: Gauge::default(),
            vcenters: VcenterMetrics::new(|| Histogram::new(LATENCIES)),
        }
    }
}

impl Metrics {
    /// Uses the names of the Kubernetes framework where they exist.
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
            "From a node's creation to its first sync",
            seconds.clone(),
            self.initial_sync_delay.clone(),
        );
        registry.register("workqueue_depth", "Nodes waiting for a sync", self.depth.clone());
        registry.register("workqueue_retries", "Failed syncs", self.retries.clone());
        let prefix = "cloudprovider_vsphere";
        self.vcenters.register(
            registry,
            "cloudprovider_vsphere_api_request_duration",
            "cloudprovider_vsphere_api_request_errors",
            prefix,
        );
        let registry = registry.sub_registry_with_prefix(prefix);
        registry.register_with_unit(
            "vcenter_last_heard",
            "When a vCenter last reported changes, or that there were none, in seconds since 1970",
            seconds,
            self.last_heard.clone(),
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
            "Nodes that still exist although their VM is gone",
            self.vms_gone.clone(),
        );
        registry.register(
            "configuration_current",
            "Whether the configuration on disk is in use",
            self.configuration_current.clone(),
        );
    }

    pub fn count_write(&self, kind: &'static str) {
        self.writes.get_or_create(&WriteLabels { kind }).inc();
    }

    pub fn count_sessions(&self, name: &str, open: usize) {
        let labels = VcenterLabels::new(name);
        self.sessions.get_or_create(&labels).set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    pub fn forget(&self, name: &str) {
        let labels = VcenterLabels::new(name);
        self.vcenters.forget(name);
        self.last_heard.remove(&labels);
        self.sessions.remove(&labels);
    }

    pub fn observer(&self, vcenter: &str) -> Arc<dyn CallObserver> {
        let labels = VcenterLabels::new(vcenter);
        Arc::new(Observer { metrics: self.clone(), labels })
    }
}

#[derive(Debug)]
struct Observer {
    metrics: Metrics,
    labels: VcenterLabels,
}

impl CallObserver for Observer {
    fn started(&self, _call: Call<'_>) {
        self.metrics.vcenters.call_started(&self.labels.vcenter);
    }

    fn finished(&self, call: Call<'_>, outcome: Outcome, latency: Duration) {
        let Self { metrics, labels } = self;
        if call.method == WATCH_METHOD && outcome == Outcome::Done {
            metrics.last_heard.get_or_create(labels).set(jiff::Timestamp::now().as_second());
        }
        let failed = matches!(outcome, Outcome::Refused | Outcome::Failed);
        metrics.vcenters.call_finished(&labels.vcenter, call.method, failed, latency);
    }
}
