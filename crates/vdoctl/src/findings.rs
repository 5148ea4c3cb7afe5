//! How a finding looks.

use api::{Finding, Severity};
use jiff::Timestamp;

use crate::text::{BAD, CARE, DIM, STRONG, ago, columns, paint, wrap};

/// Where what is said about a finding begins, under its title.
const INDENT: usize = 12;

/// Findings as a reader sees them: the worst first, each with its objects, its cause and its cure.
pub(crate) fn render(findings: &[Finding], width: usize, now: Timestamp) -> String {
    let mut ordered: Vec<&Finding> = findings.iter().collect();
    ordered.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.code.cmp(&b.code)));
    let blocks: Vec<String> = ordered.into_iter().map(|finding| one(finding, width, now)).collect();
    blocks.join("\n")
}

fn one(finding: &Finding, width: usize, now: Timestamp) -> String {
    let severity = format!("{:?}", finding.severity);
    let style = match finding.severity {
        Severity::Blocker | Severity::Error => BAD,
        Severity::Warning => CARE,
        Severity::Info => DIM,
    };
    let begin = format!("  {}  {}  ", paint(STRONG, &finding.code), paint(style, &severity));
    let since = finding.since.as_ref().map(|since| ago(since.0, now)).unwrap_or_default();
    // The title, and at the right edge how long it has been so, if there is room.
    let room = columns(&begin) + columns(&finding.title) + columns(&since) + 2 <= width;
    let mut text = if room && !since.is_empty() {
        let gap = width - columns(&begin) - columns(&finding.title) - columns(&since);
        format!("{begin}{}{}{}\n", finding.title, " ".repeat(gap), paint(DIM, &since))
    } else {
        wrap(&begin, &finding.title, width)
    };
    // On a narrow terminal the rest begins further left.
    let blanks = " ".repeat(if width < 72 { 4 } else { INDENT });
    if let Some(seen) = &finding.seen {
        text.push_str(&wrap(&blanks, seen, width));
    }
    text.push_str(&objects(finding, &blanks, width));
    let labelled = |label: &str, body: &str| {
        wrap(&format!("{blanks}{:<4}  ", paint(DIM, label)).replace("    ", "    "), body, width)
    };
    if !finding.why.is_empty() {
        text.push_str(&labelled("Why ", &finding.why));
    }
    for (number, step) in finding.remedy.iter().enumerate() {
        text.push_str(&labelled(if number == 0 { "Mend" } else { "    " }, step));
    }
    if let Some(cause) = &finding.consequence_of {
        text.push_str(&labelled("From", &format!("{cause}: cure that and this goes away")));
    }
    text
}

/// The objects it is about, but for those the sentence names already.
fn objects(finding: &Finding, blanks: &str, width: usize) -> String {
    let seen = finding.seen.as_deref().unwrap_or_default();
    let mut text = String::new();
    let named = finding.objects.iter().filter(|object| !seen.contains(&object.name));
    let mut shown = finding.objects.len();
    for object in named {
        let path =
            object.path.as_ref().filter(|path| path.rsplit('/').next() != Some(&object.name));
        let line = match path {
            Some(path) => format!("{} {} ({path})", object.kind, object.name),
            None => format!("{} {}", object.kind, object.name),
        };
        text.push_str(&wrap(blanks, &line, width));
    }
    let all = usize::try_from(finding.count).unwrap_or(0);
    shown = shown.min(all);
    if all > shown {
        text.push_str(&wrap(blanks, &format!("and {} more", all - shown), width));
    }
    text
}

/// `1 error, 2 warnings`, or nothing.
pub(crate) fn summary(findings: &[Finding]) -> String {
    let number = |severity| findings.iter().filter(|f| f.severity == severity).count();
    let counts = [
        (number(Severity::Blocker), "blocker"),
        (number(Severity::Error), "error"),
        (number(Severity::Warning), "warning"),
        (number(Severity::Info), "hint"),
    ];
    let parts = counts.into_iter().filter(|(number, _)| *number > 0);
    parts.map(|(number, word)| crate::text::count(number, word)).collect::<Vec<_>>().join(", ")
}
