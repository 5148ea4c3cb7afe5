//! Real peers for tests, pleasant enough that a test reads as a story.
//!
//! ```text
//!                    your test
//!    ┌──────────┬───────┴──────┬───────────────┐
//!    ▼          ▼              ▼               ▼
//!  Nodes    ControlPlane    Vcenter        FaultProxy      eventually()
//!  (KWOK,   (etcd, API      (our simulator,  (TCP, in
//!  kubelet   server,         inventory and    front of
//!  hand)     kcm, scheduler) levers)          any peer)
//!    └──────────┴───────┼──────┴───────────────┘
//!                       │  Site: all of them, to make a Breakage on and to mend it
//!                       ▼
//!      Process  (own log, dies with the test run)
//!       ├── CloudController  upstream's or ours, as rendered in the cluster
//!       ├── peer()    where the program is, built on first use
//!       ├── Ports     ports nobody else in this run will take
//!       ├── Authority certificates for every server and user
//!       └── Workdir   files, removed when the run ends however it ends
//! ```
//!
//! # Guarantees
//! - What is started here is gone when its value is dropped, when the test panics, and when the test
//!   run is killed, `kill -9` included: the kernel kills each peer with the run, and a janitor
//!   process removes the files.
//! - A peer that cannot start or dies tells why: the panic names the program and the remedy, and
//!   carries the last lines of its log.
//!
//! `start()` functions panic, because a test has nothing better to do with the error; each has a
//! `launch()` beside it that returns it, for the sandbox.
#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test helper fails by panicking, with a text that says what went wrong"
)]

mod authority;
mod breakage;
mod cloud_controller;
mod control_plane;
mod error;
mod eventually;
mod fault_proxy;
mod nodes;
mod peers;
mod ports;
mod process;
mod random;
mod vcenter;
mod workdir;
mod working_set;

pub use authority::{Authority, Identity};
pub use breakage::{Breakage, Site};
pub use cloud_controller::CloudController;
pub use control_plane::{ApiServer, ControlPlane, ControlPlaneBuilder, User};
pub use error::Error;
pub use eventually::{Deadline, eventually};
pub use fault_proxy::FaultProxy;
pub use nodes::{Fate, Logs, Node, Nodes, add_bare_nodes};
pub use peers::{cache, peer, programs, repository, shipped};
pub use ports::Port;
pub use process::{Process, processes_started_by, spawn_tied_to_us};
pub use random::SeededRandom;
pub use vcenter::{
    Calls, Category, Cluster, Datacenter, Datastore, Fault, Host, Inventory, Nic, Permission, Role,
    SessionCalls, Tag, Vcenter, VcenterBuilder, VcenterUser, Vm,
};
pub use workdir::Workdir;
pub use working_set::MemoryGroup;

/// Makes the process's TLS provider known to rustls; harmless when called again.
pub fn install_tls_provider() {
    // An error means somebody installed one already, which is what we want.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
