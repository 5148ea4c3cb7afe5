//! The CRDs, generated from the Rust types.
//!
//! This module adapts the derived schema to Kubernetes. Optional fields are absent instead of `null`.
//! Number formats that Kubernetes does not know are dropped. The meaning of each enum value becomes part
//! of the description, so that `kubectl explain` shows it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use kube::CustomResourceExt;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::{CompatibilityConfig, VDOConfig, VsphereCloudConfig};

pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        definition::<VDOConfig>(),
        definition::<VsphereCloudConfig>(),
        definition::<CompatibilityConfig>(),
    ]
}

fn definition<K: CustomResourceExt + JsonSchema>() -> CustomResourceDefinition {
    let mut crd = K::crd();
    for version in &mut crd.spec.versions {
        let schema = version.schema.get_or_insert_default();
        let doc = schema.open_api_v3_schema.as_ref().and_then(|schema| schema.description.clone());
        let mut adapted = schema_for::<K>();
        adapted.description = doc.or(adapted.description);
        schema.open_api_v3_schema = Some(adapted);
    }
    crd
}

fn schema_for<K: JsonSchema>() -> JSONSchemaProps {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<K>().to_value();
    adapt(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        // The API server owns these fields and accepts only the type of metadata.
        if let Some(properties) = root.get_mut("properties").and_then(Value::as_object_mut) {
            properties.remove("apiVersion");
            properties.remove("kind");
            properties.remove("metadata");
        }
        // The Go VDO stored objects without a spec; they must stay valid.
        root.remove("required");
    }
    // This drops keywords that a CRD does not support, such as title and const.
    serde_json::from_value(schema).unwrap_or_default()
}

/// Adapts a schema and everything in it. Parents come first, because an optional field gets the
/// schema of its type.
fn adapt(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    unwrap_option(object);
    merge_enum_values(object);
    if let Some(format) = object.get("format").and_then(Value::as_str)
        && !matches!(format, "int32" | "int64" | "date-time")
    {
        object.remove("format");
    }
    object.remove("title");
    object.remove("default");
    if object.get("additionalProperties") == Some(&Value::Bool(false)) {
        object.remove("additionalProperties");
    }
    if let Some(description) = object.get_mut("description") {
        let text = unwrapped(description.as_str().unwrap_or_default());
        *description = text.into();
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            adapt(inner);
        }
    }
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(adapt);
    }
}

/// Turns `T or null` into `T`. The description of the field wins over the description of the type.
fn unwrap_option(object: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [kind] = types.as_slice() {
            let kind = kind.clone();
            object.insert("type".into(), kind);
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let Some(Value::Array(choices)) = object.get_mut("anyOf") else { return };
    choices.retain(|choice| choice.get("type") != Some(&Value::from("null")));
    let [Value::Object(only)] = choices.as_mut_slice() else { return };
    let only = std::mem::take(only);
    object.remove("anyOf");
    for (key, value) in only {
        object.entry(key).or_insert(value);
    }
}

/// Merges one schema per enum value into one list of values, with their meanings in the description.
fn merge_enum_values(object: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = object.get("oneOf") else { return };
    let mut values = Vec::new();
    let mut meanings = Vec::new();
    for choice in choices {
        let meaning = choice.get("description").and_then(Value::as_str);
        match (choice.get("const"), choice.get("enum").and_then(Value::as_array)) {
            (Some(value), _) => {
                if let (Some(value), Some(meaning)) = (value.as_str(), meaning) {
                    meanings.push(format!("- `{value}`: {}", meaning.replace('\n', " ")));
                }
                values.push(value.clone());
            }
            (None, Some(plain)) => values.extend(plain.iter().cloned()),
            (None, None) => return,
        }
    }
    object.remove("oneOf");
    object.insert("type".into(), "string".into());
    object.insert("enum".into(), values.into());
    if !meanings.is_empty() {
        let own = object.get("description").and_then(Value::as_str).unwrap_or_default();
        object.insert("description".into(), format!("{own}\n\n{}", meanings.join("\n")).into());
    }
}

/// Joins the lines of each paragraph; list items stay separate lines.
fn unwrapped(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        if paragraph.starts_with("- ") {
            paragraph.to_owned()
        } else {
            paragraph.replace('\n', " ")
        }
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
