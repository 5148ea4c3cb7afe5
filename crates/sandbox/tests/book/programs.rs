//! The programs of a reader: ours, built as the tests are, kubectl and govc.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// The path of one of our programs, kubectl or govc.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    if matches!(name, "kubectl" | "govc") {
        return Some(testkit::peer(name));
    }
    let own = testkit::programs().join(name);
    let is_program = !name.contains(['/', '.']) && own.is_file();
    is_program.then_some(own)
}

/// The help of a program and of its subcommands in these words.
pub(crate) fn help(program: &Path, words: &[&str]) -> String {
    let verbs = words.iter().take(3).take_while(|word| is_verb(word)).count();
    let mut texts: Vec<String> = (0..=verbs)
        .map(|count| output_of(program, &[&words[..count], &["--help"]].concat()))
        .collect();
    if program.ends_with("kubectl") {
        texts.push(output_of(program, &["options"]));
    }
    texts.join("\n")
}

/// The unknown command or flag of a govc command line; `words` begin with the command, flags with one dash.
pub(crate) fn unknown_to_govc(program: &Path, words: &[&str]) -> Option<String> {
    let words: Vec<&str> = words.iter().copied().take_while(|word| *word != "|").collect();
    let (command, rest) = words.split_first()?;
    let help = output_of(program, &[command, "-h"]);
    if help.is_empty() {
        return Some(format!("command {command}"));
    }
    let known = |flag: &str| help.lines().any(|line| line.trim_start().starts_with(flag));
    let flags = rest.iter().filter(|word| word.starts_with('-') && word.len() > 1);
    let names = flags.map(|flag| flag.split('=').next().unwrap_or_default());
    // `find` takes properties like flags.
    let names = names.filter(|name| *command != "find" || !name.contains('.'));
    let mut unknown = names.filter(|name| !known(&format!("{name}=")));
    Some(format!("flag {} of {command}", unknown.next()?))
}

/// The first word that is not a subcommand although the program expects one.
pub(crate) fn unknown_verb<'a>(program: &Path, words: &[&'a str]) -> Option<&'a str> {
    for count in 0..words.len() {
        let above = output_of(program, &[&words[..count], &["--help"]].concat());
        let has_commands =
            above.lines().any(|line| line.contains("Commands") && line.ends_with(':'));
        // `COMMAND` is a placeholder.
        if !has_commands || words[count].chars().all(|c| c.is_ascii_uppercase()) {
            return None;
        }
        // Hidden commands have help too.
        let known = !output_of(program, &[&words[..=count], &["--help"]].concat()).is_empty();
        if !known {
            return Some(words[count]);
        }
    }
    None
}

fn is_verb(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}

/// The cached output of a program.
fn output_of(program: &Path, arguments: &[&str]) -> String {
    static OUTPUTS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let key = format!("{} {}", program.display(), arguments.join(" "));
    let mut outputs = OUTPUTS.lock().unwrap();
    let output = outputs.entry(key).or_insert_with(|| {
        let output = Command::new(program).args(arguments).output().unwrap();
        let text = if output.status.success() { output.stdout } else { Vec::new() };
        String::from_utf8_lossy(&text).into_owned()
    });
    output.clone()
}
