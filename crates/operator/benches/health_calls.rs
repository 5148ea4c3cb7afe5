//! What continuous health costs a vCenter: calls the simulator counted while the operator ran.
//!
//! `cargo bench -p operator --bench health_calls -- 50:300 5000:120` watches clusters of those sizes for
//! so many quiet seconds each.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Duration;

use common::Stage;
use serde_json::json;
use testkit::Vm;
use tokio::time::Instant;

/// How often an hour everything is asked that cannot be watched: every 60 to 90 minutes.
const AUDITS_AN_HOUR: f64 = 1.0;
/// What vsphere-problem-detector calls in one run, by its documented loop: two logins, then one search
/// and one read of properties for each node.
fn one_run_of_the_detector(nodes: usize) -> usize {
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
    let mut stage = Stage::bare(nodes).await;
    stage.program = testkit::shipped("operator", "vdo");
    let client = stage.client();
    let vms: Vec<Vm> = (1..=nodes).map(|number| Vm::numbered("node", number)).collect();
    testkit::add_bare_nodes(&client, &vms).await;
    let _operator = stage.operator();
    stage
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    stage.check_now("first").await;
    println!(
        "| {nodes} nodes: from the start until all was checked | {} |",
        stage.vcenter.calls().await.sum()
    );

    stage.vcenter.forget_calls().await;
    stage.check_now("second").await;
    let audit = stage.vcenter.calls().await;
    println!("| {nodes} nodes: everything asked once more | {} |", audit.sum());
    println!("| | {:?} |", audit.total);

    tokio::time::sleep(Duration::from_secs(5)).await;
    stage.vcenter.forget_calls().await;
    let begin = Instant::now();
    tokio::time::sleep(quiet).await;
    let calls = stage.vcenter.calls().await;
    println!("| {nodes} nodes: {quiet:?} of quiet | {} |", calls.sum());
    println!("| | {:?} |", calls.total);
    let watching = calls.sum() as f64 * 3600.0 / begin.elapsed().as_secs_f64();
    let hour = watching + AUDITS_AN_HOUR * audit.sum() as f64;
    let detector = one_run_of_the_detector(nodes);
    println!("| **{nodes} nodes: health, an hour** | **{hour:.0}** |");
    println!(
        "| {nodes} nodes: vsphere-problem-detector, an hour in which all is well | {detector} |"
    );
    // After 1, 2, 4, 8, 16 and 32 minutes.
    println!(
        "| {nodes} nodes: vsphere-problem-detector, its first hour with a fault | {} |",
        6 * detector
    );
}
