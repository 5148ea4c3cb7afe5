//! Describes the changes of other managers that an apply reverted, field by field.
//!
//! The description never contains a value of a Secret, of a ConfigMap or of an environment variable.

use std::{collections::BTreeSet, fmt};

use plan::{ObjectId, names};
use serde_json::{Map, Value};

/// An object that somebody changed or deleted, and that VDO applied again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reverted {
    pub object: ObjectId,
    /// The field manager that made the change. Managed fields do not record who deleted an object or a field.
    pub manager: Option<String>,
    /// The reverted fields; none if the whole object was deleted.
    pub fields: Option<Vec<FieldChange>>,
}

/// A field that an apply changed back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// For example `spec.template.spec.containers[csi-attacher].args`.
    pub path: String,
    /// The difference in words; empty if it must not be shown.
    pub difference: String,
}

/// How many fields a description names.
const NAMED: usize = 8;
/// The maximum length of a value in a description.
const VALUE: usize = 80;

/// Annotations that Kubernetes and VDO themselves write with every change.
const BOOKKEEPING: [&str; 3] = [
    "deployment.kubernetes.io/revision",
    "deprecated.daemonset.template.generation",
    names::DIGEST,
];

impl fmt::Display for Reverted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, manager, fields } = self;
        let Some(fields) = fields else {
            return write!(f, "VDO created {object} again: somebody had deleted it");
        };
        let by = manager.as_ref().map_or(String::new(), |manager| format!(" of {manager}"));
        write!(f, "VDO reverted a change{by} to {object}: ")?;
        for (number, FieldChange { path, difference }) in fields.iter().take(NAMED).enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{path}")?;
            if !difference.is_empty() {
                write!(f, " ({})", redaction::redact_line(difference))?;
            }
        }
        match fields.len().checked_sub(NAMED) {
            Some(more) if more > 0 => write!(f, " and {more} more fields"),
            _ => Ok(()),
        }
    }
}

/// The fields in which two states of an object differ, without those that the API server and controllers write.
pub(super) fn differences(kind: &str, before: &Value, after: &Value) -> Vec<FieldChange> {
    let mut walk =
        Walk { shows_values: !matches!(kind, "Secret" | "ConfigMap"), found: Vec::new() };
    walk.compare("", before, after);
    walk.found
}

struct Walk {
    shows_values: bool,
    found: Vec<FieldChange>,
}

impl Walk {
    fn compare(&mut self, path: &str, before: &Value, after: &Value) {
        match (before, after) {
            _ if before == after || is_bookkeeping(path) => {}
            (Value::Object(before), Value::Object(after)) => self.compare_maps(path, before, after),
            (Value::Array(before), Value::Array(after)) => self.compare_lists(path, before, after),
            // The API server leaves out what is empty.
            (Value::Null, Value::Array(after)) => self.compare_lists(path, &[], after),
            (Value::Array(before), Value::Null) => self.compare_lists(path, before, &[]),
            (Value::Null, Value::Object(after)) if path == "data" => {
                self.compare_maps(path, &Map::new(), after);
            }
            (Value::Object(before), Value::Null) if path == "data" => {
                self.compare_maps(path, before, &Map::new());
            }
            _ => {
                let difference = match (before, after) {
                    (Value::Null, _) => "was missing".to_owned(),
                    (_, Value::Null) => "was added".to_owned(),
                    _ => format!("{} instead of {}", shown(before), shown(after)),
                };
                self.note(path, difference);
            }
        }
    }

    fn compare_maps(
        &mut self,
        path: &str,
        before: &Map<String, Value>,
        after: &Map<String, Value>,
    ) {
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for key in keys {
            let field = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
            self.compare(&field, &of(before), &of(after));
        }
    }

    fn compare_lists(&mut self, path: &str, before: &[Value], after: &[Value]) {
        if let (Some(before), Some(after)) = (by_name(before), by_name(after)) {
            let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for key in keys {
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                self.compare(&format!("{path}[{key}]"), &of(&before), &of(&after));
            }
            return;
        }
        let nested = |list: &[Value]| list.iter().all(Value::is_object);
        if before.len() == after.len() && nested(before) && nested(after) {
            for (number, (before, after)) in before.iter().zip(after).enumerate() {
                self.compare(&format!("{path}[{number}]"), before, after);
            }
            return;
        }
        let missing = listed(after, before).map(|lost| format!("without {lost}"));
        let added = listed(before, after).map(|new| format!("with {new}"));
        let difference: Vec<String> = missing.into_iter().chain(added).collect();
        let difference =
            if difference.is_empty() { "in another order".into() } else { difference.join(", ") };
        self.note(path, difference);
    }

    fn note(&mut self, path: &str, difference: String) {
        // A variable can contain a proxy with its password.
        let shown = self.shows_values && !path.contains(".env[");
        let difference = if shown { difference } else { String::new() };
        self.found.push(FieldChange { path: path.to_owned(), difference });
    }
}

/// The items of `list` that `other` lacks, as a text; none if there are none.
fn listed(list: &[Value], other: &[Value]) -> Option<String> {
    let own: Vec<String> = list.iter().filter(|item| !other.contains(item)).map(shown).collect();
    (!own.is_empty()).then(|| own.join(", "))
}

/// A list as a map, if every item is an object with a name of its own.
fn by_name(list: &[Value]) -> Option<Map<String, Value>> {
    let mut map = Map::new();
    for item in list {
        let name = item.as_object()?.get("name")?.as_str()?;
        if map.insert(name.to_owned(), item.clone()).is_some() {
            return None;
        }
    }
    Some(map)
}

fn shown(value: &Value) -> String {
    let mut text = match value {
        Value::String(text) => text.clone(),
        other => rule(other).unwrap_or_else(|| other.to_string()),
    };
    if text.len() > VALUE {
        text.truncate(text.floor_char_boundary(VALUE));
        text.push_str("...");
    }
    text
}

/// A rule of a role in short: `get, list nodes, pods`.
fn rule(value: &Value) -> Option<String> {
    let texts = |part: &str| -> Option<String> {
        let texts = value.get(part)?.as_array()?.iter().filter_map(Value::as_str);
        Some(texts.collect::<Vec<_>>().join(", "))
    };
    Some(format!("{} {}", texts("verbs")?, texts("resources")?))
}

fn is_bookkeeping(path: &str) -> bool {
    match path.strip_prefix("metadata.") {
        Some(field) => match field.strip_prefix("annotations.") {
            Some(annotation) => BOOKKEEPING.contains(&annotation),
            None => !field.starts_with("labels") && !field.starts_with("annotations"),
        },
        None => path == "status",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reverted(kind: &str, before: &Value, after: &Value) -> String {
        let object = ObjectId {
            api_version: "v1".into(),
            kind: kind.into(),
            namespace: "n".into(),
            name: "x".into(),
        };
        let fields = Some(differences(kind, before, after));
        Reverted { object, manager: Some("kubectl-edit".into()), fields }.to_string()
    }

    #[test]
    fn each_reverted_field_is_named_with_its_difference() {
        let object = |replicas: i32, arguments: &[&str], more: Value| {
            let container = json!({"name": "csi-attacher", "args": arguments, "image": "a"});
            json!({
                "metadata": {
                    "resourceVersion": replicas.to_string(), "generation": replicas,
                    "annotations": {"deployment.kubernetes.io/revision": replicas.to_string()},
                },
                "spec": {"replicas": replicas, "template": {"spec": {"containers": [container, more]}}},
                "status": {"replicas": replicas},
            })
        };
        let more = json!({"name": "vsphere-syncer"});
        let mut before = object(0, &["--v=2"], Value::Null);
        before["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().pop();
        let text =
            reverted("Deployment", &before, &object(3, &["--v=2", "--leader-election"], more));
        assert_eq!(
            text,
            "VDO reverted a change of kubectl-edit to Deployment n/x: spec.replicas (0 instead of 3), \
             spec.template.spec.containers[csi-attacher].args (without --leader-election), \
             spec.template.spec.containers[vsphere-syncer] (was missing)"
        );
    }

    #[test]
    fn a_lost_verb_of_a_role_is_named() {
        let role = |verbs: &[&str]| json!({"rules": [{"resources": ["nodes"], "verbs": verbs}]});
        let text = reverted("ClusterRole", &role(&["get"]), &role(&["get", "patch"]));
        assert!(text.ends_with("rules[0].verbs (without patch)"), "{text}");
        let text = reverted("ClusterRole", &json!({"rules": []}), &role(&["get"]));
        assert!(text.ends_with("rules (without get nodes)"), "{text}");
    }

    #[test]
    fn the_only_item_of_a_list_or_map_is_named_too() {
        let role = json!({"rules": [{"resources": ["leases"], "verbs": ["get"]}]});
        let text = reverted("Role", &json!({}), &role);
        assert!(text.ends_with("rules (without get leases)"), "{text}");
        let text = reverted("Secret", &json!({}), &json!({"data": {"csi-vsphere.conf": "eA=="}}));
        assert!(text.ends_with(": data.csi-vsphere.conf"), "{text}");
    }

    #[test]
    fn values_of_secrets_settings_and_variables_are_not_shown() {
        let data = |value: &str| json!({"data": {"password": value}});
        for kind in ["Secret", "ConfigMap"] {
            let text = reverted(kind, &data("c2VjcmV0"), &data("b3RoZXI="));
            assert!(text.ends_with(": data.password"), "{text}");
        }
        let variable = |value: &str| json!({"spec": {"containers": [{"name": "c", "env": [{"name": "PROXY", "value": value}]}]}});
        let text = reverted("DaemonSet", &variable("http://u:p@x"), &variable(""));
        assert!(text.ends_with(": spec.containers[c].env[PROXY].value"), "{text}");
    }

    #[test]
    fn a_deleted_object_and_many_fields_fit_into_an_event() {
        let object = ObjectId::from_object(&catalog::manifest::Object(json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "x", "namespace": "n"},
        })));
        let gone = Reverted { object, manager: None, fields: None };
        assert_eq!(
            gone.to_string(),
            "VDO created ServiceAccount n/x again: somebody had deleted it"
        );
        let many = |value: u32| -> Value {
            let fields = (0..20).map(|n| (format!("field-{n:02}"), json!(value)));
            json!({"spec": fields.collect::<Map<_, _>>()})
        };
        let text = reverted("Service", &many(1), &many(2));
        assert!(text.ends_with("spec.field-07 (1 instead of 2) and 12 more fields"), "{text}");
    }
}
