//! The generated files are committed, complete and deterministic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/generate/files.rs"]
mod files;
#[path = "../examples/generate/reference.rs"]
mod reference;

use std::fs;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray,
};

#[test]
fn the_committed_files_match_the_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, text) in files::files().unwrap() {
        let committed = fs::read_to_string(root.join(&path)).unwrap_or_default();
        assert!(committed == text, "{} is stale: run `make generate`", path.display());
    }
}

#[test]
fn generation_is_deterministic() {
    assert_eq!(files::files().unwrap(), files::files().unwrap());
}

/// Every field of a spec has a description, and every list and string has a maximum: without maxima the CEL
/// rules would exceed the cost budget of the API server.
#[test]
fn every_field_of_a_spec_is_described_and_bounded() {
    let mut problems = Vec::new();
    for crd in api::crds() {
        let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        let spec = &schema.properties.unwrap()["spec"];
        check(&format!("{}.spec", crd.spec.names.kind), spec, &mut problems);
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn check(path: &str, schema: &JSONSchemaProps, problems: &mut Vec<String>) {
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        let description = field.description.as_deref().unwrap_or_default();
        if description.len() < 15 {
            problems.push(format!("{path} has no description: {description:?}"));
        }
        if field.nullable.is_some() {
            problems.push(format!("{path} can be null"));
        }
        let item = match &field.items {
            Some(JSONSchemaPropsOrArray::Schema(item)) => Some(item.as_ref()),
            _ => None,
        };
        if field.type_.as_deref() == Some("array") && field.max_items.is_none() {
            problems.push(format!("{path} has no maxItems"));
        }
        for text in [Some(field), item].into_iter().flatten() {
            let bounded =
                text.max_length.is_some() || text.enum_.is_some() || text.format.is_some();
            if text.type_.as_deref() == Some("string") && !bounded {
                problems.push(format!("{path} has no maxLength"));
            }
        }
        check(&path, item.unwrap_or(field), problems);
    }
}
