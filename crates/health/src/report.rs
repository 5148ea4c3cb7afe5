//! Groups hits into findings: causes before consequences, worst first, limited in size. Pages give access to
//! every object.

use std::collections::HashMap;

use api::{
    Finding, Severity,
    finding::{self, Acknowledgement, NAMED_OBJECTS, Subject, codes},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    causes,
    check::{Anchor, Hit},
    facts::{Acknowledged, Facts},
    privileges,
};

/// The maximum number of findings in a status.
pub const MAX_FINDINGS: usize = 100;

/// The maximum size of the findings in a status, in bytes of JSON. The rest of the status fits into the
/// remainder of 256 KiB.
pub const MAX_BYTES: usize = 192 * 1024;

/// How many objects the sentences of a finding describe.
const SPELLED_OUT: usize = 3;

/// The maximum number of steps, which the schema of the status sets.
const MAX_STEPS: usize = 16;

/// The maximum length of a sentence in bytes.
const MAX_TEXT: usize = 1024;

#[derive(Debug)]
pub struct Report<'a> {
    groups: Vec<FindingGroup<'a>>,
}

/// The hits of one finding.
#[derive(Debug)]
struct FindingGroup<'a> {
    hits: Vec<&'a Hit>,
    severity: Severity,
    cause: Option<&'static str>,
    acknowledged: Option<&'a Acknowledged>,
    /// Whether VDO can fix at least one of the objects.
    fixable: bool,
}

/// One object of a finding.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedObject {
    pub subject: Subject,
    pub seen: String,
}

/// Some of the objects of a finding.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectPage {
    pub entries: Vec<ListedObject>,
    /// The number of objects on all pages.
    pub total: usize,
}

impl<'a> Report<'a> {
    pub(crate) fn new(hits: impl Iterator<Item = &'a Hit>, facts: &'a Facts) -> Self {
        let hits: Vec<&Hit> = hits.collect();
        let causes = causes::root_causes(&hits, facts.vcenters.len());
        let mut groups: HashMap<_, FindingGroup<'a>> = HashMap::new();
        for (hit, cause) in hits.into_iter().zip(causes) {
            let severity = hit.severity.unwrap_or(hit.definition.severity);
            let acknowledged = acknowledgement(hit, facts);
            let acknowledged_key = acknowledged.map(std::ptr::from_ref::<Acknowledged>);
            let key = (hit.definition.code, severity, cause, &hit.shared, acknowledged_key);
            let group = groups.entry(key);
            let hits = Vec::new();
            let group = group.or_insert_with(|| {
                let fixable = false;
                FindingGroup { hits, severity, cause, acknowledged, fixable }
            });
            group.fixable |= hit.definition.fixable && !is_denied(hit, facts);
            group.hits.push(hit);
        }
        let mut groups: Vec<FindingGroup<'a>> = groups.into_values().collect();
        for group in &mut groups {
            group.hits.sort_by(|a, b| (a.brief, &a.subject).cmp(&(b.brief, &b.subject)));
            group.hits.dedup_by(|a, b| a.subject == b.subject && a.own == b.own);
        }
        groups.sort_by(|a, b| a.order().cmp(&b.order()));
        Self { groups }
    }

    /// All findings, worst first, consequences after their causes.
    pub fn all(&self) -> Vec<Finding> {
        self.groups.iter().map(FindingGroup::finding).collect()
    }

    /// The findings a status can carry.
    ///
    /// At most [`MAX_FINDINGS`] in at most [`MAX_BYTES`]. If some do not fit, the last finding reports that
    /// and how to list them. Consequences are omitted before causes, and less severe findings first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut kept = Vec::new();
        let mut bytes = 0;
        for group in &self.groups {
            let finding = group.finding();
            bytes += serde_json::to_string(&finding).map_or(MAX_BYTES, |json| json.len() + 1);
            if kept.len() + 1 >= MAX_FINDINGS || bytes > MAX_BYTES {
                let left_out = self.groups.len() - kept.len();
                kept.push(
                    codes::FINDINGS_LEFT_OUT.found().with("count", left_out.to_string()).build(),
                );
                break;
            }
            kept.push(finding);
        }
        kept
    }

    /// All findings of severity `Blocker` that nobody has acknowledged, including consequences. They block
    /// installations and upgrades.
    pub fn blockers(&self) -> Vec<Finding> {
        let open = self.groups.iter().filter(|group| group.acknowledged.is_none());
        open.filter(|g| g.severity == Severity::Blocker).map(FindingGroup::finding).collect()
    }

    /// The worst severity among findings that nobody has acknowledged.
    pub fn worst(&self) -> Option<Severity> {
        let open = self.groups.iter().filter(|group| group.acknowledged.is_none());
        open.map(|group| group.severity).max()
    }

    /// The objects of all findings with a code, in a stable order.
    pub fn objects(&self, code: &str) -> Vec<&'a Subject> {
        let groups = self.groups.iter().filter(|g| g.hits[0].definition.code == code);
        groups.flat_map(|group| group.hits.iter().map(|hit| &hit.subject)).collect()
    }

    /// Some objects of all findings with a code, in a stable order.
    pub fn page(&self, code: &str, skip: usize, limit: usize) -> ObjectPage {
        let groups = self.groups.iter().filter(|g| g.hits[0].definition.code == code);
        let hits: Vec<&Hit> = groups.flat_map(|group| group.hits.iter().copied()).collect();
        let entries = hits.iter().skip(skip).take(limit);
        let entry = |hit: &&Hit| ListedObject { subject: hit.subject.clone(), seen: texts(hit).0 };
        ObjectPage { entries: entries.map(entry).collect(), total: hits.len() }
    }
}

impl FindingGroup<'_> {
    /// Causes before consequences, then the worst, then by code and content.
    fn order(&self) -> impl Ord + '_ {
        let first = self.hits[0];
        let derived = self.cause.is_some();
        let worst = std::cmp::Reverse(self.severity);
        (derived, worst, first.definition.code, &first.shared, &first.subject)
    }

    fn finding(&self) -> Finding {
        let first = self.hits[0];
        let objects = self.hits.iter().take(NAMED_OBJECTS).map(|hit| hit.subject.clone());
        let mut finding = builder(first).severity(self.severity).about_all(objects).build();
        let spelled: Vec<(String, Vec<String>)> =
            self.hits.iter().take(SPELLED_OUT).map(|hit| texts(hit)).collect();
        let more = self.hits.len().saturating_sub(SPELLED_OUT);
        finding.seen = Some(sentences(&spelled, more));
        finding.remedy = steps(first.definition.code, &spelled, more);
        finding.fixable = self.fixable;
        finding.count = i32::try_from(self.hits.len()).unwrap_or(i32::MAX);
        finding.consequence_of = self.cause.map(str::to_owned);
        finding.acknowledged = self.acknowledged.map(|accepted| Acknowledgement {
            reason: accepted.reason.clone(),
            until: accepted.until.map(Time),
        });
        finding
    }
}

fn builder(hit: &Hit) -> api::finding::Builder {
    let values = hit.shared.iter().chain(&hit.own);
    values.fold(hit.definition.found(), |builder, (name, value)| {
        builder.with(name, redaction::redact_line(value))
    })
}

/// The text and the steps for one object.
fn texts(hit: &Hit) -> (String, Vec<String>) {
    if hit.brief {
        let code = hit.definition.code;
        let step = format!("vdoctl doctor --only {code} --each   names each object and its fix");
        return (hit.definition.title.to_owned(), vec![step]);
    }
    let finding = builder(hit).build();
    (finding.seen.unwrap_or_default(), finding.remedy)
}

fn sentences(spelled: &[(String, Vec<String>)], more: usize) -> String {
    let mut seen: Vec<&str> = spelled.iter().map(|(seen, _)| seen.as_str()).collect();
    seen.dedup();
    let mut text = seen.join("; ");
    if more > 0 && seen.len() > 1 {
        text = format!("{text}; and {more} more");
    }
    shortened(text)
}

/// The steps for the first objects, object by object. Omits whole objects and sentences that are already there. If all
/// objects need the same steps, these appear once. Steps that take down a node appear for one object only: somebody may
/// paste all steps at once, and a step fails without stopping the next ones.
fn steps(code: &str, spelled: &[(String, Vec<String>)], more: usize) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut left = more;
    let mut one_by_one = false;
    let first = spelled.first().map(|(_, steps)| steps);
    let alike = spelled.iter().all(|(_, steps)| Some(steps) == first);
    if alike {
        left = 0;
    }
    for (at, (_, steps)) in spelled.iter().enumerate() {
        if spelled[..at].iter().any(|(_, earlier)| earlier == steps) {
            continue;
        }
        let steps = steps.iter().map(|step| shortened_step(code, step));
        let steps: Vec<String> =
            steps.filter(|step| !(step.starts_with('#') && all.contains(step))).collect();
        let rest = spelled.len() - at - 1 + more;
        if at > 0 && all.len() + steps.len() + usize::from(rest > 0) > MAX_STEPS {
            left = rest + 1;
            break;
        }
        one_by_one = takes_down_a_node(&steps);
        all.extend(steps);
        if one_by_one && !alike {
            left = rest;
            break;
        }
    }
    // The API server rejects a status with more of them.
    all.truncate(MAX_STEPS - usize::from(left > 0));
    if left > 0 {
        let start = if one_by_one {
            "When this node is ready again, one at a time, likewise"
        } else {
            "Likewise"
        };
        all.push(format!(
            "# {start} for {left} more: vdoctl doctor --only {code} --each   names them all"
        ));
    }
    all
}

/// Whether one of the steps, also if it is only a comment, stops the pods of a node.
fn takes_down_a_node(steps: &[String]) -> bool {
    let commands = ["kubectl drain ", "govc vm.power -off "];
    steps.iter().any(|step| commands.iter().any(|command| step.contains(command)))
}

/// Limits the length of a step, but never cuts a command: a quote without its end would make the next lines part of its
/// text.
fn shortened_step(code: &str, step: &str) -> String {
    match finding::command(step) {
        None => shortened(step.to_owned()),
        Some((command, _)) if command.len() > MAX_TEXT => format!(
            "# The command is too long to be shown here. Its form: vdoctl explain {code}   Its objects: vdoctl doctor --only \
             {code} --each"
        ),
        Some((command, words)) => {
            let words = words.filter(|_| command.len() + 8 < MAX_TEXT);
            let limit = MAX_TEXT - command.len().min(MAX_TEXT);
            let comment = words.map(|words| format!("   # {}", cut(words.to_owned(), limit)));
            format!("{command}{}", comment.unwrap_or_default())
        }
    }
}

fn shortened(text: String) -> String {
    cut(text, MAX_TEXT)
}

fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push_str(" ...");
    }
    text
}

pub(crate) fn acknowledgement<'a>(hit: &Hit, facts: &'a Facts) -> Option<&'a Acknowledged> {
    facts.operator.acknowledged.iter().find(|accepted| {
        accepted.code == hit.definition.code
            && accepted.object.as_ref().is_none_or(|name| *name == hit.subject.name)
            && accepted.until.is_none_or(|until| facts.now < until)
    })
}

/// Whether VDO would refuse the repair, for example because the vCenter account lacks a privilege for it.
fn is_denied(hit: &Hit, facts: &Facts) -> bool {
    let needed = privileges::of_repair(hit.definition.code);
    let own =
        |name: &str| hit.own.iter().find(|(known, _)| *known == name).map(|(_, v)| v.as_str());
    // VDO replaces only SCSI controllers without disks.
    if own("empty") == Some("0") {
        return true;
    }
    // A finding about several VMs names the first one.
    let Some(path) = hit.subject.path.as_deref().or_else(|| own("vm")) else { return false };
    let anchored = hit.anchors.iter().find(|(anchor, _)| *anchor == Anchor::Vcenter);
    let vcenters = facts.vcenters.iter();
    let mut vcenters = vcenters.filter(|(name, _)| anchored.is_none_or(|(_, own)| own == *name));
    vcenters.any(|(_, vcenter)| {
        vcenter.grants.get().is_some_and(|grants| !grants.lacks(path, &needed).is_empty())
    })
}

/// Sets `since` of each finding: from the previous status if the finding was there, otherwise `now`.
pub fn date(findings: &mut [Finding], previous: &[Finding], now: Timestamp) {
    let alike = |finding: &Finding| -> Vec<&Finding> {
        previous.iter().filter(|earlier| earlier.code == finding.code).collect()
    };
    let counts: Vec<usize> = findings
        .iter()
        .map(|finding| findings.iter().filter(|other| other.code == finding.code).count())
        .collect();
    for (finding, count) in findings.iter_mut().zip(counts) {
        let earlier = alike(finding);
        let shares_object =
            |other: &&&Finding| other.objects.iter().any(|object| finding.objects.contains(object));
        let same = match earlier.as_slice() {
            [only] if count == 1 => Some(*only),
            several => several.iter().find(shares_object).copied(),
        };
        let since = same.and_then(|earlier| earlier.since.clone());
        finding.since = Some(since.unwrap_or(Time(now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_omitted_only_with_their_object() {
        let object = |name: &str, count: usize| {
            let step = |n| format!("kubectl label node {name} step={n}");
            (name.to_owned(), (0..count).map(step).collect::<Vec<String>>())
        };
        let spelled = [object("a", 6), object("b", 6), object("c", 6)];
        let shown = steps("VDO-1203", &spelled, 4);
        assert_eq!(shown.len(), 13, "{shown:#?}");
        assert_eq!((&shown[..6], &shown[6..12]), (&*spelled[0].1, &*spelled[1].1));
        assert!(shown[12].starts_with("# Likewise for 5 more: vdoctl doctor"), "{shown:#?}");
        let spelled = [object("a", 5), object("b", 5), object("c", 6)];
        assert_eq!(steps("VDO-1203", &spelled, 0).len(), MAX_STEPS, "all fit without a rest");
        let shown = steps("VDO-1203", &spelled, 1);
        assert!(shown[10].starts_with("# Likewise for 2 more"), "{shown:#?}");
        let same = [object("a", 2), object("a", 2), object("a", 2)];
        assert_eq!(steps("VDO-1203", &same, 9), same[0].1, "one fix for all");
    }

    #[test]
    fn a_long_command_becomes_a_comment_and_a_long_comment_is_cut() {
        let object = |step: String| [("a".to_owned(), vec![step])];
        let long = format!("kubectl label node a '{}'", "x=1 ".repeat(MAX_TEXT));
        let shown = steps("VDO-1706", &object(long), 0);
        assert!(shown[0].starts_with("# The command is too long"), "{shown:?}");
        let command = format!("kubectl label node a {}", "x".repeat(MAX_TEXT - 22));
        for words in [String::new(), format!("   # {}", "word ".repeat(MAX_TEXT))] {
            let shown = steps("VDO-1706", &object(format!("{command}{words}")), 0);
            let (whole, comment) = shown[0].split_once("   # ").unwrap_or((&shown[0], ""));
            assert_eq!(whole, command);
            assert!(comment.is_empty() || comment.ends_with(" ..."), "{comment}");
        }
    }
}
