//! The metrics registry of a process.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::{encoding::text, metrics::info::Info, registry::Registry};

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
