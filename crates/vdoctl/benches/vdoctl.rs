//! Speed and size of the release build of `vdoctl`, on a cluster of 5,000 nodes.
//!
//! `make bench ARGS=vdoctl`; `cargo bench -p vdoctl -- 500` uses fewer nodes, `-- ./vdoctl` an existing binary.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use api::VDOConfig;
use jiff::SignedDuration;
use kube::Api;
use operator::{engine::Engine, report::OperatorMetrics};
use runtime::{build::BuildInfo, checks::Checks};
use serde_json::json;
use testkit::{ControlPlane, Inventory, User, Vcenter, Vm, Workdir, eventually};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "vmware-system-vdo";

#[tokio::main]
async fn main() {
    let nodes = std::env::args().find_map(|text| text.parse().ok()).unwrap_or(5000);
    let program = testkit::shipped("vdoctl", "vdoctl");
    println!("| promise | allowed | measured |\n|---|---|---|");
    let size = std::fs::metadata(&program).unwrap().len() as f64 / 1_048_576.0;
    println!("| the program, optimised and stripped | 15 MiB | {size:.1} MiB |");
    let alone = Path::new("/nonexistent");
    for arguments in [&["--help"][..], &["version", "--client"]] {
        let (median, worst) = timed(&program, alone, arguments, 40, &[0]);
        let line = arguments.join(" ");
        println!("| `vdoctl {line}` | 20 ms | {} (worst of 40: {}) |", shown(median), shown(worst));
    }
    large(&program, nodes).await;
}

/// The median and the worst of several runs.
fn timed(
    program: &Path,
    kubeconfig: &Path,
    arguments: &[&str],
    runs: usize,
    codes: &[i32],
) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..runs)
        .map(|_| {
            let begin = Instant::now();
            let output = Command::new(program)
                .args(arguments)
                .env("KUBECONFIG", kubeconfig)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let code = output.status.code().unwrap_or(-1);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(codes.contains(&code), "vdoctl {arguments:?}: {code} {text}");
            begin.elapsed()
        })
        .collect();
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}

fn shown(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}

/// Many nodes, a VM for each, and an operator that has read all of them.
async fn large(program: &Path, size: usize) {
    let plane = ControlPlane::start().await;
    let vcenter = Vcenter::start(Inventory::with_vms(size)).await;
    let workdir = Workdir::new("bench").unwrap();
    let kubeconfig = plane.kubeconfig();
    let vms: Vec<Vm> = (1..=size).map(|number| Vm::numbered("node", number)).collect();
    testkit::add_bare_nodes(&plane.client(), &vms).await;
    timed(program, &kubeconfig, &["deploy", "--no-wait"], 1, &[0]);
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vc"},
            "stringData": {"username": vcenter.user(), "password": vcenter.password()},
        }),
        json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": "vc"},
            "spec": {
                "vcIp": vcenter.address().to_string(), "credentials": "vc",
                "thumbprint": vcenter.thumbprint_sha256(),
            },
        }),
        json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig", "metadata": {"name": "vdo"},
            "spec": {"cloudProvider": {"vsphereCloudConfigs": ["vc"]}},
        }),
    ];
    let objects = objects.map(|object| serde_saphyr::to_string(&object).unwrap());
    let file = workdir.write("vdo.yaml", objects.join("---\n")).unwrap().display().to_string();
    timed(program, &kubeconfig, &["configure", "-f", &file], 1, &[0]);
    let operator = operator(&plane).await;
    let configs = Api::<VDOConfig>::namespaced(plane.client(), NAMESPACE);
    eventually("the operator has seen all nodes", 600, async || {
        let status = configs.get("vdo").await.unwrap().status.unwrap_or_default();
        let seen = status.cpi.and_then(|cpi| cpi.nodes_ready);
        if seen == i32::try_from(size).ok() { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    drop(operator);
    for (line, allowed, runs) in [("status", "1 s", 9), ("doctor", "5 s", 5)] {
        let (median, worst) = timed(program, &kubeconfig, &[line], runs, &[0, 3, 4]);
        println!(
            "| `vdoctl {line}` on {size} nodes and VMs | {allowed} | {} (worst of {runs}: {}) |",
            shown(median),
            shown(worst)
        );
    }
}

/// Runs the operator in this process. Pods are simulated.
async fn operator(plane: &ControlPlane) -> JoinSet<()> {
    let client = plane.client_as(&User::service_account(NAMESPACE, "vdo"));
    let (timeout, build) = (SignedDuration::from_mins(15), BuildInfo::new("vdo"));
    let metrics = OperatorMetrics::default();
    let engine = Engine::start(client, NAMESPACE, timeout, build, metrics).await.unwrap();
    let working = Checks::default().register("rounds", "none yet");
    let mut tasks = JoinSet::new();
    let run = Box::pin(engine.run(CancellationToken::new(), working));
    tasks.spawn(async move {
        run.await;
    });
    tasks
}
