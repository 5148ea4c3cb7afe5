//! The pod security level of the operator's namespace while the operator moves to the pod network.

use catalog::manifest::Object;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{Api, api::ListParams};
use operator::install;
use serde_json::json;

use crate::{
    cluster::Cluster,
    failure::{Doing as _, Outcome, is_forbidden},
};

/// The level that accepts pods on the host network.
const PRIVILEGED: &str = "privileged";
/// The label with the level of a namespace.
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";

/// Lets the operator's namespace in `objects` accept pods on the host network while such pods of the operator run. Until
/// the new version runs, Kubernetes must be able to replace a pod of the version before it. Returns the namespace with
/// its final level, to be applied after the rollout.
pub(super) async fn deferred(
    objects: &mut [Object],
    running: Option<&Deployment>,
    cluster: &Cluster,
) -> Outcome<Option<Object>> {
    let Some(namespace) = objects.iter_mut().find(|object| rejects_host_network(object)) else {
        return Ok(None);
    };
    let was_on_host = running.is_some_and(install::uses_host_network);
    if !was_on_host && !any_pod_on_host(cluster).await? {
        return Ok(None);
    }
    let last = namespace.clone();
    namespace.0["metadata"]["labels"][POD_SECURITY] = json!(PRIVILEGED);
    Ok(Some(last))
}

/// Whether the object is the operator's namespace, with a level that rejects pods on the host network.
fn rejects_host_network(object: &Object) -> bool {
    let level = object.0["metadata"]["labels"][POD_SECURITY].as_str();
    object.kind() == "Namespace"
        && object.name() == api::NAMESPACE
        && level.is_some_and(|level| level != PRIVILEGED)
}

/// Whether a pod of an earlier version uses the host network: an earlier move to the pod network can have failed.
async fn any_pod_on_host(cluster: &Cluster) -> Outcome<bool> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), api::NAMESPACE);
    let of_operator = ListParams::default().labels("app.kubernetes.io/name=vdo");
    match pods.list(&of_operator).await {
        Err(error) if is_forbidden(&error) => Ok(false),
        pods => Ok(pods.doing("reading the operator's pods")?.items.iter().any(is_on_host)),
    }
}

/// Whether the pod uses the host network. A pod that ended has a successor.
fn is_on_host(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    !ended && pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_operators_namespace_on_the_pod_network_rejects_the_host_network() {
        let rejecting = |objects: &[Object]| {
            let found = objects.iter().filter(|object| rejects_host_network(object));
            found.map(|object| object.name().to_owned()).collect::<Vec<_>>()
        };
        let mut objects = install::objects();
        assert_eq!(rejecting(&objects), Vec::<String>::new());
        install::use_pod_network(&mut objects);
        assert_eq!(rejecting(&objects), [api::NAMESPACE]);
    }

    #[test]
    fn a_pod_that_ended_uses_no_network() {
        for (phase, expected) in [("Running", true), ("Pending", true), ("Failed", false)] {
            let pod = json!({
                "metadata": {"name": "vdo"}, "spec": {"hostNetwork": true, "containers": []},
                "status": {"phase": phase},
            });
            assert_eq!(is_on_host(&serde_json::from_value(pod).unwrap()), expected, "{phase}");
        }
    }
}
