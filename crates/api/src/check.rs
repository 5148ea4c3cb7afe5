//! Validation of an object on the client, before an API server sees it.
//!
//! The API server reports mistakes without a place in the file. This module reports the common mistakes
//! (a misspelt field or value, a wrong type, a missing field) with their path and the nearest correct
//! word. It never rejects an object that the API server accepts under strict field validation.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Field names and list indices.
    pub path: Vec<String>,
    /// Whether the name of the field is wrong, not its value.
    pub in_name: bool,
    pub text: String,
    /// How to correct the mistake.
    pub help: String,
}

static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let definitions = crate::crds().into_iter();
    let schema = definitions.filter_map(|definition| {
        let version = definition.spec.versions.into_iter().next()?;
        let schema = version.schema?.open_api_v3_schema?;
        Some((definition.spec.names.kind, serde_json::to_value(schema).ok()?))
    });
    schema.collect()
});

pub fn kinds() -> impl Iterator<Item = &'static str> {
    SCHEMAS.keys().map(String::as_str)
}

/// Returns the mistakes in an object of this API; none for other kinds.
pub fn check(object: &Value) -> Vec<Mistake> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let Some(schema) = SCHEMAS.get(kind) else { return Vec::new() };
    let mut mistakes = Vec::new();
    let common = ["apiVersion", "kind", "metadata", "status"];
    for (name, value) in object.as_object().into_iter().flatten() {
        if common.contains(&name.as_str()) {
            continue;
        }
        let known = schema["properties"].as_object();
        match known.and_then(|known| known.get(name)) {
            Some(schema) => walk(value, schema, &mut vec![name.clone()], &mut mistakes),
            None => mistakes.push(unknown_field(name, known, &common, &[])),
        }
    }
    mistakes
}

fn walk(value: &Value, schema: &Value, path: &mut Vec<String>, mistakes: &mut Vec<Mistake>) {
    let expected = schema["type"].as_str().unwrap_or_default();
    if value.is_null() {
        return;
    }
    if !has_type(value, expected) && schema["x-kubernetes-int-or-string"] != true {
        let place = path.join(".");
        let text = format!("{place} must be {}, not {}", type_name(expected), value_type(value));
        let help = help_for(schema);
        mistakes.push(Mistake { path: path.clone(), in_name: false, text, help });
        return;
    }
    match value {
        Value::Object(fields) => walk_object(fields, schema, path, mistakes),
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                path.push(number.to_string());
                walk(item, &schema["items"], path, mistakes);
                path.pop();
            }
        }
        Value::String(text) => check_enum(text, schema, path, mistakes),
        _ => {}
    }
}

fn walk_object(
    fields: &Map<String, Value>,
    schema: &Value,
    path: &mut Vec<String>,
    mistakes: &mut Vec<Mistake>,
) {
    let known = schema["properties"].as_object();
    let any = &schema["additionalProperties"];
    for (name, value) in fields {
        path.push(name.clone());
        match known.and_then(|known| known.get(name)) {
            Some(schema) => walk(value, schema, path, mistakes),
            None if any.is_object() => walk(value, any, path, mistakes),
            None if schema["x-kubernetes-preserve-unknown-fields"] == true || known.is_none() => {}
            None => {
                let above = &path[..path.len() - 1];
                mistakes.push(unknown_field(name, known, &[], above));
            }
        }
        path.pop();
    }
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(required) {
            let help = help_for(&schema["properties"][required]);
            let text = format!("{} lacks {required}", path.join("."));
            mistakes.push(Mistake { path: path.clone(), in_name: true, text, help });
        }
    }
}

fn check_enum(value: &str, schema: &Value, path: &[String], mistakes: &mut Vec<Mistake>) {
    let Some(valid) = schema["enum"].as_array() else { return };
    let valid: Vec<&str> = valid.iter().filter_map(Value::as_str).collect();
    if valid.contains(&value) {
        return;
    }
    let list = valid.join(", ");
    let help = match nearest(value, valid.iter().copied()) {
        Some(near) => format!("did you mean {near}? Valid values: {list}"),
        None => format!("valid values: {list}"),
    };
    let text = format!("{} cannot be \"{value}\"", path.join("."));
    mistakes.push(Mistake { path: path.to_vec(), in_name: false, text, help });
}

fn unknown_field(
    name: &str,
    known: Option<&Map<String, Value>>,
    more: &[&str],
    above: &[String],
) -> Mistake {
    let names = known.into_iter().flatten().map(|(name, _)| name.as_str());
    let names: Vec<&str> =
        names.filter(|name| *name != "status").chain(more.iter().copied()).collect();
    let help = match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("valid fields: {}", names.join(", ")),
    };
    let place = if above.is_empty() { "the object".to_owned() } else { above.join(".") };
    let path = above.iter().cloned().chain([name.to_owned()]).collect();
    Mistake { path, in_name: true, text: format!("{place} has no field {name}"), help }
}

fn help_for(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.replace("\n\n", " ").replace('`', "")
}

fn has_type(value: &Value, expected: &str) -> bool {
    match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => true,
    }
}

fn type_name(expected: &str) -> &'static str {
    match expected {
        "object" => "an object",
        "array" => "a list",
        "string" => "a string",
        "boolean" => "true or false",
        "integer" => "an integer",
        _ => "a number",
    }
}

fn value_type(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "an object",
        Value::Array(_) => "a list",
        Value::String(_) => "a string",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::Null => "null",
    }
}

/// The word of `known` that is nearest to `given`, if it is near enough to be a typing error.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let far = (given.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|word| (strsim::osa_distance(&given, &word.to_lowercase()), word))
        .filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mistakes(spec: &Value) -> Vec<Mistake> {
        check(&json!({"apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig", "spec": spec}))
    }

    #[test]
    fn samples_have_no_mistakes() {
        for object in crate::samples::samples().into_iter().flat_map(|sample| sample.objects) {
            assert_eq!(check(&object), [], "{object:#}");
        }
    }

    #[test]
    fn a_misspelt_field_is_reported_with_the_nearest_field() {
        let mistakes = mistakes(&json!({"storageProvdier": {}}));
        assert_eq!(mistakes.len(), 1);
        assert_eq!(mistakes[0].text, "spec has no field storageProvdier");
        assert_eq!(mistakes[0].help, "did you mean storageProvider?");
        assert_eq!(mistakes[0].path, ["spec", "storageProvdier"]);
        assert!(mistakes[0].in_name);
    }

    #[test]
    fn an_invalid_value_is_reported_with_the_valid_values() {
        let mistakes = mistakes(&json!({"upgrades": {"policy": "Stabel"}}));
        assert_eq!(mistakes[0].text, "spec.upgrades.policy cannot be \"Stabel\"");
        assert!(mistakes[0].help.starts_with("did you mean Stable?"), "{}", mistakes[0].help);
    }

    #[test]
    fn a_wrong_type_and_a_missing_field_are_reported() {
        let mistakes = mistakes(&json!({"cloudProvider": {"vsphereCloudConfigs": "vc"}}));
        assert_eq!(
            mistakes[0].text,
            "spec.cloudProvider.vsphereCloudConfigs must be a list, not a string"
        );
        let vcenter = json!({"kind": "VsphereCloudConfig", "spec": {"vcIp": "vc"}});
        assert_eq!(check(&vcenter)[0].text, "spec lacks credentials");
    }

    #[test]
    fn objects_of_other_kinds_are_not_checked() {
        assert_eq!(check(&json!({"kind": "Secret", "stringDate": {}})), []);
    }

    #[test]
    fn a_word_that_is_too_far_is_not_suggested() {
        assert_eq!(nearest("VDO-1230", ["VDO-1203", "VDO-1999"]), Some("VDO-1203"));
        assert_eq!(nearest("network", ["upgrades", "images"]), None);
    }
}
