//! Images travel from one real registry to another, through an archive. The registries know neither accounts nor TLS nor
//! faults: a proxy of the tests before them adds these.
//!
//! ```text
//!   images         images of two platforms, in a registry
//!   front          the proxy: TLS, accounts, tokens, faults, a list of requests
//!   connect_proxy  a proxy on the way to a registry
//!   whole          export, import, verify
//!   faults         interruptions and manipulations
//!   access         accounts, certificate authorities, proxies
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod access;
mod connect_proxy;
mod faults;
mod front;
mod images;
mod whole;
