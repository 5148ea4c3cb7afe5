use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Drivers, Known, Node, Platform, Version};

/// The Kubernetes side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cluster {
    /// Who made it.
    pub platform: Platform,
    /// Version of the API server.
    pub version: Known<Version>,
    /// Where kubelet keeps its files.
    pub kubelet_path: Known<String>,
    /// Every node, by name.
    pub nodes: Known<BTreeMap<String, Node>>,
    /// The two drivers, as they run.
    pub drivers: Drivers,
    /// Leases of controllers the drivers depend on.
    pub leases: Known<Vec<Lease>>,
    /// Admission webhooks of the drivers.
    pub webhooks: Known<Vec<Webhook>>,
    /// What the account in use may do.
    pub access: Known<Vec<AccessReview>>,
    /// The network plugin.
    pub network: Known<Network>,
    /// What OpenShift itself knows of vSphere; absent elsewhere.
    pub openshift: Known<Option<OpenShift>>,
}

/// A lease somebody should renew.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lease {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Which driver it belongs to: `CPI` or `CSI`.
    pub driver: String,
    /// Who holds it.
    pub holder: String,
    /// When it was renewed last.
    pub renewed: Timestamp,
    /// For how long it then holds.
    pub seconds: u32,
}

/// An admission webhook of a driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Webhook {
    /// Name of its configuration.
    pub configuration: String,
    /// Namespace of the service and of the certificate.
    pub namespace: String,
    /// Secret with the certificate.
    pub secret: String,
    /// Whether the API server refuses requests when it does not answer.
    pub fails_closed: bool,
    /// How many pods answer for it.
    pub endpoints: Known<u32>,
    /// Since when it is that many.
    pub since: Timestamp,
    /// Its certificate.
    pub certificate: Known<Certificate>,
}

/// A certificate, as far as the checks care.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Certificate {
    /// Last moment it is good for.
    pub expires: Timestamp,
    /// Whether the client's trust (the webhook's `caBundle`, the configured CA) covers it.
    pub trusted: bool,
}

/// One answer of a SelfSubjectAccessReview.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessReview {
    /// API group; empty for the core one.
    pub group: String,
    /// Resource, in the plural.
    pub resource: String,
    /// Namespace, if it was asked for one.
    pub namespace: Option<String>,
    /// Verb.
    pub verb: String,
    /// The answer.
    pub allowed: bool,
    /// What cannot be done without it.
    pub needed_for: String,
}

impl AccessReview {
    /// The right to list a resource in all namespaces, as long as nobody said that it is there.
    pub fn to_list(group: &str, resource: &str, needed_for: &str) -> Self {
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: None,
            verb: "list".to_owned(),
            allowed: false,
            needed_for: needed_for.to_owned(),
        }
    }
}

/// The network plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// Its name.
    pub plugin: String,
    /// Nodes without it.
    pub missing_on: Vec<String>,
}

impl Network {
    /// The name of a plugin that VDO does not recognize.
    pub const UNRECOGNIZED: &str = "the network plugin";
}

/// What OpenShift itself knows of vSphere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OpenShift {
    /// vCenters in `infrastructure/cluster`.
    pub infrastructure_vcenters: Vec<String>,
    /// vCenters in the cloud provider's configuration.
    pub configured_vcenters: Vec<String>,
    /// Datacenters of failure domains, as `vcenter/datacenter`.
    pub failure_domain_datacenters: Vec<String>,
    /// Datacenters in the configuration, as `vcenter/datacenter`.
    pub configured_datacenters: Vec<String>,
    /// Whether the platform runs the storage driver.
    pub runs_storage: bool,
    /// Whether the platform runs the cloud provider.
    pub runs_cloud: bool,
}
