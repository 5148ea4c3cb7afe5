//! Tests of the `vdoctl` binary. One test program, because linking is slow.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed unwrap fails the test")]

/// The hostile tenant of the operator's tests.
#[allow(dead_code, unreachable_pub, reason = "these tests use a part of it")]
#[path = "../../../operator/tests/common/adversary.rs"]
mod adversary;
mod bundle;
mod catalog;
mod cluster;
#[path = "../../../oci/tests/transfer/connect_proxy.rs"]
mod connect_proxy;
mod dialogue;
mod environment;
mod gate;
mod halfway;
mod images;
mod maintenance;
mod moving;
/// The proxy before a registry of the tests of images.
#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../../../oci/tests/transfer/front.rs"]
mod registry_front;
mod releases;
mod removal;
mod rollout;
mod screens;
mod stage;
mod storage_class;
mod tenant;
#[allow(dead_code, reason = "the tests of the sandbox use it too")]
mod terminal;
mod transcripts;
mod trouble;
mod volume_test;
