//! The cloud provider section.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Implementation, Mode};
use crate::text::{Cidr, ObjectName, ReleaseVersion};

/// The cloud provider (CPI).
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!has(self.mode) || self.mode != 'Removed' || \
     !(has(self.version) || has(self.implementation) || has(self.nodes) || has(self.nsx) || has(self.nodeDeletion))")
    .message("mode Removed takes the cloud provider away: remove its version, implementation, nodes, nodeDeletion and nsx too"))]
#[serde(rename_all = "camelCase")]
pub struct CloudProvider {
    /// Names of the VsphereCloudConfig objects of all vCenters with nodes of this cluster.
    ///
    /// Example: `[vcenter-a, vcenter-b]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub vsphere_cloud_configs: Vec<ObjectName>,

    /// Tag categories that tell zone and region. They label the nodes, and volumes follow the same
    /// zones.
    ///
    /// Example: `{zone: k8s-zone, region: k8s-region}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,

    /// Whether VDO runs the cloud provider.
    ///
    /// Default: `Managed`, or `Observe` where the platform brings its own
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,

    /// Whose cloud provider to run.
    ///
    /// Default: `Upstream`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implementation: Option<Implementation>,

    /// Release to run, instead of the one VDO chooses.
    ///
    /// Example: `1.36.0`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ReleaseVersion>,

    /// Which addresses of a VM become addresses of its node. Only needed if VMs have several.
    ///
    /// Example: `{internalSubnets: [10.0.0.0/16]}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeAddresses>,

    /// What happens to a node whose VM no longer exists.
    ///
    /// Default: `WhenGone`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_deletion: Option<NodeDeletion>,

    /// Load balancers and routes in NSX; upstream cloud provider only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsx: Option<Nsx>,
}

/// Tag categories of zone and region.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("(has(self.zone) && self.zone != '') == (has(self.region) && self.region != '')")
    .message("zone and region go together: name both tag categories, for example zone: k8s-zone and region: k8s-region"))]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// Category of the tags that name zones.
    ///
    /// Example: `k8s-zone`
    #[serde(default)]
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new("!self.contains(',')")
        .message("must be the name of one tag category in vCenter, such as k8s-zone, without commas"))]
    pub zone: String,

    /// Category of the tags that name regions.
    ///
    /// Example: `k8s-region`
    #[serde(default)]
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new("!self.contains(',')")
        .message("must be the name of one tag category in vCenter, such as k8s-region, without commas"))]
    pub region: String,
}

impl Topology {
    /// Whether zones are asked for at all; older objects carry two empty names.
    pub fn is_set(&self) -> bool {
        !self.zone.is_empty() && !self.region.is_empty()
    }
}

/// Which addresses of a VM become addresses of its node.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAddresses {
    /// Take the internal address from these subnets, the first that matches.
    ///
    /// Example: `[10.0.0.0/16]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub internal_subnets: Vec<Cidr>,

    /// Take the external address from these subnets, the first that matches.
    ///
    /// Example: `[192.0.2.0/24]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub external_subnets: Vec<Cidr>,

    /// Never take the internal address from these subnets, for example those of virtual IPs.
    ///
    /// Example: `[10.0.0.10/32]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub exclude_internal_subnets: Vec<Cidr>,

    /// Never take the external address from these subnets.
    ///
    /// Example: `[192.0.2.10/32]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub exclude_external_subnets: Vec<Cidr>,

    /// Take the internal address from the adapter on this network (port group).
    ///
    /// Example: `k8s-internal`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub internal_network: Option<String>,

    /// Take the external address from the adapter on this network (port group).
    ///
    /// Example: `dmz`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub external_network: Option<String>,

    /// Families of addresses, the preferred first.
    ///
    /// Default: `[IPv4]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(validation = Rule::new("self.all(family, self.exists_one(other, other == family))")
        .message("each family can be named once, for example [IPv4, IPv6]"))]
    pub ip_families: Vec<IpFamily>,
}

/// A family of addresses.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpFamily {
    /// IPv4.
    IPv4,
    /// IPv6.
    IPv6,
}

/// What happens to a node whose VM no longer exists.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeDeletion {
    /// The node is removed once the VM is proven gone: unknown to every configured vCenter, none of
    /// them unreachable.
    #[default]
    WhenGone,
    /// Nodes are never removed.
    Never,
}

/// Load balancers and routes in NSX.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nsx {
    /// Address of the NSX manager.
    ///
    /// Example: `nsx.example.com`
    #[schemars(length(min = 1, max = 253))]
    pub host: String,

    /// Name of the Secret with keys `username` and `password`, in namespace `kube-system`.
    ///
    /// Example: `nsx`
    pub credentials: ObjectName,

    /// Do not verify the manager's certificate.
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,

    /// Authenticate through the identity manager (vIDM).
    ///
    /// Default: `false`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_auth: Option<bool>,

    /// Router on which routes to pods are made; none if left out.
    ///
    /// Example: `/infra/tier-1s/k8s`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.startsWith('/')")
        .message("must be the path of a router, such as /infra/tier-1s/k8s"))]
    pub router_path: Option<String>,

    /// Load balancers for Services; none if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<NsxLoadBalancer>,
}

/// Load balancers in NSX.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("has(self.serviceId) != has(self.tier1GatewayPath)")
    .message("set serviceId for a load balancer that exists, or tier1GatewayPath to have one made"))]
#[x_kube(validation = Rule::new("!(has(self.ipPoolName) && has(self.ipPoolId))")
    .message("set ipPoolName or ipPoolId, not both"))]
#[serde(rename_all = "camelCase")]
pub struct NsxLoadBalancer {
    /// Size of the load balancer.
    ///
    /// Default: `SMALL`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<NsxLoadBalancerSize>,

    /// Id of a load balancer service that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub service_id: Option<String>,

    /// Tier-1 gateway a new load balancer is attached to.
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

    /// Tags put on every object made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub tags: BTreeMap<String, String>,

    /// Pool addresses are taken from, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ip_pool_name: Option<String>,

    /// Pool addresses are taken from, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ip_pool_id: Option<String>,

    /// TCP profile, by name or path.
    ///
    /// Example: `default-tcp-lb-app-profile`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub tcp_profile: Option<String>,

    /// UDP profile, by name or path.
    ///
    /// Example: `default-udp-lb-app-profile`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub udp_profile: Option<String>,

    /// Classes a Service can ask for by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub classes: Vec<NsxLoadBalancerClass>,
}

/// Size of a load balancer in NSX.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum NsxLoadBalancerSize {
    /// The smallest.
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

/// A class of load balancers.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NsxLoadBalancerClass {
    /// Name of the class; `default` is used where a Service names none.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,

    /// Pool addresses are taken from, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ip_pool_name: Option<String>,

    /// Pool addresses are taken from, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ip_pool_id: Option<String>,

    /// TCP profile, by name or path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub tcp_profile: Option<String>,

    /// UDP profile, by name or path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub udp_profile: Option<String>,
}
