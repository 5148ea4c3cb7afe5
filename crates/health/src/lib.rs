//! Health checks: turn facts about a cluster and its vCenters into findings with object, cause and fix.
//!
//! ```text
//!   facts ──► Examination ──► Report ──► findings (status, events, metrics, vdoctl)
//!     ▲            │             ▲            │
//!     │          checks        causes       repair ──► proposals
//!   collectors   one per       which finding
//!   of callers   file          causes which
//!
//!   index, view, topology   look-up tables over the facts
//!   storage_class           where the volumes of a new StorageClass go
//!   privileges              the privileges that the vCenter account needs
//!   outcome                 the outcome of each check
//!   messages                messages of the drivers and their meaning
//!   document                the pages under docs/findings
//!   sample                  facts of healthy clusters, for tests, benchmarks and demos
//! ```
//!
//! Everything here is pure: no client, no clock, no randomness. A check reports a missing fact as unknown
//! and never assumes that it is fine. The operator passes in changes one by one; `vdoctl doctor` passes in
//! all facts once.

mod causes;
mod check;
pub mod checks;
pub mod document;
mod examination;
pub mod facts;
mod index;
pub mod messages;
mod outcome;
pub mod privileges;
pub mod repair;
mod report;
pub mod sample;
#[cfg(test)]
mod shortcuts;
pub mod storage_class;
#[cfg(test)]
mod testing;
pub mod topology;
mod view;

pub use causes::{CAUSES, Cause};
pub use check::{Anchor, Check, CheckScope, Hit, Part, Sink};
pub use examination::{Examination, Touched};
pub use index::{Index, VmRef};
pub use outcome::{Verdict, outcomes};
pub use report::{ListedObject, MAX_BYTES, MAX_FINDINGS, ObjectPage, Report, date};
pub use view::{FactsView, FoundVm, NodeVm};
