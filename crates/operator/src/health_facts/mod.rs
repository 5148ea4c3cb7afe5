//! Health facts: what the checks of the crate `health` look at, gathered.
//!
//! ```text
//!   Kubernetes objects ─► nodes, workloads, volumes, cluster ─┤
//!   logs of containers that crashed ─► words ─────────────────┤
//!   what stands around the drivers ─► site ───────────────────┤
//!   the catalog ─► releases ──────────────────────────────────┤
//!   a vCenter's inventory ─► inventory ───────────────────────┼─► health::facts::Facts
//!   a vCenter, asked ─► doorstep (no login), audit (slow) ────┤
//!   VDOConfig ─► wanted ──────────────────────────────────────┘
//!
//!   live   in the operator: facts kept up to date change by change, judged, with what is due when
//!   once   without an operator: everything read once, with the rights at hand
//! ```
//!
//! What could not be read is unknown, with the reason; nothing is taken to be fine. Both ways use the
//! same translations, so that `vdoctl doctor` and the operator say the same of the same cluster.

mod audit;
pub(crate) mod cache;
pub(crate) mod cluster;
mod compared;
pub(crate) mod crash_logs;
mod inventory;
mod live;
mod missing_privileges;
pub(crate) mod nodes;
mod one_shot;
mod releases;
pub(crate) mod site;
mod tls_probe;
mod vcenter;
pub(crate) mod volumes;
mod wanted;
mod workloads;

pub use self::{
    audit::{Audit, Disk, Domain, Question, Sights, audit},
    inventory::{SELECTION_OF_VMS, selection, vm_facts},
    live::{Health, Live, Paged},
    one_shot::{Target, collect_once, targets},
    tls_probe::{TlsProbe, look},
    wanted::{acknowledged, both, wanted},
};
pub(crate) use self::{live::open, vcenter::password_expires};
