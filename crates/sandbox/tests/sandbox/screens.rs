//! The screens in README come from real runs: `make screens` writes them, every run of the tests
//! compares them.

use std::{fs, sync::Mutex};

/// Two tests may write at once.
static WRITING: Mutex<()> = Mutex::new(());

/// The screens README has, each held by a test of the sandbox.
const SCREENS: [&str; 2] = ["healthy", "degraded"];

/// Holds README to a screen, or writes it there when `UPDATE_DOCS` is set.
///
/// Line by line the two are the same; ages, ports and room between words differ from run to run and do
/// not count.
pub(crate) fn hold(name: &str, screen: &str) {
    assert!(SCREENS.contains(&name), "{name}");
    let path = testkit::repository().join("README.md");
    let _writing = WRITING.lock().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let [before, held, after] = parts(&text, name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let screen = steady(screen);
        fs::write(path, format!("{before}{screen}{after}")).unwrap();
        return;
    }
    if let Some(line) = difference(held, screen) {
        panic!("README shows it otherwise (make screens writes it anew): {line}\n{screen}");
    }
}

/// A text before a screen, the screen, and what comes after it.
fn parts<'t>(text: &'t str, name: &str) -> [&'t str; 3] {
    let begin = format!("<!-- screen: {name} -->\n```text\n");
    let at = text.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
    let length = text[at..].find("\n```\n").unwrap();
    [&text[..at], &text[at..at + length], &text[at + length..]]
}

/// The first line in which what is held differs from what is shown.
fn difference(held: &str, shown: &str) -> Option<String> {
    let lines = |text: &str| {
        let lines = steady(text);
        let lines = lines.lines().map(plain).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>()
    };
    let (held, shown) = (lines(held), lines(shown));
    let differs = (0..held.len().max(shown.len())).find(|at| held.get(*at) != shown.get(*at))?;
    Some(format!("{:?} is held, {:?} is shown", held.get(differs), shown.get(differs)))
}

#[test]
fn a_screen_that_was_shortened_edited_or_added_to_is_noticed() {
    let readme = fs::read_to_string(testkit::repository().join("README.md")).unwrap();
    for name in SCREENS {
        let [_, held, _] = parts(&readme, name);
        assert_eq!(difference(held, held), None);
        let older = held.replace(" s\n", "7 min\n") + "\n";
        assert_eq!(difference(held, &older), None, "only older");
        let lines: Vec<&str> = held.lines().collect();
        for at in (0..lines.len()).filter(|at| !lines[*at].is_empty()) {
            let mut shorter = lines.clone();
            shorter.remove(at);
            let mut edited: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            edited[at] = edited[at].replacen(char::is_alphanumeric, "x", 1);
            let mut longer = lines.clone();
            longer.insert(at, "  and more");
            for other in [shorter.join("\n"), edited.join("\n"), longer.join("\n")] {
                assert!(difference(&other, held).is_some(), "{other}");
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
    assert_eq!(others, Vec::<&str>::new(), "mark it with <!-- screen: NAME --> and hold it");
}

/// As it is, but for what no reader needs: the port of a simulator.
fn steady(screen: &str) -> String {
    let mut steady = String::new();
    for (number, part) in screen.split("127.0.0.1:").enumerate() {
        if number > 0 {
            steady.push_str("vc-a.example.com");
        }
        let part =
            if number > 0 { part.trim_start_matches(|c: char| c.is_ascii_digit()) } else { part };
        steady.push_str(part);
    }
    steady.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// A line without what differs from run to run.
fn plain(line: &str) -> String {
    let line = steady(line);
    let mut words: Vec<&str> = line.split_whitespace().collect();
    // An age stands last: a number and its unit.
    if let [.., number, "s" | "min" | "h"] = words[..]
        && number.chars().all(|c| c.is_ascii_digit())
    {
        words.truncate(words.len() - 2);
    }
    words.join(" ")
}
