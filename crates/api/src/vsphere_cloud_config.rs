//! `VsphereCloudConfig`: how to reach one vCenter.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{ObjectName, Thumbprint, VcenterAddress};

/// How to reach one vCenter.
///
/// The cloud provider and the storage driver refer to it by name, so one object serves both.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "vdo.vmware.com",
    version = "v1alpha1",
    kind = "VsphereCloudConfig",
    namespaced,
    status = "VsphereCloudConfigStatus",
    shortname = "vcc",
    category = "vsphere",
    derive = "PartialEq",
    derive = "Default",
    // The predecessor stored objects without a spec; one of them must not end a watch of all. (The
    // macro takes no serde attribute by its own name.)
    attr = "cfg_attr(all(), serde(default))",
    doc = "How to reach one vCenter: its address, the Secret with user and password, and whom to trust.",
    printcolumn(name = "vCenter", type_ = "string", json_path = ".spec.vcIp"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.about.version"),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("!has(self.caBundle) || !has(self.insecure) || !self.insecure")
    .message("insecure: true turns verification off, so caBundle would do nothing: remove one of them"))]
#[serde(rename_all = "camelCase")]
pub struct VsphereCloudConfigSpec {
    /// Address of the vCenter: a host name or an IP address, with `:port` if it is not 443.
    ///
    /// Example: `vc.example.com`
    pub vc_ip: VcenterAddress,

    /// Do not verify the vCenter's certificate. Anyone between here and there can then read the
    /// password; give `thumbprint` or `caBundle` instead.
    ///
    /// Default: `false`
    #[serde(default)]
    pub insecure: bool,

    /// Name of the Secret with user and password, in namespace `kube-system`.
    ///
    /// Make it with type `kubernetes.io/basic-auth` and keys `username` and `password`. The Secrets
    /// of the drivers, of OpenShift and of Rancher are read as they are.
    ///
    /// Example: `vcenter-a`
    pub credentials: ObjectName,

    /// SHA-1 or SHA-256 thumbprint of the vCenter's certificate: trust exactly this one. For a
    /// self-signed certificate; with a certificate authority, `caBundle` survives renewals.
    ///
    /// Example: `5E:1A:…:9F`, as `openssl x509 -fingerprint -sha256` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thumbprint: Option<Thumbprint>,

    /// Certificate authorities to trust for this vCenter, in PEM. Without it (and without
    /// `thumbprint`) the system's authorities decide.
    ///
    /// Example: `configMap: {name: vcenter-ca}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<CaBundle>,

    /// Datacenters to look for node VMs and datastores in, by name or inventory path. Empty means
    /// all that the user sees.
    ///
    /// Example: `[Frankfurt, /Europe/Berlin]`
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    pub datacenters: Vec<String>,
}

/// Where certificate authorities are.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("[has(self.inline), has(self.configMap), has(self.secret)].filter(x, x).size() == 1")
    .message("set exactly one of inline, configMap and secret"))]
#[serde(rename_all = "camelCase")]
pub struct CaBundle {
    /// The certificates themselves.
    ///
    /// Example: `-----BEGIN CERTIFICATE-----…`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262_144))]
    #[x_kube(validation = Rule::new("self.contains('-----BEGIN CERTIFICATE-----')")
        .message("must be certificates in PEM, beginning with -----BEGIN CERTIFICATE-----"))]
    pub inline: Option<String>,

    /// A ConfigMap in the namespace of this object.
    ///
    /// Example: `{name: vcenter-ca, key: ca.crt}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<KeyRef>,

    /// A Secret in the namespace of this object.
    ///
    /// Example: `{name: vcenter-ca, key: ca.crt}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyRef>,
}

/// A key of a ConfigMap or Secret.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Name of the object.
    pub name: ObjectName,

    /// Key inside it.
    ///
    /// Default: `ca.crt`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

impl VsphereCloudConfigSpec {
    /// The datacenters, one per item.
    ///
    /// Older tools stored `dc0, dc1` as `["dc0,", " dc1"]`; both spellings give the same list.
    pub fn datacenter_names(&self) -> Vec<&str> {
        let items = self.datacenters.iter().flat_map(|item| item.split(','));
        items.map(str::trim).filter(|item| !item.is_empty()).collect()
    }
}

impl VcenterAddress {
    /// The port of a vCenter's address that names none.
    pub const DEFAULT_PORT: u16 = 443;

    /// Host and port. An IPv6 address comes without brackets; it needs them only if a port follows.
    pub fn host_and_port(&self) -> (&str, u16) {
        let address: &str = self;
        let (host, port) = match address.strip_prefix('[') {
            Some(bracketed) => {
                let (host, rest) = bracketed.split_once(']').unwrap_or((bracketed, ""));
                (host, rest.strip_prefix(':'))
            }
            None => match address.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, Some(port)),
                _ => (address, None),
            },
        };
        let port = port.and_then(|port| port.parse().ok()).unwrap_or(Self::DEFAULT_PORT);
        (host, port)
    }
}

impl KeyRef {
    /// The key, or the one that is used if none is named.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("ca.crt")
    }
}

/// What VDO found at this vCenter.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VsphereCloudConfigStatus {
    /// Whether the last login worked: `verified` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Verdict>,

    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// State in detail: `Ready`, `Reachable`, `Authenticated`, `Privileged`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,

    /// Generation of the spec this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// What the vCenter says about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,

    /// Whether the user may do what the drivers need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileges: Option<Privileges>,

    /// The login that was refused. It is not tried again until the Secret or the address changes, so that
    /// no account is locked by a password that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedLogin>,
}

/// A login that was refused, and with what it was tried.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedLogin {
    /// Address it was tried at.
    pub address: String,
    /// Secret it was tried with, by uid and revision.
    pub secret: String,
    /// Why: `Credentials`, `Locked` or `PasswordExpired`.
    pub reason: String,
}

/// Outcome of a login.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Login worked.
    Verified,
    /// Login failed; the message says why.
    Failed,
}

/// What a vCenter says about itself.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Product, for example `VMware vCenter Server`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Release, for example `8.0.3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Build, for example `24022515`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// API level, for example `8.0.3.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Unique id of the vCenter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_uuid: Option<String>,
}

/// Whether the user may do what the drivers need.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Privileges {
    /// When this was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Time>,
    /// What is missing, by object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub missing: Vec<MissingPrivileges>,
}

/// Privileges missing on one object.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingPrivileges {
    /// Inventory path, for example `/Frankfurt/datastore/vsan-1`.
    pub object: String,
    /// Privilege ids, for example `Datastore.FileManagement`.
    #[schemars(length(max = 128))]
    pub privileges: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gives_host_and_port() {
        let cases = [
            ("vc.example.com", ("vc.example.com", 443)),
            ("vc.example.com:8443", ("vc.example.com", 8443)),
            ("10.0.0.1", ("10.0.0.1", 443)),
            ("fd00::10", ("fd00::10", 443)),
            ("[fd00::10]", ("fd00::10", 443)),
            ("[fd00::10]:8443", ("fd00::10", 8443)),
        ];
        for (text, expected) in cases {
            assert_eq!(VcenterAddress::from(text).host_and_port(), expected, "{text}");
        }
    }
}
