//! The rules that are never broken: each has tests, and the table that names them is true.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

/// The text of every Rust source of the project.
fn sources(folder: &std::path::Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_rule_has_tests_and_they_exist() {
    let mut all = String::new();
    sources(&testkit::repository().join("crates"), &mut all);
    let page = testkit::repository().join("docs/testing.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("| rule | tests |").unwrap();
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    for (number, row) in rows.iter().enumerate() {
        assert!(row.starts_with(&format!("| {} ", number + 1)), "{row}");
        let tests: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "{row}");
        for test in tests {
            assert!(all.contains(&format!("fn {test}(")), "there is no test {test}");
        }
    }
    assert_eq!(rows.len(), 12, "design.md has twelve rules");
}
