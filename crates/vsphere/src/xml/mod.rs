//! The XML codec: reads and writes Rust values as XML, without I/O.
//!
//! ```text
//!   reader   pulls elements out of a complete piece of XML, with limits
//!   stream   does the same while the reply is still arriving
//!   writer   writes XML text
//!   codec    Decode, Encode, Field: the wire form of a Rust value; `data!`, `wire_enum!`
//! ```
//!
//! The reader ignores namespace prefixes. Prefixes differ between vCenter releases, and vCenter's
//! schemas never use one local name for two things inside one element.

pub(crate) mod codec;
pub(crate) mod reader;
pub(crate) mod stream;
pub(crate) mod writer;

pub use self::reader::XmlError;
