//! Conflicts about the port of the operator's metrics on the host network.

use std::net::SocketAddr;

use catalog::manifest::Object;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use operator::install::{LISTEN, PORT};

use crate::{
    cluster::Cluster,
    failure::{Doing as _, Outcome, is_forbidden},
};

/// A warning about the first pod that uses the port of the operator's metrics on its node. Processes outside of pods, and
/// pods that do not declare their ports, are unknown: the operator's log reports them.
pub(super) async fn conflict(cluster: &Cluster, objects: &[Object]) -> Outcome<Option<String>> {
    let Some(port) = host_port(objects) else { return Ok(None) };
    let pods = Api::<Pod>::all(cluster.client.clone());
    let pods = match pods.list(&ListParams::default()).await {
        Err(error) if is_forbidden(&error) => return Ok(None),
        pods => pods.doing("reading the pods that use host ports")?.items,
    };
    Ok(pods.iter().find(|pod| uses(pod, port)).map(|pod| {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        format!(
            "Pod {namespace}/{name} uses port {port} of node {node}. The operator serves no metrics there.\n\
             To use another port: vdoctl deploy --port PORT"
        )
    }))
}

/// The port of the operator's metrics on its node, if it uses the host network.
fn host_port(objects: &[Object]) -> Option<u16> {
    let deployment = objects.iter().find(|object| object.kind() == "Deployment")?;
    let pod = deployment.0.pointer("/spec/template/spec")?;
    if pod["hostNetwork"] != true {
        return None;
    }
    let variables = pod["containers"][0]["env"].as_array();
    let mut variables = variables.into_iter().flatten();
    let listen = variables.find(|variable| variable["name"] == LISTEN);
    let listen = listen.and_then(|listen| listen["value"].as_str()?.parse::<SocketAddr>().ok());
    Some(listen.map_or(PORT, |listen| listen.port()))
}

/// Whether a pod that is not the operator's uses this port of its node.
fn uses(pod: &Pod, port: u16) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let scheduled = spec.node_name.is_some() && pod.namespace().as_deref() != Some(api::NAMESPACE);
    let mut ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    scheduled && ports.any(|one| one.host_port == Some(port.into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, port: u16) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "exporter", "namespace": namespace},
            "spec": {"nodeName": "node-1", "containers": [
                {"name": "a", "image": "a", "ports": [{"containerPort": port, "hostPort": port}]},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn only_pods_that_are_not_the_operators_take_its_port() {
        assert!(uses(&pod("monitoring", 8089), 8089));
        assert!(!uses(&pod("monitoring", 9100), 8089));
        assert!(!uses(&pod(api::NAMESPACE, 8089), 8089));
    }

    #[test]
    fn the_port_of_the_node_matters_only_on_the_host_network() {
        let mut objects = operator::install::objects();
        assert_eq!(host_port(&objects), Some(PORT));
        operator::install::use_pod_network(&mut objects);
        assert_eq!(host_port(&objects), None);
    }
}
