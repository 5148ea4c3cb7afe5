//! The values as `values.yaml` with comments, and as a table. Both are printed from the JSON schema.

use catalog::manifest::{Object, to_yaml};
use serde_json::Value;
use snafu::ResultExt as _;

use crate::error::{Error, YamlSnafu};

/// The longest line of a comment.
const WIDTH: usize = 100;

/// `values.yaml`.
pub(super) fn values_yaml(schema: &Value, defaults: &Value) -> Result<String, Error> {
    let mut text = String::new();
    print(schema, defaults, 0, &mut text)?;
    Ok(text)
}

/// The rows of the table of values.
pub(super) fn table(schema: &Value, defaults: &Value) -> String {
    let mut rows = String::from("| Value | Default | Meaning |\n|---|---|---|\n");
    rows_below("", schema, defaults, &mut rows);
    rows
}

/// The properties of a group of values, in order of their names. A group has only known properties and no entries that a
/// user names.
fn properties<'a>(
    schema: &'a Value,
    defaults: &'a Value,
) -> impl Iterator<Item = (&'a String, &'a Value, &'a Value)> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.map(|(name, property)| (name, property, &defaults[name.as_str()]))
}

fn is_group(property: &Value) -> bool {
    let described = |property: &Value| property["description"].is_string();
    property["properties"].as_object().is_some_and(|below| below.values().all(described))
}

fn print(schema: &Value, defaults: &Value, indent: usize, text: &mut String) -> Result<(), Error> {
    let space = " ".repeat(indent);
    for (name, property, default) in properties(schema, defaults) {
        text.push('\n');
        for line in wrapped(description(property), WIDTH - indent) {
            text.extend([&space, "# ", &line, "\n"]);
        }
        if is_group(property) {
            text.extend([&space, name.as_str(), ":\n"]);
            print(property, default, indent + 2, text)?;
            continue;
        }
        let field = Object(serde_json::json!({ name.as_str(): default }));
        let yaml = to_yaml(&[field]).context(YamlSnafu { what: name })?;
        for line in yaml.lines().filter(|line| *line != "---") {
            text.extend([&space, line, "\n"]);
        }
    }
    Ok(())
}

fn rows_below(path: &str, schema: &Value, defaults: &Value, rows: &mut String) {
    for (name, property, default) in properties(schema, defaults) {
        let path = format!("{path}{name}");
        if is_group(property) {
            rows_below(&format!("{path}."), property, default, rows);
            continue;
        }
        let shown = match default {
            Value::Object(map) if !map.is_empty() => "as in `values.yaml`".to_owned(),
            Value::Array(list) if !list.is_empty() => "as in `values.yaml`".to_owned(),
            default => format!("`{default}`"),
        };
        let meaning = description(property).split_whitespace().collect::<Vec<_>>().join(" ");
        rows.extend([format!("| `{path}` | {shown} | {meaning} |\n")]);
    }
}

fn description(property: &Value) -> &str {
    property["description"].as_str().unwrap_or_default()
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() < width => {
                line.extend([" ", word]);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
