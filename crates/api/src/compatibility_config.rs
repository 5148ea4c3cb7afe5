//! `CompatibilityConfig`: the source of the catalog of driver releases.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::text::{CatalogUrl, ObjectName, Span};

/// The source of the catalog of driver releases.
///
/// The operator contains a catalog of driver releases. With this object VDO uses a newer catalog, from
/// the network or from a ConfigMap.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "vdo.vmware.com",
    version = "v1alpha1",
    kind = "CompatibilityConfig",
    namespaced,
    status = "CompatibilityConfigStatus",
    category = "vsphere",
    derive = "PartialEq",
    derive = "Default",
    // The Go VDO stored objects without a spec; one of them must not break the watch of all objects.
    // The macro rejects a plain `serde` attribute, hence the detour.
    attr = "cfg_attr(all(), serde(default))",
    doc = "The source of the catalog of driver releases, for releases that are newer than the operator.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Source", type_ = "string", json_path = ".status.source"),
    printcolumn(name = "Fetched", type_ = "date", json_path = ".status.fetchedAt"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = "1"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("!has(self.bundle) || !has(self.matrixURL) || self.matrixURL == ''")
    .message("set matrixURL to fetch a catalog, or bundle to use one inside the cluster, not both"))]
#[x_kube(validation = Rule::new("!has(self.pullSecret) || has(self.matrixURL) && self.matrixURL.startsWith('oci://')")
    .message("pullSecret is only for a catalog in a container registry: set matrixURL to an oci:// URL, or remove pullSecret"))]
#[serde(rename_all = "camelCase")]
pub struct CompatibilityConfigSpec {
    /// The URL of the catalog: `https://` for a file on a web server, `oci://` for an artifact in a container
    /// registry. The catalog must be signed (`vdoctl catalog sign`) with the key in `publicKey`. VDO also reads the JSON matrix of the Go VDO if it is signed the same way; put an
    /// unsigned matrix into `bundle`.
    ///
    /// Example: `https://example.com/vdo/catalog.yaml`
    #[serde(default, rename = "matrixURL", skip_serializing_if = "Option::is_none")]
    pub matrix_url: Option<CatalogUrl>,

    /// How often VDO looks for a newer catalog.
    ///
    /// Default: `6h`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("!self.matches(r'^(0+[dhms])+$')")
        .message("must be longer than zero, for example 6h"))]
    pub poll: Option<Span>,

    /// The ed25519 public key that verifies the catalog, in PEM or as 32 bytes in base64. `vdoctl catalog
    /// keygen` prints it in PEM. Without this field, VDO trusts the keys of its build, which `vdoctl catalog keys` prints.
    ///
    /// Example: `-----BEGIN PUBLIC KEY-----…`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    #[x_kube(validation = Rule::new(r"self.contains('-----BEGIN PUBLIC KEY-----') || self.matches('^[A-Za-z0-9+/]{43}=\\s*$')")
        .message("must be an ed25519 public key, in PEM beginning with -----BEGIN PUBLIC KEY----- or its 32 bytes in base64; never put a private key here"))]
    pub public_key: Option<String>,

    /// A Secret in the namespace of this object with the credentials of the registry in `matrixURL`, of the type
    /// `kubernetes.io/dockerconfigjson`. The Secret with which the operator's image is pulled is suitable, for example.
    ///
    /// Example: `registry`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret: Option<ObjectName>,

    /// A catalog inside the cluster, for air-gapped sites.
    ///
    /// Example: `{configMap: vdo-catalog}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<CatalogBundle>,
}

/// A catalog inside the cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CatalogBundle {
    /// The name of a ConfigMap in the namespace of this object, with the catalog under the key
    /// `catalog.yaml`. The catalog is plain, a signed bundle of `vdoctl catalog sign`, or a matrix of the Go
    /// VDO. A plain catalog needs no signature, because users who can write this ConfigMap can also write
    /// the drivers. VDO verifies the signature of a bundle.
    pub config_map: ObjectName,
}

/// The catalog in use.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompatibilityConfigStatus {
    /// The source of the catalog in use: `embedded`, a URL or a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,

    /// The digest of the catalog in use, for example `sha256:9f86d0…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,

    /// The serial number of the catalog in use. It never decreases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<i64>,

    /// When VDO last read the catalog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_at: Option<Time>,

    /// The state in brief: `Ready`, `Trusted`, `Current`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,

    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
