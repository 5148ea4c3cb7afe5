//! `CompatibilityConfig`: where knowledge about driver releases comes from.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::text::{CatalogUrl, ObjectName, Span};

/// Where knowledge about driver releases comes from.
///
/// VDO carries a catalog of driver releases. With this object it takes a newer one, from the
/// network or from inside the cluster.
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
    // The predecessor stored objects without a spec; one of them must not end a watch of all. (The
    // macro takes no serde attribute by its own name.)
    attr = "cfg_attr(all(), serde(default))",
    doc = "Where VDO learns about driver releases that are newer than itself.",
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
#[serde(rename_all = "camelCase")]
pub struct CompatibilityConfigSpec {
    /// Where to fetch the catalog from. What is fetched must be signed (`vdoctl catalog sign`), with the
    /// key in `publicKey`. The JSON matrix of earlier VDO releases is understood too, signed the same
    /// way; unsigned, it belongs into `bundle`.
    ///
    /// Example: `https://example.com/vdo/catalog.yaml`
    #[serde(default, rename = "matrixURL", skip_serializing_if = "Option::is_none")]
    pub matrix_url: Option<CatalogUrl>,

    /// How often to look for a newer one.
    ///
    /// Default: `6h`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("!self.matches(r'^(0+[dhms])+$')")
        .message("must be longer than nothing, for example 6h"))]
    pub poll: Option<Span>,

    /// Key to verify catalogs with: an ed25519 public key, in PEM or its 32 bytes in base64, as
    /// `vdoctl catalog keygen` prints it. VDO carries no key of its own yet, so fetched catalogs need one.
    ///
    /// Example: `-----BEGIN PUBLIC KEY-----…`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    #[x_kube(validation = Rule::new(r"self.contains('-----BEGIN PUBLIC KEY-----') || self.matches('^[A-Za-z0-9+/]{43}=\\s*$')")
        .message("must be an ed25519 public key, in PEM beginning with -----BEGIN PUBLIC KEY----- or its 32 bytes in base64; never put a private key here"))]
    pub public_key: Option<String>,

    /// A catalog that is already in the cluster, for air-gapped sites.
    ///
    /// Example: `{configMap: vdo-catalog}`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<CatalogBundle>,
}

/// A catalog inside the cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CatalogBundle {
    /// ConfigMap in the namespace of this object, with the catalog under the key `catalog.yaml`: plain
    /// or as the signed bundle `vdoctl catalog sign` writes, or a matrix of earlier VDO releases. It needs
    /// no signature, since whoever may write it may write the drivers too; a bundle's is checked.
    pub config_map: ObjectName,
}

/// Which catalog is in use.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompatibilityConfigStatus {
    /// Where the catalog in use came from, for example `embedded` or the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,

    /// Digest of the catalog in use, for example `sha256:9f86d0…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,

    /// Serial number of the catalog in use; it never goes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<i64>,

    /// When it was fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_at: Option<Time>,

    /// State in detail: `Ready`, `Trusted`, `Current`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,

    /// Generation of the spec this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
