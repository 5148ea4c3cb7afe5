//! The screens in README come from real runs: `make screens` writes them, every run of the tests
//! compares them.

use std::{fs, sync::Mutex};

/// Two tests may write at once.
static WRITING: Mutex<()> = Mutex::new(());

/// Holds README to a screen, or writes it there when `UPDATE_DOCS` is set.
///
/// Each line of README has to be on the screen, in the same order. Ages, ports and room between words
/// differ from run to run and do not count; lines the screen has beyond those of README do no harm.
pub(crate) fn hold(name: &str, screen: &str) {
    let path = testkit::repository().join("README.md");
    let _writing = WRITING.lock().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- screen: {name} -->\n```text\n"), "\n```\n");
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    let (held, after) = rest.split_once(end).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let screen = steady(screen);
        fs::write(path, format!("{before}{begin}{screen}{end}{after}")).unwrap();
        return;
    }
    let shown: Vec<String> = screen.lines().map(plain).collect();
    let mut shown_lines = shown.iter();
    for line in held.lines().map(plain).filter(|line| !line.is_empty()) {
        assert!(
            shown_lines.any(|real| *real == line),
            "README shows what is not shown any more (make screens writes it anew): {line}\n{screen}"
        );
    }
}

/// As it is, but for what no reader needs: the port of a simulator, steps done long ago.
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
    let lines = steady.lines().filter(|line| !line.starts_with("  ✔ ")).map(str::trim_end);
    lines.collect::<Vec<_>>().join("\n").replace("\n\n\n", "\n\n")
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
