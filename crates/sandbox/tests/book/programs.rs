//! The programs of a reader: ours, built as the tests are, kubectl and govc.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// Where a program is that the book may name; none if it is neither ours nor one of the two others.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    if matches!(name, "kubectl" | "govc") {
        return Some(testkit::peer(name));
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

/// What of a command for govc does not exist: `words` begin with its command, flags begin with one dash.
pub(crate) fn unknown_to_govc(program: &Path, words: &[&str]) -> Option<String> {
    let words: Vec<&str> = words.iter().copied().take_while(|word| *word != "|").collect();
    let (command, rest) = words.split_first()?;
    let help = asked(program, &[command, "-h"]);
    if help.is_empty() {
        return Some(format!("command {command}"));
    }
    let known = |flag: &str| help.lines().any(|line| line.trim_start().starts_with(flag));
    let flags = rest.iter().filter(|word| word.starts_with('-') && word.len() > 1);
    let names = flags.map(|flag| flag.split('=').next().unwrap_or_default());
    let mut unknown = names.filter(|name| !known(&format!("{name}=")));
    Some(format!("flag {} of {command}", unknown.next()?))
}

/// The first word that would have to be a command of a program and is none.
pub(crate) fn unknown_verb<'a>(program: &Path, words: &[&'a str]) -> Option<&'a str> {
    for count in 0..words.len() {
        let above = asked(program, &[&words[..count], &["--help"]].concat());
        let has_commands =
            above.lines().any(|line| line.contains("Commands") && line.ends_with(':'));
        // `COMMAND` stands for any.
        if !has_commands || words[count].chars().all(|c| c.is_ascii_uppercase()) {
            return None;
        }
        // Also those the list leaves out: who is asked for help about them answers.
        let known = !asked(program, &[&words[..=count], &["--help"]].concat()).is_empty();
        if !known {
            return Some(words[count]);
        }
    }
    None
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
