//! The pages of the book say what is so: their objects are accepted by a real API server, and the
//! names they use exist.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use operator::names;
use serde_json::Value;
use testkit::{ControlPlane, eventually};

const PAGES: [&str; 5] = ["install", "upgrade", "remove", "adopt", "platforms"];

fn page(name: &str) -> String {
    let file = testkit::repository().join("docs").join(format!("{name}.md"));
    std::fs::read_to_string(file).unwrap()
}

/// The text of every fenced block of a kind.
fn blocks(page: &str, kind: &str) -> Vec<String> {
    let mut parts = page.split("\n```");
    let mut found = Vec::new();
    parts.next();
    // Every second part is inside a fence.
    for inside in parts.step_by(2) {
        let (language, text) = inside.split_once('\n').unwrap();
        if language == kind {
            found.push(text.to_owned());
        }
    }
    found
}

#[tokio::test]
async fn every_object_in_the_book_is_accepted() {
    let plane = ControlPlane::start().await;
    let client = plane.client();
    let install = PatchParams::apply("book").force();
    for object in operator::install::objects() {
        let id = operator::facts::ObjectId::of(&object);
        let api = operator::act::api_of(&client, &id).unwrap();
        api.patch(&id.name, &install, &Patch::Apply(&object.0)).await.unwrap();
    }
    let configs = Api::<api::VDOConfig>::all(client.clone());
    eventually("the definitions are served", 20, async || {
        configs.list(&ListParams::default()).await.map(drop)
    })
    .await;
    let mut seen = 0;
    for name in PAGES {
        let texts = blocks(&page(name), "yaml");
        for document in texts.iter().flat_map(|text| text.split("\n---\n")) {
            let value: Value = serde_saphyr::from_str(document).unwrap();
            let (group, version) =
                value["apiVersion"].as_str().unwrap().rsplit_once('/').unwrap_or(("", "v1"));
            let gvk = GroupVersionKind::gvk(group, version, value["kind"].as_str().unwrap());
            let home = value["metadata"]["namespace"].as_str().unwrap();
            let api = Api::<DynamicObject>::namespaced_with(
                client.clone(),
                home,
                &ApiResource::from_gvk(&gvk),
            );
            let strict = PatchParams {
                field_validation: Some(kube::api::ValidationDirective::Strict),
                ..install.clone()
            };
            let name_of = value["metadata"]["name"].as_str().unwrap();
            let accepted = api.patch(name_of, &strict, &Patch::Apply(&value)).await;
            assert!(accepted.is_ok(), "{name}.md: {document}\n{accepted:?}");
            seen += 1;
        }
    }
    assert_eq!(seen, 7, "the objects of the pages");
}

#[test]
fn every_annotation_and_finding_in_the_book_exists() {
    let known = [names::PAUSED, names::APPROVE_CPI, names::APPROVE_CSI];
    for name in PAGES {
        let page = page(name);
        for command in blocks(&page, "") {
            for word in
                command.split_whitespace().filter(|word| word.starts_with("vdo.vmware.com/"))
            {
                let key = word.split(['=']).next().unwrap().trim_end_matches('-');
                assert!(known.contains(&key), "{name}.md: {word}");
            }
        }
        for code in page.split('`').filter(|word| word.starts_with("VDO-")) {
            assert!(api::finding::Definition::of(code).is_some(), "{name}.md: {code}");
        }
    }
}

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
    let page = page("testing");
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
