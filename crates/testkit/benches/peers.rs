//! How long each peer takes to start, and how much memory it holds once it is up.
#![allow(clippy::print_stdout, reason = "a bench prints its table")]

use testkit::{ControlPlane, Inventory, Node, Nodes, Vcenter};
use tokio::time::Instant;

fn row(what: &str, began: Instant, memory: &[(&str, u64)]) {
    let memory: Vec<String> =
        memory.iter().map(|(name, bytes)| format!("{name} {} MiB", bytes >> 20)).collect();
    println!("| {what} | {:.2} s | {} |", began.elapsed().as_secs_f64(), memory.join(", "));
}

fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[tokio::main]
async fn main() {
    for program in
        ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "vcsim"]
    {
        testkit::peer(program);
    }
    println!("| peer | ready after | resident memory |\n|---|---|---|");

    let began = Instant::now();
    let plane = ControlPlane::start().await;
    let memory: Vec<_> = plane.processes().iter().map(|(n, pid)| (*n, resident(*pid))).collect();
    row("control plane: etcd, API server", began, &memory);
    drop(plane);

    let began = Instant::now();
    let plane = ControlPlane::builder().with_controllers().start().await;
    let nodes = Nodes::start(&plane).await;
    nodes.add(Node::named("worker-1")).await;
    let mut memory: Vec<_> =
        plane.processes().iter().map(|(n, pid)| (*n, resident(*pid))).collect();
    memory.push(("kwok", nodes.process().memory().0));
    row("control plane with controllers, scheduler and KWOK", began, &memory);

    for vms in [20, 500, 5_000] {
        let began = Instant::now();
        let vcenter = Vcenter::start(Inventory::with_vms(vms)).await;
        let memory = [("vcsim", vcenter.process().memory().0)];
        row(&format!("vCenter simulator, {vms} virtual machines"), began, &memory);
    }
}
