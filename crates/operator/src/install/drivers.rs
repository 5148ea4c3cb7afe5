//! Collects the rules of the roles in all releases of the embedded catalog.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use catalog::manifest::Object;
use plan::written_names::{is_granted_by_installation, objects_of_every_release};
use serde_json::{Value, json};

/// The rules of all releases together, on every platform.
#[derive(Debug, Default)]
pub(super) struct DriverRules {
    /// The rules of the ClusterRoles, except `secrets_everywhere`.
    pub(super) cluster_rules: Vec<Value>,
    /// The rules of the Roles.
    pub(super) namespace_rules: Vec<Value>,
    /// The rules of the ClusterRoles about Secrets in every namespace.
    pub(super) secrets_everywhere: Vec<Value>,
}

impl DriverRules {
    pub(super) fn from_catalog() -> &'static Self {
        static ALL: LazyLock<DriverRules> =
            LazyLock::new(|| DriverRules::from_objects(&objects_of_every_release()));
        &ALL
    }

    fn from_objects(objects: &[Object]) -> Self {
        let mut drivers = Self::default();
        let (mut cluster, mut namespace, mut secrets) =
            (Grants::default(), Grants::default(), Grants::default());
        let own = objects.iter().filter(|o| !is_granted_by_installation(o.kind(), o.name()));
        for object in own {
            for grant in grants(object) {
                let everywhere = object.kind() == "ClusterRole";
                let about_secrets = grant.resource.split('/').next() == Some("secrets");
                match (everywhere, about_secrets && grant.names.is_empty()) {
                    (true, true) => secrets.add(grant),
                    (true, false) => cluster.add(grant),
                    (false, _) => namespace.add(grant),
                }
            }
        }
        drivers.cluster_rules = cluster.rules();
        drivers.namespace_rules = namespace.rules();
        drivers.secrets_everywhere = secrets.rules();
        drivers
    }
}

/// The permissions of a rule on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    group: String,
    resource: String,
    /// Empty for all objects.
    names: BTreeSet<String>,
    verbs: BTreeSet<String>,
}

/// The grants of a role, resource by resource.
fn grants(role: &Object) -> Vec<Grant> {
    if !matches!(role.kind(), "Role" | "ClusterRole") {
        return Vec::new();
    }
    let texts = |rule: &Value, part: &str| -> BTreeSet<String> {
        let all = rule[part].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut all = Vec::new();
    for rule in role.0["rules"].as_array().into_iter().flatten() {
        let (names, verbs) = (texts(rule, "resourceNames"), texts(rule, "verbs"));
        for group in texts(rule, "apiGroups") {
            all.extend(texts(rule, "resources").into_iter().map(|resource| Grant {
                group: group.clone(),
                resource,
                names: names.clone(),
                verbs: verbs.clone(),
            }));
        }
    }
    all
}

/// The union of grants: the verbs by group, resource and names.
#[derive(Default)]
struct Grants(BTreeMap<(String, String, BTreeSet<String>), BTreeSet<String>>);

impl Grants {
    fn add(&mut self, Grant { group, resource, names, verbs }: Grant) {
        self.0.entry((group, resource, names)).or_default().extend(verbs);
    }

    /// The smallest set of rules with exactly these grants. Resources of a group with the same verbs share a
    /// rule.
    fn rules(&self) -> Vec<Value> {
        let mut merged: BTreeMap<_, BTreeSet<&String>> = BTreeMap::new();
        for ((group, resource, names), verbs) in &self.0 {
            merged.entry((group, names, verbs)).or_default().insert(resource);
        }
        let rule = |((group, names, verbs), resources): (_, _)| {
            let (names, verbs): (&BTreeSet<String>, &BTreeSet<String>) = (names, verbs);
            let (group, resources): (&String, BTreeSet<&String>) = (group, resources);
            let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
            if !names.is_empty() {
                rule["resourceNames"] = json!(names);
            }
            rule
        };
        merged.into_iter().map(rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_union_of_rules_grants_what_each_grants_and_no_more() {
        let role = |rules: Value| {
            Object(json!({"kind": "ClusterRole", "metadata": {"name": "x"}, "rules": rules}))
        };
        let granted = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": [""], "resources": resources, "verbs": verbs});
        let drivers = DriverRules::from_objects(&[
            role(json!([granted(&["nodes", "pods"], &["get"])])),
            role(json!([granted(&["nodes"], &["get", "list"]), granted(&["events"], &["get"])])),
            role(json!([granted(&["secrets"], &["get"])])),
        ]);
        let wanted =
            [granted(&["events", "pods"], &["get"]), granted(&["nodes"], &["get", "list"])];
        assert_eq!(drivers.cluster_rules, wanted);
        assert_eq!(drivers.secrets_everywhere, [granted(&["secrets"], &["get"])]);
    }
}
