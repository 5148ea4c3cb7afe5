//! Generates the pages under `docs/findings`: one per code, and an index by theme and by message.
//!
//! The content comes from the catalogue, the messages, the causes and the privileges. The files in
//! `background` explain some findings in more detail.

use api::{
    Severity,
    finding::{self, CATALOGUE, Definition, Theme},
};

use crate::{causes::CAUSES, messages, privileges};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// Relative to the root of the repository.
    pub path: String,
    pub text: String,
}

/// By code, for findings whose cause needs more than a paragraph.
const BACKGROUND: &[(&str, &str)] = &[
    ("VDO-1203", include_str!("background/disk_uuid.md")),
    ("VDO-1222", include_str!("background/stale_registration.md")),
    ("VDO-1225", include_str!("background/node_down.md")),
    ("VDO-1227", include_str!("background/node_deletion.md")),
    ("VDO-1402", include_str!("background/datastore_privileges.md")),
    ("VDO-1501", include_str!("background/shared_datastores.md")),
    ("VDO-1512", include_str!("background/cluster_id.md")),
    ("VDO-1519", include_str!("background/forgotten_volume.md")),
    ("VDO-1605", include_str!("background/start_order.md")),
    ("VDO-1702", include_str!("background/zones.md")),
    ("VDO-1909", include_str!("background/refused_object.md")),
    ("VDO-1911", include_str!("background/record.md")),
];

/// All files, in a stable order.
pub fn files() -> Vec<GeneratedFile> {
    let pages = CATALOGUE.iter().map(|definition| GeneratedFile {
        path: format!("docs/findings/{}.md", definition.code),
        text: page(definition),
    });
    let mut files: Vec<GeneratedFile> = pages.collect();
    files.push(GeneratedFile { path: "docs/findings/README.md".into(), text: index() });
    files.push(GeneratedFile {
        path: "docs/findings/privileges.md".into(),
        text: privileges::document(),
    });
    files
}

pub fn page(definition: &Definition) -> String {
    let mut parts = vec![
        format!("# {}: {}\n", definition.code, definition.title),
        format!("{}.\n", severity(definition.severity)),
        format!("## What is seen\n\n> {}\n", template(definition.seen)),
        format!("## Why it matters\n\n{}\n", template(definition.why)),
        format!("## What to do\n\n{}", steps(definition)),
    ];
    if is_fixed_on_request(definition) {
        parts.push(format!(
            "`vdoctl fix {}` does this, one node at a time: see [VM \
             requirements](../howto/vms.md#on-a-running-node). VDO never does it by itself.\n",
            definition.code
        ));
    } else if definition.fixable {
        parts.push(
            "`spec.remediation` of the VDOConfig decides whether VDO repairs this automatically, proposes the\n\
             repair, or leaves it to you.\n"
                .to_owned(),
        );
    }
    parts.extend(background(definition).map(|text| format!("## Background\n\n{text}\n")));
    parts.extend(driver_messages(definition));
    parts.extend(related(definition));
    parts.push("[All findings](README.md)\n".to_owned());
    parts.join("\n")
}

/// Whether only `vdoctl fix` makes the repair, because the VM must be off for it.
pub fn is_fixed_on_request(definition: &Definition) -> bool {
    let needed = privileges::of_repair(definition.code);
    definition.fixable && privileges::POWER_CYCLE.iter().all(|power| needed.contains(power))
}

/// The background of a finding, in Markdown, if it has any.
pub fn background(definition: &Definition) -> Option<&'static str> {
    let (_, text) = BACKGROUND.iter().find(|(code, _)| *code == definition.code)?;
    Some(text.trim_end())
}

pub fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Blocker => "Blocker: VDO installs and upgrades nothing until this is fixed",
        Severity::Error => "Error: something does not work",
        Severity::Warning => "Warning: works now, may not later",
        Severity::Info => "Info: good to know",
    }
}

/// Shows placeholders in italics and escapes angle brackets, which Markdown would drop.
fn template(text: &str) -> String {
    let safe = text.replace('<', "&lt;").replace('>', "&gt;");
    safe.replace(['{', '}'], "*")
}

/// Formats commands as code, with their explanation as a comment of the shell.
fn steps(definition: &Definition) -> String {
    let code = |text: &str| text.replace('{', "<").replace('}', ">");
    let step = |(n, step): (usize, &&str)| match finding::command(step) {
        Some((command, Some(words))) => {
            format!("{}. `{}   # {}`\n", n + 1, code(command), code(words))
        }
        Some((command, None)) => format!("{}. `{}`\n", n + 1, code(command)),
        None if step.starts_with('{') && step.ends_with('}') => {
            format!("{}. A step that depends on the cause; the finding names it\n", n + 1)
        }
        None => format!("{}. {}\n", n + 1, template(step)),
    };
    definition.remedy.iter().enumerate().map(step).collect()
}

fn driver_messages(definition: &Definition) -> Option<String> {
    let rows: String = messages::behind(definition.code)
        .map(|message| format!("- `{}`\n  {}.\n", message.words, capital(message.meaning)))
        .collect();
    (!rows.is_empty()).then(|| format!("## Messages it can cause\n\n{rows}"))
}

fn related(definition: &Definition) -> Option<String> {
    let link =
        |other: &Definition| format!("- [{code}]({code}.md) {}\n", other.title, code = other.code);
    let causes = CAUSES.iter().filter(|c| c.effect.code == definition.code).map(|c| c.cause);
    let effects = CAUSES.iter().filter(|c| c.cause.code == definition.code).map(|c| c.effect);
    let (causes, effects): (String, String) =
        (causes.map(link).collect(), effects.map(link).collect());
    let mut text = String::new();
    if !causes.is_empty() {
        text = format!("## Possible causes\n\n{causes}");
    }
    if !effects.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        text = format!("{text}{gap}## Possible consequences\n\n{effects}");
    }
    (!text.is_empty()).then_some(text)
}

/// Capitalises the first letter, except in names that start in lower case.
pub fn capital(text: &str) -> String {
    if ["vCenter", "vSphere", "vSAN"].iter().any(|name| text.starts_with(name)) {
        return text.to_owned();
    }
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

pub fn index() -> String {
    let mut parts = vec![
        "# Findings\n\n\
         Every problem VDO can report, by code. To look up a log message, search this page for its text;\n\
         [the list by message](#by-message) is at the end. [Privileges](privileges.md) lists the privileges\n\
         of the vCenter account. These pages are generated; do not edit them.\n"
            .to_owned(),
    ];
    for theme in Theme::ALL {
        let rows = CATALOGUE.iter().filter(|definition| definition.theme == theme);
        let row = |d: &&Definition| {
            format!("| [{code}]({code}.md) | {:?} | {} |\n", d.severity, d.title, code = d.code)
        };
        let rows: String = rows.map(row).collect();
        parts.push(format!(
            "## {}\n\n| code | severity | finding |\n|---|---|---|\n{rows}",
            theme.title()
        ));
    }
    let mut known: Vec<&messages::Message> = messages::MESSAGES.iter().collect();
    known.sort_by_key(|message| message.words.to_lowercase());
    let row = |message: &&messages::Message| {
        let links: Vec<String> = message
            .findings
            .iter()
            .map(|d| format!("[{code}]({code}.md)", code = d.code))
            .collect();
        let words = message.words.replace('|', "\\|");
        format!("| `{words}` | {} | {} |\n", capital(message.meaning), links.join(", "))
    };
    let rows: String = known.iter().map(row).collect();
    parts.push(format!("## By message\n\n| message | means | see |\n|---|---|---|\n{rows}"));
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcenter_keeps_its_spelling_at_the_start_of_a_sentence() {
        assert_eq!(capital("vCenter is overloaded"), "vCenter is overloaded");
        assert_eq!(capital("the account is locked"), "The account is locked");
        assert!(!files().iter().any(|file| file.text.contains("VCenter ")));
    }

    #[test]
    fn every_code_has_a_page_with_cause_and_fix() {
        let files = files();
        for definition in CATALOGUE {
            let path = format!("docs/findings/{}.md", definition.code);
            let file = files.iter().find(|file| file.path == path).unwrap();
            let heading = format!("# {}: {}", definition.code, definition.title);
            assert!(file.text.starts_with(&heading), "{path}");
            for part in ["## What is seen", "## Why it matters", "## What to do\n\n1. "] {
                assert!(file.text.contains(part), "{path} lacks {part}");
            }
            assert_eq!(file.text.matches("\n1. ").count(), 1, "{path}");
            for message in messages::behind(definition.code) {
                assert!(file.text.contains(message.words), "{path} lacks {}", message.words);
            }
        }
    }

    #[test]
    fn the_index_links_every_message_to_its_page() {
        let index = index();
        for message in messages::MESSAGES {
            let start = format!("| `{}` |", message.words.replace('|', "\\|"));
            let row = index.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("{} is not in the index", message.words));
            assert!(row.contains(message.findings[0].code), "{row}");
        }
    }

    #[test]
    fn every_background_belongs_to_an_existing_code() {
        for (code, _) in BACKGROUND {
            assert!(Definition::find(code).is_some(), "{code}");
        }
    }

    #[test]
    fn the_committed_pages_are_up_to_date() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        for file in files() {
            let committed = std::fs::read_to_string(format!("{root}/{}", file.path));
            let same = committed.is_ok_and(|text| text == file.text);
            assert!(
                same,
                "{} is not up to date: run cargo run -p health --example generate_findings -- .",
                file.path
            );
        }
        let folder = std::fs::read_dir(format!("{root}/docs/findings")).unwrap();
        assert_eq!(folder.count(), files().len(), "a page of docs/findings belongs to no code");
    }
}
