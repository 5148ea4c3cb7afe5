//! The metrics of VDO and the drivers, for the support bundle.
//!
//! The API server forwards a request to the address of a pod. On the host network, metrics are served only on the
//! loopback address of the node, which the API server cannot reach.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::{Client, ResourceExt};
use redaction::redact_text;

use super::{AT_ONCE, BundleFile};
use crate::install::LISTEN;

const TIMEOUT: Duration = Duration::from_secs(3);
const ON_HOST_NETWORK: &str =
    "(not read: this pod serves its metrics only on the loopback address of its node)\n";

/// The metrics of these pods, with one file for each port.
pub(super) async fn of_pods<'a>(
    client: &Client,
    namespace: &str,
    pods: impl Iterator<Item = &'a Pod>,
) -> Vec<BundleFile> {
    let ports = pods.flat_map(|pod| ports(pod).into_iter().map(move |port| (pod, port)));
    let read = stream::iter(ports).map(|(pod, port)| async move {
        let (name, on_host) = (pod.name_any(), uses_host_network(pod));
        let path = format!("namespaces/{namespace}/metrics/{name}/{port}.txt");
        let (text, unreadable) = if on_host {
            (ON_HOST_NETWORK.to_owned(), false)
        } else {
            read(client, namespace, &name, port).await
        };
        BundleFile { path, text, unreadable }
    });
    read.buffered(AT_ONCE).collect().await
}

/// The metrics with `false`, or the reason why they are unreadable with `true`. A pod that does not answer counts as read:
/// only the leader of the operator serves metrics. The client repeats such a request until the timeout.
async fn read(client: &Client, namespace: &str, pod: &str, port: u16) -> (String, bool) {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics");
    let reason = match http::Request::get(path).body(Vec::new()) {
        Err(error) => error.to_string(),
        Ok(request) => match tokio::time::timeout(TIMEOUT, client.request_text(request)).await {
            Ok(Ok(text)) => return (redact_text(&text), false),
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                return (format!("(no answer within {} seconds)\n", TIMEOUT.as_secs()), false);
            }
        },
    };
    (format!("(unreadable: {reason})\n"), true)
}

fn uses_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true)
}

/// The ports on which the containers of a pod serve metrics.
fn ports(pod: &Pod) -> Vec<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports: Vec<u16> = containers.flat_map(ports_of).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn ports_of(container: &Container) -> Vec<u16> {
    let declared = container.ports.iter().flatten().filter(|port| {
        let name = port.name.as_deref().unwrap_or_default();
        name == "http" || name.starts_with("prometheus") || name.starts_with("metrics")
    });
    let declared = declared.filter_map(|port| u16::try_from(port.container_port).ok());
    let listen = container.env.iter().flatten().find(|variable| variable.name == LISTEN);
    let address = listen.and_then(|variable| variable.value.as_deref()?.rsplit_once(':'));
    let configured = address.and_then(|(_, port)| port.parse().ok());
    declared.chain(configured).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api;

    fn pods() -> Vec<Pod> {
        let pods = json!([
            {
                "metadata": {"name": "vdo-1"},
                "spec": {"containers": [
                    {"name": "vdo", "env": [{"name": LISTEN, "value": "[::]:8089"}]},
                ]},
            },
            {
                "metadata": {"name": "controller"},
                "spec": {"containers": [
                    {"name": "driver", "ports": [
                        {"name": "healthz", "containerPort": 9808},
                        {"name": "prometheus", "containerPort": 2112},
                    ]},
                    {"name": "syncer", "ports": [{"name": "prometheus-sync", "containerPort": 2113}]},
                ]},
            },
            {
                "metadata": {"name": "on-host"},
                "spec": {"hostNetwork": true, "containers": [
                    {"name": "manager", "ports": [{"name": "http", "containerPort": 10258}]},
                ]},
            },
        ]);
        serde_json::from_value(pods).unwrap()
    }

    #[tokio::test]
    async fn metrics_of_every_port_are_collected_or_the_reason_why_not() {
        let answer = async |request: String| {
            let unavailable = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 503,
                "reason": "ServiceUnavailable", "message": "connection refused",
            });
            match request.split(' ').nth(1).unwrap_or_default() {
                "/api/v1/namespaces/vdo/pods/vdo-1:8089/proxy/metrics" => (200, json!("vdo_up 1")),
                "/api/v1/namespaces/vdo/pods/controller:2112/proxy/metrics" => (503, unavailable),
                path => {
                    let forbidden = json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                        "reason": "Forbidden", "message": format!("{path} is forbidden"),
                    });
                    (403, forbidden)
                }
            }
        };
        let (client, _tasks) = fake_api::serving(answer).await;
        let pods = pods();
        let files = of_pods(&client, "vdo", pods.iter()).await;
        let expected = [
            ("vdo-1/8089.txt", "vdo_up 1", false),
            ("controller/2112.txt", "(no answer within 3 seconds)", false),
            ("controller/2113.txt", "is forbidden", true),
            ("on-host/10258.txt", "loopback address", false),
        ];
        assert_eq!(files.len(), expected.len(), "{files:?}");
        for (file, (path, text, unreadable)) in files.iter().zip(expected) {
            assert_eq!(file.path, format!("namespaces/vdo/metrics/{path}"));
            assert!(file.text.contains(text), "{file:?}");
            assert_eq!(file.unreadable, unreadable, "{file:?}");
        }
    }
}
