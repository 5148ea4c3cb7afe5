//! The screens in README come from real runs: `make screens` writes them, and the tests compare them.

use std::{fs, sync::Mutex};

/// Two tests can write at the same time.
static WRITING: Mutex<()> = Mutex::new(());

/// The screens in README, each compared by a test of the sandbox.
const SCREENS: [&str; 2] = ["healthy", "degraded"];

/// Compares a screen with README, or writes it there if `UPDATE_DOCS` is set.
///
/// The lines must be equal, except for ages, ports and spaces, which differ between runs.
pub(crate) fn compare(name: &str, screen: &str) {
    assert!(SCREENS.contains(&name), "{name}");
    let path = testkit::repository().join("README.md");
    let _writing = WRITING.lock().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let [before, documented, after] = parts(&text, name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let screen = without_ports(screen);
        fs::write(path, format!("{before}{screen}{after}")).unwrap();
        return;
    }
    if let Some(line) = difference(documented, screen) {
        panic!("README differs (make screens regenerates it): {line}\n{screen}");
    }
}

/// The text before a screen, the screen, and the text after it.
fn parts<'t>(text: &'t str, name: &str) -> [&'t str; 3] {
    let begin = format!("<!-- screen: {name} -->\n```text\n");
    let at = text.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
    let length = text[at..].find("\n```\n").unwrap();
    [&text[..at], &text[at..at + length], &text[at + length..]]
}

/// The first line in which the documented screen differs from the shown one.
fn difference(documented: &str, shown: &str) -> Option<String> {
    let lines = |text: &str| {
        let lines = without_ports(text);
        let lines = lines.lines().map(plain).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>()
    };
    let (documented, shown) = (lines(documented), lines(shown));
    let differs =
        (0..documented.len().max(shown.len())).find(|at| documented.get(*at) != shown.get(*at))?;
    Some(format!(
        "README has {:?}, the sandbox shows {:?}",
        documented.get(differs),
        shown.get(differs)
    ))
}

#[test]
fn a_changed_screen_is_detected() {
    let readme = fs::read_to_string(testkit::repository().join("README.md")).unwrap();
    for name in SCREENS {
        let [_, documented, _] = parts(&readme, name);
        assert_eq!(difference(documented, documented), None);
        let older = documented.replace(" s\n", "7 min\n") + "\n";
        assert_eq!(difference(documented, &older), None, "only the age differs");
        let lines: Vec<&str> = documented.lines().collect();
        for at in (0..lines.len()).filter(|at| !lines[*at].is_empty()) {
            let mut shorter = lines.clone();
            shorter.remove(at);
            let mut edited: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            edited[at] = edited[at].replacen(char::is_alphanumeric, "x", 1);
            let mut longer = lines.clone();
            longer.insert(at, "  and more");
            for other in [shorter.join("\n"), edited.join("\n"), longer.join("\n")] {
                assert!(difference(&other, documented).is_some(), "{other}");
            }
        }
    }
}

#[test]
fn every_screen_in_readme_comes_from_a_run() {
    let readme = fs::read_to_string(testkit::repository().join("README.md")).unwrap();
    let screens: Vec<&str> = SCREENS.iter().map(|name| parts(&readme, name)[1]).collect();
    let mut blocks = readme.split("\n```").skip(1).step_by(2);
    let looks =
        |block: &&str| block.lines().nth(1).is_some_and(|l| l.starts_with(['●', '▲', '◐', '○']));
    let others = blocks.by_ref().filter(looks).map(|block| block.split_once('\n').unwrap().1);
    let others: Vec<&str> = others.filter(|block| !screens.contains(block)).collect();
    assert_eq!(
        others,
        Vec::<&str>::new(),
        "mark it with <!-- screen: NAME --> and compare it in a test"
    );
}

/// Replaces the port of a simulator.
fn without_ports(screen: &str) -> String {
    let mut text = String::new();
    for (number, part) in screen.split("127.0.0.1:").enumerate() {
        if number > 0 {
            text.push_str("vc-a.example.com");
        }
        let part =
            if number > 0 { part.trim_start_matches(|c: char| c.is_ascii_digit()) } else { part };
        text.push_str(part);
    }
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// A line without the parts that differ between runs.
fn plain(line: &str) -> String {
    let line = without_ports(line);
    let mut words: Vec<&str> = line.split_whitespace().collect();
    // The age is last: a number and its unit.
    if let [.., number, "s" | "min" | "h"] = words[..]
        && number.chars().all(|c| c.is_ascii_digit())
    {
        words.truncate(words.len() - 2);
    }
    words.join(" ")
}
