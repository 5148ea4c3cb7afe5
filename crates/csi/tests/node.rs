//! The node plugin as the kubelet uses it, on real disks. These tests need root and loop devices.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

#[path = "node/plugin.rs"]
mod plugin;

#[path = "node/attach.rs"]
mod attach;
#[path = "node/disks.rs"]
mod disks;
#[path = "node/faults.rs"]
mod faults;
#[path = "node/growth.rs"]
mod growth;
#[path = "node/kubelet.rs"]
mod kubelet;
#[path = "node/mounts.rs"]
mod mounts;
#[path = "node/topology.rs"]
mod topology;
