//! Objects as a YAML stream, as `kubectl apply -f` reads it.

pub use serde_saphyr::ser::Error as YamlError;

use super::Object;

/// Writes block-style documents separated by `---`. Reading them gives the same objects.
pub fn to_yaml(objects: &[Object]) -> Result<String, YamlError> {
    let text = serde_saphyr::to_string_multiple(objects)?;
    // The serializer indents the empty lines of a block scalar.
    let lines = text.lines().map(|line| if line.trim().is_empty() { "" } else { line });
    Ok(lines.flat_map(|line| [line, "\n"]).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn yaml_reads_back_as_the_same_objects() {
        let texts = ["a\n\n  b\n", "on", "0o17", "1.30", "{}", "- x", "a: b", "", "~", " a", "#"];
        let long = "word ".repeat(40) + "{{ $value }}: `end`.";
        let objects = [
            Object(json!({"texts": texts, "long": long, "quote": "'\"\\", "none": null})),
            Object(json!({"empty": {}, "list": [], "nested": [[1, -2.5], [{"deep": true}]]})),
        ];
        let text = to_yaml(&objects).unwrap();
        let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert_eq!(read.into_iter().map(Object).collect::<Vec<_>>(), objects);
        assert!(!text.contains(" \n"), "trailing space in {text}");
    }
}
