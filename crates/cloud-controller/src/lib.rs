//! The vSphere cloud controller connects each Kubernetes Node to its VM.
//!
//! It initialises nodes (provider id, addresses, zone, region, instance type) and updates their
//! addresses. It taints nodes whose VM is off and deletes nodes whose VM is proven gone. It does not
//! poll: it holds one session and one inventory watch per vCenter, and one watch on the Nodes.
//!
//! ```text
//!   API server ─► nodes ─────────┐
//!                                ├─► queue ─► controller ─► nodes (writes), events, metrics
//!   vCenters ─► vcenter_pool ────┘               │
//!     pooled_vcenter  one vCenter                │ decides with pure modules, without a client:
//!     catalogue       its VMs                    │
//!                                                ├─ identity       which VM a node is
//!   settings       flags                         ├─ addresses      which addresses, and why
//!   configuration  vsphere.conf, environment     │    cloud_init, provided_ip
//!   secrets        credentials                   ├─ zones, instance_type
//!   explain        --explain-node                ├─ initialise     the writes to a node
//!   model          Node and VM as plain data     ├─ lifecycle      taint, wait, hold, delete
//!                                                ├─ record         the annotation with the node's VM
//!                                                └─ absence        proof that a VM is gone (asks vCenters)
//! ```

pub mod absence;
pub mod addresses;
pub mod catalogue;
pub mod cloud_init;
pub mod configuration;
pub mod controller;
pub mod events;
pub mod explain;
pub mod identity;
pub mod initialise;
pub mod instance_type;
pub mod lifecycle;
pub mod metrics;
pub mod model;
pub mod nodes;
pub mod pooled_vcenter;
pub mod provided_ip;
pub mod record;
pub mod secrets;
pub mod settings;
#[cfg(test)]
mod testing;
pub mod vcenter_pool;
pub mod zones;
