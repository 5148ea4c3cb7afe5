//! Whether the operator uses the host network or the pod network.

use catalog::manifest::Object;
use clap::ValueEnum;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
use kube::{Api, api::ListParams};
use operator::install;

use crate::{
    cluster::Cluster,
    failure::{Doing as _, Outcome, is_forbidden},
};

/// When the operator uses the host network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostNetwork {
    /// If no node has a pod network yet.
    Auto,
    Always,
    Never,
}

/// The network of the operator's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    Host,
    Pod,
}

impl Network {
    /// The network without a cluster to look at: the one that always works.
    pub(super) fn by_choice(choice: Option<HostNetwork>) -> Self {
        if choice == Some(HostNetwork::Never) { Self::Pod } else { Self::Host }
    }

    /// The network that the user chose, or that the running operator has, or that fits the cluster.
    pub(super) async fn find(
        choice: Option<HostNetwork>,
        running: Option<&Deployment>,
        cluster: &Cluster,
    ) -> Outcome<Self> {
        let is_host = match (choice, running) {
            (Some(HostNetwork::Always), _) => true,
            (Some(HostNetwork::Never), _) => false,
            (None, Some(running)) => install::uses_host_network(running),
            (None | Some(HostNetwork::Auto), _) => !any_pod_network(cluster).await?,
        };
        Ok(if is_host { Self::Host } else { Self::Pod })
    }

    pub(super) fn apply(self, objects: &mut [Object]) {
        if self == Self::Pod {
            install::use_pod_network(objects);
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Host => "host network",
            Self::Pod => "pod network",
        })
    }
}

/// Whether a node has a pod network. Nobody knows if the user cannot read nodes: the host network works anyway.
async fn any_pod_network(cluster: &Cluster) -> Outcome<bool> {
    let nodes = Api::<Node>::all(cluster.client.clone());
    match nodes.list(&ListParams::default()).await {
        Err(error) if is_forbidden(&error) => Ok(false),
        nodes => Ok(nodes.doing("reading the nodes")?.items.iter().any(has_pod_network)),
    }
}

/// Whether the CNI of the node works. The kubelet reports a node Ready only then, and some CNIs report in addition that
/// the routes of the node are missing.
fn has_pod_network(node: &Node) -> bool {
    let is_true = |kind: &str| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|c| c.type_ == kind && c.status == "True")
    };
    is_true("Ready") && !is_true("NetworkUnavailable")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(conditions: &[(&str, &str)]) -> Node {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(kind, status)| json!({"type": kind, "status": status}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "node-1"}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn a_ready_node_with_routes_has_a_pod_network() {
        assert!(has_pod_network(&node(&[("Ready", "True")])));
        assert!(has_pod_network(&node(&[("Ready", "True"), ("NetworkUnavailable", "False")])));
        assert!(!has_pod_network(&node(&[("Ready", "True"), ("NetworkUnavailable", "True")])));
        assert!(!has_pod_network(&node(&[("Ready", "False")])), "no CNI is installed");
        assert!(!has_pod_network(&node(&[])), "the kubelet has not reported yet");
    }

    #[test]
    fn a_manifest_that_must_fit_every_cluster_uses_the_host_network() {
        assert_eq!(Network::by_choice(None), Network::Host);
        assert_eq!(Network::by_choice(Some(HostNetwork::Auto)), Network::Host);
        assert_eq!(Network::by_choice(Some(HostNetwork::Never)), Network::Pod);
    }
}
