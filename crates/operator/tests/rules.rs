//! Each rule that is never broken and each threat has tests, and the tables that name them are correct.
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

/// The test that runs a check which is not a test itself.
fn test_that_runs(check: &str) -> Option<&'static str> {
    let storage = "new_credentials_are_verified_before_a_driver_gets_them";
    ["no_certificate_is_trusted_unasked", "no_secret_shows"].contains(&check).then_some(storage)
}

/// Whether a test of this name exists and is not ignored.
fn runs(sources: &str, test: &str) -> bool {
    sources.match_indices(&format!("fn {test}(")).any(|(at, _)| {
        let line = sources[..at].rfind('\n').map_or(0, |end| end + 1);
        let above = sources[..line].lines().rev().map(str::trim);
        let marks: Vec<&str> = above.take_while(|line| line.starts_with("#[")).collect();
        let is = |mark: &&str| mark.starts_with("#[test]") || mark.starts_with("#[tokio::test");
        marks.iter().any(is) && !marks.iter().any(|mark| mark.starts_with("#[ignore"))
    })
}

#[test]
fn ignored_tests_and_plain_functions_do_not_count() {
    let is = |text: &str| runs(text, "it");
    assert!(is("#[test]\nfn it() {"));
    assert!(is("    #[tokio::test(flavor = \"multi_thread\")]\n    async fn it() {"));
    assert!(!is("async fn it() {"));
    assert!(!is("#[test]\nfn other() {}\n\nfn it() {"));
    assert!(!is("#[test]\n#[ignore = \"slow\"]\nfn it() {"));
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
            if let Some(parent) = test_that_runs(test) {
                assert!(runs(&all, parent), "there is no test {parent}, which runs {test}");
                assert!(all.matches(&format!("{test}(")).count() > 1, "no test calls {test}");
            } else {
                assert!(runs(&all, test), "there is no test {test}");
            }
        }
    }
    assert_eq!(rows.len(), 12, "design.md has twelve rules");
}

/// The threat model names each test after its file or folder. A row can name the file alone until its test exists.
#[test]
fn every_test_in_the_threat_model_exists_in_its_file() {
    let root = testkit::repository();
    let page = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let mut tests = 0;
    let (_, threats) = page.split_once("## Threats").unwrap();
    let rows =
        threats.lines().filter(|line| line.starts_with("| ") && line.matches('|').count() == 5);
    for row in rows.filter(|row| !row.starts_with("| |")) {
        let column = row.rsplit('|').nth(1).unwrap();
        let named: Vec<&str> = column.split('`').skip(1).step_by(2).collect();
        assert!(named.first().is_some_and(|first| first.starts_with("crates/")), "{row}");
        let mut place = String::new();
        for name in named {
            if name.starts_with("crates/") {
                place = name.to_owned();
                assert!(root.join(name).exists(), "there is no {name}");
                continue;
            }
            let (path, mut text) = (root.join(&place), String::new());
            if path.is_dir() {
                sources(&path, &mut text);
            } else {
                text = std::fs::read_to_string(path).unwrap();
            }
            assert!(runs(&text, name), "there is no test {name} in {place}");
            tests += 1;
        }
    }
    assert!(tests > 30, "only {tests} tests were found in docs/security.md");
}

#[test]
fn the_releases_that_a_sample_pins_share_a_kubernetes_version() {
    use catalog::{Driver, Implementation};

    let range = |driver: Driver, section: &serde_json::Value| {
        let version = section["version"].as_str()?.parse().unwrap();
        let release = catalog::embedded().find(driver, Implementation::Upstream, &version);
        Some(release.unwrap_or_else(|| panic!("the catalog lacks {driver} {version}")).kubernetes)
    };
    for sample in api::samples::samples() {
        for object in sample.objects.iter().filter(|object| object["kind"] == "VDOConfig") {
            let cpi = range(Driver::Cpi, &object["spec"]["cloudProvider"]);
            let csi = range(Driver::Csi, &object["spec"]["storageProvider"]);
            let Some((cpi, csi)) = cpi.zip(csi) else { continue };
            let (min, max) = (cpi.min.max(csi.min), cpi.max.min(csi.max));
            assert!(min <= max, "{}: {cpi} and {csi}", sample.name);
            let named = format!("Kubernetes {max}");
            assert!(sample.header().contains(&named), "{}: {named}", sample.name);
        }
    }
}
