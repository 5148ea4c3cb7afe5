//! Collects the health facts that the checks of the crate `health` work on.
//!
//! ```text
//!   cluster ─► nodes, workloads, volumes, site, crash logs, releases ─┐
//!   vcenters, audit ─► inventory, privileges, CNS ─► vcenter ─────────┼─► health::facts::Facts
//!   VDOConfig ─► wanted ──────────────────────────────────────────────┘
//!
//!   sources ─► assembly ─┬─ live       in the operator: updated change by change, and checked
//!                        └─ one_shot   without an operator: until every fact is known or cannot be read
//! ```
//!
//! A fact that could not be read is unknown, with the reason. There is one assembly, so `vdoctl doctor` and the
//! operator report the same about the same cluster.

mod assembly;
mod live;
mod one_shot;
mod sources;
mod vcenter;
mod wanted;

pub use self::{
    live::Live,
    one_shot::{Collected, collect_once},
    wanted::{acknowledged, both, wanted},
};
