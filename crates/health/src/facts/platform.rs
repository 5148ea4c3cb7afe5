//! The Kubernetes distribution: its names, its paths, and how VDO detects it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde::{Deserialize, Serialize};

/// A Kubernetes distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Platform {
    /// kubeadm, Cluster API, and every distribution that VDO cannot tell from them.
    #[default]
    Kubernetes,
    OpenShift,
    Rke2,
    K3s,
    Talos,
    K0s,
    MicroK8s,
    EksAnywhere,
    /// Tanzu Kubernetes Grid.
    Tkg,
}

impl Platform {
    pub const ALL: [Self; 9] = [
        Self::Kubernetes,
        Self::OpenShift,
        Self::Rke2,
        Self::K3s,
        Self::Talos,
        Self::K0s,
        Self::MicroK8s,
        Self::EksAnywhere,
        Self::Tkg,
    ];

    /// The name in the conditions of the catalog and in the status of the VDOConfig.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "vanilla",
            Self::OpenShift => "openshift",
            Self::Rke2 => "rke2",
            Self::K3s => "k3s",
            Self::K0s => "k0s",
            Self::MicroK8s => "microk8s",
            Self::Talos => "talos",
            Self::EksAnywhere => "eks-anywhere",
            Self::Tkg => "tkg",
        }
    }

    /// The kubelet's root directory.
    pub fn kubelet_path(self) -> &'static str {
        match self {
            Self::K0s => "/var/lib/k0s/kubelet",
            Self::MicroK8s => "/var/snap/microk8s/common/var/lib/kubelet",
            _ => "/var/lib/kubelet",
        }
    }

    /// Detects the platform from the API server's version and API groups, and from the OS image and the labels
    /// of a node. Any of them may be empty. `None` where nothing identifies a platform.
    pub fn detect(
        version: &str,
        api_groups: &[&str],
        os_image: &str,
        labels: &BTreeMap<String, String>,
    ) -> Option<Self> {
        match () {
            () if api_groups.contains(&"config.openshift.io") => Some(Self::OpenShift),
            () if version.contains("+rke2") => Some(Self::Rke2),
            () if version.contains("+k3s") => Some(Self::K3s),
            () if version.contains("+k0s") => Some(Self::K0s),
            () if version.contains("-eks-") => Some(Self::EksAnywhere),
            () if version.contains("+vmware") => Some(Self::Tkg),
            () if labels.keys().any(|key| key.starts_with("microk8s.io/")) => Some(Self::MicroK8s),
            () if os_image.starts_with("Talos") => Some(Self::Talos),
            () => None,
        }
    }

    /// Detects the platform from a node. A node that has just joined may not identify it yet.
    pub fn from_node(node: &Node) -> Option<Self> {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let no_labels = BTreeMap::new();
        let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
        Self::detect("", &[], info.map_or("", |info| &info.os_image), labels)
    }

    /// The platform of a cluster, from the platform that each Linux node identifies and the time when the node joined.
    /// A kubelet can change the labels of its own node, so more than half of the nodes must agree. If no platform has
    /// that majority, the oldest node decides. `None` where the nodes identify no platform.
    pub fn of_nodes(nodes: impl IntoIterator<Item = (Timestamp, Option<Self>)>) -> Option<Self> {
        let nodes: Vec<_> = nodes.into_iter().collect();
        let has_majority = |platform: &Option<Self>| {
            nodes.iter().filter(|(_, of_node)| of_node == platform).count() * 2 > nodes.len()
        };
        let mut all = std::iter::once(None).chain(Self::ALL.map(Some));
        all.find(has_majority).unwrap_or_else(|| {
            let oldest = nodes.iter().min_by_key(|(joined, of_node)| (*joined, of_node.is_some()));
            oldest.and_then(|(_, platform)| *platform)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_is_detected_from_nodes_that_report_it() {
        let node = |labels: serde_json::Value| {
            let node = serde_json::json!({"metadata": {"name": "n", "labels": labels}});
            serde_json::from_value::<k8s_openapi::api::core::v1::Node>(node).unwrap()
        };
        assert_eq!(Platform::from_node(&node(serde_json::json!({}))), None);
        let old = node(serde_json::json!({"microk8s.io/cluster": "true"}));
        assert_eq!(Platform::from_node(&old), Some(Platform::MicroK8s));
    }

    #[test]
    fn one_node_does_not_change_the_platform_of_a_cluster() {
        let nodes = |platforms: &[Option<Platform>]| {
            let nodes = platforms.iter().zip(1..);
            Platform::of_nodes(
                nodes.map(|(of_node, second)| (Timestamp::from_second(second).unwrap(), *of_node)),
            )
        };
        let microk8s = Some(Platform::MicroK8s);
        assert_eq!(nodes(&[]), None);
        assert_eq!(nodes(&[microk8s, None, None]), None);
        assert_eq!(nodes(&[None, microk8s, microk8s]), microk8s);
        assert_eq!(nodes(&[None, None, microk8s, microk8s]), None, "the oldest node decides");
        assert_eq!(nodes(&[microk8s, None]), microk8s, "the oldest node decides");
        assert_eq!(nodes(&[microk8s, Some(Platform::Talos), None]), microk8s);
        let same = Timestamp::from_second(1).unwrap();
        assert_eq!(Platform::of_nodes([(same, microk8s), (same, None)]), None);
    }

    #[test]
    fn a_platform_is_detected_from_version_system_or_labels() {
        let none = BTreeMap::new();
        let detected = |version: &str| Platform::detect(version, &[], "Ubuntu 24.04", &none);
        assert_eq!(detected("v1.34.1+rke2r1"), Some(Platform::Rke2));
        assert_eq!(detected("v1.34.1+k3s1"), Some(Platform::K3s));
        assert_eq!(detected("v1.34.1+k0s"), Some(Platform::K0s));
        assert_eq!(detected("v1.34.1-eks-113cf36"), Some(Platform::EksAnywhere));
        assert_eq!(detected("v1.28.8+vmware.1"), Some(Platform::Tkg));
        assert_eq!(detected("v1.34.1"), None);
        let openshift = Platform::detect("v1.34.1", &["apps", "config.openshift.io"], "", &none);
        assert_eq!(openshift, Some(Platform::OpenShift));
        assert_eq!(Platform::detect("v1.34.1", &[], "Talos (v1.11)", &none), Some(Platform::Talos));
        let labels = BTreeMap::from([("microk8s.io/cluster".to_owned(), "true".to_owned())]);
        let microk8s = Platform::detect("v1.34.1", &[], "Ubuntu", &labels).unwrap();
        assert_eq!(microk8s.kubelet_path(), "/var/snap/microk8s/common/var/lib/kubelet");
    }
}
