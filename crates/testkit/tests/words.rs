//! The words of the project: code, docs, CLI output and findings use the vocabulary of Kubernetes and vSphere.
//!
//! `glossary` lists the words to avoid and what to write instead. `allowed` lists the exceptions with their reasons.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "words/allowed.rs"]
mod allowed;
#[path = "words/glossary.rs"]
mod glossary;
#[path = "words/scan.rs"]
mod scan;

use std::{collections::BTreeSet, fs, path::Path, process::Command, sync::LazyLock};

use allowed::ALLOWED;
use scan::{Hit, hits};

/// Generated code, and this test, which must name the words.
const SKIPPED: &[&str] = &["crates/csi/src/proto", "crates/testkit/tests/words"];

fn is_in(places: &[&str], path: &str) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

fn is_scanned(path: &str) -> bool {
    let ends_with = |endings: &[&str]| endings.iter().any(|ending| path.ends_with(ending));
    let text = match path.split_once('/') {
        Some(("crates", _)) => ends_with(&[".rs", ".snap", ".trycmd", ".stdout", ".stderr"]),
        Some(("peers", _)) => ends_with(&[".go"]),
        Some((folder, _)) => ["docs", "deploy", "scripts"].contains(&folder),
        None => ends_with(&[".md", "Makefile"]),
    };
    text && !is_in(SKIPPED, path)
}

/// The tracked files to scan, with their text.
static FILES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let root = testkit::repository();
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let paths = String::from_utf8(listed.stdout).unwrap();
    let paths = paths.split('\0').filter(|path| is_scanned(path));
    // A binary file has no words, and a deleted file is listed until the deletion is committed.
    let text = |path: &str| Some((path.to_owned(), fs::read_to_string(root.join(path)).ok()?));
    paths.filter_map(text).collect()
});

/// The exception that allows a hit.
fn exception(path: &str, text: &str, hit: &Hit<'_>) -> Option<String> {
    let allowed = ALLOWED
        .iter()
        .find(|(place, quote, _)| path.starts_with(place) && hit.is_in_quote(text, quote));
    allowed.map(|(place, quote, _)| format!("{quote:?} in {place:?}"))
}

#[test]
fn the_words_are_those_of_the_field() {
    assert!(FILES.len() > 500, "git lists only {} files", FILES.len());

    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for (path, text) in &*FILES {
        let in_name = hits(path).into_iter().map(|hit| (path, hit));
        let in_text = hits(text).into_iter().map(|hit| (text, hit));
        for (place, hit) in in_name.chain(in_text) {
            match exception(path, place, &hit) {
                Some(entry) => _ = used.insert(entry),
                None => wrong.push(format!("{path}:{hit}")),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\n{} places use a word that only we understand. If a use is a quote or has another meaning, add it with \
         the reason to crates/testkit/tests/words/allowed.rs",
        wrong.join("\n"),
        wrong.len()
    );

    let allowed = ALLOWED.iter().map(|(place, quote, _)| format!("{quote:?} in {place:?}"));
    let unused: Vec<String> = allowed.filter(|entry| !used.contains(entry)).collect();
    assert!(
        unused.is_empty(),
        "nothing needs these exceptions, delete them:\n{}",
        unused.join("\n")
    );
}

/// The lines of our Rust sources that break a rule about single lines.
fn lines_with(rule: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let is_rust = |path: &str| Path::new(path).extension().is_some_and(|ending| ending == "rs");
    let is_ours = |path: &str| is_rust(path);
    for (path, text) in FILES.iter().filter(|(path, _)| is_ours(path)) {
        let lines = text.lines().zip(1..).filter(|(line, _)| rule(line));
        found.extend(lines.map(|(line, number)| format!("{path}:{number}: {}", line.trim())));
    }
    found
}

fn is_called_of(line: &str) -> bool {
    line.split_once("fn of").is_some_and(|(_, rest)| rest.starts_with(['(', '<']))
}

fn begins_with_what(line: &str) -> bool {
    let comment = line.trim_start().strip_prefix("//").unwrap_or_default();
    comment.trim_start_matches(['/', '!']).starts_with(" What ") && !comment.contains('?')
}

#[test]
fn a_function_is_named_after_its_result() {
    let found = lines_with(is_called_of);
    assert!(found.is_empty(), "call them for_node, from_spec, …:\n{}", found.join("\n"));
}

#[test]
fn a_comment_names_its_subject() {
    let found = lines_with(begins_with_what);
    assert!(found.is_empty(), "begin with a noun or a verb instead of What:\n{}", found.join("\n"));
}

#[test]
fn the_scanner_sees_words_in_identifiers_phrases_and_wrapped_comments() {
    let seen = |text: &str| hits(text).iter().map(ToString::to_string).collect::<Vec<_>>();

    assert_eq!(
        seen("VDO fixes it.\nVDO mends it."),
        ["2: \"mends\": write fix, remediate, remediation"]
    );
    for text in [
        "fn is_told_foreign()",
        "struct MendedNode;",
        "const PATIENCE: u64",
        "the release is taken back",
        "fn take_it_back()",
        "/// The release is taken\n    /// back",
        "a node's machine",
        "fn machineGone()",
        "the vCenter is away",
        "VCenters are",
        "the account may not see it",
    ] {
        assert_eq!(seen(text).len(), 1, "{text}: {:?}", seen(text));
    }
    for text in [
        "recommended history, amended",
        "a state machine and a VirtualMachine",
        "pods are taken off; back",
        "right away",
        "the vCenter, VcenterReady, VCenterPort",
        "this may not be the last page",
    ] {
        assert_eq!(seen(text), [""; 0], "{text}");
    }
    assert!(is_called_of("pub fn of<T>(") && !is_called_of("fn of_node("));
    assert!(
        begins_with_what("    /// What VDO does.") && !begins_with_what("// What if it fails?")
    );
}
