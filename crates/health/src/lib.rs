//! Facts become findings: every known field failure, named with its cause, its object and its remedy.
//!
//! ```text
//!   facts ──► Examination ──► Report ──► findings (status, events, metrics, vdoctl)
//!     ▲            │             ▲            │
//!     │          checks        causes       repair ──► proposals
//!   observed     one per       which follows
//!   by others    file          from which
//!
//!   index, view, topology   what belongs together, brought together
//!   privileges              what the vCenter account needs, on what, for what
//!   messages                what the drivers say, and what they mean
//!   document                the pages under docs/findings
//!   sample                  facts of healthy clusters, for tests, benchmarks and demonstrations
//! ```
//!
//! Everything here is pure: no client, no clock, no randomness. What could not be observed is said to
//! be unknown, never to be fine. The same code runs in the operator, which feeds it change by change,
//! and in `vdoctl doctor`, which feeds it once.

mod causes;
mod check;
pub mod checks;
pub mod document;
mod examination;
pub mod facts;
mod index;
pub mod messages;
pub mod privileges;
pub mod repair;
mod report;
pub mod sample;
#[cfg(test)]
mod shortcuts;
#[cfg(test)]
mod testing;
pub mod topology;
mod view;

pub use causes::{CAUSES, Cause};
pub use check::{Anchor, Check, Hit, Part, Run, Sink};
pub use examination::{Examination, Touched};
pub use index::{Index, VmRef};
pub use report::{Entry, MAX_BYTES, MAX_FINDINGS, Page, Report, date};
pub use view::{Found, NodeVm, View};
