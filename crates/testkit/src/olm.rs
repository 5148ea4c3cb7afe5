//! The objects that the Operator Lifecycle Manager (OLM) creates. Its controllers cannot be built from the module proxy,
//! so tests create these objects as OLM's documentation and source describe them.

use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io";

/// The objects that OLM creates from a ClusterServiceVersion, for an OperatorGroup of the operator's own namespace.
///
/// # Panics
/// If it is not a ClusterServiceVersion.
pub fn created_by_olm(version: &Value) -> Vec<Value> {
    let (name, namespace) = (&version["metadata"]["name"], &version["metadata"]["namespace"]);
    let text = name.as_str().expect("a ClusterServiceVersion has a name");
    let install = &version["spec"]["install"]["spec"];
    let list = |key: &str| install[key].as_array().expect("a list of the install strategy").iter();
    let mut objects = Vec::new();
    for (key, prefix) in [("clusterPermissions", "Cluster"), ("permissions", "")] {
        for (number, permission) in list(key).enumerate() {
            let account = &permission["serviceAccountName"];
            let mut metadata = json!({"name": format!("{text}-{number}")});
            if prefix.is_empty() {
                metadata["namespace"] = namespace.clone();
            }
            objects.push(json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": account, "namespace": namespace},
            }));
            objects.push(json!({
                "apiVersion": format!("{RBAC}/v1"), "kind": format!("{prefix}Role"),
                "metadata": metadata, "rules": permission["rules"],
            }));
            objects.push(json!({
                "apiVersion": format!("{RBAC}/v1"), "kind": format!("{prefix}RoleBinding"), "metadata": metadata,
                "roleRef": {"apiGroup": RBAC, "kind": format!("{prefix}Role"), "name": metadata["name"]},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
            }));
        }
    }
    for deployment in list("deployments") {
        let mut spec = deployment["spec"].clone();
        spec["template"]["metadata"]["annotations"]["olm.targetNamespaces"] = namespace.clone();
        let condition = json!({"name": "OPERATOR_CONDITION_NAME", "value": name});
        let variables = spec.pointer_mut("/template/spec/containers/0/env");
        let variables =
            variables.and_then(Value::as_array_mut).expect("a container with variables");
        variables.push(condition);
        objects.push(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
            "metadata": {"name": deployment["name"], "namespace": namespace, "labels": deployment["label"]},
        }));
    }
    objects
}
