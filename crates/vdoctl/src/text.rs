//! Text layout: word wrap, tables, colors, durations.

use std::{borrow::Cow, sync::OnceLock};

use anstyle::{AnsiColor, Style};
use clap::Command;
use jiff::{SignedDuration, Timestamp};
use unicode_width::UnicodeWidthStr as _;

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const CARE: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const BUSY: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const STRONG: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();

pub(crate) fn paint(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}

/// The width of a text on a terminal, without its styles.
pub(crate) fn columns(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().width()
}

static PLUGIN_COMMANDS: OnceLock<Vec<String>> = OnceLock::new();

/// From now on, texts name these commands as kubectl does.
pub(crate) fn name_as_plugin<'c>(commands: impl Iterator<Item = &'c Command>) {
    let names = commands.map(|command| command.get_name().to_owned());
    PLUGIN_COMMANDS.get_or_init(|| names.collect());
}

/// Replaces `vdoctl COMMAND` by `kubectl vdo COMMAND` if vdoctl runs as a plugin.
pub(crate) fn as_called(text: &str) -> Cow<'_, str> {
    renamed(text, PLUGIN_COMMANDS.get().map_or(&[], Vec::as_slice))
}

fn renamed<'t>(text: &'t str, commands: &[String]) -> Cow<'t, str> {
    let mut text = Cow::Borrowed(text);
    for command in commands {
        let typed = format!("vdoctl {command}");
        if text.contains(&typed) {
            text = text.replace(&typed, &format!("kubectl vdo {command}")).into();
        }
    }
    text
}

/// Breaks a text at blanks into lines of at most `width` columns. The first line starts with `first`, the others
/// with the same number of blanks. A word that is too long gets its own line.
pub(crate) fn wrap(first: &str, text: &str, width: usize) -> String {
    let text = as_called(text);
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    wrapped(first, &" ".repeat(columns(first)), &words.join(" "), width)
}

/// Breaks lines that are too long at a blank, and indents the rest. Keeps shorter lines, with their columns.
pub(crate) fn fold(text: &str, width: usize) -> String {
    let line = |line: &str| {
        let text = line.trim_start();
        let first = &line[..line.len() - text.len()];
        wrapped(first, &format!("{first}    "), text, width)
    };
    as_called(text).lines().map(line).collect()
}

/// Lays out a step of a fix so that it can be pasted into a shell: a command that is too long continues after a
/// backslash or after `&&`, and every line of a comment begins with `#`.
pub(crate) fn wrap_step(first: &str, step: &str, width: usize) -> String {
    let step = as_called(step);
    let blanks = " ".repeat(columns(first));
    let (command, comment) = match step.strip_prefix("# ") {
        Some(sentence) => ("", sentence),
        None => step.split_once("   # ").unwrap_or((&step, "")),
    };
    let one_line = [command, comment].join(if comment.is_empty() { "" } else { " # " });
    if !command.is_empty() && columns(first) + columns(&one_line) <= width {
        return format!("{first}{one_line}\n");
    }
    let mut text = String::new();
    let mut line = first.to_owned();
    for (number, word) in shell_words(command).into_iter().enumerate() {
        if line.ends_with(" &&") {
            text.extend([&line, "\n"]);
            line = format!("{blanks}  {word}");
        // Leaves room for the backslash.
        } else if number > 0 && columns(&line) + columns(word) + 3 > width {
            text.extend([&line, " \\\n"]);
            line = format!("{blanks}  {word}");
        } else {
            let gap = if number > 0 { " " } else { "" };
            line = format!("{line}{gap}{word}");
        }
    }
    let begin = if command.is_empty() { first } else { &blanks };
    if !command.is_empty() {
        text.extend([&line, "\n"]);
    }
    if !comment.is_empty() {
        let comment = comment.split_whitespace().collect::<Vec<_>>().join(" ");
        text.push_str(&wrapped(&format!("{begin}# "), &format!("{blanks}# "), &comment, width));
    }
    text
}

/// The parts of a command between blanks. A blank inside quotes does not separate.
fn shell_words(command: &str) -> Vec<&str> {
    let mut quote = None;
    let words = command.split(|c: char| {
        match quote {
            Some(open) if open == c => quote = None,
            None if matches!(c, '\'' | '"') => quote = Some(c),
            _ => {}
        }
        c == ' ' && quote.is_none()
    });
    words.filter(|word| !word.is_empty()).collect()
}

fn wrapped(first: &str, others: &str, text: &str, width: usize) -> String {
    if text.is_empty() {
        return format!("{}\n", first.trim_end());
    }
    let options = textwrap::Options::new(width.max(columns(others) + 16))
        .initial_indent(first)
        .subsequent_indent(others)
        .break_words(false)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit);
    let lines = textwrap::wrap(text, options);
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|heading| paint(DIM, heading)).collect()] }
    }

    pub(crate) fn plain() -> Self {
        Self::default()
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether a table with headings has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// Renders the table with an indentation of two blanks. Only the last column is wrapped.
    pub(crate) fn render(&self, width: usize) -> String {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widest = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| columns(cell)).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..count).map(widest).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut begin = String::from("  ");
            for (column, cell) in row.iter().enumerate().take(row.len().saturating_sub(1)) {
                begin.push_str(cell);
                begin.push_str(&" ".repeat(widths[column].saturating_sub(columns(cell)) + 2));
            }
            let last = row.last().map_or("", String::as_str);
            // Too narrow: the last column goes below the others.
            let longest = last.split(' ').map(columns).max().unwrap_or_default();
            let needed = columns(last).min(20).max(longest);
            if columns(&begin) + needed > width && columns(last) > 0 {
                text.push_str(begin.trim_end());
                text.push('\n');
                // A terminal breaks a thumbprint in the middle, and then nobody can compare it.
                let indent = [6, 4, 2, 0].into_iter().find(|indent| indent + longest <= width);
                text.push_str(&wrap(&" ".repeat(indent.unwrap_or(6)), last, width));
            } else {
                text.push_str(&wrap(&begin, last, width));
            }
        }
        text
    }
}

/// The age in one unit: `4 min`, `3 days`.
pub(crate) fn ago(then: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(then))
}

pub(crate) fn span(length: SignedDuration) -> String {
    let seconds = length.as_secs().max(0);
    let (number, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..3600 => (seconds / 60, "min"),
        3600..86_400 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, if seconds < 2 * 86_400 { "day" } else { "days" }),
    };
    format!("{number} {unit}")
}

/// `1 node`, `2 nodes`.
pub(crate) fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

pub(crate) fn nearest<'a>(
    given: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    api::check::nearest(given, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_blanks_and_indented() {
        let text = wrap("Why  ", "volumes attach but the node cannot find them", 30);
        assert_eq!(text, "Why  volumes attach but the\n     node cannot find them\n");
    }

    #[test]
    fn every_line_of_a_step_can_be_pasted() {
        let step = "kubectl patch vdoconfig vdo -p '{\"a\": {\"b\": 1}}'   # VDO then tries again";
        assert_eq!(
            wrap_step("Fix  ", step, 40),
            "Fix  kubectl patch vdoconfig vdo -p \\\n       '{\"a\": {\"b\": 1}}'\n     # VDO then tries again\n"
        );
        assert_eq!(
            wrap_step("Fix  ", "kubectl drain node-1 && govc vm.power -off node-1", 40),
            "Fix  kubectl drain node-1 &&\n       govc vm.power -off node-1\n"
        );
        assert_eq!(
            wrap_step("Fix  ", "# Restore access to the datastore", 26),
            "Fix  # Restore access to\n     # the datastore\n"
        );
        assert_eq!(wrap_step("Fix  ", "govc about   # works", 40), "Fix  govc about # works\n");
    }

    #[test]
    fn a_plugin_names_its_commands_as_kubectl_does() {
        let commands = ["fix", "version", "versions"].map(str::to_owned);
        let shown =
            renamed("vdoctl fix CODE, then vdoctl versions; vdoctl does no more", &commands);
        assert_eq!(shown, "kubectl vdo fix CODE, then kubectl vdo versions; vdoctl does no more");
        assert_eq!(as_called("vdoctl fix CODE"), "vdoctl fix CODE", "this is no plugin");
    }

    #[test]
    fn long_lines_are_folded_and_short_ones_kept() {
        let text = "CPI     1.36.0    stable\n  3.7.3  It supports Kubernetes 1.33 to 1.35\n";
        let folded = "CPI     1.36.0    stable\n  3.7.3  It supports\n      Kubernetes 1.33 to\n      1.35\n";
        assert_eq!(fold(text, 24), folded);
        assert_eq!(fold("a-word-that-is-longer-than-it-may-be\n", 20).lines().count(), 1);
    }

    #[test]
    fn styles_have_no_width() {
        assert_eq!(columns(&paint(BAD, "Error")), 5);
        assert_eq!(columns("日本"), 4);
    }

    #[test]
    fn the_last_column_moves_below_if_the_table_is_too_narrow() {
        let mut table = Table::plain();
        table.row(["VDO-1203", "Error", "Disk ids are hidden from 2 nodes"]);
        assert_eq!(table.render(80), "  VDO-1203  Error  Disk ids are hidden from 2 nodes\n");
        assert_eq!(
            table.render(30),
            "  VDO-1203  Error\n      Disk ids are hidden from\n      2 nodes\n"
        );
    }

    #[test]
    fn a_thumbprint_stays_on_one_line() {
        let thumbprint = ["AB"; 32].join(":");
        let mut table = Table::plain();
        table.row(["SHA-256", &thumbprint]);
        for (width, indent) in [(101, 6), (100, 4), (99, 4), (95, 0), (60, 6)] {
            let expected = format!("  SHA-256\n{}{thumbprint}\n", " ".repeat(indent));
            assert_eq!(table.render(width), expected, "{width} columns");
        }
    }

    #[test]
    fn a_duration_has_one_unit() {
        let shown = |seconds| span(SignedDuration::from_secs(seconds));
        assert_eq!(shown(5), "5 s");
        assert_eq!(shown(240), "4 min");
        assert_eq!(shown(86_400), "1 day");
        assert_eq!(shown(300_000), "3 days");
    }
}
