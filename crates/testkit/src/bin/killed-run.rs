//! Simulates a test run that is killed: starts a control plane and a vCenter, prints their processes, and waits.
#![allow(clippy::print_stdout, reason = "its output is what the test reads")]

#[tokio::main]
async fn main() {
    let plane = testkit::ControlPlane::builder().with_controllers().start().await;
    let vcenter = testkit::Vcenter::start(testkit::Inventory::with_vms(2)).await;
    let mut pids: Vec<u32> = plane.processes().into_iter().map(|(_, pid)| pid).collect();
    pids.push(vcenter.process().pid());
    let folder = plane.folder().parent().map(|f| f.display().to_string()).unwrap_or_default();
    println!("{}", serde_json::json!({"pids": pids, "folder": folder}));
    // If a shell starts the tests in the background, Ctrl-C is ignored.
    let _ = tokio::signal::ctrl_c().await;
    std::process::exit(130);
}
