//! The pages under `docs/findings`: one per code, an index by theme and by what the drivers say.
//!
//! All of it comes from the catalogue, the table of messages, the table of causes and the table of
//! privileges; background that helps is kept beside this file and put into its page.

use api::{
    Severity,
    finding::{CATALOGUE, Definition},
};

use crate::{causes::CAUSES, messages, privileges};

/// A file of the documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path below the repository.
    pub path: String,
    /// What is in it.
    pub text: String,
}

/// Background by code, for findings whose cause needs more than a paragraph.
const BACKGROUND: &[(&str, &str)] = &[
    ("VDO-1203", include_str!("background/disk_uuid.md")),
    ("VDO-1227", include_str!("background/node_deletion.md")),
    ("VDO-1402", include_str!("background/datastore_privileges.md")),
    ("VDO-1501", include_str!("background/shared_datastores.md")),
    ("VDO-1512", include_str!("background/cluster_id.md")),
    ("VDO-1605", include_str!("background/start_order.md")),
    ("VDO-1702", include_str!("background/zones.md")),
];

/// Codes by theme: how they begin, and the theme's name.
const THEMES: &[(&str, &str)] = &[
    ("VDO-10", "The objects you write"),
    ("VDO-11", "Catalog and choice of releases"),
    ("VDO-12", "Nodes and their VMs"),
    ("VDO-13", "vCenters"),
    ("VDO-14", "Privileges"),
    ("VDO-15", "Storage"),
    ("VDO-16", "Drivers"),
    ("VDO-17", "Zones and regions"),
    ("VDO-18", "What VDO may do"),
    ("VDO-19", "The operator"),
];

/// All files, in a stable order.
pub fn files() -> Vec<File> {
    let pages = CATALOGUE.iter().map(|definition| File {
        path: format!("docs/findings/{}.md", definition.code),
        text: page(definition),
    });
    let mut files: Vec<File> = pages.collect();
    files.push(File { path: "docs/findings/README.md".into(), text: index() });
    files.push(File { path: "docs/findings/privileges.md".into(), text: privileges::document() });
    files
}

/// The page of a finding.
pub fn page(definition: &Definition) -> String {
    let mut parts = vec![
        format!("# {}: {}\n", definition.code, definition.title),
        format!("{}.\n", severity(definition.severity)),
        format!("## What is seen\n\n> {}\n", template(definition.seen)),
        format!("## Why it matters\n\n{}\n", template(definition.why)),
        format!("## What to do\n\n{}", steps(definition)),
    ];
    if definition.fixable {
        parts.push(
            "`spec.remediation` of the VDOConfig decides whether VDO repairs this by itself, proposes the\n\
             repair, or leaves it to you.\n"
                .to_owned(),
        );
    }
    parts.extend(background(definition).map(|text| format!("## Background\n\n{text}\n")));
    parts.extend(spoken(definition));
    parts.extend(related(definition));
    parts.push("[All findings](README.md)\n".to_owned());
    parts.join("\n")
}

/// The background of a finding, in Markdown, if it has any.
pub fn background(definition: &Definition) -> Option<&'static str> {
    let (_, text) = BACKGROUND.iter().find(|(code, _)| *code == definition.code)?;
    Some(text.trim_end())
}

pub fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Blocker => "Blocker: installing and upgrading wait until this is cured",
        Severity::Error => "Error: something does not work",
        Severity::Warning => "Warning: works now, may not later",
        Severity::Info => "Info: good to know",
    }
}

/// A template with its values as words in italics. Angle brackets would vanish from the page.
fn template(text: &str) -> String {
    let safe = text.replace('<', "&lt;").replace('>', "&gt;");
    safe.replace(['{', '}'], "*")
}

/// The steps; commands as code, the words after three blanks as text.
fn steps(definition: &Definition) -> String {
    let code = |text: &str| text.replace('{', "<").replace('}', ">");
    let step = |(n, step): (usize, &&str)| {
        let first = step.split(' ').next().unwrap_or_default();
        let command = ["kubectl", "govc", "oc", "vdoctl", "helm"].contains(&first);
        match (command, step.split_once("   ")) {
            (true, Some((command, words))) => {
                format!("{}. `{}` {}\n", n + 1, code(command), template(words.trim()))
            }
            (true, None) => format!("{}. `{}`\n", n + 1, code(step)),
            (false, _) => format!("{}. {}\n", n + 1, template(step)),
        }
    };
    definition.remedy.iter().enumerate().map(step).collect()
}

/// What the drivers say when this is the cause.
fn spoken(definition: &Definition) -> Option<String> {
    let rows: String = messages::behind(definition.code)
        .map(|message| format!("- `{}`\n  {}.\n", message.words, capital(message.meaning)))
        .collect();
    (!rows.is_empty()).then(|| format!("## Messages it may be behind\n\n{rows}"))
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
        text = format!("## It may follow from\n\n{causes}");
    }
    if !effects.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        text = format!("{text}{gap}## What may follow from it\n\n{effects}");
    }
    (!text.is_empty()).then_some(text)
}

pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The index: by theme, and by what the drivers say.
pub fn index() -> String {
    let mut parts = vec![
        "# Findings\n\n\
         Everything VDO can find wrong, by code. Looking for a message from a log? Search this page for\n\
         its words; [the list by message](#by-message) is at the end. What the vCenter account needs is\n\
         in [privileges](privileges.md). These pages are generated; do not edit them.\n"
            .to_owned(),
    ];
    for (prefix, theme) in THEMES {
        let rows = CATALOGUE.iter().filter(|definition| definition.code.starts_with(prefix));
        let row = |d: &&Definition| {
            format!("| [{code}]({code}.md) | {:?} | {} |\n", d.severity, d.title, code = d.code)
        };
        let rows: String = rows.map(row).collect();
        if !rows.is_empty() {
            parts.push(format!(
                "## {theme}\n\n| code | severity | finding |\n|---|---|---|\n{rows}"
            ));
        }
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
    fn every_code_has_a_page_that_says_what_why_and_what_to_do() {
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
    fn pasting_a_message_into_the_index_finds_its_page() {
        let index = index();
        for message in messages::MESSAGES {
            let row = index.lines().find(|line| line.contains(message.words));
            let row = row.unwrap_or_else(|| panic!("{} is not in the index", message.words));
            assert!(row.contains(message.findings[0].code), "{row}");
        }
    }

    #[test]
    fn every_theme_and_every_background_belongs_to_codes_that_exist() {
        for definition in CATALOGUE {
            assert!(THEMES.iter().any(|(prefix, _)| definition.code.starts_with(prefix)));
        }
        for (code, _) in BACKGROUND {
            assert!(Definition::of(code).is_some(), "{code}");
        }
    }

    #[test]
    fn the_committed_pages_are_those_the_catalogue_gives() {
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
