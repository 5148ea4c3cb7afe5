//! Driver releases: which releases exist, which of them fit a cluster, and which objects install them.
//!
//! A *catalog* is data. For every release of the two drivers it lists requirements, images, manifest
//! differences, upgrade steps and known faults. The operator embeds one catalog. It switches to another
//! catalog only if that one is signed, newer and consistent. Everything here is a pure function of such
//! data: nothing talks to a cluster.
//!
//! ```text
//!   embedded ──┐                          environment
//!   trust ─────┼─► read ─► model::Catalog ─► choose ─► Decision ─► manifest ─► objects to apply
//!   matrix ────┘     │ (lines expand)  │      │  │         │          │
//!             parse, proofread        diff   why path    image    from_manifest
//! ```

pub mod choose;
pub mod diff;
mod embedded;
mod environment;
pub mod image;
pub mod manifest;
mod matrix;
pub mod model;
pub mod parse;
pub mod path;
pub mod proofread;
mod read;
mod template;
#[cfg(feature = "cli")]
pub mod tool;
pub mod trust;
pub mod version;
pub mod why;
mod write;

pub use choose::{Action, Decision, Policy, Request, choose};
pub use embedded::{TEXT as EMBEDDED, embedded};
pub use environment::Environment;
pub use image::{Image, Rewrite};
pub use model::{Catalog, Driver, Implementation, Release, Vcenter};
pub use parse::ReadError;
pub use proofread::proofread;
pub use read::read;
pub use write::write;
