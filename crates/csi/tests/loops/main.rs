//! The loops on a real control plane: etcd, API server, controller-manager and scheduler, with simulated kubelets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod driver;
mod lifecycle;
mod stage;
