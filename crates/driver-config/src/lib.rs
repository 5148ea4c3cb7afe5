//! The configuration files of the vSphere drivers and the Secrets with their credentials.
//!
//! Three parts of VDO use this crate. The operator *writes* these formats for the drivers it installs, and *reads*
//! them to adopt an existing driver. Our own cloud controller *reads* them, so that it starts with the files of
//! the upstream drivers. Everything is pure: text and typed values, no files, no cluster.
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
//! Tests hold each of these guarantees: a written configuration reads back equal; the drivers' own readers
//! understand it the same way (`tests/real_loaders` runs their code); a configuration of another author is
//! understood as the drivers understand it. Passwords, and every text that contains one, are [`SecretText`]; no
//! error contains a value.

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
