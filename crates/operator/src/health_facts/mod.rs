//! Collects the health facts that the checks of the crate `health` work on.
//!
//! ```text
//!   cluster ─► nodes, workloads, volumes, site, crash logs, releases ─┐
//!   vcenters, audit ─► inventory, privileges, CNS ─► vcenter ─────────┼─► health::facts::Facts
//!   VDOConfig ─► wanted ──────────────────────────────────────────────┘
//!
//!   live       in the operator: facts updated change by change, checked, with the time of the next look
//!   one_shot   without an operator: everything read once, with the permissions at hand
//! ```
//!
//! A fact that could not be read is unknown, with the reason. Both ways use the same translations, so that
//! `vdoctl doctor` and the operator report the same about the same cluster.

mod compared;
mod kubernetes;
mod live;
mod one_shot;
mod vcenter;
mod wanted;

pub use self::{
    live::Live,
    one_shot::{Target, collect_once, targets},
    wanted::{acknowledged, both, wanted},
};
