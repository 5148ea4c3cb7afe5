//! The loops on a real control plane: etcd, API server, controller-manager and scheduler, with simulated kubelets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod attach;
mod capacity;
mod changes;
#[path = "../common/mod.rs"]
mod common;
mod driver;
mod leaders;
mod lifecycle;
mod metadata;
mod protection;
mod quiet;
mod simulator;
mod snapshots;
mod stage;
mod zones;
