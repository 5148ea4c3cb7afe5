//! The Kubernetes side: caches that watches keep filled, and Kubernetes objects converted into facts.
//!
//! ```text
//!   Kubernetes API ─► cache ─► stores ─┬─ drivers, provenance   the workloads of the drivers
//!                                      ├─ driver_permissions    the permissions of the drivers' accounts
//!                                      ├─ nodes, pods, volumes, workloads, events
//!                                      ├─ site                  webhooks, network, OpenShift, snapshots
//!                                      └─ crash_logs            the last lines of containers that crashed
//! ```
//!
//! A cache stores only the fields that facts need: there may be thousands of nodes and pods.

pub(crate) mod access;
pub(crate) mod cache;
pub(crate) mod crash_logs;
pub(crate) mod driver_permissions;
pub(crate) mod driver_secrets;
mod drivers;
pub(crate) mod events;
pub(crate) mod nodes;
pub(crate) mod pages;
mod password_expiry;
pub(crate) mod pods;
pub(crate) mod provenance;
pub(crate) mod releases;
pub(crate) mod site;
mod stores;
pub(crate) mod volumes;
pub(crate) mod workloads;

pub(crate) use self::drivers::{
    belongs_to, implementation, is_labelled, is_ours_by_label, part, version,
};
pub use self::stores::Stores;
