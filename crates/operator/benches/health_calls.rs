//! The cost of continuous health checks for a vCenter: the calls that the simulator counts while the operator runs.
//!
//! `cargo bench -p operator --bench health_calls -- 50:300 5000:120` measures clusters of these sizes for this many quiet
//! seconds each.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Duration;

use common::Testbed;
use serde_json::json;
use testkit::Vm;
use tokio::time::Instant;

/// How often an hour the operator queries everything that it cannot watch: every 60 to 90 minutes.
const AUDITS_AN_HOUR: f64 = 1.0;
/// The calls of one vsphere-problem-detector run, from its documented loop: two logins, then one search and one property
/// read for each node.
fn detector_calls_per_run(nodes: usize) -> usize {
    2 + 2 * nodes
}

#[tokio::main]
async fn main() {
    let wanted = std::env::args().filter_map(|text| {
        let (nodes, seconds) = text.split_once(':')?;
        Some((nodes.parse().ok()?, seconds.parse().ok()?))
    });
    let mut wanted: Vec<(usize, u64)> = wanted.collect();
    if wanted.is_empty() {
        wanted = vec![(50, 300)];
    }
    println!("| what | vCenter calls |\n|---|---|");
    for (nodes, seconds) in wanted {
        measure(nodes, Duration::from_secs(seconds)).await;
    }
}

async fn measure(nodes: usize, quiet: Duration) {
    let mut testbed = Testbed::without_nodes(nodes).await;
    testbed.program = testkit::shipped("operator", "vdo");
    let client = testbed.client();
    let vms: Vec<Vm> = (1..=nodes).map(|number| Vm::numbered("node", number)).collect();
    testkit::add_bare_nodes(&client, &vms).await;
    let _operator = testbed.operator();
    testbed
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    testbed.check_now("first").await;
    println!(
        "| {nodes} nodes: from the start to the first complete check | {} |",
        testbed.vcenter.calls().await.sum()
    );

    testbed.vcenter.forget_calls().await;
    testbed.check_now("second").await;
    let audit = testbed.vcenter.calls().await;
    println!("| {nodes} nodes: one complete check | {} |", audit.sum());
    println!("| | {:?} |", audit.total);

    tokio::time::sleep(Duration::from_secs(5)).await;
    testbed.vcenter.forget_calls().await;
    let begin = Instant::now();
    tokio::time::sleep(quiet).await;
    let calls = testbed.vcenter.calls().await;
    println!("| {nodes} nodes: {quiet:?} of quiet | {} |", calls.sum());
    println!("| | {:?} |", calls.total);
    let watching = calls.sum() as f64 * 3600.0 / begin.elapsed().as_secs_f64();
    let hour = watching + AUDITS_AN_HOUR * audit.sum() as f64;
    let detector = detector_calls_per_run(nodes);
    println!("| **{nodes} nodes: health, an hour** | **{hour:.0}** |");
    println!("| {nodes} nodes: vsphere-problem-detector, an hour without faults | {detector} |");
    // After 1, 2, 4, 8, 16 and 32 minutes.
    println!(
        "| {nodes} nodes: vsphere-problem-detector, its first hour with a fault | {} |",
        6 * detector
    );
}
