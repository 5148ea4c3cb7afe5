//! The vSphere CSI driver.
//!
//! ```text
//!   Kubernetes API ──► loops ──┐                       ┌──► CNS (vCenter)
//!                              ├──► controller ────────┤
//!   csi.sock (sidecars) ───────┘                       └──► operation records
//!
//!   kubelet ──► csi.sock ──► node ──► devices, file systems, mounts
//! ```
//!
//! `proto` has the types and services of the CSI specification, generated from `proto/csi.proto`. `identity`,
//! `controller` and `node` implement the three services. `loops` does the work of the upstream sidecars and of the
//! Go driver's syncer. It calls the controller in the same process, with the requests that a sidecar would send
//! through the socket, and writes the names of claims and pods into CNS.
#![allow(clippy::result_large_err, reason = "tonic's Status is the error of every service")]

pub mod cluster_id;
pub mod configuration;
pub mod controller;
mod definitions;
pub mod identity;
pub mod loops;
pub mod metrics;
pub mod node;
pub mod node_set;
pub mod node_topology;
pub mod node_watch;
pub mod proto;
pub mod records;
pub mod server;
pub mod site;
pub mod vcenters;
pub mod volume_limit;

/// The name of the driver, the same as upstream's: existing volumes work with either driver.
pub const DRIVER_NAME: &str = "csi.vsphere.vmware.com";
