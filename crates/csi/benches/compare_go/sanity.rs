//! csi-sanity, the conformance tests of the CSI project, against both controllers: the specs about controllers. Those about
//! nodes need a node plugin with disks; the tests of this crate run them against ours.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use csi::{
    identity::IdentityService,
    proto::csi::{identity_server::IdentityServer, node_server::NodeServer},
    server::Socket,
};
use runtime::build::BuildInfo;
use testkit::{Process, Workdir, peer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    environment::{Driver, Environment, Running},
    node_info::NodeInfo,
};

/// csi-sanity waits a minute for a change of its connection, and fails, if the connection is ready before it looks. With
/// one thread it looks first.
const ONE_THREAD: [(&str, &str); 1] = [("GOMAXPROCS", "1")];
const LIMIT: u64 = 900;

pub(crate) async fn compare() {
    let mut failed = Vec::new();
    println!("\n| csi-sanity, specs about controllers | passed | failed |\n|---|---|---|");
    for (driver, name) in [(Driver::Go, "Go"), (Driver::Ours, "ours")] {
        // Each driver has a vCenter of its own: a failed spec leaves volumes behind.
        let environment = Environment::of_size(3).await;
        environment.delay(Duration::ZERO).await;
        let running = environment.start(driver).await;
        running.connect().await;
        let output = run(&running, &environment.nodes[0]).await;
        println!("| {name} | {} |", summary(&output).unwrap_or_else(|| output.clone()));
        failed.push((name, failures(&output)));
    }
    for (name, specs) in failed {
        println!("\n{name}, failed:");
        for spec in &specs {
            println!("- {spec}");
        }
    }
}

/// The output of csi-sanity, with the node's uuid from a service of ours.
async fn run(running: &Running, node: &str) -> String {
    let workdir = Workdir::new("csi-bench-sanity").unwrap();
    let socket = workdir.path().join("node.sock");
    let identity = IdentityService::new(BuildInfo::new("vsphere-csi"), Arc::new(|| Ok(())));
    let router = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(NodeServer::new(NodeInfo(node.to_owned())));
    let (stop, mut serving) = (CancellationToken::new(), JoinSet::new());
    serving.spawn(Socket::bind(&socket).unwrap().serve(router, stop.clone()));
    let policy = "storagePolicyName: vSAN Default Storage Policy\n";
    let mutable = workdir.write("mutable.yaml", policy).unwrap();
    let endpoint = |socket: &Path| format!("unix://{}", socket.display());
    let arguments = [
        format!("--csi.controllerendpoint={}", endpoint(&running.socket)),
        format!("--csi.endpoint={}", endpoint(&socket)),
        format!("--csi.mountdir={}/mount", workdir.path().display()),
        format!("--csi.stagingdir={}/staging", workdir.path().display()),
        format!("--csi.testvolumemutableparameters={}", mutable.display()),
        "--ginkgo.no-color".to_owned(),
        r"--ginkgo.focus=\[Controller Server\]".to_owned(),
    ];
    let program = peer("csi-sanity");
    let run = Process::spawn(&program, "csi-sanity", arguments, &ONE_THREAD, &workdir).unwrap();
    run.wait(LIMIT).await.expect("csi-sanity ends");
    stop.cancel();
    run.output()
}

/// The figures of the last line: `FAIL! -- 10 Passed | 20 Failed | 0 Pending | 30 Skipped`.
fn summary(output: &str) -> Option<String> {
    let line = output.lines().find(|line| line.contains(" Passed | "))?;
    let figure = |name: &str| {
        let mut words = line.split_whitespace();
        let at = words.clone().position(|word| word == name)?;
        words.nth(at - 1)
    };
    Some(format!("{} | {}", figure("Passed")?, figure("Failed")?))
}

fn failures(output: &str) -> BTreeSet<String> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix("[FAIL] "));
    lines.map(str::to_owned).collect()
}
