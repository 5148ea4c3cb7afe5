//! The Identity service.
