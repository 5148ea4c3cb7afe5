//! The operator: it observes the cluster and the vCenters, and executes the plan of the crate `plan`.
//!
//! ```text
//!   Kubernetes API ─► cluster ─┐
//!   vCenter ─► audit ─► vcenters ─┼─► observe ─► Facts ─► plan::decide ─► Plan ─► act ─► server-side apply, records
//!   catalogs ──────────────────┘      │                                    └─► report ─► status, events, metrics
//!                                health_facts ─► the checks of `health`
//! ```
//!
//! `engine` runs a round whenever something changed. It stores nothing in memory that a restart would miss.
//! No other module uses `engine`, and `observe` uses neither `act` nor `report`.
//!
//! - `leadership` elects the pod that writes. `followed` selects the VDOConfig among those in the operator's
//!   namespace.
//! - `permissions` checks the operator's own permissions first. `allowed_namespaces` lists the namespaces of the
//!   drivers.
//! - `remediation` makes the allowed repairs. `unreadable` reports a VDOConfig that cannot be parsed.
//! - `version` determines the Kubernetes version while API servers differ. `probes` contains the checks
//!   behind `/livez` and `/readyz`.
//! - `applied` remembers how the last apply left each object, and `kinds` lists the kinds of the drivers'
//!   objects.
//!
//! Other modules serve callers that read the cluster once, like `vdoctl`:
//!
//! ```text
//!   one_shot          the same facts, collected once
//!   proof             verifies one vCenter before anything is written
//!   writing           compares a user's objects, then writes all or none of them
//!   maintenance       changes the VM of a drained node while it is off
//!   support           the support bundle, without any secret
//!   install, alerts   the manifests for users: `deploy/`
//! ```

pub mod act;
pub mod alerts;
pub mod allowed_namespaces;
pub mod applied;
pub mod audit;
pub mod catalogs;
pub mod cluster;
pub mod engine;
#[cfg(test)]
mod fake_api;
pub mod followed;
pub mod health_facts;
pub mod install;
pub mod kinds;
pub mod leadership;
pub mod maintenance;
pub mod observe;
pub mod one_shot;
pub mod permissions;
pub mod probes;
pub mod proof;
pub mod remediation;
pub mod report;
pub mod support;
pub mod unreadable;
pub mod vcenters;
pub mod version;
pub mod webhook_certificates;
pub mod writing;
