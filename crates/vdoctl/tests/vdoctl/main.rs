//! Tests of the `vdoctl` binary. One test program, because linking is slow.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod bundle;
mod catalog;
mod cluster;
mod dialogue;
mod environment;
mod gate;
mod halfway;
mod moving;
mod releases;
mod removal;
mod rollout;
mod screens;
mod stage;
#[allow(dead_code, reason = "the tests of the sandbox use it too")]
mod terminal;
mod transcripts;
mod trouble;
