//! The custom resource definitions, as the API server gets them.
//!
//! The schema comes from the Rust types; what the derive leaves rough is smoothed here: optional
//! fields are simply absent (not `null`), number formats Kubernetes does not know are dropped, and
//! the meaning of each word of an enumeration is part of the description, so that `kubectl explain`
//! shows it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use kube::CustomResourceExt;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::{CompatibilityConfig, VDOConfig, VsphereCloudConfig};

/// All definitions, ready to be applied.
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
        let mut smooth = schema_of::<K>();
        smooth.description = doc.or(smooth.description);
        schema.open_api_v3_schema = Some(smooth);
    }
    crd
}

fn schema_of<K: JsonSchema>() -> JSONSchemaProps {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<K>().to_value();
    smooth(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        // The API server owns these; it refuses anything said about metadata but its type.
        if let Some(properties) = root.get_mut("properties").and_then(Value::as_object_mut) {
            properties.remove("apiVersion");
            properties.remove("kind");
            properties.remove("metadata");
        }
        // The predecessor took objects without a spec, so they are stored and must stay valid.
        root.remove("required");
    }
    // Keywords without a place in a definition (title, const, …) are dropped by this.
    serde_json::from_value(schema).unwrap_or_default()
}

/// Smooths a schema and everything in it. Parents first: an optional field takes over what its type
/// says before the type is looked at.
fn smooth(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    unwrap_option(object);
    fold_words(object);
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
            smooth(inner);
        }
    }
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(smooth);
    }
}

/// `T or null` becomes `T`; the field's own description wins over the type's.
fn unwrap_option(object: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [kind] = types.as_slice() {
            let kind = kind.clone();
            object.insert("type".into(), kind);
        }
    }
    if let Some(Value::Array(words)) = object.get_mut("enum") {
        words.retain(|word| !word.is_null());
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

/// One schema per word becomes a list of words, their meanings part of the description.
fn fold_words(object: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = object.get("oneOf") else { return };
    let mut words = Vec::new();
    let mut meanings = Vec::new();
    for choice in choices {
        let meaning = choice.get("description").and_then(Value::as_str);
        match (choice.get("const"), choice.get("enum").and_then(Value::as_array)) {
            (Some(word), _) => {
                if let (Some(word), Some(meaning)) = (word.as_str(), meaning) {
                    meanings.push(format!("- `{word}`: {}", meaning.replace('\n', " ")));
                }
                words.push(word.clone());
            }
            (None, Some(plain)) => words.extend(plain.iter().cloned()),
            (None, None) => return,
        }
    }
    object.remove("oneOf");
    object.insert("type".into(), "string".into());
    object.insert("enum".into(), words.into());
    if !meanings.is_empty() {
        let said = object.get("description").and_then(Value::as_str).unwrap_or_default();
        object.insert("description".into(), format!("{said}\n\n{}", meanings.join("\n")).into());
    }
}

/// Joins the lines of a paragraph, which only source files need broken; list items stay lines.
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
