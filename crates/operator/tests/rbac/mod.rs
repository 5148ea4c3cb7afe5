//! RBAC as the API server evaluates it, over the roles and bindings of a manifest.
#![allow(dead_code, unreachable_pub, reason = "shared by a test and an example")]

use catalog::manifest::Object;
use serde_json::Value;

/// A rule of a role that is bound to an account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    pub role: String,
    /// None for the whole cluster.
    pub namespace: Option<String>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    pub verbs: Vec<String>,
    /// Empty for all objects.
    pub names: Vec<String>,
}

/// A request to the authorizer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    /// With the subresource: `pods/log`.
    pub resource: &'a str,
    /// Empty for the whole cluster.
    pub namespace: &'a str,
    /// Empty if the request names no object, as `create` and most lists.
    pub name: &'a str,
}

impl Rule {
    pub fn allows(&self, request: &Request<'_>) -> bool {
        let has = |all: &[String], one: &str| all.iter().any(|other| other == one || other == "*");
        let in_namespace = self.namespace.as_deref().is_none_or(|own| own == request.namespace);
        let named = self.names.is_empty() || self.names.iter().any(|name| name == request.name);
        in_namespace
            && named
            && has(&self.groups, request.group)
            && has(&self.resources, request.resource)
            && has(&self.verbs, request.verb)
    }
}

/// The rules that apply to a service account.
pub fn rules_of(objects: &[Object], namespace: &str, account: &str) -> Vec<Rule> {
    let bindings = objects.iter().filter(|object| object.kind().ends_with("RoleBinding"));
    let bound = bindings.filter(|binding| {
        let subjects = binding.0["subjects"].as_array().into_iter().flatten();
        subjects.into_iter().any(|s| s["name"] == account && s["namespace"] == namespace)
    });
    let mut all = Vec::new();
    for binding in bound {
        let (kind, name) = (&binding.0["roleRef"]["kind"], &binding.0["roleRef"]["name"]);
        let role = objects.iter().find(|role| {
            role.kind() == kind.as_str().unwrap_or_default()
                && role.name() == name.as_str().unwrap_or_default()
                && (kind == "ClusterRole" || role.namespace() == binding.namespace())
        });
        let everywhere = binding.kind() == "ClusterRoleBinding";
        let place = (!everywhere).then(|| binding.namespace().to_owned());
        let rules = role.and_then(|role| role.0["rules"].as_array()).into_iter().flatten();
        all.extend(rules.map(|rule| read(rule, name.as_str().unwrap_or_default(), place.clone())));
    }
    all
}

fn read(granted: &Value, role: &str, namespace: Option<String>) -> Rule {
    let texts = |field: &str| -> Vec<String> {
        let all = granted[field].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    Rule {
        role: role.to_owned(),
        namespace,
        groups: texts("apiGroups"),
        resources: texts("resources"),
        verbs: texts("verbs"),
        names: texts("resourceNames"),
    }
}
