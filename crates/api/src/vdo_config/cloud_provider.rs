//! `spec.cloudProvider`.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Implementation, Mode};
use crate::text::{Cidr, InventoryPath, LabelValue, ObjectName, ReleaseVersion, Span};

/// The cloud provider (CPI).
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!has(self.mode) || self.mode != 'Removed' || \
     !(has(self.version) || has(self.implementation) || has(self.nodes) || has(self.nsx) || has(self.nodeDeletion))")
    .message("mode Removed uninstalls the cloud provider: remove its version, implementation, nodes, nodeDeletion and nsx too"))]
#[x_kube(validation = Rule::new("!has(self.hostLabels) || !self.hostLabels || \
     has(self.implementation) && self.implementation == 'Rust' && !has(self.nsx)")
    .message("only this project's cloud provider sets hostLabels: set implementation: Rust, without nsx"))]
#[x_kube(validation = Rule::new("!((has(self.refreshLabels) && self.refreshLabels) || \
     (has(self.requireZones) && self.requireZones) || (has(self.outOfServiceTaint) && self.outOfServiceTaint) || \
     has(self.nodeLabels) || has(self.vmFolders) || has(self.vmClusters) || has(self.nodeDeletionLimits) || \
     has(self.tagRefreshPeriod)) || has(self.implementation) && self.implementation == 'Rust' && !has(self.nsx)")
    .message("only this project's cloud provider has refreshLabels, requireZones, outOfServiceTaint, nodeLabels, \
     vmFolders, vmClusters, nodeDeletionLimits and tagRefreshPeriod: set implementation: Rust, without nsx"))]
#[x_kube(validation = Rule::new("!has(self.nodeDeletionLimits) || !has(self.nodeDeletion) || self.nodeDeletion != 'Never'")
    .message("nodeDeletion: Never deletes no node: remove nodeDeletionLimits"))]
#[x_kube(validation = Rule::new("!has(self.requireZones) || !self.requireZones || has(self.topology)")
    .message("requireZones needs the tag categories of the zones: set topology"))]
#[serde(rename_all = "camelCase")]
pub struct CloudProvider {
    /// Names of the VsphereCloudConfig objects of every vCenter that has nodes of this cluster.
    ///
    /// Example: `[vcenter-a, vcenter-b]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub vsphere_cloud_configs: Vec<ObjectName>,

    /// The vCenter tag categories for zones and regions. The cloud provider labels nodes with them, and
    /// the storage driver uses the same zones.
    ///
    /// Example: `{zone: k8s-zone, region: k8s-region}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,

    /// Whether VDO manages the cloud provider.
    ///
    /// Default: `Managed`, or `Observe` where the platform installs its own
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,

    /// Which implementation of the cloud provider to run.
    ///
    /// Default: `Upstream`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implementation: Option<Implementation>,

    /// The release to run. If omitted, VDO selects one.
    ///
    /// Example: `1.36.0`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ReleaseVersion>,

    /// Which addresses of a VM become addresses of its node. Set it only if VMs have several addresses.
    ///
    /// Example: `{internalSubnets: [10.0.0.0/16]}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeAddresses>,

    /// When the cloud provider removes a node whose VM no longer exists.
    ///
    /// Default: `WhenGone`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_deletion: Option<NodeDeletion>,

    /// Label each node with the ESXi host and the cluster of its VM, and update the labels after vMotion:
    /// `vdo.vmware.com/esxi-host` and `vdo.vmware.com/cluster`. Requires `implementation: Rust`.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_labels: Option<bool>,

    /// Limits for the deletion of nodes whose VM no longer exists. Requires `implementation: Rust`.
    ///
    /// Example: `{delay: 5m, share: 10}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_deletion_limits: Option<NodeDeletionLimits>,

    /// Update the zone, region and instance type labels of a node when its VM changes, for example after
    /// vMotion to another zone. Volumes of its pods stay in their zone. Requires `implementation: Rust`.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_labels: Option<bool>,

    /// Keep a new node out of service until its VM has a tag for the zone and one for the region. Requires
    /// `implementation: Rust` and `topology`.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_zones: Option<bool>,

    /// Taint a node `out-of-service` when vCenter reports that its VM is powered off, so that Kubernetes
    /// moves its pods and volumes at once. Requires `implementation: Rust`.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_service_taint: Option<bool>,

    /// Labels for every new node. Requires `implementation: Rust`.
    ///
    /// Example: `{site: berlin}`
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_labels: BTreeMap<String, LabelValue>,

    /// Inventory paths of VM folders. Only VMs below them are nodes. If omitted, all VMs can be. Requires
    /// `implementation: Rust`.
    ///
    /// Example: `[/DC0/vm/k8s]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub vm_folders: Vec<InventoryPath>,

    /// Inventory paths of vSphere clusters. Only VMs on them are nodes. If omitted, all VMs can be. Requires
    /// `implementation: Rust`.
    ///
    /// Example: `[/DC0/host/cluster-a]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub vm_clusters: Vec<InventoryPath>,

    /// How often the cloud provider reads the tags of zones. Requires `implementation: Rust`.
    ///
    /// Default: `4m`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag_refresh_period: Option<Span>,

    /// Load balancers and routes in NSX. Only the upstream cloud provider supports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsx: Option<Nsx>,
}

/// Tag categories for zones and regions.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("(has(self.zone) && self.zone != '') == (has(self.region) && self.region != '')")
    .message("zone and region go together: name both tag categories, for example zone: k8s-zone and region: k8s-region"))]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// The category of the tags that name zones.
    ///
    /// Example: `k8s-zone`
    #[serde(default)]
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new("!self.contains(',')")
        .message("must be the name of one tag category in vCenter, such as k8s-zone, without commas"))]
    pub zone: String,

    /// The category of the tags that name regions.
    ///
    /// Example: `k8s-region`
    #[serde(default)]
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new("!self.contains(',')")
        .message("must be the name of one tag category in vCenter, such as k8s-region, without commas"))]
    pub region: String,
}

impl Topology {
    /// Whether both names are set. The Go VDO stored two empty names for "no zones".
    pub fn is_set(&self) -> bool {
        !self.zone.is_empty() && !self.region.is_empty()
    }
}

/// Which addresses of a VM become addresses of its node.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAddresses {
    /// Use the first internal address in one of these subnets.
    ///
    /// Example: `[10.0.0.0/16]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub internal_subnets: Vec<Cidr>,

    /// Use the first external address in one of these subnets.
    ///
    /// Example: `[192.0.2.0/24]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub external_subnets: Vec<Cidr>,

    /// Never use an internal address in these subnets, for example those of virtual IPs.
    ///
    /// Example: `[10.0.0.10/32]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub exclude_internal_subnets: Vec<Cidr>,

    /// Never use an external address in these subnets.
    ///
    /// Example: `[192.0.2.10/32]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub exclude_external_subnets: Vec<Cidr>,

    /// Use the internal address of the adapter on this network (port group).
    ///
    /// Example: `k8s-internal`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub internal_network: Option<String>,

    /// Use the external address of the adapter on this network (port group).
    ///
    /// Example: `dmz`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub external_network: Option<String>,

    /// IP families of node addresses, the preferred one first.
    ///
    /// Default: `[IPv4]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(validation = Rule::new("self.all(family, self.exists_one(other, other == family))")
        .message("name each family once, for example [IPv4, IPv6]"))]
    pub ip_families: Vec<IpFamily>,
}

/// An IP family.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpFamily {
    /// IPv4.
    IPv4,
    /// IPv6.
    IPv6,
}

/// When the cloud provider removes a node whose VM no longer exists.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeDeletion {
    /// Remove the node once every configured vCenter is reachable and none of them knows the VM.
    #[default]
    WhenGone,
    /// Never remove a node.
    Never,
}

/// Limits for the deletion of nodes whose VM no longer exists.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDeletionLimits {
    /// How long a VM must be gone before the cloud provider deletes its node.
    ///
    /// Default: `30s`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,

    /// The most nodes that the cloud provider deletes within `window`.
    ///
    /// Default: `20`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 5000))]
    pub count: Option<i32>,

    /// The period for `count`.
    ///
    /// Default: `10m`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Span>,

    /// A percentage. If more of the nodes than this lose their VM at once, the cloud provider deletes none of
    /// them. It always allows three.
    ///
    /// Default: `30`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub share: Option<i32>,
}

/// Load balancers and routes in NSX.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nsx {
    /// The address of the NSX manager.
    ///
    /// Example: `nsx.example.com`
    #[schemars(length(min = 1, max = 253))]
    pub host: String,

    /// The name of a Secret in namespace `kube-system` with the keys `username` and `password`.
    ///
    /// Example: `nsx`
    pub credentials: ObjectName,

    /// Do not verify the certificate of the NSX manager.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,

    /// Authenticate through the identity manager (vIDM).
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_auth: Option<bool>,

    /// The router for routes to pods. If omitted, no routes are created.
    ///
    /// Example: `/infra/tier-1s/k8s`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.startsWith('/')")
        .message("must be the path of a router, such as /infra/tier-1s/k8s"))]
    pub router_path: Option<String>,

    /// Load balancers for Services. If omitted, no load balancers are created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<NsxLoadBalancer>,
}

/// Load balancers in NSX.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("has(self.serviceId) != has(self.tier1GatewayPath)")
    .message("set serviceId to use an existing load balancer, or tier1GatewayPath to create one"))]
#[x_kube(validation = Rule::new("!(has(self.ipPoolName) && has(self.ipPoolId))")
    .message("set ipPoolName or ipPoolId, not both"))]
#[serde(rename_all = "camelCase")]
pub struct NsxLoadBalancer {
    /// The size of the load balancer.
    ///
    /// Default: `SMALL`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<NsxLoadBalancerSize>,

    /// The ID of an existing load balancer service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub service_id: Option<String>,

    /// The tier-1 gateway of a new load balancer.
    ///
    /// Example: `/infra/tier-1s/k8s`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub tier1_gateway_path: Option<String>,

    /// Turn source NAT off.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snat_disabled: Option<bool>,

    /// Tags for every object that the cloud provider creates in NSX.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub tags: BTreeMap<String, String>,

    /// The name of the IP pool for load balancer addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ip_pool_name: Option<String>,

    /// The ID of the IP pool for load balancer addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ip_pool_id: Option<String>,

    /// The name or path of the TCP profile.
    ///
    /// Example: `default-tcp-lb-app-profile`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub tcp_profile: Option<String>,

    /// The name or path of the UDP profile.
    ///
    /// Example: `default-udp-lb-app-profile`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub udp_profile: Option<String>,

    /// Load balancer classes that a Service can request by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub classes: Vec<NsxLoadBalancerClass>,
}

/// The size of a load balancer in NSX.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum NsxLoadBalancerSize {
    /// Small.
    #[default]
    Small,
    /// Medium.
    Medium,
    /// Large.
    Large,
    /// Extra large.
    XLarge,
    /// Distributed.
    Dlb,
}

/// A load balancer class.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NsxLoadBalancerClass {
    /// The name of the class. A Service that names no class uses `default`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,

    /// The name of the IP pool for load balancer addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ip_pool_name: Option<String>,

    /// The ID of the IP pool for load balancer addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ip_pool_id: Option<String>,

    /// The name or path of the TCP profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub tcp_profile: Option<String>,

    /// The name or path of the UDP profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub udp_profile: Option<String>,
}
