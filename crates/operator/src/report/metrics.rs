//! What a scraper sees.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use runtime::metrics::Metrics;

use crate::{
    facts::{Facts, VcenterState},
    plan::{Next, Plan},
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DriverLabel {
    driver: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VersionLabel {
    driver: String,
    version: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FindingLabel {
    code: String,
    severity: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VcenterLabel {
    vcenter: String,
}

/// The operator's own metrics.
#[derive(Clone, Debug, Default)]
pub struct OperatorMetrics {
    rounds: Counter,
    seconds: Counter<f64, AtomicU64>,
    ready: Family<DriverLabel, Gauge>,
    installed: Family<VersionLabel, Gauge>,
    findings: Family<FindingLabel, Gauge>,
    reachable: Family<VcenterLabel, Gauge>,
    nodes: Gauge,
}

impl OperatorMetrics {
    /// Registers them.
    pub fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            registry.register(
                "rounds",
                "Rounds of observe, decide, act and report",
                self.rounds.clone(),
            );
            registry.register("round_seconds", "Time spent in rounds", self.seconds.clone());
            registry.register(
                "driver_ready",
                "Whether a driver is as it should be",
                self.ready.clone(),
            );
            registry.register("driver_version", "The version that runs", self.installed.clone());
            registry.register("findings", "Objects a finding is about", self.findings.clone());
            registry.register(
                "vcenter_verified",
                "Whether a vCenter is verified",
                self.reachable.clone(),
            );
            registry.register("nodes", "Nodes of the cluster", self.nodes.clone());
        });
    }

    /// Counts a round.
    pub fn round(&self, seconds: f64) {
        self.rounds.inc();
        self.seconds.inc_by(seconds);
    }

    /// Shows what is; what is no more disappears.
    pub(super) fn show(&self, facts: &Facts, plan: &Plan) {
        self.ready.clear();
        self.installed.clear();
        for driver in &plan.drivers {
            let label = DriverLabel { driver: driver.driver.to_string() };
            self.ready.get_or_create(&label).set(i64::from(driver.next == Next::Nothing));
            if let Some(version) = &driver.installed {
                let label =
                    VersionLabel { driver: driver.driver.to_string(), version: version.clone() };
                self.installed.get_or_create(&label).set(1);
            }
        }
        self.findings.clear();
        for finding in &plan.findings {
            let severity = format!("{:?}", finding.severity);
            let label = FindingLabel { code: finding.code.clone(), severity };
            self.findings.get_or_create(&label).inc_by(finding.count.max(1).into());
        }
        self.reachable.clear();
        for (name, vcenter) in &facts.vcenters {
            let verified = matches!(vcenter.state, VcenterState::Verified { .. });
            let label = VcenterLabel { vcenter: name.clone() };
            self.reachable.get_or_create(&label).set(i64::from(verified));
        }
        self.nodes.set(i64::try_from(facts.cluster.nodes.len()).unwrap_or(i64::MAX));
    }
}
