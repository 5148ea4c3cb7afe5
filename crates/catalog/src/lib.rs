//! Driver releases: which exist, which fit, what they are made of.
//!
//! A *catalog* is data. It says for every release of the two drivers what it needs, which images it
//! is made of, how its manifest differs from its neighbour's, what to mind when moving onto it and
//! which faults somebody has met. The operator carries one, and takes a newer one when it is signed,
//! newer and makes sense. Everything here is a pure function of such data: nothing talks to a cluster.
//!
//! ```text
//!   embedded ──┐
//!   trust ─────┼─► read ─► model::Catalog ─► choose ─► Decision ─► manifest ─► objects to apply
//!   matrix ────┘     │ (lines fold    │        │  │        │          │
//!               proofread     out)    │        │  │        │          │
//!                                     diff   why  path   image   from_manifest
//!                                                      (lists, mirrors)
//! ```

pub mod choose;
pub mod diff;
mod embedded;
pub mod image;
pub mod manifest;
pub mod matrix;
pub mod model;
pub mod path;
pub mod proofread;
pub mod read;
mod template;
#[cfg(feature = "cli")]
pub mod tool;
pub mod trust;
pub mod version;
pub mod why;
mod write;

pub use choose::{Action, Decision, Environment, Policy, Request, choose};
pub use embedded::{TEXT as EMBEDDED, embedded};
pub use image::{Image, Rewrite};
pub use model::{Catalog, Driver, Implementation, Release, Vcenter};
pub use proofread::proofread;
pub use read::{ReadError, read};
pub use write::write;
