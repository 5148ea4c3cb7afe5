//! The API promises nothing that the product does not do: product code reads every field of the schemas,
//! sets every condition and reports every finding.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The crates whose code counts as product code.
const PRODUCT: [&str; 5] = ["catalog", "health", "operator", "plan", "vdoctl"];

/// Fields that product code reads through a function of this crate.
const READ_THROUGH: [(&str, &str); 8] = [
    ("VDOConfig.spec.deletionPolicy", "deletion_policy"),
    ("VDOConfig.spec.remediation.default", "remedy"),
    ("VDOConfig.spec.remediation.featureStates", "remedy"),
    ("VDOConfig.spec.remediation.imageRegistry", "remedy"),
    ("VDOConfig.spec.remediation.nodeTaints", "remedy"),
    ("VDOConfig.spec.remediation.webhookCertificates", "remedy"),
    ("VDOConfig.status.cpi.nodeStatus ", "node_states"),
    ("VDOConfig.status.csi.nodeStatus ", "node_states"),
];

/// Fields that product code does not read, and the reason why they are in the schema.
const EXCEPTIONS: [(&str, &str); 1] =
    [("VDOConfig.status.findings.link", "written by this crate for people who read the status")];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// The product code of the workspace by file, and its test code as one text.
fn product_and_tests() -> (Vec<String>, String) {
    let (mut product, mut tests) = (Vec::new(), String::new());
    let mut files = Vec::new();
    rust_files(&crates(), &mut files);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let relative = file.strip_prefix(crates()).unwrap();
        let parts: Vec<&str> = relative.iter().filter_map(|part| part.to_str()).collect();
        let is_test = parts.iter().any(|part| ["tests", "tests.rs", "benches"].contains(part));
        let (code, own_tests) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&text, ""));
        match parts.as_slice() {
            _ if is_test => tests.push_str(&text),
            [name, "src", ..] => {
                tests.push_str(own_tests);
                if PRODUCT.contains(name) {
                    product.push(code.to_owned());
                }
            }
            _ => {}
        }
    }
    (product, tests)
}

/// Words and punctuation, without comments. Good enough to find field names.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    for line in text.lines() {
        let mut rest = line.split("//").next().unwrap_or_default();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = if is_word(first) {
                rest.find(|c| !is_word(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") || rest.starts_with("..") {
                2
            } else {
                first.len_utf8()
            };
            let (token, after) = rest.split_at(length);
            if !token.trim().is_empty() {
                tokens.push(token);
            }
            rest = after;
        }
    }
    tokens
}

/// Whether `field` occurs as a field: `x.field`, `X { field: .. }` or `X { field, .. }`.
fn is_used(tokens: &[&str], field: &str) -> bool {
    let mut places = tokens.iter().enumerate().filter(|(_, token)| **token == field);
    places.any(|(at, _)| {
        let before = at.checked_sub(1).map_or("", |before| tokens[before]);
        let after = tokens.get(at + 1).copied().unwrap_or_default();
        before == "." && after != "("
            || ["{", ","].contains(&before) && [":", ",", "}"].contains(&after)
    })
}

/// `vsanDataStoreUrl` as Rust names the field: `vsan_data_store_url`.
fn rust_name(field: &str) -> String {
    let mut name = String::new();
    let mut before_is_upper = true;
    for c in field.chars() {
        if c.is_uppercase() && !before_is_upper {
            name.push('_');
        }
        before_is_upper = c.is_uppercase();
        name.extend(c.to_lowercase());
    }
    name
}

/// A field of a schema, by its names in Rust.
struct Field {
    path: String,
    name: String,
    parent: String,
}

fn fields(path: &str, parent: &str, schema: &Value, into: &mut Vec<Field>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let rust = rust_name(name);
        into.push(Field { path: path.clone(), name: rust.clone(), parent: parent.to_owned() });
        // Kubernetes defines the fields of a condition.
        if name != "conditions" {
            let inner = if field["items"].is_object() { &field["items"] } else { field };
            fields(&path, &rust, inner, into);
        }
    }
}

#[test]
fn product_code_uses_every_field_of_the_schemas() {
    let mut all = Vec::new();
    for crd in api::crds() {
        let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        let schema = serde_json::to_value(schema).unwrap();
        for part in ["spec", "status"] {
            let path = format!("{}.{part}", crd.spec.names.kind);
            fields(&path, part, &schema["properties"][part], &mut all);
        }
    }
    assert!(all.len() > 150, "{}", all.len());
    let (product, _) = product_and_tests();
    let files: Vec<Vec<&str>> = product.iter().map(|text| tokens(text)).collect();
    // A field of the same name in another object does not count: the file must know the object too.
    let is_read = |field: &&Field| {
        let mut files = files.iter().filter(|file| file.contains(&field.parent.as_str()));
        files.any(|file| is_used(file, &field.name))
    };
    let unused = all.iter().filter(|field| !is_read(field));
    let mut unused: Vec<&str> = unused.map(|field| field.path.as_str()).collect();
    for (path, function) in READ_THROUGH {
        assert!(files.iter().any(|file| file.contains(&function)), "nothing calls {function}");
        assert!(unused.contains(&path), "{path} needs no exception");
    }
    let exceptions: Vec<&str> =
        READ_THROUGH.iter().chain(&EXCEPTIONS).map(|(path, _)| *path).collect();
    for (path, reason) in EXCEPTIONS {
        assert!(unused.contains(&path), "{path} needs no exception: {reason}");
    }
    unused.retain(|path| !exceptions.contains(path));
    assert!(unused.is_empty(), "nothing reads these fields:\n{}", unused.join("\n"));
}

#[test]
fn product_code_sets_every_condition_and_a_test_asserts_it() {
    let source = include_str!("../src/condition.rs");
    let constants = source.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("pub const ")?.split_once(": &str = \"")?;
        Some((name, value.strip_suffix("\";")?))
    });
    let constants: Vec<(&str, &str)> = constants.collect();
    assert!(constants.len() > 10, "{constants:?}");
    let (product, tests) = product_and_tests();
    let asserting = ["assert", "is_true(", "condition::get("];
    let is_assertion = |text: &&str| asserting.iter().any(|word| text.contains(word));
    let assertions: Vec<&str> = tests.split(';').filter(is_assertion).collect();
    for (name, value) in constants {
        let constant = format!("condition::{name}");
        assert!(product.iter().any(|text| text.contains(&constant)), "nothing sets {value}");
        let named = [constant, format!("\"{value}\"")];
        let is_named = |text: &&str| named.iter().any(|name| text.contains(name));
        assert!(assertions.iter().any(is_named), "no test asserts {value}");
    }
}

/// The findings of the catalogue by constant and code.
fn findings() -> Vec<(String, String)> {
    let mut files = Vec::new();
    rust_files(&crates().join("api/src/finding/catalogue"), &mut files);
    let catalogue: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let definitions = catalogue.lines().filter_map(|line| line.split_once(" = \"VDO-"));
    let findings: Vec<(String, String)> = definitions
        .map(|(name, rest)| (name.trim().to_owned(), format!("VDO-{}", &rest[..4])))
        .collect();
    assert_eq!(findings.len(), api::finding::CATALOGUE.len());
    findings
}

#[test]
fn product_code_reports_every_finding() {
    let (product, _) = product_and_tests();
    let files: Vec<Vec<&str>> = product.iter().map(|text| tokens(text)).collect();
    for (name, _) in findings() {
        assert!(files.iter().any(|file| file.contains(&&*name)), "nothing reports {name}");
    }
}

#[test]
fn a_test_names_every_finding() {
    let (_, tests) = product_and_tests();
    let constants = tokens(&tests);
    let is_named = |(name, code): &&(String, String)| {
        tests.contains(code.as_str()) || constants.contains(&name.as_str())
    };
    let findings = findings();
    let missing: Vec<_> = findings.iter().filter(|finding| !is_named(finding)).collect();
    assert!(missing.is_empty(), "no test names {missing:?}");
}
