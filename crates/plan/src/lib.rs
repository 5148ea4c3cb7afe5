//! The rules of VDO. [`decide()`] is a pure function from facts to a plan: no client, no clock, no randomness.
//!
//! ```text
//!   operator, vdoctl                this crate                            operator
//!   ────────────────   ─────────────────────────────────────────   ─────────────────────
//!   observe ─► facts::Facts ─► decide ─► Plan ─► Next ────────────► act
//!               │    │           │        │
//!               │    │           │        └─► status ─────────────► report
//!               │    │           └─ one rule per file in decide/
//!               │    └─ record    the objects and releases that VDO records before it applies them
//!               └─ names, object_id, written_names, apply_set
//! ```
//!
//! Everything a rule depends on is a field of [`facts::Facts`], including the time. The operator decides in
//! each round of its loop, and `vdoctl` decides once: both get the same plan from the same facts.

pub mod apply_set;
mod decide;
pub mod facts;
pub mod names;
mod object_id;
mod plan;
pub mod record;
mod status;
pub mod written_names;

pub use self::{
    decide::{decide, image_rewrite, is_deleted, is_kept},
    object_id::ObjectId,
    plan::{
        ADOPT, AdoptionPreview, DriverPlan, Finalizer, Next, NodeLabel, PassedPods, Plan,
        PlannedStep, StepState,
    },
    status::{driver_is_healthy, status},
};
