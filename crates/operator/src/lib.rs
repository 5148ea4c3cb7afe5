//! The operator: it observes the cluster and the vCenters, and acts on the plan that the crate `plan` decides.
//!
//! ```text
//!   Kubernetes API ─► cluster ─┐
//!   vCenter ─► audit ─► vcenters ─┼─► observe ─► Facts ─► plan::decide ─► Plan ─► act ─► server-side apply, records
//!   catalogs ──────────────────┘      │                                    └─► report ─► status, events, metrics
//!                                health_facts ─► the checks of `health`
//! ```
//!
//! `engine` runs a round whenever something changed. It stores nothing in memory that a restart would miss. Nothing
//! below it uses it, and `observe` uses neither `act` nor `report`.
//!
//! - `leadership` elects the pod that writes. `followed` selects the VDOConfig among those in the operator's namespace.
//! - `rights` checks the operator's own permissions first. `allowed_namespaces` are the namespaces of the drivers.
//! - `remediation` makes the repairs that are allowed. `unreadable` reports a VDOConfig that cannot be parsed.
//! - `version` is the Kubernetes version while API servers differ. `probes` are the checks behind `/livez` and `/readyz`.
//! - `applied` remembers how the last apply left each object, and `kinds` lists the kinds of the drivers' objects.
//!
//! For callers that look once, as `vdoctl` does:
//!
//! ```text
//!   one_shot          the same facts, collected once
//!   proof             one vCenter verified, before anything is written
//!   writing           a user's objects compared, then written all or not at all
//!   support           the support bundle, without any secret
//!   install, alerts   what a user applies: `deploy/`
//! ```

pub mod act;
pub mod alerts;
pub mod allowed_namespaces;
pub mod applied;
pub mod audit;
pub mod catalogs;
pub mod cluster;
pub mod engine;
pub mod followed;
pub mod health_facts;
pub mod install;
pub mod kinds;
pub mod leadership;
pub mod observe;
pub mod one_shot;
pub mod probes;
pub mod proof;
pub mod remediation;
pub mod report;
pub mod rights;
pub mod support;
pub mod unreadable;
pub mod vcenters;
pub mod version;
pub mod webhook_certificates;
pub mod writing;
