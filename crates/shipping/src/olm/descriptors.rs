//! The texts that OpenShift's console shows about the custom resources: their fields, with the texts of the definitions.

use catalog::manifest::Object;
use serde_json::{Value, json};
use snafu::OptionExt as _;

use crate::error::{Error, MissingSnafu};

/// The custom resources, for the ClusterServiceVersion.
pub(super) fn owned(objects: &[Object], examples: &[Value]) -> Result<Vec<Value>, Error> {
    let definitions = objects.iter().filter(|object| object.kind() == "CustomResourceDefinition");
    definitions.map(|definition| describe(&definition.0, examples)).collect()
}

fn describe(definition: &Value, examples: &[Value]) -> Result<Value, Error> {
    let (spec, names) = (&definition["spec"], &definition["spec"]["names"]);
    let kind = names["kind"].as_str().unwrap_or_default();
    let schema = spec.pointer("/versions/0/schema/openAPIV3Schema");
    let schema = schema.context(MissingSnafu { what: format!("schema of {kind}") })?;
    let example = examples.iter().find(|example| example["kind"] == kind);
    example.context(MissingSnafu { what: format!("example of {kind}") })?;
    let description = schema["description"].as_str().unwrap_or_default();
    Ok(json!({
        "name": definition["metadata"]["name"],
        "kind": kind,
        "version": spec["versions"][0]["name"],
        "displayName": words(kind),
        "description": first_paragraph(description),
        "resources": resources(kind),
        "specDescriptors": fields(&schema["properties"]["spec"]),
        "statusDescriptors": fields(&schema["properties"]["status"]),
    }))
}

fn fields(schema: &Value) -> Vec<Value> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let field = |(path, property): (&String, &Value)| {
        let description = property["description"].as_str().unwrap_or_default();
        json!({"path": path, "displayName": words(path), "description": first_paragraph(description)})
    };
    properties.map(field).collect()
}

/// The kinds of objects that VDO makes for a custom resource, or reads.
fn resources(kind: &str) -> Vec<Value> {
    let kinds: &[&str] = match kind {
        "VDOConfig" => {
            &["CSIDriver", "ConfigMap", "DaemonSet", "Deployment", "Secret", "StorageClass"]
        }
        "VsphereCloudConfig" => &["Secret"],
        _ => &["ConfigMap"],
    };
    kinds.iter().map(|kind| json!({"kind": kind, "name": "", "version": "v1"})).collect()
}

/// `storageProvider` becomes `Storage Provider`, `VDOConfig` becomes `VDO Config`.
fn words(name: &str) -> String {
    let mut text = String::new();
    let letters: Vec<char> = name.chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        let after_small = at > 0 && letters[at - 1].is_lowercase();
        let before_small = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if at > 0 && letter.is_uppercase() && (after_small || before_small) {
            text.push(' ');
        }
        if at == 0 {
            text.extend(letter.to_uppercase());
        } else {
            text.push(*letter);
        }
    }
    text
}

fn first_paragraph(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_words() {
        let cases =
            ["storageProvider", "VDOConfig", "matrixURL", "images", "VsphereCloudConfig", "vcIp"];
        let words = cases.map(words);
        let expected = [
            "Storage Provider",
            "VDO Config",
            "Matrix URL",
            "Images",
            "Vsphere Cloud Config",
            "Vc Ip",
        ];
        assert_eq!(words, expected);
    }
}
