//! Our driver with many nodes and volumes: start, list and memory. And its node plugin.

use std::time::Duration;

use csi::proto::csi::{
    ListVolumesRequest, NodeGetInfoRequest, controller_client::ControllerClient,
    node_client::NodeClient,
};
use testkit::{MemoryGroup, Process, Workdir, eventually};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::{
    PROGRAM,
    environment::{CLUSTER, Driver, Environment, Memory, Running},
};

const SERIAL: &str = "VMware-42 20 8c 6b d1 0d 37 d0-15 6f 43 5f 99 9d 94 c1\n";
/// The most volumes on a node.
const MAX_ATTACHED: usize = 50;

/// `sizes` are numbers of nodes and volumes.
pub(crate) async fn measure(sizes: &[(usize, usize)]) {
    println!("\n| | measured |\n|---|---|");
    node_plugin().await;
    for (nodes, volumes) in sizes {
        with(*nodes, *volumes).await;
    }
}

async fn with(nodes: usize, volumes: usize) {
    let environment = Environment::of_size(nodes).await;
    // A quarter of the volumes is not attached.
    let attached = (volumes * 3 / 4 / nodes).min(MAX_ATTACHED);
    environment.vcenter.add_volumes(CLUSTER, volumes, attached).await;
    environment.vcenter.forget_calls().await;
    let began = Instant::now();
    let running = environment.start(Driver::Ours).await;
    let client = running.connect().await;
    let socket = began.elapsed();
    listed(&client, volumes, &running).await;
    let start = began.elapsed();
    let calls = environment.vcenter.calls().await;
    let mut lists = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        listed(&client, volumes, &running).await;
        lists.push(began.elapsed());
    }
    lists.sort();
    running.process.until_idle().await;
    // Free memory is returned to the kernel with a delay.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let memory = running.memory();
    println!(
        "| {nodes} nodes, {volumes} volumes: start until all are listed | {:.1} s, {} calls (its socket after {:.1} s) |",
        start.as_secs_f64(),
        calls.sum(),
        socket.as_secs_f64(),
    );
    println!(
        "| {nodes} nodes, {volumes} volumes: list all | {:.0} ms (median of 5; worst {:.0} ms) |",
        lists[2].as_secs_f64() * 1e3,
        lists[4].as_secs_f64() * 1e3,
    );
    println!("| {nodes} nodes, {volumes} volumes: memory | {} |", text(&memory));
}

fn text(memory: &Memory) -> String {
    format!(
        "working set {:.1} MiB, at most {:.1} MiB; resident {:.1} MiB anonymous and {:.1} MiB of files",
        memory.working_set, memory.peak, memory.anonymous, memory.files
    )
}

async fn listed(client: &ControllerClient<Channel>, volumes: usize, running: &Running) {
    eventually("all volumes are listed", 60, async || {
        let answer = client.clone().list_volumes(ListVolumesRequest::default()).await;
        match answer {
            Ok(answer) if answer.get_ref().entries.len() == volumes => Ok(()),
            Ok(answer) => Err(format!("{} volumes", answer.get_ref().entries.len())),
            Err(status) => Err(format!("{status}\n{}", running.process.tail())),
        }
    })
    .await;
}

/// The node plugin after its start and some calls.
async fn node_plugin() {
    let workdir = Workdir::new("csi-bench-node").unwrap();
    let folder = workdir.path().join("sys/class/dmi/id");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("product_serial"), SERIAL).unwrap();
    let memory = MemoryGroup::new(&PROGRAM, 1 << 30).ok();
    let program = memory.as_ref().map_or(PROGRAM.clone(), MemoryGroup::program);
    let socket = workdir.path().join("csi.sock");
    let arguments = [
        "node".to_owned(),
        format!("--endpoint=unix://{}", socket.display()),
        format!("--plugins-registry={}", workdir.path().join("registry").display()),
        format!("--sys-root={}", workdir.path().join("sys").display()),
        "--node-name=n1".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        "--port=0".to_owned(),
        "--topology=false".to_owned(),
        "--volume-limit=false".to_owned(),
    ];
    let process = Process::spawn(&program, "node", arguments, &[], &workdir).unwrap();
    let running = Running { process, memory, socket };
    let channel = eventually("the node plugin serves", 60, async || {
        let endpoint = format!("unix:{}", running.socket.display());
        Endpoint::try_from(endpoint).unwrap().connect().await
    })
    .await;
    for _ in 0..100 {
        NodeClient::new(channel.clone()).node_get_info(NodeGetInfoRequest {}).await.unwrap();
    }
    running.process.until_idle().await;
    println!("| node plugin: memory | {} |", text(&running.memory()));
}
