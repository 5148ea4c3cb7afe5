//! Puts template text into a manifest without a second copy of the manifest.
//!
//! A slot names a place of an object by its JSON pointer. A marker takes that place, the object is printed as YAML, and
//! the template text replaces the line of the marker. A slot whose place does not exist is an error, so a change of the
//! install manifest cannot silently disconnect a value.

use catalog::manifest::{Object, to_yaml};
use serde_json::{Value, json};
use snafu::{OptionExt as _, ResultExt as _, ensure};

use crate::error::{Error, PlaceSnafu, TemplateSnafu, YamlSnafu};

/// It sorts after every field, so a marker is never the first line of a list entry.
const MARKER: &str = "zz-slot";

/// How template text gets to its place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// It replaces an existing field.
    Replace,
    /// It adds a field that the manifest does not have.
    Add,
    /// It adds entries to a list.
    Append,
}

/// Template text at a place of an object.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pointer: String,
    place: Place,
    /// Lines relative to the place. `INDENT` stands for the indentation of values below the place.
    lines: String,
}

impl Slot {
    pub(crate) fn new(place: Place, pointer: &str, lines: &str) -> Self {
        Self { pointer: pointer.to_owned(), place, lines: lines.to_owned() }
    }

    /// A field with the value of an expression; no field if the value is empty.
    pub(crate) fn value(place: Place, pointer: &str, expression: &str) -> Self {
        let key = pointer.rsplit('/').next().unwrap_or_default();
        let lines = format!(
            "{{{{- with {expression} }}}}\n{key}:\n  {{{{- toYaml . | nindent INDENT }}}}\n{{{{- end }}}}"
        );
        Self::new(place, pointer, &lines)
    }

    /// More entries for a map that the object may not have yet.
    pub(crate) fn entries(object: &Object, pointer: &str, expression: &str) -> Self {
        if object.0.pointer(pointer).is_none() {
            return Self::value(Place::Add, pointer, expression);
        }
        let lines = format!(
            "{{{{- with {expression} }}}}\n{{{{- toYaml . | nindent SAME }}}}\n{{{{- end }}}}"
        );
        Self::new(Place::Add, &format!("{pointer}/{MARKER}"), &lines)
    }
}

/// The object as YAML, with the text of the slots.
pub(crate) fn fill(object: &Object, slots: &[Slot]) -> Result<String, Error> {
    let name = || format!("{} {}", object.kind(), object.name());
    let mut marked = object.clone();
    for (number, slot) in slots.iter().enumerate() {
        let problem = mark(&mut marked.0, slot, &marker(number)).err();
        if let Some(problem) = problem {
            return PlaceSnafu { object: name(), pointer: &slot.pointer, problem }.fail();
        }
    }
    let text = to_yaml(&[marked]).with_context(|_| YamlSnafu { what: name() })?;
    ensure!(!text.contains("{{"), TemplateSnafu { what: name() });
    let mut filled = String::new();
    let mut used = 0;
    for line in text.lines() {
        let Some(number) = marker_in(line) else {
            filled.extend([line, "\n"]);
            continue;
        };
        let slot = slots.get(number).context(TemplateSnafu { what: name() })?;
        used += 1;
        let indent = line.len() - line.trim_start().len();
        let inner = slot
            .lines
            .replace("INDENT", &(indent + 2).to_string())
            .replace("SAME", &indent.to_string());
        for line in inner.lines() {
            filled.extend([&" ".repeat(indent), line, "\n"]);
        }
    }
    ensure!(used == slots.len() && !filled.contains(MARKER), TemplateSnafu { what: name() });
    Ok(filled)
}

fn marker(number: usize) -> String {
    format!("{MARKER}-{number}-")
}

/// The number of the slot whose marker is on a line.
fn marker_in(line: &str) -> Option<usize> {
    let line = line.trim_start();
    let line = line.strip_prefix("- ").unwrap_or(line);
    line.strip_prefix(MARKER)?.strip_prefix('-')?.split('-').next()?.parse().ok()
}

fn mark(object: &mut Value, slot: &Slot, marker: &str) -> Result<(), &'static str> {
    if matches!(slot.place, Place::Append) {
        let list = object.pointer_mut(&slot.pointer).and_then(Value::as_array_mut);
        list.ok_or("is not a list")?.push(json!(marker));
        return Ok(());
    }
    let (parent, key) = slot.pointer.rsplit_once('/').ok_or("is not a field")?;
    let parent = object.pointer_mut(parent).and_then(Value::as_object_mut);
    let parent = parent.ok_or("is in no map")?;
    let removed = parent.remove(&key.replace("~1", "/"));
    if matches!(slot.place, Place::Replace) != removed.is_some() {
        return Err("does not exist, or exists already");
    }
    parent.insert(marker.to_owned(), Value::Null);
    if parent.len() == 1 { Err("is the only field of its map") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        Object(json!({"kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {
            "containers": [{"args": ["x"], "image": "i", "name": "c"}], "priority": 1,
        }}))
    }

    #[test]
    fn template_text_takes_the_place_of_a_field_and_joins_lists_and_maps() {
        let slots = [
            Slot::new(Place::Replace, "/spec/containers/0/image", "image: {{ .Values.image }}"),
            Slot::new(Place::Append, "/spec/containers/0/args", "- {{ .Values.arg }}"),
            Slot::value(Place::Replace, "/spec/priority", ".Values.priority"),
            Slot::entries(&object(), "/metadata/labels", ".Values.labels"),
            Slot::entries(&object(), "/metadata/annotations", ".Values.annotations"),
        ];
        let text = fill(&object(), &slots).unwrap();
        let expected = "\
kind: Pod
metadata:
  labels:
    a: b
    {{- with .Values.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  name: p
  {{- with .Values.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  containers:
  - args:
    - x
    - {{ .Values.arg }}
    name: c
    image: {{ .Values.image }}
  {{- with .Values.priority }}
  priority:
    {{- toYaml . | nindent 4 }}
  {{- end }}
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_slot_without_its_place_is_an_error() {
        let refused = |place, pointer: &str| {
            let slot = Slot::new(place, pointer, "x");
            fill(&object(), &[slot]).unwrap_err().to_string()
        };
        assert!(
            refused(Place::Replace, "/spec/image").contains("Pod p: /spec/image does not exist")
        );
        assert!(refused(Place::Add, "/spec/priority").contains("exists already"));
        assert!(refused(Place::Append, "/spec/priority").contains("is not a list"));
        assert!(refused(Place::Replace, "/status/phase").contains("is in no map"));
        let text = Object(json!({"kind": "Pod", "metadata": {"name": "{{ x }}"}}));
        assert!(fill(&text, &[]).unwrap_err().to_string().contains("Helm would evaluate"));
    }
}
