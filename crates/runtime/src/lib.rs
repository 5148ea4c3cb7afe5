//! Shared by every VDO binary: logs, signals, probes, metrics, leader election.
//!
//! ```text
//!   main
//!    ├── telemetry   structured logs, level changeable while running
//!    ├── build       name, version and commit
//!    ├── process     signals → one shutdown token with a deadline; a panic ends the process
//!    ├── tasks       named tasks; the end of any of them is reported
//!    ├── server      /metrics /livez /readyz /version; on a unix socket /log-level too
//!    │     ├── probe     the client for that socket, for exec probes
//!    │     ├── checks    named conditions behind the probes
//!    │     └── metrics   the registry
//!    ├── configuration  follows a configuration that changes
//!    ├── kubernetes  creates Kubernetes clients
//!    ├── lease       leader election: compare-and-swap, monotonic expiry, a token every writer holds
//!    ├── memory      returns freed memory to the kernel
//!    ├── backoff     per-object delays that grow, with jitter
//!    ├── queue       the work queue of a controller
//!    └── error_chain an error and its causes in one line
//! ```
//!
//! Nothing here depends on vSphere.

pub mod backoff;
pub mod build;
pub mod checks;
pub mod configuration;
pub mod error_chain;
pub mod kubernetes;
pub mod lease;
pub mod memory;
pub mod metrics;
pub mod probe;
pub mod process;
pub mod queue;
pub mod server;
pub mod tasks;
pub mod telemetry;
