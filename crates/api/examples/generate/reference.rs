//! The API reference: every field with its type, description and validation rules.

use std::fmt::Write as _;

use api::samples::Sample;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

pub(crate) fn page(crds: &[CustomResourceDefinition], samples: &[Sample]) -> String {
    let mut page = String::from(
        "# API reference\n\n\
         Generated from the types in `crates/api`. `kubectl explain` shows the same texts.\n\n\
         Group `vdo.vmware.com`, version `v1alpha1`. All kinds are namespaced. An asterisk (*) marks a required field.\n\n",
    );
    for crd in crds {
        let names = &crd.spec.names;
        let _ = writeln!(
            page,
            "- [{kind}](#{anchor})",
            kind = names.kind,
            anchor = names.kind.to_lowercase()
        );
    }
    page.push_str("- [Samples](#samples)\n");
    for crd in crds {
        kind(&mut page, crd);
    }
    page.push_str("\n## Samples\n\n| file | purpose |\n|---|---|\n");
    for sample in samples {
        let _ = writeln!(
            page,
            "| [{name}](../../deploy/samples/{name}.yaml) | {} |",
            sample.about,
            name = sample.name
        );
    }
    page
}

fn kind(page: &mut String, crd: &CustomResourceDefinition) {
    let names = &crd.spec.names;
    let version = &crd.spec.versions[0];
    let schema = version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref());
    let Some(schema) = schema else { return };
    let _ = write!(
        page,
        "\n## {}\n\n{}\n",
        names.kind,
        schema.description.as_deref().unwrap_or_default()
    );
    if let Some(short) = names.short_names.as_ref().and_then(|names| names.first()) {
        let _ = write!(page, "\nShort name: `{short}`, as in `kubectl get {short}`.\n");
    }
    for part in ["spec", "status"] {
        let Some(section) = schema.properties.as_ref().and_then(|p| p.get(part)) else { continue };
        let _ = write!(page, "\n### {}.{part}\n\n", names.kind);
        rules(page, section);
        fields(page, section, part);
    }
}

fn fields(page: &mut String, schema: &JSONSchemaProps, path: &str) {
    let required = schema.required.clone().unwrap_or_default();
    for (name, field) in schema.properties.iter().flatten() {
        let star = if required.contains(name) { " *" } else { "" };
        let path = format!("{path}.{name}");
        let _ = write!(page, "#### `{path}`{star}\n\n*{}*", type_of(field));
        let description = field.description.as_deref().unwrap_or_default();
        let _ = write!(page, "\n\n{}\n\n", description.trim());
        rules(page, field);
        if let Some(item) = item_of(field) {
            rules(page, item);
        }
        if !is_condition(field) {
            let list = if item_of(field).is_some() { "[]" } else { "" };
            fields(page, item_of(field).unwrap_or(field), &format!("{path}{list}"));
        }
    }
}

fn rules(page: &mut String, schema: &JSONSchemaProps) {
    let messages = schema.x_kubernetes_validations.iter().flatten();
    let messages: Vec<&str> = messages.filter_map(|rule| rule.message.as_deref()).collect();
    for message in &messages {
        let _ = writeln!(page, "- *Validation:* {message}");
    }
    if !messages.is_empty() {
        page.push('\n');
    }
}

fn item_of(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(item) => Some(item),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

/// Kubernetes defines the fields of a condition.
fn is_condition(schema: &JSONSchemaProps) -> bool {
    schema.x_kubernetes_list_map_keys.as_deref() == Some(&["type".to_owned()])
}

fn type_of(schema: &JSONSchemaProps) -> String {
    if let Some(item) = item_of(schema) {
        let most = schema.max_items.map(|n| format!(", at most {n}")).unwrap_or_default();
        return format!("list of {}{most}", plural(item));
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &schema.additional_properties {
        return format!("map of names to {}", plural(value));
    }
    let range = match (schema.minimum, schema.maximum) {
        (Some(least), Some(most)) => format!(" from {least} to {most}"),
        _ => String::new(),
    };
    format!("{}{range}", type_name(schema))
}

fn type_name(schema: &JSONSchemaProps) -> &str {
    match (schema.type_.as_deref(), schema.format.as_deref()) {
        (Some("string"), Some("date-time")) => "time",
        (Some("string"), _) if schema.enum_.is_some() => "enum",
        (Some("string"), _) => "string",
        (Some("integer"), _) => "integer",
        (Some("boolean"), _) => "boolean",
        (Some("object"), _) => "object",
        _ => "value",
    }
}

fn plural(schema: &JSONSchemaProps) -> &str {
    match type_name(schema) {
        "object" => "objects",
        "enum" => "enums",
        "string" => "strings",
        other => other,
    }
}
