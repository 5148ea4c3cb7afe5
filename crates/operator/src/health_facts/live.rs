//! The operator's health: the facts kept up to date, and the result of the checks.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    Finding, Severity,
    finding::{NAMED_OBJECTS, Subject, Theme, codes},
    vdo_config::Remediation,
};
use health::{
    Examination, FactsView, ListedObject, ObjectPage, Report,
    facts::{AccessReview, Facts, Node},
    repair,
};
use jiff::{SignedDuration, Timestamp};
use plan::facts::{self, Health, Paged, VcenterState};

use super::{
    assembly::Assembly,
    sources::{CollectorSettings, Sources},
};
use crate::{cluster::Stores, vcenters::Vcenters};

/// VDO reports missing first answers of a vCenter after this time.
const FIRST_ANSWERS: SignedDuration = SignedDuration::from_secs(60);
/// Limit of the list of all objects of all findings, in bytes.
const MOST_BYTES: usize = 700 * 1024;
/// For a finding with more objects than this, the list contains only the names.
const MOST_TEXTS: usize = 2000;

/// The facts and the findings of the checks, kept up to date.
#[derive(Debug, Default)]
pub struct Live {
    assembly: Assembly,
    /// The remediations that the spec allows.
    rules: Remediation,
    health: Health,
}

impl Live {
    /// Updates the facts, and returns the current result of the checks.
    pub fn examine(
        &mut self,
        facts: &facts::Facts,
        stores: &Stores,
        vcenters: &Vcenters,
    ) -> Health {
        let settings = &CollectorSettings::from_facts(facts);
        let sources =
            Sources { settings, stores: Some(stores), workloads: &facts.workloads, vcenters };
        let audits = sources.audits();
        let changed = self.assembly.update(&sources, &audits);
        let pending = sources.is_audit_pending();
        let rules = facts.config.spec.remediation.clone().unwrap_or_default();
        if changed || self.health.pending != pending || self.rules != rules {
            self.rules = rules;
            self.judge(facts);
        }
        self.health.pending = pending;
        self.health.audited = audits.values().map(|audit| audit.at).min();
        let asked = &settings.asked;
        let answered = !audits.is_empty() && !pending && audits.values().all(|a| a.asked == *asked);
        if answered && !asked.is_empty() {
            self.health.checked = Some(asked.clone());
        }
        self.health.due = Some(self.assembly.due);
        self.health.network = self.assembly.frame.cluster.network.clone();
        self.assembly.ask(&sources, self.health.findings.iter().any(is_asked_for));
        let mut health = self.health.clone();
        let untried = facts.vcenters.values().any(|v| v.state == VcenterState::Untried);
        if (untried || pending) && is_early(facts) {
            keep_what_was_known(&mut health.findings, facts);
        }
        health
    }

    /// Records the permissions that the operator lacks for the requested remediations.
    pub fn note_denied(&mut self, denied: Vec<AccessReview>) {
        self.assembly.denied = denied;
    }

    /// Records when VDO set `disk.EnableUUID` on which VM. The setting has no effect until the VM was powered
    /// off, and vCenter does not report that.
    pub fn remember(&mut self, repaired: BTreeMap<String, Timestamp>) {
        self.assembly.remember(repaired);
    }

    /// Converts the report into the form that `plan` and `report` need.
    fn judge(&mut self, facts: &facts::Facts) {
        let Some(examination) = &self.assembly.examination else { return };
        let report = examination.report();
        let early = is_early(facts);
        let mut findings = report.findings();
        if early {
            findings.retain(|finding| finding.code != codes::CHECK_INCOMPLETE.code);
        }
        self.health.paged = paged(&report, &findings);
        self.health.blockers = report.blockers();
        let mut vcenters = examination.facts().vcenters.values();
        self.health.tags_are_known = vcenters.all(|vcenter| {
            vcenter.inventory.get().is_some_and(|inventory| inventory.tags.get().is_some())
        });
        self.health.unplaced = unplaced(examination.view());
        self.health.repairs = repair::propose(examination, &self.rules);
        self.health.findings = findings;
        if early {
            self.assembly.due = self.assembly.due.min(facts.started + FIRST_ANSWERS);
        }
    }

    /// The current facts.
    pub fn facts(&self) -> Option<&Facts> {
        self.assembly.examination.as_ref().map(Examination::facts)
    }
}

/// Whether only another query to vCenter can close this finding.
fn is_asked_for(finding: &Finding) -> bool {
    let of_vcenter = finding.definition().is_some_and(|definition| {
        matches!(
            definition.theme,
            Theme::Vcenters | Theme::Privileges | Theme::Storage | Theme::Zones
        )
    });
    of_vcenter && finding.severity >= Severity::Error && finding.acknowledged.is_none()
}

/// The nodes whose VM is known but not its host.
fn unplaced(view: FactsView<'_>) -> BTreeSet<String> {
    if view.facts.wanted.categories().is_empty() {
        return BTreeSet::new();
    }
    let hidden = |node: &&Node| view.only_vm(node).is_some_and(|found| found.host.is_none());
    view.nodes().filter(hidden).map(|node| node.name.clone()).collect()
}

/// Whether the operator started so recently that it can still be waiting for first answers.
fn is_early(facts: &facts::Facts) -> bool {
    facts.now.duration_since(facts.started) < FIRST_ANSWERS
}

/// Keeps the findings from before a restart until the checks run again, so that VDO never clears a finding
/// without checking.
fn keep_what_was_known(findings: &mut Vec<Finding>, facts: &facts::Facts) {
    let before = facts.config.status.iter().flat_map(|status| &status.findings);
    let is_checked =
        |finding: &&Finding| finding.definition().is_some_and(|d| d.theme.is_checked());
    for finding in before.filter(is_checked) {
        if !findings.iter().any(|other| other.code == finding.code) {
            findings.push(finding.clone());
        }
    }
}

/// Lists every object, if findings name more objects than they show.
fn paged(report: &Report<'_>, shown: &[Finding]) -> Option<Paged> {
    let left_out = shown.iter().any(|finding| finding.code == codes::FINDINGS_LEFT_OUT.code);
    let all = if left_out { report.all() } else { shown.to_vec() };
    let more = |finding: &&Finding| {
        usize::try_from(finding.count).is_ok_and(|count| count > NAMED_OBJECTS)
            || left_out && !shown.contains(finding)
    };
    let codes: BTreeSet<&str> = all.iter().filter(more).map(|f| f.code.as_str()).collect();
    if codes.is_empty() {
        return None;
    }
    let all = codes.into_iter().map(|code| (code, report.objects(code)));
    let mut all: Vec<(&str, Vec<&Subject>)> = all.collect();
    // Where space is short, the observations go first and the names last. So the longest pages come last.
    all.sort_by_key(|(_, objects)| objects.len());
    let names = |objects: &[&Subject]| -> String {
        objects.iter().map(|subject| format!("{} {}\n", subject.kind, subject.name)).collect()
    };
    let mut left: usize = all.iter().map(|(_, objects)| names(objects).len()).sum();
    let mut room = MOST_BYTES;
    let mut paged = Paged::default();
    for (code, objects) in all {
        let names = names(&objects);
        left -= names.len();
        // A longer list does not fit, and tens of thousands of texts would waste memory.
        let whole =
            (objects.len() <= MOST_TEXTS).then(|| listed(&report.page(code, 0, usize::MAX)));
        let whole = whole.filter(|whole| whole.len() + left < room);
        let text = whole.unwrap_or_else(|| cut(names, room));
        room = room.saturating_sub(text.len() + code.len());
        paged.pages.insert(code.to_owned(), text);
    }
    Some(paged)
}

/// One line for each object, with its observation.
fn listed(page: &ObjectPage) -> String {
    let lines = page.entries.iter().map(|ListedObject { subject, seen }| {
        format!("{} {}: {seen}\n", subject.kind, subject.name)
    });
    lines.collect()
}

/// As many lines as fit, and the number of omitted lines.
fn cut(text: String, room: usize) -> String {
    if text.len() < room {
        return text;
    }
    let (lines, mut kept) = (text.lines().count(), String::new());
    for (number, line) in text.lines().enumerate() {
        if kept.len() + line.len() + 64 > room {
            let more = lines - number;
            kept.extend(["... and ", &more.to_string(), " more\n"]);
            break;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}
