//! The book is correct: the summary lists every page, every link works, every name exists, the API server accepts every
//! object, and every command runs, from the first page to the last, on one cluster.
//!
//! ```text
//!   pages             blocks, links, headings and code words of a page
//!   names             flags, fields, finding codes and make targets that exist
//!   programs          ours, kubectl and govc, built as the tests are
//!   site              a vCenter with the names of the pages, and clusters on its VMs
//!   inline_commands   the commands in sentences and tables
//!   special_blocks    blocks for a terminal, a node or a dry run, and blocks that are not run
//!   reader            runs the commands of the pages
//!   outcomes          the state before a page, and checks after it
//!   finding_commands  the commands on the pages of the findings
//! ```
#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a failed unwrap fails the test"
)]

mod finding_commands;
mod inline_commands;
#[path = "../sandbox/lines.rs"]
mod lines;
mod names;
mod outcomes;
mod pages;
mod programs;
mod reader;
mod site;
mod special_blocks;
// Shared with the tests of vdoctl.
#[allow(dead_code, reason = "not everything in it is needed here")]
#[path = "../../../vdoctl/tests/vdoctl/terminal.rs"]
mod terminal;

use std::collections::BTreeSet;

use pages::Page;

#[test]
fn the_summary_lists_every_page_once() {
    let listed: Vec<String> = pages::in_order().into_iter().map(|page| page.path).collect();
    let once: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice in docs/SUMMARY.md");
    let all = pages::all();
    let missing: Vec<&str> = all
        .iter()
        .map(|page| page.path.as_str())
        .filter(|path| path.starts_with("docs/") && *path != "docs/SUMMARY.md")
        .filter(|path| !listed.iter().any(|known| known == path))
        .collect();
    assert_eq!(
        missing,
        Vec::<&str>::new(),
        "add them to docs/SUMMARY.md (findings: make generate)"
    );
}

#[test]
fn every_link_leads_to_an_existing_file_and_heading() {
    let all = pages::all();
    let mut broken = Vec::new();
    for page in &all {
        for link in page.links().iter().filter(|link| !link.contains("://")) {
            if let Err(why) = follow(&all, page, link) {
                broken.push(format!("{}: {link}: {why}", page.path));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

fn follow(all: &[Page], from: &Page, link: &str) -> Result<(), String> {
    let (file, anchor) = link.split_once('#').map_or((link, None), |(f, a)| (f, Some(a)));
    let mut path: Vec<&str> = from.path.split('/').collect();
    if !file.is_empty() {
        path.pop();
    }
    for part in file.split('/').filter(|part| !part.is_empty()) {
        match part {
            ".." => drop(path.pop().ok_or("leads out of the repository")?),
            part => path.push(part),
        }
    }
    let path = path.join("/");
    if !testkit::repository().join(&path).exists() {
        return Err("no such file".into());
    }
    let Some(anchor) = anchor else { return Ok(()) };
    let page = all.iter().find(|page| page.path == path).ok_or("an anchor in no page")?;
    if page.anchors().contains(anchor) { Ok(()) } else { Err("no such heading".into()) }
}

#[test]
fn every_name_in_the_book_exists() {
    let known = names::KnownNames::gather();
    let unknown: Vec<String> =
        pages::all().iter().flat_map(|page| known.missing_in(page)).collect();
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

#[test]
fn every_block_has_a_known_language_and_note() {
    let languages = ["sh", "console", "yaml", "json", "toml", "rust", "text"];
    let own = ["cargo ", "kubectl ", "make ", "oc ", "vdo ", "vdoctl ", "$ "];
    let mut wrong = Vec::new();
    for page in pages::all().iter().filter(|page| !page.is_generated()) {
        for block in page.blocks() {
            let language = block.language.as_str();
            if !language.is_empty() && !languages.contains(&language) {
                wrong.push(format!("{}: `{language}` is not one of {languages:?}", block.place));
            }
            let bare = language.is_empty() || language == "text";
            let typed = |line: &str| own.iter().any(|start| line.trim_start().starts_with(start));
            // A text block can show programs further down; a block without a language cannot.
            let lines = if language.is_empty() { usize::MAX } else { 1 };
            if bare && block.text.lines().take(lines).any(typed) {
                wrong.push(format!("{}: mark commands as sh or console", block.place));
            }
            if let Some(note) = block.unknown_note() {
                wrong.push(format!("{}: unknown note {note:?}", block.place));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn the_commands_of_the_book_work() {
    let pages: Vec<Page> = pages::before().into_iter().chain(pages::in_order()).collect();
    assert!(pages[0].path == "README.md" && !pages[0].blocks().is_empty());
    Box::pin(reader::run_all(&pages)).await;
}
