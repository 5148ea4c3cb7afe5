//! The programs a reader of the book has: ours, built as the tests are, and kubectl.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// Where a program is that the book may name; none if it is neither ours nor kubectl.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    if name == "kubectl" {
        return Some(testkit::peer("kubectl"));
    }
    let own = testkit::programs().join(name);
    let is_program = !name.contains(['/', '.']) && own.is_file();
    is_program.then_some(own)
}

/// Everything a program says about its options, for as many of the words as it knows.
pub(crate) fn help(program: &Path, words: &[&str]) -> String {
    let verbs = words.iter().take(3).take_while(|word| is_verb(word)).count();
    let mut texts: Vec<String> =
        (0..=verbs).map(|count| asked(program, &[&words[..count], &["--help"]].concat())).collect();
    if program.ends_with("kubectl") {
        texts.push(asked(program, &["options"]));
    }
    texts.join("\n")
}

/// What a program says about one of its commands.
pub(crate) fn own_help(program: &Path, words: &[&str]) -> String {
    asked(program, &[words, &["--help"]].concat())
}

/// Whether a program knows a command, be it listed or kept for those who know it from elsewhere.
pub(crate) fn is_command(program: &Path, words: &[&str]) -> bool {
    let (last, above) = words.split_last().unwrap_or((&"", &[]));
    let usage = own_help(program, words);
    let usage =
        usage.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default().to_owned();
    // An argument leads to the help of what it is given to.
    let above = own_help(program, above);
    let above = above.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
    !last.is_empty() && !usage.is_empty() && usage != above
}

fn is_verb(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}

/// What a program answers; each question is put once.
fn asked(program: &Path, arguments: &[&str]) -> String {
    static ANSWERS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let question = format!("{} {}", program.display(), arguments.join(" "));
    let mut answers = ANSWERS.lock().unwrap();
    let answer = answers.entry(question).or_insert_with(|| {
        let output = Command::new(program).args(arguments).output().unwrap();
        let text = if output.status.success() { output.stdout } else { Vec::new() };
        String::from_utf8_lossy(&text).into_owned()
    });
    answer.clone()
}
