//! Checking an object against its definition before any API server sees it.
//!
//! The API server says everything that is wrong with an object, in its own words and without a place
//! in the file. This says the common mistakes (a misspelt field or word, a wrong type, something
//! missing) with the path to the place and the nearest right word. It never refuses what the API
//! server would take.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The way to it: names of fields, and numbers in lists.
    pub path: Vec<String>,
    /// Whether the name of the field is wrong, not its value.
    pub in_name: bool,
    /// What is wrong.
    pub text: String,
    /// What would be right.
    pub help: String,
}

/// The schemas of our kinds.
static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let definitions = crate::crds().into_iter();
    let schema = definitions.filter_map(|definition| {
        let version = definition.spec.versions.into_iter().next()?;
        let schema = version.schema?.open_api_v3_schema?;
        Some((definition.spec.names.kind, serde_json::to_value(schema).ok()?))
    });
    schema.collect()
});

/// The kinds there are.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    SCHEMAS.keys().map(String::as_str)
}

/// What is wrong with an object of one of our kinds; nothing is said about others.
pub fn check(object: &Value) -> Vec<Mistake> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let Some(schema) = SCHEMAS.get(kind) else { return Vec::new() };
    let mut mistakes = Vec::new();
    let own = ["apiVersion", "kind", "metadata", "status"];
    for (name, value) in object.as_object().into_iter().flatten() {
        if own.contains(&name.as_str()) {
            continue;
        }
        let known = schema["properties"].as_object();
        match known.and_then(|known| known.get(name)) {
            Some(schema) => walk(value, schema, &mut vec![name.clone()], &mut mistakes),
            None => mistakes.push(unknown(name, known, &own, &[])),
        }
    }
    mistakes
}

fn walk(value: &Value, schema: &Value, path: &mut Vec<String>, mistakes: &mut Vec<Mistake>) {
    let expected = schema["type"].as_str().unwrap_or_default();
    if value.is_null() {
        return;
    }
    if !is_of(value, expected) && schema["x-kubernetes-int-or-string"] != true {
        let text = format!("{} must be {}, not {}", last(path), named(expected), kind_of(value));
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
        Value::String(word) => word_of(word, schema, path, mistakes),
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
                mistakes.push(unknown(name, known, &[], above));
            }
        }
        path.pop();
    }
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(required) {
            let help = help_for(&schema["properties"][required]);
            let text = format!("{} lacks {required}", last(path));
            mistakes.push(Mistake { path: path.clone(), in_name: true, text, help });
        }
    }
}

fn word_of(word: &str, schema: &Value, path: &[String], mistakes: &mut Vec<Mistake>) {
    let Some(words) = schema["enum"].as_array() else { return };
    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
    if words.contains(&word) {
        return;
    }
    let near = nearest(word, words.iter().copied());
    let help = match near {
        Some(near) => format!("did you mean {near}? There are {}", words.join(", ")),
        None => format!("there are {}", words.join(", ")),
    };
    let text = format!("{} cannot be \"{word}\"", last(path));
    mistakes.push(Mistake { path: path.to_vec(), in_name: false, text, help });
}

fn unknown(
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
        None => format!("there are {}", names.join(", ")),
    };
    let place = if above.is_empty() { "the object".to_owned() } else { above.join(".") };
    let path = above.iter().cloned().chain([name.to_owned()]).collect();
    Mistake { path, in_name: true, text: format!("{place} has no field {name}"), help }
}

fn last(path: &[String]) -> String {
    path.join(".")
}

fn help_for(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.replace("\n\n", " ").replace('`', "")
}

fn is_of(value: &Value, expected: &str) -> bool {
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

fn named(expected: &str) -> &'static str {
    match expected {
        "object" => "a group of fields",
        "array" => "a list",
        "string" => "a text",
        "boolean" => "true or false",
        "integer" => "a whole number",
        _ => "a number",
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "a group of fields",
        Value::Array(_) => "a list",
        Value::String(_) => "a text",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::Null => "nothing",
    }
}

/// The word of `known` that is nearest to `given`, if one is near enough to have been meant.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let far = (given.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|word| (distance(&given, &word.to_lowercase()), word))
        .filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// How many letters must be added, dropped, changed or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best =
                (rows[i - 1][j - 1] + change).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mistakes(spec: &Value) -> Vec<Mistake> {
        check(&json!({"apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig", "spec": spec}))
    }

    #[test]
    fn every_sample_is_without_mistake() {
        for object in crate::samples::samples().into_iter().flat_map(|sample| sample.objects) {
            assert_eq!(check(&object), [], "{object:#}");
        }
    }

    #[test]
    fn a_misspelt_field_is_named_with_the_nearest_right_one() {
        let found = mistakes(&json!({"storageProvdier": {}}));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].text, "spec has no field storageProvdier");
        assert_eq!(found[0].help, "did you mean storageProvider?");
        assert_eq!(found[0].path, ["spec", "storageProvdier"]);
        assert!(found[0].in_name);
    }

    #[test]
    fn a_word_that_does_not_exist_is_answered_with_those_that_do() {
        let found = mistakes(&json!({"upgrades": {"policy": "Stabel"}}));
        assert_eq!(found[0].text, "spec.upgrades.policy cannot be \"Stabel\"");
        assert!(found[0].help.starts_with("did you mean Stable?"), "{}", found[0].help);
    }

    #[test]
    fn a_wrong_type_and_a_missing_field_are_told() {
        let found = mistakes(&json!({"cloudProvider": {"vsphereCloudConfigs": "vc"}}));
        assert_eq!(
            found[0].text,
            "spec.cloudProvider.vsphereCloudConfigs must be a list, not a text"
        );
        let vcenter = json!({"kind": "VsphereCloudConfig", "spec": {"vcIp": "vc"}});
        assert_eq!(check(&vcenter)[0].text, "spec lacks credentials");
    }

    #[test]
    fn objects_of_others_are_none_of_our_business() {
        assert_eq!(check(&json!({"kind": "Secret", "stringDate": {}})), []);
    }

    #[test]
    fn far_is_not_near() {
        assert_eq!(nearest("VDO-1230", ["VDO-1203", "VDO-1999"]), Some("VDO-1203"));
        assert_eq!(nearest("network", ["upgrades", "images"]), None);
    }
}
