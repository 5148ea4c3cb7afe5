//! Findings on the screen.

use api::{Finding, Severity};
use jiff::Timestamp;

use crate::text::{BAD, CARE, DIM, STRONG, ago, columns, paint, wrap, wrap_step};

/// The indentation of the lines below the title.
const INDENT: usize = 12;

/// Renders findings, the most severe first, each with its objects, its cause and its fix.
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
    // The age goes to the right edge, if there is room.
    let room = columns(&begin) + columns(&finding.title) + columns(&since) + 2 <= width;
    let mut text = if room && !since.is_empty() {
        let gap = width - columns(&begin) - columns(&finding.title) - columns(&since);
        format!("{begin}{}{}{}\n", finding.title, " ".repeat(gap), paint(DIM, &since))
    } else {
        wrap(&begin, &finding.title, width)
    };
    let blanks = " ".repeat(if width < 72 { 4 } else { INDENT });
    if let Some(seen) = &finding.seen {
        text.push_str(&wrap(&blanks, seen, width));
    }
    text.push_str(&objects(finding, &blanks, width));
    let begin = |label: &str| format!("{blanks}{}  ", paint(DIM, &format!("{label:<4}")));
    let labelled = |label: &str, body: &str| wrap(&begin(label), body, width);
    if !finding.why.is_empty() {
        text.push_str(&labelled("Why", &finding.why));
    }
    let mut label = "Fix";
    if finding.fixable {
        text.push_str(&labelled(label, &format!("vdoctl fix {}", finding.code)));
        label = "Or";
    }
    for step in &finding.remedy {
        text.push_str(&wrap_step(&begin(std::mem::take(&mut label)), step, width));
    }
    if let Some(cause) = &finding.consequence_of {
        text.push_str(&labelled("From", &format!("{cause}: this finding disappears with it")));
    }
    text
}

/// The objects of a finding, except those that its sentence already names.
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

#[cfg(test)]
mod tests {
    use api::finding::codes;

    use super::*;

    fn shown(finding: &Finding) -> String {
        let text = render(std::slice::from_ref(finding), 100, Timestamp::UNIX_EPOCH);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_finding_that_vdo_can_fix_names_the_command() {
        let finding = codes::DISK_UUID_OFF.found().build();
        let text = shown(&finding);
        assert!(
            text.contains("            Fix   vdoctl fix VDO-1203\n            Or    "),
            "{text}"
        );
    }

    #[test]
    fn any_other_finding_lists_its_steps() {
        let finding = codes::VCENTER_UNREACHABLE.found().build();
        let text = shown(&finding);
        assert!(text.contains("            Fix   ") && !text.contains("vdoctl fix"), "{text}");
        assert!(!text.contains("            Or  "), "{text}");
    }
}
