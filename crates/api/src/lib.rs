//! The objects an admin writes and reads: custom resources, conditions, findings.
//!
//! ```text
//!   VDOConfig ───────────► names ──► VsphereCloudConfig ──► names ──► Secret (kube-system)
//!    │  cloudProvider, storageProvider, networkProvider       CompatibilityConfig (catalog)
//!    │  upgrades, images, remediation, adoption
//!    └─ status: conditions, findings, versions, plan
//!
//!   text        texts with a form, each with the rule and message the API server checks it by
//!   condition   setting and reading conditions
//!   finding     what is wrong, why, and what to do: one catalogue for every place that shows it
//!   schema      the definitions as they are applied
//!   check       an object against its definition, with the place of each mistake
//!   samples     every common case as a value
//! ```
//!
//! Everything the predecessor accepted is accepted, and what it stored is read; new fields are
//! optional. Validation is part of the schema, so `kubectl apply` explains a mistake at once. Nothing
//! here does I/O.
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

/// The API group.
pub const GROUP: &str = "vdo.vmware.com";

/// The namespace VDO runs in unless told otherwise.
pub const NAMESPACE: &str = "vmware-system-vdo";

/// The namespace of the Secrets with vCenter credentials.
pub const CREDENTIALS_NAMESPACE: &str = "kube-system";
/// The ClusterRole with the right to remove stale entries from CSINodes. An admin who sets
/// `spec.remediation.csiNodes` to `Fix` binds it to the operator's account.
pub const CSI_NODES_ROLE: &str = "vdo-remediation-csinodes";
