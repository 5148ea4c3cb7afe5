//! The result of a test, for people and for programs.

use std::time::Duration;

use serde::Serialize;

use super::targets::Target;
use crate::text::{BAD, CARE, DIM, GOOD, STRONG, columns, paint, wrap};

/// The steps of a test, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Step {
    Create,
    Attach,
    Mount,
    Write,
    Detach,
    Move,
    Read,
    Delete,
}

impl Step {
    /// All steps before the deletion, which always takes place.
    pub(super) const BEFORE_DELETE: [Self; 7] = [
        Self::Create,
        Self::Attach,
        Self::Mount,
        Self::Write,
        Self::Detach,
        Self::Move,
        Self::Read,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Attach => "attach",
            Self::Mount => "mount",
            Self::Write => "write",
            Self::Detach => "detach",
            Self::Move => "move",
            Self::Read => "read",
            Self::Delete => "delete",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepResult {
    Passed {
        detail: String,
    },
    /// The reasons, most telling first.
    Failed {
        reasons: Vec<String>,
    },
    /// An earlier step failed, or the user interrupted the test.
    Skipped {
        why: &'static str,
    },
}

#[derive(Clone, Debug)]
pub(super) struct StepReport {
    pub(super) step: Step,
    pub(super) took: Duration,
    pub(super) result: StepResult,
}

/// A finding of the operator about an object of the test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RelatedFinding {
    pub(super) code: String,
    /// The observation with names and values, or else the title.
    pub(super) text: String,
}

/// The test of one volume.
#[derive(Clone, Debug)]
pub(super) struct TestReport {
    pub(super) class: String,
    pub(super) zone: Option<String>,
    pub(super) nodes: Vec<String>,
    pub(super) steps: Vec<StepReport>,
    pub(super) findings: Vec<RelatedFinding>,
}

impl TestReport {
    pub(super) fn for_target(target: &Target) -> Self {
        Self {
            class: target.class.metadata.name.clone().unwrap_or_default(),
            zone: target.zone.name(),
            nodes: target.nodes(),
            steps: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// A class for which no volume can be tested.
    pub(super) fn untested(class: String, why: String) -> Self {
        let result = StepResult::Failed { reasons: vec![why] };
        let step = StepReport { step: Step::Create, took: Duration::ZERO, result };
        Self { class, zone: None, nodes: Vec::new(), steps: vec![step], findings: Vec::new() }
    }

    pub(super) fn passed(&self) -> bool {
        let passed = |step: &StepReport| matches!(step.result, StepResult::Passed { .. });
        self.steps.iter().all(passed)
    }

    pub(super) fn failed(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.result, StepResult::Failed { .. }))
    }

    pub(super) fn render(&self, width: usize) -> String {
        let (word, style) = match (self.passed(), self.failed()) {
            (true, _) => ("● Passed", GOOD),
            (_, true) => ("▲ Failed", BAD),
            _ => ("○ Interrupted", CARE),
        };
        let mut parts = vec![paint(STRONG, &self.class)];
        parts.extend(self.zone.clone());
        parts.push(self.nodes.join(" → "));
        parts.retain(|part| !part.is_empty());
        let mut text = wrap(&format!("{}  ", paint(style, word)), &parts.join(" · "), width);
        text.push('\n');
        for step in &self.steps {
            text.push_str(&step.render(width));
        }
        for RelatedFinding { code, text: about } in &self.findings {
            text.push_str(&wrap("    ", &format!("{code}: {about}. vdoctl explain {code}"), width));
        }
        text
    }
}

impl StepReport {
    /// `✔ attach    1.2 s  worker-1`
    fn render(&self, width: usize) -> String {
        let (mark, detail, reasons) = match &self.result {
            StepResult::Passed { detail } => (paint(GOOD, "✔"), detail.as_str(), &[][..]),
            StepResult::Failed { reasons } => (paint(BAD, "✖"), "", reasons.as_slice()),
            StepResult::Skipped { why } => (paint(DIM, "·"), *why, &[][..]),
        };
        let took = match self.result {
            StepResult::Skipped { .. } => String::new(),
            _ => format!("{:.1} s", self.took.as_secs_f64()),
        };
        let begin = format!("  {mark} {:<8}{took:>8}  ", self.step.name());
        let mut text = wrap(&begin, detail, width);
        let blanks = " ".repeat(columns("  x "));
        for reason in reasons {
            text.push_str(&wrap(&blanks, reason, width));
        }
        text
    }
}

/// For programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StepView<'a> {
    step: Step,
    state: &'static str,
    seconds: f64,
    #[serde(skip_serializing_if = "str::is_empty")]
    detail: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    reasons: &'a [String],
}

impl<'a> From<&'a StepReport> for StepView<'a> {
    fn from(report: &'a StepReport) -> Self {
        let (state, detail, reasons) = match &report.result {
            StepResult::Passed { detail } => ("Passed", detail.as_str(), &[][..]),
            StepResult::Failed { reasons } => ("Failed", "", reasons.as_slice()),
            StepResult::Skipped { why } => ("Skipped", *why, &[][..]),
        };
        let seconds = (report.took.as_secs_f64() * 1000.0).round() / 1000.0;
        Self { step: report.step, state, seconds, detail, reasons }
    }
}

impl Serialize for TestReport {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct View<'a> {
            storage_class: &'a str,
            zone: Option<&'a str>,
            nodes: &'a [String],
            passed: bool,
            steps: Vec<StepView<'a>>,
            findings: &'a [RelatedFinding],
        }
        let view = View {
            storage_class: &self.class,
            zone: self.zone.as_deref(),
            nodes: &self.nodes,
            passed: self.passed(),
            steps: self.steps.iter().map(StepView::from).collect(),
            findings: &self.findings,
        };
        view.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: Step, millis: u64, result: StepResult) -> StepReport {
        StepReport { step, took: Duration::from_millis(millis), result }
    }

    fn passed(detail: &str) -> StepResult {
        StepResult::Passed { detail: detail.into() }
    }

    fn report(steps: Vec<StepReport>) -> TestReport {
        let nodes = vec!["worker-1".into(), "worker-2".into()];
        let zone = Some("zone-a".into());
        TestReport { class: "gold".into(), zone, nodes, steps, findings: Vec::new() }
    }

    fn shown(report: &TestReport) -> String {
        anstream::adapter::strip_str(&report.render(80)).to_string()
    }

    #[test]
    fn every_step_has_its_time() {
        let report = report(vec![
            step(Step::Create, 2140, passed("PersistentVolume pvc-1")),
            step(Step::Attach, 61_000, passed("worker-1")),
        ]);
        assert!(report.passed() && !report.failed());
        assert_eq!(
            shown(&report),
            "● Passed  gold · zone-a · worker-1 → worker-2\n\n  ✔ create     2.1 s  PersistentVolume pvc-1\n  ✔ attach    \
             61.0 s  worker-1\n"
        );
    }

    #[test]
    fn a_failed_step_shows_its_reasons_and_the_findings() {
        let reasons = vec!["ProvisioningFailed: there is no storage policy Gold".to_owned()];
        let mut report = report(vec![
            step(Step::Create, 120_000, StepResult::Failed { reasons }),
            step(Step::Attach, 0, StepResult::Skipped { why: "not run" }),
            step(Step::Delete, 300, passed("")),
        ]);
        report.findings = vec![RelatedFinding { code: "VDO-1501".into(), text: "A policy".into() }];
        assert!(report.failed() && !report.passed());
        assert_eq!(
            shown(&report),
            "▲ Failed  gold · zone-a · worker-1 → worker-2\n\n  ✖ create   120.0 s\n    ProvisioningFailed: there is no \
             storage policy Gold\n  · attach            not run\n  ✔ delete     0.3 s\n    VDO-1501: A policy. vdoctl \
             explain VDO-1501\n"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["storageClass"], &json["passed"]), (&"gold".into(), &false.into()));
        assert_eq!(json["steps"][0]["state"], "Failed");
        assert_eq!(json["steps"][0]["seconds"], 120.0);
        assert_eq!(json["steps"][1]["state"], "Skipped");
    }

    #[test]
    fn an_interrupted_test_did_neither_pass_nor_fail() {
        let skipped = StepResult::Skipped { why: "interrupted" };
        let report =
            report(vec![step(Step::Create, 10, skipped), step(Step::Delete, 1, passed(""))]);
        assert!(!report.passed() && !report.failed());
        assert!(shown(&report).starts_with("○ Interrupted  gold"), "{}", shown(&report));
    }
}
