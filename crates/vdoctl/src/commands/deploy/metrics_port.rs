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

/// Whether a pod that is not the operator's uses this port of its node. A pod that ended still declares its ports.
fn uses(pod: &Pod, port: u16) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let scheduled = spec.node_name.is_some() && pod.namespace().as_deref() != Some(api::NAMESPACE);
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    // TCP is the default.
    let mut ports = ports.filter(|one| one.protocol.as_deref().is_none_or(|name| name == "TCP"));
    scheduled && !ended && ports.any(|one| one.host_port == Some(port.into()))
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
    fn pods_that_ended_take_no_port() {
        for (phase, expected) in
            [("Pending", true), ("Running", true), ("Succeeded", false), ("Failed", false)]
        {
            let mut pod = pod("monitoring", 8089);
            pod.status = serde_json::from_value(json!({"phase": phase})).unwrap();
            assert_eq!(uses(&pod, 8089), expected, "{phase}");
        }
    }

    #[test]
    fn only_tcp_ports_conflict_with_the_metrics() {
        for (protocol, expected) in [("TCP", true), ("UDP", false), ("SCTP", false)] {
            let mut pod = pod("monitoring", 8089);
            let ports = pod.spec.as_mut().unwrap().containers[0].ports.as_mut().unwrap();
            ports[0].protocol = Some(protocol.to_owned());
            assert_eq!(uses(&pod, 8089), expected, "{protocol}");
        }
    }

    #[test]
    fn the_port_of_the_node_matters_only_on_the_host_network() {
        let mut objects = operator::install::objects();
        assert_eq!(host_port(&objects), Some(PORT));
        operator::install::use_pod_network(&mut objects);
        assert_eq!(host_port(&objects), None);
    }
}
