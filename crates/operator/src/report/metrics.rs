//! The Prometheus metrics of the operator.

use std::{sync::atomic::AtomicU64, time::Duration};

use api::Finding;
use plan::{
    Plan, driver_is_healthy,
    facts::{Facts, VcenterState},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use runtime::metrics::Metrics;
use vsphere::{Call, CallObserver, Outcome};

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
struct StepLabel {
    driver: String,
    step: String,
    state: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabel {
    vcenter: String,
    method: String,
    outcome: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FindingLabel {
    code: String,
    severity: String,
    /// `open`, `acknowledged`, or `consequence` of another finding.
    state: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VcenterLabel {
    vcenter: String,
}

#[derive(Clone, Debug, Default)]
pub struct OperatorMetrics {
    rounds: Counter,
    seconds: Counter<f64, AtomicU64>,
    ready: Family<DriverLabel, Gauge>,
    installed: Family<VersionLabel, Gauge>,
    wanted: Family<VersionLabel, Gauge>,
    steps: Family<StepLabel, Gauge>,
    calls: Family<CallLabel, Counter>,
    findings: Family<FindingLabel, Gauge>,
    reachable: Family<VcenterLabel, Gauge>,
    nodes: Gauge,
}

impl OperatorMetrics {
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
            registry.register("driver_target", "The version that is wanted", self.wanted.clone());
            registry.register("step", "The steps of the plan, by state", self.steps.clone());
            registry.register("vcenter_calls", "Calls to vCenter", self.calls.clone());
            registry.register("findings", "Objects a finding is about", self.findings.clone());
            registry.register(
                "vcenter_verified",
                "Whether a vCenter is verified",
                self.reachable.clone(),
            );
            registry.register("nodes", "Nodes of the cluster", self.nodes.clone());
        });
    }

    /// Counts a round and its duration.
    pub fn round(&self, seconds: f64) {
        self.rounds.inc();
        self.seconds.inc_by(seconds);
    }

    /// Shows the current state and removes metrics that no longer apply.
    pub(super) fn show(&self, facts: &Facts, plan: &Plan) {
        self.clear();
        for plan in &plan.drivers {
            let driver = plan.driver.to_string();
            let healthy = driver_is_healthy(facts, plan);
            let label = DriverLabel { driver: driver.clone() };
            self.ready.get_or_create(&label).set(i64::from(healthy));
            let versions =
                [(&self.installed, &plan.installed), (&self.wanted, &plan.target)].into_iter();
            for (family, version) in versions {
                let Some(version) = version.clone() else { continue };
                family.get_or_create(&VersionLabel { driver: driver.clone(), version }).set(1);
            }
            for step in &plan.steps {
                let (driver, step, state) =
                    (driver.clone(), step.title.clone(), format!("{:?}", step.state));
                self.steps.get_or_create(&StepLabel { driver, step, state }).set(1);
            }
        }
        self.show_findings(&plan.findings);
        for (name, vcenter) in &facts.vcenters {
            let verified = matches!(vcenter.state, VcenterState::Verified { .. });
            let label = VcenterLabel { vcenter: name.clone() };
            self.reachable.get_or_create(&label).set(i64::from(verified));
        }
        self.nodes.set(i64::try_from(facts.cluster.nodes.len()).unwrap_or(i64::MAX));
    }

    /// Shows only these findings, because there is no plan.
    pub fn show_only(&self, findings: &[Finding]) {
        self.clear();
        self.show_findings(findings);
    }

    fn show_findings(&self, findings: &[Finding]) {
        for finding in findings {
            let severity = format!("{:?}", finding.severity);
            let state = match (&finding.acknowledged, &finding.consequence_of) {
                (Some(_), _) => "acknowledged",
                (None, Some(_)) => "consequence",
                (None, None) => "open",
            };
            let label =
                FindingLabel { code: finding.code.clone(), severity, state: state.to_owned() };
            self.findings.get_or_create(&label).inc_by(finding.count.max(1).into());
        }
    }

    /// Removes the metrics: VDO follows no VDOConfig, or is about to set them again.
    pub fn clear(&self) {
        self.ready.clear();
        self.installed.clear();
        self.wanted.clear();
        self.steps.clear();
        self.findings.clear();
        self.reachable.clear();
    }
}

impl CallObserver for OperatorMetrics {
    fn started(&self, _: Call<'_>) {}

    fn finished(&self, call: Call<'_>, outcome: Outcome, _: Duration) {
        let label = CallLabel {
            vcenter: call.vcenter.to_owned(),
            method: call.method.to_owned(),
            outcome: format!("{outcome:?}"),
        };
        self.calls.get_or_create(&label).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_ask_for_metrics_and_labels_there_are() {
        let own = OperatorMetrics::default();
        let metrics = Metrics::new("vdo", runtime::build::BuildInfo::new("vdo"));
        own.register(&metrics);
        own.ready.get_or_create(&DriverLabel { driver: "CSI".into() }).set(1);
        own.reachable.get_or_create(&VcenterLabel { vcenter: "vc".into() }).set(1);
        let open = FindingLabel {
            code: "VDO-1203".into(),
            severity: "Error".into(),
            state: "open".into(),
        };
        own.findings.get_or_create(&open).set(1);
        let text = metrics.encode();
        for expression in crate::alerts::expressions() {
            let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let mut asked = words.filter(|word| word.starts_with("vdo_")).peekable();
            assert!(asked.peek().is_some(), "{expression}");
            assert!(asked.all(|name| text.contains(name)), "{expression}\n{text}");
        }
        let labels = ["code=\"", "severity=\"", "state=\"open\"", "driver=\"", "vcenter=\""];
        assert!(labels.iter().all(|label| text.contains(label)), "{text}");
    }
}
