//! Bytes to and from a vCenter: addresses, TLS, HTTP, and what can be seen from outside.

pub mod address;
pub(crate) mod http;
pub mod observe;
pub(crate) mod redact;
pub mod tls;
