//! What every VDO binary shares, so that each behaves the same at night.
//!
//! ```text
//!   main
//!    ├── telemetry   structured logs, level changeable while running
//!    ├── build       name, version and commit
//!    ├── process     signals → one shutdown token with a deadline; a panic ends the process
//!    ├── tasks       named tasks whose end is never overlooked
//!    ├── server      /metrics /livez /readyz /version; on a unix socket /log-level too
//!    │     ├── probe     the client of that socket, for exec probes
//!    │     ├── checks    named conditions behind the probes
//!    │     └── metrics   the registry
//!    ├── kubernetes  the one way to make a Kubernetes client
//!    ├── lease       leader election: compare-and-swap, monotonic expiry, a token every writer holds
//!    ├── memory      what is free is given back
//!    ├── backoff     per-object delays that grow, with jitter
//!    └── story       an error and its causes, in one line
//! ```
//!
//! Nothing here knows vSphere.

pub mod backoff;
pub mod build;
pub mod checks;
pub mod error_chain;
pub mod kubernetes;
pub mod lease;
pub mod memory;
pub mod metrics;
pub mod probe;
pub mod process;
pub mod server;
pub mod tasks;
pub mod telemetry;
