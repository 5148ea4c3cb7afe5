//! The metrics registry of a process, and the metrics that several processes have.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use crate::build::BuildInfo;

/// All metrics of a process, in the OpenMetrics text format at `/metrics`. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// Creates a registry with the build's `info`. All names start with `prefix`, if it is not empty.
    pub fn new(prefix: &str, build: BuildInfo) -> Self {
        let mut registry = match prefix {
            "" => Registry::default(),
            prefix => Registry::with_prefix(prefix),
        };
        let labels = vec![("version", build.version), ("commit", build.commit)];
        registry.register("build", "What is running", Info::new(labels));
        Self { registry: Arc::new(Mutex::new(registry)) }
    }

    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn encode(&self) -> String {
        let mut page = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a String cannot fail; a metric that cannot be encoded is a bug worth seeing.
        if text::encode(&mut page, &registry).is_err() {
            tracing::error!("a metric could not be encoded");
        }
        page
    }
}

/// The calls of a process to its vCenters, and whether each vCenter can be used. Clones share the metrics.
#[derive(Clone, Debug)]
pub struct VcenterMetrics {
    latency: Family<CallLabels, Histogram>,
    errors: Family<CallLabels, Counter>,
    in_flight: Family<VcenterLabels, Gauge>,
    live: Family<VcenterLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    vcenter: String,
    request: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VcenterLabels {
    pub vcenter: String,
}

impl VcenterLabels {
    pub fn new(vcenter: &str) -> Self {
        Self { vcenter: vcenter.to_owned() }
    }
}

impl VcenterMetrics {
    /// `latency` creates the histogram of each request.
    pub fn new(latency: fn() -> Histogram) -> Self {
        Self {
            latency: Family::new_with_constructor(latency),
            errors: Family::default(),
            in_flight: Family::default(),
            live: Family::default(),
        }
    }

    /// `duration` and `errors` are whole names, as upstream has them. The other names start with `prefix`.
    pub fn register(&self, registry: &mut Registry, duration: &str, errors: &str, prefix: &str) {
        let seconds = Unit::Seconds;
        registry.register_with_unit(duration, "Calls to vCenter", seconds, self.latency.clone());
        registry.register(errors, "Calls to vCenter that failed", self.errors.clone());
        let registry = registry.sub_registry_with_prefix(prefix);
        registry.register("calls_in_flight", "Calls to vCenter in flight", self.in_flight.clone());
        registry.register(
            "vcenter_live",
            "Whether the inventory watch of a vCenter is live",
            self.live.clone(),
        );
    }

    pub fn call_started(&self, vcenter: &str) {
        self.in_flight.get_or_create(&VcenterLabels::new(vcenter)).inc();
    }

    pub fn call_finished(&self, vcenter: &str, request: &str, failed: bool, latency: Duration) {
        self.in_flight.get_or_create(&VcenterLabels::new(vcenter)).dec();
        let labels = CallLabels { vcenter: vcenter.to_owned(), request: request.to_owned() };
        self.latency.get_or_create(&labels).observe(latency.as_secs_f64());
        if failed {
            self.errors.get_or_create(&labels).inc();
        }
    }

    pub fn set_live(&self, vcenter: &str, live: bool) {
        self.live.get_or_create(&VcenterLabels::new(vcenter)).set(i64::from(live));
    }

    /// Forgets a vCenter that is not configured any more.
    pub fn forget(&self, vcenter: &str) {
        let labels = VcenterLabels::new(vcenter);
        self.live.remove(&labels);
        self.in_flight.remove(&labels);
    }
}
