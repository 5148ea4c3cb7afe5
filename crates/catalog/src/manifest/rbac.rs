//! ServiceAccounts and permissions. No wildcards: rules list every resource and verb.

use semver::Version;
use serde_json::{Value, json};

use super::common::metadata;

pub(crate) fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

/// A rule for objects by name.
pub(crate) fn named(group: &str, resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "resourceNames": names, "verbs": verbs })
}

pub(crate) fn account(name: &str, namespace: &str, version: &Version) -> Value {
    json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, namespace, version) })
}

/// The ServiceAccount that roles are bound to.
pub(crate) struct Subject<'a> {
    pub account: &'a str,
    pub namespace: &'a str,
    pub version: &'a Version,
}

impl Subject<'_> {
    /// A ClusterRole and its binding.
    pub(crate) fn cluster_role(&self, role: &str, binding: &str, rules: &[Value]) -> [Value; 2] {
        [
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": metadata(role, "", self.version),
                "rules": rules,
            }),
            self.bind("ClusterRoleBinding", "ClusterRole", role, binding, ""),
        ]
    }

    /// A Role and its binding in one namespace.
    pub(crate) fn role(
        &self,
        namespace: &str,
        role: &str,
        binding: &str,
        rules: &[Value],
    ) -> [Value; 2] {
        [
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "Role",
                "metadata": metadata(role, namespace, self.version),
                "rules": rules,
            }),
            self.bind("RoleBinding", "Role", role, binding, namespace),
        ]
    }

    /// A binding to an existing role.
    pub(crate) fn bind(
        &self,
        kind: &str,
        role_kind: &str,
        role: &str,
        name: &str,
        namespace: &str,
    ) -> Value {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": metadata(name, namespace, self.version),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": self.account, "namespace": self.namespace }],
        })
    }

    /// On OpenShift: permission to use a security context constraint.
    pub(crate) fn security_context(&self, constraint: &str, name: &str) -> [Value; 2] {
        let rule = named(
            "security.openshift.io",
            &["securitycontextconstraints"],
            &[constraint],
            &["use"],
        );
        self.cluster_role(name, name, &[rule])
    }
}
