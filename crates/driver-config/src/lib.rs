//! What the vSphere drivers read: their configuration files and the Secrets with their credentials.
//!
//! Three parts of VDO meet here. The operator *writes* these formats for the drivers it installs;
//! it *reads* them to adopt a driver somebody else installed; and our own cloud controller and CSI
//! driver *read* them, so that they start with the files the upstream drivers start with. All of it
//! is pure: text and typed values, no files, no cluster.
//!
//! ```text
//!            text                      typed model                    text
//!   vsphere.conf (YAML, gcfg) ──►  cpi::CpiConfig  ──► problems() ──► the same two formats
//!   csi-vsphere.conf (gcfg)   ──►  csi::CsiConfig  ──► problems() ──► gcfg
//!   any Secret of theirs      ──►  credentials::Credentials        ──► the CPI's Secret
//!                   ▲                    ▲
//!                  gcfg, yaml          keys: one table row per key, used in both directions
//! ```
//!
//! Guarantees, each held by tests: what is written reads back equal; what is written means the same
//! to the drivers' own readers (their programs are run in `tests/real_loaders.rs`); what is read is
//! understood as they understand it. Passwords live in [`SecretText`], and so does every text that
//! contains one; no error repeats a value.

pub mod cpi;
pub mod credentials;
pub mod csi;
pub mod gcfg;
mod keys;
mod problem;
mod secret;
mod yaml;

pub use keys::{Read, ReadError, UnknownKey, WriteError};
pub use problem::{Effect, Problem};
pub use secret::SecretText;
