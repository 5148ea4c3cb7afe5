//! The API of VDO: custom resources, conditions and findings.
//!
//! ```text
//!   VDOConfig ───────────► names ──► VsphereCloudConfig ──► names ──► Secret (kube-system)
//!    │  cloudProvider, storageProvider                        CompatibilityConfig (catalog)
//!    │  upgrades, images, remediation, adoption
//!    └─ status: conditions, findings, versions, plan
//!
//!   text        validated string types, each with its CEL rule and message
//!   condition   setting and reading conditions
//!   finding     the catalogue of findings, with cause and fix
//!   schema      the CRDs
//!   check       validation of a manifest on the client, with the path of each mistake
//!   samples     sample manifests for the common cases
//! ```
//!
//! The API accepts every object that the Go VDO accepted, and reads every object that it stored; new
//! fields are optional. The schema contains the validation, so `kubectl apply` explains a mistake at
//! once. This crate does no I/O.
#![allow(unreachable_pub, reason = "the schema derive repeats each type inside a function")]
#![allow(clippy::duplicated_attributes, reason = "printer columns repeat their type")]

pub mod check;
pub mod compatibility_config;
pub mod condition;
pub mod finding;
pub mod samples;
mod schema;
pub mod text;
pub mod vdo_config;
pub mod vsphere_cloud_config;

pub use compatibility_config::{
    CompatibilityConfig, CompatibilityConfigSpec, CompatibilityConfigStatus,
};
pub use finding::{Finding, Severity};
pub use schema::crds;
pub use vdo_config::{VDOConfig, VDOConfigSpec, VDOConfigStatus};
pub use vsphere_cloud_config::{
    VsphereCloudConfig, VsphereCloudConfigSpec, VsphereCloudConfigStatus,
};

pub const GROUP: &str = "vdo.vmware.com";

/// The default namespace of the operator.
pub const NAMESPACE: &str = "vmware-system-vdo";

/// The ClusterRole with permission to remove stale entries from CSINodes. An admin who sets
/// `spec.remediation.csiNodes` to `Fix` binds it to the service account of the operator.
pub const CSI_NODES_ROLE: &str = "vdo-remediation-csinodes";
