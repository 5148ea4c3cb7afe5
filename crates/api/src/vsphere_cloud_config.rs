//! `VsphereCloudConfig`: the connection to one vCenter.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{ObjectName, Thumbprint, VcenterAddress};

/// The connection to one vCenter.
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
    // The Go VDO stored objects without a spec; one of them must not break the watch of all objects.
    // The macro rejects a plain `serde` attribute, hence the detour.
    attr = "cfg_attr(all(), serde(default))",
    doc = "The connection to one vCenter: its address, its credentials, and the certificates to trust.",
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
    .message("insecure: true turns verification off, so caBundle has no effect: remove one of them"))]
#[serde(rename_all = "camelCase")]
pub struct VsphereCloudConfigSpec {
    /// The address of the vCenter: a host name or an IP address, with `:port` if it is not 443.
    ///
    /// Example: `vc.example.com`
    pub vc_ip: VcenterAddress,

    /// Do not verify the certificate of the vCenter. Anyone on the network path can then read the
    /// password. Set `thumbprint` or `caBundle` instead.
    ///
    /// Default: `false`
    #[serde(default)]
    pub insecure: bool,

    /// The name of the Secret with user and password, in the namespace of this object.
    ///
    /// Create it with type `kubernetes.io/basic-auth` and the keys `username` and `password`. VDO also
    /// reads the Secret formats of the drivers, OpenShift and Rancher. If this namespace has no such Secret, VDO
    /// reads it from `kube-system`, as the Go VDO did; `vdoctl deploy` grants the permission for that one Secret.
    ///
    /// Example: `vcenter-a`
    pub credentials: ObjectName,

    /// The SHA-1 or SHA-256 thumbprint of the certificate of the vCenter. VDO and the drivers then trust
    /// only this certificate. Use it for a self-signed certificate; `caBundle` also survives renewals.
    ///
    /// Example: `5E:1A:…:9F`, as `openssl x509 -fingerprint -sha256` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thumbprint: Option<Thumbprint>,

    /// The certificate authorities to trust for this vCenter, in PEM. Without `caBundle` and `thumbprint`,
    /// the certificate authorities of the system apply.
    ///
    /// Example: `configMap: {name: vcenter-ca}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<CaBundle>,

    /// The datacenters with node VMs and datastores, by name or inventory path. If empty, VDO and the
    /// drivers use every datacenter that the user can see.
    ///
    /// Example: `[Frankfurt, /Europe/Berlin]`
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    pub datacenters: Vec<String>,
}

/// The source of certificate authorities.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("[has(self.inline), has(self.configMap), has(self.secret)].filter(x, x).size() == 1")
    .message("set exactly one of inline, configMap and secret"))]
#[serde(rename_all = "camelCase")]
pub struct CaBundle {
    /// The certificates in PEM.
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
    /// The name of the ConfigMap or Secret.
    pub name: ObjectName,

    /// The key in the ConfigMap or Secret.
    ///
    /// Default: `ca.crt`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

impl VsphereCloudConfigSpec {
    /// The datacenters, one per item. The vdoctl of the Go VDO stored `dc0, dc1` as `["dc0,", " dc1"]`.
    pub fn datacenter_names(&self) -> Vec<&str> {
        let items = self.datacenters.iter().flat_map(|item| item.split(','));
        items.map(str::trim).filter(|item| !item.is_empty()).collect()
    }
}

impl VcenterAddress {
    pub const DEFAULT_PORT: u16 = 443;

    /// Host and port. The host has no brackets, even if it is an IPv6 address.
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
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("ca.crt")
    }
}

/// The state of the connection.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VsphereCloudConfigStatus {
    /// The result of the last connection: `verified` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Verdict>,

    /// The state of the connection in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// The state in brief: `Ready`, `Reachable`, `Authenticated`, `Privileged`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,

    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The product, version and ID of the vCenter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,

    /// The privileges that the user lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileges: Option<Privileges>,

    /// The login that the vCenter refused. VDO repeats it every 25 to 30 minutes, so that a wrong password does
    /// not lock the account, and at once when the Secret or the address changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedLogin>,
}

/// A login that the vCenter refused.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedLogin {
    /// The address of the vCenter.
    pub address: String,
    /// The UID and resource version of the Secret.
    pub secret: String,
    /// The reason: `Credentials`, `Locked` or `PasswordExpired`.
    pub reason: String,
    /// The time of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempted_at: Option<Time>,
}

/// The result of a connection.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// VDO logged in, and the datacenters exist.
    Verified,
    /// The connection failed; the message gives the reason.
    Failed,
}

/// The product, version and ID of a vCenter.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// The product, for example `VMware vCenter Server`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// The version, for example `8.0.3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The build number, for example `24022515`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// The API version, for example `8.0.3.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// The instance UUID of the vCenter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_uuid: Option<String>,
}

/// The privileges that the user lacks.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Privileges {
    /// When VDO last checked the privileges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Time>,
    /// The missing privileges by object. The list names at most 64 objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub missing: Vec<MissingPrivileges>,
}

/// The privileges that the user lacks on one object.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingPrivileges {
    /// The inventory path, for example `/Frankfurt/datastore/vsan-1`.
    pub object: String,
    /// The privilege IDs, for example `Datastore.FileManagement`.
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
