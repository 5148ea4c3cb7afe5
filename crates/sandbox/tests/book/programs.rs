//! The programs a reader of the book has: ours, built as the tests are, and kubectl.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, OnceLock},
};

/// The folder of our programs. Builds them first, with the features the tests are built with, so that
/// after `make test` has compiled everything there is nothing left to do.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--quiet", "--workspace"])
            .args(["--features", "catalog/cli", "--bins", "--examples"])
            .current_dir(testkit::repository())
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().to_owned()
    })
}

/// Where a program is that the book may name; none if it is neither ours nor kubectl.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    if name == "kubectl" {
        return Some(testkit::peer("kubectl"));
    }
    let own = folder().join(name);
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
