//! Starts real programs for tests: a Kubernetes control plane, nodes, a vCenter simulator.
//!
//! ```text
//!                    your test
//!    ┌──────────┬───────┴──────┬───────────────┐
//!    ▼          ▼              ▼               ▼
//!  Nodes    ControlPlane    Vcenter        FaultProxy      eventually()
//!  (KWOK,   (etcd, API      (our simulator,  (TCP, in
//!  fake      server,         inventory and    front of
//!  kubelet)  kcm, scheduler) control API)     any peer)
//!    └──────────┴───────┼──────┴───────────────┘
//!                       │  Site: all of them, to inject and revert a Breakage
//!                       ▼
//!      Process  (own log, ends with the test run)
//!       ├── CloudController  ours or upstream's, as rendered in the cluster
//!       ├── Disks     disks of VMs as block devices of nodes
//!       ├── Guest     a virtual machine with a kernel of its own
//!       ├── peer()    the path of a program, built on first use
//!       ├── Port      a port that no other test takes
//!       ├── Authority certificates for every server and user
//!       └── Workdir   files, removed however the run ends
//! ```
//!
//! # Guarantees
//! - Every program stops when its value is dropped, when the test panics, and when the test run is killed, even with
//!   `kill -9`: the kernel kills each peer with the run, and a cleanup process removes the files.
//! - If a peer cannot start or dies, the panic names the program and the fix, and has the last lines of its log.
//!
//! `start()` functions panic, because a test cannot handle the error. Each has a `launch()` that returns the error, for
//! the sandbox.
#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test helper fails by panicking, with a text that explains the failure"
)]

mod authority;
mod breakage;
mod cloud_controller;
mod control_plane;
mod disks;
mod error;
mod eventually;
mod fault_proxy;
mod guest;
mod nodes;
mod olm;
mod paths;
mod peers;
mod ports;
mod process;
mod random;
mod real_node;
mod registry;
mod tunnel;
mod vcenter;
mod workdir;
mod working_set;

pub use authority::{Authority, Identity};
pub use breakage::{Breakage, Site};
pub use cloud_controller::CloudController;
pub use control_plane::{ApiServer, ControlPlane, ControlPlaneBuilder, User};
pub use disks::Disks;
pub use error::Error;
pub use eventually::{Deadline, eventually};
pub use fault_proxy::FaultProxy;
pub use guest::{Guest, serve_guest_agent};
pub use nodes::{Fate, Logs, Node, Nodes, add_bare_nodes};
pub use olm::created_by_olm;
pub use paths::{cache, repository};
pub use peers::{peer, programs, shipped};
pub use ports::Port;
pub use process::{Process, processes_started_by, spawn_tied_to_us};
pub use random::SeededRandom;
pub use real_node::{RealNode, RealNodeBuilder};
pub use registry::{EarlierOperator, Registry};
pub use vcenter::{
    Calls, Category, Cluster, Datacenter, Datastore, Fault, Host, Inventory, Nic, Permission, Role,
    SessionCalls, Tag, Vcenter, VcenterBuilder, VcenterUser, Vm,
};
pub use workdir::Workdir;
pub use working_set::MemoryGroup;

/// Installs the TLS provider of rustls for this process; further calls do nothing.
pub fn install_tls_provider() {
    // An error means that a provider is already installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
