//! SOAP messages, without I/O.
//!
//! ```text
//!   envelope   the request around the arguments, the reply around the result
//!   fault      vCenter's typed errors
//!   value      properties whose type is only known when they arrive
//! ```

pub(crate) mod envelope;
pub(crate) mod fault;
pub(crate) mod value;

pub use self::fault::{Fault, FaultKind};
pub use self::value::Value;
