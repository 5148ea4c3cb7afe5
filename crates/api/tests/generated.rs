//! What is generated is committed, complete and the same every time.
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
fn the_committed_files_are_those_the_types_give() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, text) in files::files().unwrap() {
        let committed = fs::read_to_string(root.join(&path)).unwrap_or_default();
        assert!(committed == text, "{} is stale: run `make generate`", path.display());
    }
}

#[test]
fn generating_twice_gives_the_same() {
    assert_eq!(files::files().unwrap(), files::files().unwrap());
}

/// Every field an admin can write explains itself, and every list and text has an end: rules over
/// endless ones would not fit the API server's budget.
#[test]
fn every_field_of_a_spec_is_explained_and_bounded() {
    let mut complaints = Vec::new();
    for crd in api::crds() {
        let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        let spec = &schema.properties.unwrap()["spec"];
        look(&format!("{}.spec", crd.spec.names.kind), spec, &mut complaints);
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn look(path: &str, schema: &JSONSchemaProps, complaints: &mut Vec<String>) {
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        let description = field.description.as_deref().unwrap_or_default();
        if description.len() < 15 {
            complaints.push(format!("{path} is not explained: {description:?}"));
        }
        if field.nullable.is_some() {
            complaints.push(format!("{path} can be null"));
        }
        let item = match &field.items {
            Some(JSONSchemaPropsOrArray::Schema(item)) => Some(item.as_ref()),
            _ => None,
        };
        if field.type_.as_deref() == Some("array") && field.max_items.is_none() {
            complaints.push(format!("{path} has no end"));
        }
        for text in [Some(field), item].into_iter().flatten() {
            let bounded =
                text.max_length.is_some() || text.enum_.is_some() || text.format.is_some();
            if text.type_.as_deref() == Some("string") && !bounded {
                complaints.push(format!("{path} is a text without end"));
            }
        }
        look(&path, item.unwrap_or(field), complaints);
    }
}
