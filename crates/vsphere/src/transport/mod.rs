//! HTTP to a vCenter: addresses, limits, observers and body tracing.

pub(crate) mod address;
pub(crate) mod body_trace;
pub(crate) mod http;
pub(crate) mod observe;
