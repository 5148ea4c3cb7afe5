//! Container registries and image archives: images travel from registries on the Internet to the registry of a site
//! without Internet access.
//!
//! ```text
//!   registry ──► export ──► archive (OCI image layout, tar) ──► import ──► registry of the site
//!      client ◄────┘           tar, manifest       └──► verify ──► client
//!        credentials, authentication                (both ends)
//!
//!   registry ◄──► artifact: files that are no images, such as a signed catalog
//! ```
//!
//! # Guarantees
//! - Every byte is checked: a blob or manifest is used only if it has the digest that its parent names.
//! - An interrupted export continues at the byte where it stopped; an interrupted import skips what the registry has.
//! - An archive is complete, or it has another name: it gets its name as the last step.
//! - Credentials are sent only to the registry that they are for, and to the token service that this registry names.

mod archive;
mod artifact;
mod authentication;
mod client;
mod credentials;
mod digest;
mod error;
mod export;
mod import;
mod manifest;
mod progress;
mod reference;
mod tar;
mod upload;
mod verify;

pub use archive::{Archive, ArchivedImage};
pub use artifact::Artifact;
pub use client::{Client, ClientOptions};
pub use credentials::Credentials;
pub use digest::Digest;
pub use error::Error;
pub use export::{Export, ExportedImage, export};
pub use import::{ImportedImage, Target, import};
pub use manifest::Platform;
pub use progress::{Progress, Silent};
pub use reference::{Reference, Repository};
pub use verify::{RegistryProblem, verify_registry};
