//! `vdoctl explain`.

use api::finding::{CATALOGUE, Definition};
use clap::Args;
use health::document;

use crate::{
    failure::{Outcome, request},
    screen::Screen,
    text::{STRONG, Table, nearest, paint, wrap},
};

/// Say what a finding means, why it matters and what to do about it.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// The code, as in VDO-1203 or 1203. Without one, all are listed.
    code: Option<String>,
    /// As Markdown, as in the documentation.
    #[arg(long)]
    markdown: bool,
}

impl Explain {
    pub(crate) fn run(&self, screen: &Screen) -> Outcome {
        let Some(code) = &self.code else { return screen.print(&list(screen.width)) };
        if self.markdown {
            return screen.print(&document::page(definition(code)?));
        }
        screen.print(&page_of(code, screen.width)?)
    }
}

/// The page of a code, for a terminal.
pub(crate) fn page_of(code: &str, width: usize) -> Outcome<String> {
    Ok(plain(&document::page(definition(code)?), width))
}

/// The definition of a code, with or without its prefix.
pub(crate) fn definition(code: &str) -> Outcome<&'static Definition> {
    let code = code.to_uppercase();
    let code = if code.starts_with("VDO-") { code } else { format!("VDO-{code}") };
    if let Some(definition) = Definition::of(&code) {
        return Ok(definition);
    }
    let digits = code.trim_start_matches("VDO-");
    let near = nearest(digits, CATALOGUE.iter().map(|known| known.code.trim_start_matches("VDO-")));
    request(
        format!("there is no finding {code}"),
        match near {
            Some(near) => format!("did you mean VDO-{near}? vdoctl explain lists all"),
            None => "vdoctl explain lists all".to_owned(),
        },
    )
}

fn list(width: usize) -> String {
    let mut table = Table::new(&["CODE", "SEVERITY", "WHAT IS WRONG"]);
    for definition in CATALOGUE {
        table.row([definition.code, &format!("{:?}", definition.severity), definition.title]);
    }
    table.render(width)
}

/// A page of the documentation for a terminal: headings stand out, marks are gone, links are codes.
fn plain(page: &str, width: usize) -> String {
    let mut shown = String::new();
    let mut block: Vec<&str> = Vec::new();
    let flush = |block: &mut Vec<&str>, shown: &mut String| {
        if !block.is_empty() {
            shown.push_str(&wrap("  ", &unmarked(&block.join(" ")), width));
            block.clear();
        }
    };
    for line in page.lines() {
        if line.starts_with("[All findings]") {
            continue;
        }
        if let Some(heading) = line.strip_prefix("## ") {
            flush(&mut block, &mut shown);
            shown.extend([&paint(STRONG, heading), "\n"]);
        } else if let Some(title) = line.strip_prefix("# ") {
            shown.extend([&paint(STRONG, wrap("", title, width).trim_end()), "\n"]);
        } else if line.is_empty() {
            flush(&mut block, &mut shown);
            if !shown.ends_with("\n\n") && !ends_with_heading(&shown) {
                shown.push('\n');
            }
        } else if let Some((mark, rest)) = item(line) {
            flush(&mut block, &mut shown);
            shown.push_str(&wrap(&format!("  {mark} "), &unmarked(rest), width));
        } else {
            block.push(line.trim_start_matches("> ").trim());
        }
    }
    flush(&mut block, &mut shown);
    shown.trim_end().to_owned() + "\n"
}

fn ends_with_heading(shown: &str) -> bool {
    let last = shown.trim_end_matches('\n').rsplit('\n').next().unwrap_or_default();
    !last.is_empty() && !last.starts_with(' ')
}

/// The mark of a list item, and the item.
fn item(line: &str) -> Option<(&str, &str)> {
    let (mark, rest) = line.split_once(' ')?;
    let number = mark.strip_suffix('.').is_some_and(|n| n.chars().all(|c| c.is_ascii_digit()));
    (mark == "-" || number).then_some((mark, rest))
}

/// Without backticks, stars and the targets of links.
fn unmarked(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('[') {
        let Some(middle) = rest[open..].find("](").map(|at| open + at) else { break };
        let Some(close) = rest[middle..].find(')').map(|at| middle + at) else { break };
        plain.push_str(&rest[..open]);
        plain.push_str(&rest[open + 1..middle]);
        rest = &rest[close + 1..];
    }
    plain.push_str(rest);
    let words = plain.replace('`', "");
    starless(&words)
}

/// `*node*` is a value of the case at hand: `<node>`.
fn starless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (number, part) in text.split('*').enumerate() {
        if number % 2 == 1 && !part.is_empty() && !part.contains(' ') {
            out.extend(["<", part, ">"]);
        } else {
            out.push_str(part);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_fits_sixty_columns() {
        for definition in CATALOGUE {
            let page = page_of(definition.code, 60).unwrap();
            let page = anstream::adapter::strip_str(&page).to_string();
            // A word that is longer is not torn; the mark of an item is none.
            let words = |line: &&str| line.split_whitespace().filter(|w| w.len() > 2).count();
            let mut long = page.lines().filter(|line| line.chars().count() > 60);
            assert_eq!(long.find(|line| words(line) > 1), None, "{}", definition.code);
        }
    }
}
