//! The wire format: XML in and out, SOAP envelopes, faults.
//!
//! ```text
//!   reader ── pulls elements out of a complete piece of XML, with limits
//!     ▲
//!   stream ── the same, while the reply is still arriving
//!     ▲
//!   codec ─── Decode, Encode, Field: how a Rust value is written and read; `data!`, `wire_enum!`
//!     ▲
//!   envelope  the request around the arguments, the reply around the result
//!   fault ─── what vCenter says when it says no
//!   value ─── properties whose type is only known when they arrive
//! ```
//!
//! Nothing here does I/O. Names are matched without their namespace prefix: vCenter's own schemas
//! never use the same local name for two things inside one element, and the prefixes differ between
//! releases.

pub(crate) mod codec;
pub(crate) mod envelope;
pub(crate) mod fault;
pub(crate) mod fuzzing;
pub(crate) mod reader;
pub(crate) mod stream;
pub(crate) mod value;
pub(crate) mod writer;

pub use self::fault::{Fault, FaultKind};
pub use self::reader::XmlError;
pub use self::value::Value;
