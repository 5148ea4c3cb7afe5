//! Compares our readers and writers with the drivers' own: the upstream configuration code runs on every text, and
//! no result may differ.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod cpi;
mod csi;

use std::io::Write as _;
use std::process::{Command, Stdio};

use driver_config::{Effect, Problem};
use serde_json::Value;

/// Runs a loader once on all cases.
pub(crate) fn ask(program: &str, cases: &[Value]) -> Vec<Value> {
    let mut child = Command::new(testkit::peer(program))
        .env_clear() // the drivers let variables override the file
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let input = serde_json::to_vec(cases).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    let answers: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answers.len(), cases.len());
    answers
}

pub(crate) fn refused(problems: &[Problem]) -> bool {
    problems.iter().any(|problem| problem.effect == Effect::Refused)
}

/// A port as both drivers store it.
pub(crate) fn port(port: Option<u16>) -> String {
    port.unwrap_or(443).to_string()
}
