//! Bytes to and from a vCenter: addresses, TLS, HTTP, and what can be seen from outside.

pub(crate) mod address;
pub(crate) mod http;
pub(crate) mod observe;
pub(crate) mod tls;
pub(crate) mod trail;
