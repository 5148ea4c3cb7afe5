use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Drivers, Known, Node, Platform, Version};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cluster {
    pub platform: Platform,
    /// Version of the API server.
    pub version: Known<Version>,
    pub kubelet_path: Known<String>,
    pub nodes: Known<BTreeMap<String, Node>>,
    pub drivers: Drivers,
    /// Leases of the drivers' controllers.
    pub leases: Known<Vec<Lease>>,
    /// Admission webhooks of the drivers.
    pub webhooks: Known<Vec<Webhook>>,
    /// Permissions of VDO's service account.
    pub access: Known<Vec<AccessReview>>,
    pub network: Known<NetworkPlugin>,
    /// OpenShift's own vSphere configuration; `None` on other platforms.
    pub openshift: Known<Option<OpenShift>>,
}

/// A lease that a driver's controller must renew.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lease {
    pub namespace: String,
    pub name: String,
    /// `CPI` or `CSI`.
    pub driver: String,
    pub holder: String,
    pub renewed: Timestamp,
    /// How long it is valid after a renewal.
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
    /// Whether the API server rejects requests if the webhook does not answer.
    pub fails_closed: bool,
    /// How many pods serve it.
    pub endpoints: Known<u32>,
    /// When `endpoints` last changed.
    pub since: Timestamp,
    pub certificate: Known<Certificate>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Certificate {
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
    pub verb: String,
    pub allowed: bool,
    /// The feature that needs the permission.
    pub needed_for: String,
}

impl AccessReview {
    /// A denied review for listing a resource in all namespaces.
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

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPlugin {
    pub plugin: String,
    pub missing_on: Vec<String>,
}

impl NetworkPlugin {
    /// The name of a plugin that VDO does not recognize.
    pub const UNRECOGNIZED: &str = "the network plugin";
}

/// OpenShift's own vSphere configuration.
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
