//! Namespaces that stay in `Terminating`. The API server refuses new objects in them; this module reports why
//! the namespace still exists.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};

use super::Error;

/// The reason why the namespace of a refused object still exists. `None` if that namespace is not being
/// deleted.
pub(crate) async fn holds(client: &Client, error: &Error) -> Option<String> {
    let Error::Apply { object, .. } = error else { return None };
    let name = if object.kind == "Namespace" { &object.name } else { &object.namespace };
    if name.is_empty() {
        return None;
    }
    let namespace = Api::<Namespace>::all(client.clone()).get_opt(name).await.ok()??;
    reason(name, &namespace)
}

fn reason(name: &str, namespace: &Namespace) -> Option<String> {
    namespace.metadata.deletion_timestamp.as_ref()?;
    let conditions = namespace.status.as_ref().and_then(|status| status.conditions.as_ref());
    let reasons: Vec<&str> = conditions
        .into_iter()
        .flatten()
        .filter(|condition| condition.status == "True")
        .filter_map(|condition| condition.message.as_deref())
        .collect();
    let reasons = if reasons.is_empty() { "no reason is given".into() } else { reasons.join("; ") };
    Some(format!("namespace {name} is being deleted, and held by what is left in it: {reasons}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_finalizers_that_hold_a_namespace_are_named() {
        let mut namespace: Namespace = serde_json::from_value(json!({
            "metadata": {"name": "driver"},
            "status": {"conditions": [
                {"type": "NamespaceDeletionContentFailure", "status": "False", "message": "all fine"},
                {"type": "NamespaceFinalizersRemaining", "status": "True", "message": "example.com/hold"},
            ]},
        }))
        .unwrap();
        assert_eq!(reason("driver", &namespace), None, "it is not being deleted");
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        namespace.metadata.deletion_timestamp = Some(now);
        let text = reason("driver", &namespace).unwrap();
        assert!(text.contains("example.com/hold") && !text.contains("all fine"), "{text}");
    }
}
