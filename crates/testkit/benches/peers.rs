//! The start time of each peer, and its memory after a little work.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its table")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::Api;
use testkit::{
    CloudController, ControlPlane, Inventory, Node, Nodes, Process, Vcenter, Workdir, eventually,
};
use tokio::time::Instant;

fn row(what: &str, took: Duration, memory: u64) {
    println!("| {what} | {:.2} s | {} MiB |", took.as_secs_f64(), memory >> 20);
}

fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[tokio::main]
async fn main() {
    let programs = [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
        "vcsim",
        "vsphere-cloud-controller-manager",
    ];
    for program in programs {
        testkit::peer(program);
    }
    println!("| peer | ready after | resident memory |\n|---|---|---|");

    let began = Instant::now();
    let plane = ControlPlane::builder().with_controllers().start().await;
    let total = began.elapsed();
    let began = Instant::now();
    let nodes = Nodes::start(&plane).await;
    let kwok = began.elapsed();
    let inventory = Inventory::with_vms(1);
    let uuid = inventory.datacenters[0].vms[0].uuid.clone();
    let vcenter = Vcenter::start(inventory).await;
    nodes.add(Node::named("node-1").system_uuid(&uuid).uninitialized()).await;
    let (cloud_controller, took) = upstream_cloud_controller(&plane, &vcenter).await;

    for (name, took) in plane.start_times() {
        let processes = plane.processes();
        let pid = processes.iter().find(|(n, _)| n == name).map_or(0, |(_, pid)| *pid);
        row(name, *took, resident(pid));
    }
    row("kwok", kwok, nodes.process().memory().0);
    let what = "vsphere-cloud-controller-manager (upstream), until a node is initialised";
    row(what, took, cloud_controller.memory().0);
    let sum = plane.processes().iter().map(|(_, pid)| resident(*pid)).sum();
    row("control plane with controllers, as a test starts it", total, sum);
    drop(plane);

    for vms in [20, 500, 5_000] {
        let began = Instant::now();
        let vcenter = Vcenter::start(Inventory::with_vms(vms)).await;
        let what = format!("vcsim, {vms} virtual machines");
        row(&what, began.elapsed(), vcenter.process().memory().0);
    }
}

/// Starts the upstream cloud controller and waits until it has initialised a node.
async fn upstream_cloud_controller(plane: &ControlPlane, vcenter: &Vcenter) -> (Process, Duration) {
    let workdir = Box::leak(Box::new(Workdir::new("bench").unwrap()));
    let config = format!(
        "global: {{port: {}, insecureFlag: true}}\nvcenter: {{vc: {{server: 127.0.0.1, user: '{}', password: '{}', datacenters: [DC0]}}}}\n",
        vcenter.address().port(),
        vcenter.user(),
        vcenter.password(),
    );
    let config = workdir.write("vsphere.conf", config).unwrap();
    let began = Instant::now();
    let process =
        CloudController::on(&config).upstream("cloud-controller", plane, workdir).unwrap();
    let api = Api::<KubeNode>::all(plane.client());
    eventually("the node is initialised", 60, async || {
        let node = api.get("node-1").await.map_err(|e| e.to_string())?;
        let id = node.spec.and_then(|spec| spec.provider_id);
        if id.is_some() { Ok(()) } else { Err(process.tail()) }
    })
    .await;
    (process, began.elapsed())
}
