//! The operator: from one object to running drivers, kept running, upgraded and taken away.
//!
//! ```text
//!   Kubernetes API ─┐                                                 ┌─► server-side apply
//!                   ├─► observe ─► Facts ─► decide ─► Plan ─► act ────┤
//!   vcenters ───────┤        ▲        (pure)            │             └─► records
//!   catalogs ───────┘        │                          └─► report ─────► status, events, metrics
//!                          survey ─► the checks of `health`
//! ```
//!
//! `engine` runs the circle whenever something changed; nothing is kept in memory that a restart
//! would miss.

pub mod act;
pub mod catalogs;
pub mod decide;
pub mod engine;
pub mod facts;
pub mod install;
pub mod names;
pub mod observe;
pub mod plan;
pub mod record;
pub mod report;
pub mod survey;
pub mod vcenters;
