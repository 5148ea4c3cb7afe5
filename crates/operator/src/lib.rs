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
//! would miss. `leadership` elects the one pod that writes. `followed` chooses the VDOConfig among those in the
//! operator's namespace. `rights` comes before it: an account that may do nothing is told so. `allowed_namespaces` are the
//! namespaces drivers may be in. `remediation` makes the repairs that are allowed, `unreadable` speaks where no
//! plan can be made, and `version` says which one the cluster is while its API servers differ. `probes` are
//! the checks behind `/livez` and `/readyz`. Beside it,
//! for whoever looks once, as `vdoctl` does:
//!
//! ```text
//!   once     the same facts, gathered once       proof   one vCenter tried, before anything is written
//!   writing  a user's objects compared, then written all or not at all
//!   support  all that helps to help, without any secret
//!   install, alerts   what a user applies: `deploy/`
//!   apply_set  what other tools read: which objects belong together
//! ```

pub mod act;
pub mod alerts;
pub mod allowed_namespaces;
pub mod apply_set;
pub mod catalogs;
pub mod decide;
pub mod engine;
pub mod facts;
pub mod followed;
pub mod health_facts;
pub mod install;
pub mod leadership;
pub mod names;
pub mod observe;
pub mod one_shot;
pub mod plan;
pub mod probes;
pub mod proof;
pub mod record;
pub mod remediation;
pub mod report;
pub mod rights;
pub mod support;
pub mod unreadable;
pub mod vcenters;
pub mod version;
pub mod webhook_certificates;
pub mod writing;
