//! `vdoctl explain`

use api::finding::{self, CATALOGUE, Definition};
use clap::Args;
use health::{CAUSES, document, messages};

use crate::{
    failure::{Outcome, request},
    screen::Screen,
    text::{STRONG, Table, nearest, paint, wrap},
};

/// Explain a finding: what it means, why it matters and how to fix it.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// The code of the finding, for example VDO-1203 or 1203; or a log line, an error message or a few words to
    /// search for. Lists all findings if omitted.
    code: Option<String>,
    /// Print Markdown, as in the documentation.
    #[arg(long)]
    markdown: bool,
}

impl Explain {
    pub(crate) fn run(&self, screen: &Screen) -> Outcome {
        let Some(code) = &self.code else { return screen.print(&list(screen.width)) };
        if !is_code(code) && !is_misspelt_code(code, true) {
            return screen.print(&search(code, screen.width)?);
        }
        if self.markdown {
            return screen.print(&document::page(definition(code)?));
        }
        screen.print(&page_of(code, screen.width)?)
    }
}

/// Whether the text is the code of a finding, with or without `VDO-`, and not a message.
fn is_code(text: &str) -> bool {
    let digits = without_prefix(text);
    digits.len() == CODE_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// A code without `VDO-`, or `VDO`.
fn without_prefix(code: &str) -> String {
    let code = code.trim().to_ascii_uppercase();
    let digits = code.strip_prefix("VDO").map(|rest| rest.trim_start_matches(['-', ' ']));
    digits.map_or_else(|| code.clone(), str::to_owned)
}

/// The number of digits of every code.
const CODE_DIGITS: usize = 4;

/// Whether the text can be a code with a typing error: `VDO-12O3`, or `12O3` if no prefix is required.
fn is_misspelt_code(text: &str, prefix: bool) -> bool {
    let text = text.trim().to_ascii_uppercase();
    let stripped = text.strip_prefix("VDO-");
    let digits = stripped.unwrap_or(&text);
    (stripped.is_some() || !prefix)
        && digits.len() <= CODE_DIGITS + 1
        && digits.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && digits.bytes().any(|byte| byte.is_ascii_digit())
}

/// How many findings a search lists.
const MOST_FOUND: usize = 8;

/// Explains a message that drivers print, or lists the findings that contain the words.
fn search(text: &str, width: usize) -> Outcome<String> {
    if let Some(message) = messages::explain(text) {
        let mut found = wrap("", &format!("{}.", document::capital(message.meaning)), width);
        found.push('\n');
        found += &table(message.findings.iter().copied(), width);
        found += &wrap("\n", "For details: vdoctl explain CODE", width);
        return Ok(found);
    }
    let text = text.to_lowercase();
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 2).collect();
    let score = |definition: &Definition| {
        let page = document::page(definition).to_lowercase();
        let title = definition.title.to_lowercase();
        let of = |word: &&&str| page.contains(**word);
        let in_title = words.iter().filter(|word| title.contains(**word)).count();
        (words.iter().filter(of).count(), in_title)
    };
    let mut ranked: Vec<((usize, usize), &'static Definition)> =
        CATALOGUE.iter().map(|definition| (score(definition), *definition)).collect();
    // A page must contain most of the words.
    ranked.retain(|((found, _), _)| *found > 0 && *found * 3 >= words.len() * 2);
    ranked.sort_by_key(|(score, definition)| (std::cmp::Reverse(*score), definition.code));
    if ranked.is_empty() && is_misspelt_code(&text, false) {
        return definition(&text).map(|definition| page(definition, width));
    }
    if ranked.is_empty() {
        return request(
            "no finding matches this text",
            "use the part of the message that names the problem, or list all findings: vdoctl explain",
        );
    }
    let found = ranked.into_iter().take(MOST_FOUND).map(|(_, definition)| definition);
    Ok(table(found, width) + &wrap("\n", "For details: vdoctl explain CODE", width))
}

/// The page about a finding, for a terminal.
pub(crate) fn page_of(code: &str, width: usize) -> Outcome<String> {
    definition(code).map(|definition| page(definition, width))
}

/// Finds a definition by its code, with or without `VDO-`.
pub(crate) fn definition(code: &str) -> Outcome<&'static Definition> {
    let digits = without_prefix(code);
    let code = format!("VDO-{digits}");
    if let Some(definition) = Definition::find(&code) {
        return Ok(definition);
    }
    let near =
        nearest(&digits, CATALOGUE.iter().map(|known| known.code.trim_start_matches("VDO-")));
    request(
        format!("there is no finding {code}"),
        match near {
            Some(near) => format!("did you mean VDO-{near}? vdoctl explain lists all findings"),
            None => "vdoctl explain lists all findings".to_owned(),
        },
    )
}

fn list(width: usize) -> String {
    table(CATALOGUE.iter().copied(), width)
}

fn table(definitions: impl Iterator<Item = &'static Definition>, width: usize) -> String {
    let mut table = Table::new(&["CODE", "SEVERITY", "FIX", "FINDING"]);
    for definition in definitions {
        let fix = if definition.fixable { "vdoctl fix" } else { "" };
        table.row([definition.code, &format!("{:?}", definition.severity), fix, definition.title]);
    }
    table.render(width)
}

fn page(definition: &Definition, width: usize) -> String {
    let Definition { code, theme: _, concerns: _, title, severity, seen, why, remedy, fixable } =
        definition;
    let heading = |text: &str| format!("\n{}\n", paint(STRONG, text));
    let paragraph = |text: &str| wrap("  ", &placeholders(text), width);
    let mut text = paint(STRONG, wrap("", &format!("{code}: {title}"), width).trim_end()) + "\n";
    text += &wrap("  ", &format!("{}.", document::severity(*severity)), width);
    text += &(heading("What VDO sees") + &paragraph(seen));
    text += &(heading("Why it matters") + &paragraph(why));
    text += &heading("What to do");
    if *fixable {
        text += &wrap("  Fix   ", &format!("vdoctl fix {code}"), width);
        text += &wrap("  ", "Or fix it by hand:", width);
    }
    for (number, step) in remedy.iter().enumerate() {
        let step = match finding::command(step) {
            Some((command, Some(words))) => format!("{command}   # {words}"),
            _ => (*step).to_owned(),
        };
        text += &wrap(&format!("  {}. ", number + 1), &placeholders(&step), width);
    }
    if *fixable {
        let note = if document::is_fixed_on_request(definition) {
            "vdoctl fix drains one node at a time. VDO never does this by itself."
        } else {
            "spec.remediation of the VDOConfig decides whether VDO fixes this automatically."
        };
        text += "\n";
        text += &wrap("  ", note, width);
    }
    if let Some(background) = document::background(definition) {
        let paragraphs = background
            .split("\n\n")
            .map(|paragraph| wrap("  ", &without_markup(&paragraph.replace('\n', " ")), width));
        text += &(heading("Background") + &paragraphs.collect::<Vec<_>>().join("\n"));
    }
    let behind = messages::behind(code).map(|message| {
        wrap("  - ", message.words, width)
            + &wrap("    ", &format!("{}.", document::capital(message.meaning)), width)
    });
    let related =
        |other: &Definition| wrap("  - ", &format!("{} {}", other.code, other.title), width);
    let causes = CAUSES.iter().filter(|link| link.effect.code == *code);
    let effects = CAUSES.iter().filter(|link| link.cause.code == *code);
    for (title, items) in [
        ("Messages that it can cause", behind.collect::<String>()),
        ("It can follow from", causes.map(|link| related(link.cause)).collect()),
        ("What can follow from it", effects.map(|link| related(link.effect)).collect()),
    ] {
        if !items.is_empty() {
            text += &(heading(title) + &items);
        }
    }
    text
}

/// `{node}` in a template becomes `<node>`.
fn placeholders(template: &str) -> String {
    template.replace('{', "<").replace('}', ">")
}

/// Removes backticks and the targets of links.
fn without_markup(markdown: &str) -> String {
    let mut plain = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    plain.replace(['`', '['], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(code: &str, width: usize) -> String {
        anstream::adapter::strip_str(&page_of(code, width).unwrap()).to_string()
    }

    #[test]
    fn a_page_is_found_by_a_log_line_or_by_words() {
        let found = |text: &str| {
            let found = search(text, 100).map_err(|error| error.to_string()).unwrap();
            anstream::adapter::strip_str(&found).to_string()
        };
        let line = "E1117 nodemanager.go:1] missing SCSI controller for vm-42";
        for (text, code) in [
            (line, "VDO-1205"),
            ("disk ids hidden", "VDO-1203"),
            ("vCenter rejects the user name or password", "VDO-1305"),
        ] {
            assert!(found(text).contains(code), "{text}: {}", found(text));
        }
        assert!(search("zzz qqq", 100).is_err());
        assert!(["1203", "vdo-1203", "VDO1203", "VDO-9999", " VDO-1203 "].into_iter().all(is_code));
        let words = [line, "cns.vmware.com/v1alpha1", "503", "vdo-csi-0", "6000c29e9b1a"];
        assert!(!words.into_iter().any(|text| is_code(text) || is_misspelt_code(text, true)));
        assert!(is_misspelt_code("VDO-9", true) && is_misspelt_code("12O3", false));
        assert_eq!(definition("vdo1203").unwrap().code, "VDO-1203");
        assert!(CATALOGUE.iter().all(|definition| is_code(definition.code)));
        assert!(found("cns.vmware.com/v1alpha1").contains("VDO-1605"));
    }

    #[test]
    fn every_page_fits_sixty_columns() {
        for definition in CATALOGUE {
            let page = shown(definition.code, 60);
            // A long word is not broken. The number of a list item is not a word.
            let words = |line: &&str| line.split_whitespace().filter(|w| w.len() > 2).count();
            let mut long = page.lines().filter(|line| line.chars().count() > 60);
            assert_eq!(long.find(|line| words(line) > 1), None, "{}", definition.code);
        }
    }

    #[test]
    fn every_page_shows_the_whole_definition() {
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for definition in CATALOGUE {
            let page = flat(&shown(definition.code, 100));
            let commented = |step: &&str| match finding::command(step) {
                Some((command, Some(words))) => format!("{command} # {words}"),
                _ => (*step).to_owned(),
            };
            let steps: Vec<String> = definition.remedy.iter().map(commented).collect();
            let texts = steps.iter().map(String::as_str);
            for text in texts.chain([definition.title, definition.seen, definition.why]) {
                assert!(page.contains(&flat(&placeholders(text))), "{}: {text}", definition.code);
            }
            let fix = format!("Fix vdoctl fix {}", definition.code);
            assert_eq!(page.contains(&fix), definition.fixable, "{page}");
        }
    }

    #[test]
    fn the_background_is_plain_text() {
        assert_eq!(without_markup("see [VDO-1307](VDO-1307.md), `a`"), "see VDO-1307, a");
        let page = shown("VDO-1402", 100);
        assert!(page.contains("Background") && !page.contains(['`', '[']), "{page}");
    }
}
