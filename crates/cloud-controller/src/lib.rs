//! The vSphere cloud controller: what makes a Kubernetes node know that it is a virtual machine.
//!
//! It initialises nodes (provider id, addresses, zone, region, instance type), keeps their addresses,
//! taints those whose machine is off, and removes those whose machine is proven gone. It polls
//! nothing: one session and one inventory watch per vCenter, one watch on the nodes.
//!
//! ```text
//!   cluster ─► nodes ──┐                                  pure, table-tested, no client:
//!                      ├─► queue ─► controller ──────────► identity     which machine a node is
//!   vCenters ─► fleet ─┘               │                   addresses    which of its addresses, and why
//!     member   one vCenter each        │                     cloud_init, provided_ip
//!     catalogue  its machines          │                   zones, instance_type
//!     absence  proof that one is gone  │                   initialise   what is written to a node
//!                                      ▼                   lifecycle    taint, wait, hold, delete
//!                            events, metrics, writes       record       the note on a Node
//!
//!   settings      flags                       explain     --explain-node
//!   configuration vsphere.conf, environment   model       what is known of node and machine
//!   secrets       credentials as they change
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
pub mod queue;
pub mod record;
pub mod secrets;
pub mod settings;
#[cfg(test)]
mod testing;
pub mod vcenter_pool;
pub mod zones;
