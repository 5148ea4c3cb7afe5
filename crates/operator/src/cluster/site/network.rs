//! The network plugin, and the nodes that lack it.

use std::{borrow::Borrow, collections::BTreeSet};

use health::facts::NetworkPlugin;
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::ResourceExt;
use plan::names;

use crate::cluster::belongs_to;

/// How long a network plugin has to start on a node, in seconds.
const TIMEOUT: i64 = 120;

/// The DaemonSets of network plugins, the product name of each, and the namespace that its manifests use apart from
/// `kube-system`.
const PLUGINS: [(&str, &str, &str); 11] = [
    ("antrea-agent", "Antrea", ""),
    ("calico-node", "Calico", "calico-system"),
    ("canal", "Canal", ""),
    ("rke2-canal", "Canal", ""),
    ("cilium", "Cilium", "cilium"),
    ("kube-flannel-ds", "Flannel", "kube-flannel"),
    ("kube-flannel", "Flannel", "kube-flannel"),
    ("kube-router", "kube-router", ""),
    ("ovnkube-node", "OVN-Kubernetes", "openshift-ovn-kubernetes"),
    ("sdn", "OpenShift SDN", "openshift-sdn"),
    ("weave-net", "Weave Net", ""),
];

/// The product name of the network plugin that a DaemonSet belongs to. A tenant can give a DaemonSet any name, so it
/// counts only where admins install the plugin.
fn product(set: &DaemonSet) -> Option<&'static str> {
    let (name, namespace) = (set.name_any(), set.namespace().unwrap_or_default());
    let (_, product, own) = PLUGINS.iter().find(|(known, ..)| *known == name)?;
    (namespace == names::KUBE_SYSTEM || !own.is_empty() && namespace == *own).then_some(product)
}

/// Whether a DaemonSet belongs to a network plugin.
pub(crate) fn is_plugin(set: &DaemonSet) -> bool {
    product(set).is_some()
}

/// A running network plugin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plugin {
    pub(crate) name: &'static str,
    pub(crate) set: String,
    pub(crate) namespace: String,
    /// Whether a node lacks it.
    pub(crate) incomplete: bool,
    /// The label selector of its pods.
    pub(crate) selector: String,
}

impl Plugin {
    /// The plugin that a DaemonSet belongs to.
    pub(crate) fn from_daemon_set(set: &DaemonSet) -> Option<Self> {
        let name = product(set)?;
        let status = set.status.as_ref()?;
        Some(Self {
            name,
            set: set.name_any(),
            namespace: set.namespace().unwrap_or_default(),
            incomplete: status.number_ready < status.desired_number_scheduled,
            selector: super::watched::selector(set.spec.as_ref().map(|spec| &spec.selector)),
        })
    }
}

/// The state of the network, from the pods of its plugin and from the kubelets. `silent` lists the nodes
/// whose kubelet has no network, and since when.
pub(crate) fn network<P: Borrow<Pod>>(
    plugins: &[Plugin],
    pods: &[P],
    silent: impl Iterator<Item = (String, Timestamp)>,
    now: Timestamp,
) -> NetworkPlugin {
    let is_old = |since: Timestamp| now.as_second() - since.as_second() >= TIMEOUT;
    let mut missing: BTreeSet<String> =
        silent.filter(|(_, since)| is_old(*since)).map(|(node, _)| node).collect();
    for plugin in plugins.iter().filter(|plugin| plugin.incomplete) {
        let own = pods.iter().map(Borrow::borrow).filter(|pod| {
            pod.metadata.namespace.as_deref() == Some(plugin.namespace.as_str())
                && belongs_to(pod, "DaemonSet", &plugin.set)
        });
        let broken = own.filter(|pod| {
            let since = crate::cluster::workloads::unready_since(pod);
            !crate::cluster::pods::is_ready(pod) && is_old(since)
        });
        missing.extend(broken.filter_map(crate::cluster::workloads::node_of));
    }
    let plugin = plugins.first().map_or(NetworkPlugin::UNRECOGNIZED, |plugin| plugin.name);
    NetworkPlugin { plugin: plugin.to_owned(), missing_on: missing.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(ready: i32) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {"name": "antrea-agent", "namespace": "kube-system"},
            "spec": {"selector": {"matchLabels": {"app": "antrea"}}, "template": {}},
            "status": {
                "desiredNumberScheduled": 2, "numberReady": ready,
                "currentNumberScheduled": 2, "numberMisscheduled": 0,
            },
        }))
        .unwrap()
    }

    fn pod(since: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "antrea-agent-x", "namespace": "kube-system",
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "antrea-agent", "uid": "1"},
                ],
            },
            "spec": {"nodeName": "worker-1", "containers": []},
            "status": {"conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": since},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn a_node_whose_plugin_is_not_ready_for_long_is_named() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let plugin = Plugin::from_daemon_set(&set(1)).unwrap();
        assert_eq!(plugin.selector, "app=antrea");
        let none = std::iter::empty;
        let long =
            network(std::slice::from_ref(&plugin), &[pod("2026-01-01T11:50:00Z")], none(), now);
        assert_eq!(long.missing_on, ["worker-1"]);
        assert_eq!(long.plugin, "Antrea");
        let short = network(&[plugin], &[pod("2026-01-01T11:59:30Z")], none(), now);
        assert_eq!(short.missing_on, [""; 0], "it may still be starting");
        assert!(!Plugin::from_daemon_set(&set(2)).unwrap().incomplete);
    }

    #[test]
    fn a_daemon_set_of_a_tenant_is_no_network_plugin() {
        let in_namespace = |name: &str, namespace: &str| {
            let mut set = set(1);
            set.metadata.name = Some(name.to_owned());
            set.metadata.namespace = Some(namespace.to_owned());
            Plugin::from_daemon_set(&set).map(|plugin| plugin.name)
        };
        assert_eq!(in_namespace("antrea-agent", "tenant"), None);
        assert_eq!(in_namespace("antrea-agent", ""), None);
        assert_eq!(in_namespace("cilium", "calico-system"), None, "the namespace of another one");
        assert_eq!(in_namespace("calico-node", "calico-system"), Some("Calico"));
        assert_eq!(in_namespace("cilium", "kube-system"), Some("Cilium"));
    }

    #[test]
    fn a_node_whose_kubelet_reports_no_network_is_named() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let silent = ("worker-1".to_owned(), "2026-01-01T11:50:00Z".parse().unwrap());
        let network = network::<Pod>(&[], &[], [silent].into_iter(), now);
        assert_eq!(network.missing_on, ["worker-1"]);
    }
}
