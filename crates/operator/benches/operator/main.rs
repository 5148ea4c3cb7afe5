//! Speed and size of the operator.
//!
//! `make bench ARGS=operator`, or `cargo bench -p operator --bench operator -- 5 1000` for clusters of these sizes, and
//! `-- 5000:20000 5000:20000:faulty` for clusters with this many volumes, healthy or all faulty. The latter run in a
//! cgroup with the memory limit of the Deployment, so they need root.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod volumes;

use std::time::Duration;

use api::VsphereCloudConfig;
use catalog::{Driver, Implementation, manifest::Profile};
use common::{NAMESPACE, Testbed};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::{Inventory, Vcenter, Vm, eventually};
use tokio::time::Instant;

/// How long the idle phase lasts.
const QUIET: Duration = Duration::from_mins(5);

#[tokio::main]
async fn main() {
    println!("| what | figure |\n|---|---|");
    let is_size = |text: &String| text.starts_with(|first: char| first.is_ascii_digit());
    let mut sizes: Vec<String> = std::env::args().skip(1).filter(is_size).collect();
    if sizes.is_empty() {
        sizes = ["5", "5000", "5000:20000", "5000:20000:faulty"].map(str::to_owned).to_vec();
    }
    for size in sizes {
        let mut parts = size.split(':');
        let mut number = || parts.next().and_then(|text| text.parse::<usize>().ok());
        match (number(), number()) {
            (Some(5), None) => small().await,
            (Some(nodes), None) => large(nodes).await,
            (Some(nodes), Some(count)) => {
                volumes::measure(nodes, count, size.ends_with(":faulty")).await;
            }
            _ => println!("| {size} | not a size |"),
        }
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

/// Five nodes: the time from the first object to Ready, memory and idle calls.
async fn small() {
    let mut testbed = Testbed::with_nodes(4).await;
    testbed.program = testkit::shipped("operator", "vdo");
    let operator = testbed.operator();
    let begin = Instant::now();
    testbed
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    testbed.ready(&operator, 120).await;
    println!("| 5 nodes: from the objects to Ready | {:.1} s |", begin.elapsed().as_secs_f64());
    let (calls, requests) = quiet(&testbed, &[&testbed.vcenter]).await;
    println!("| 5 nodes: memory | {} |", mebibytes(operator.memory().0));
    println!("| 5 nodes: vCenter calls in {QUIET:?} of quiet | {} |", calls.join(", "));
    println!("| 5 nodes: Kubernetes lists in {QUIET:?} of quiet | {requests} |");
}

/// Calls to vCenter and lists of the API server during the idle phase.
async fn quiet(testbed: &Testbed, vcenters: &[&Vcenter]) -> (Vec<String>, usize) {
    // Pending work finishes first.
    tokio::time::sleep(Duration::from_secs(15)).await;
    for vcenter in vcenters {
        vcenter.forget_calls().await;
    }
    let lists = || {
        let own = format!("system:serviceaccount:{NAMESPACE}:vdo");
        let events = testbed.plane.audit().into_iter();
        events
            .filter(|e| e["verb"] == "list" && e["impersonatedUser"]["username"] == own.as_str())
            .count()
    };
    let before = lists();
    tokio::time::sleep(QUIET).await;
    let mut calls = Vec::new();
    for vcenter in vcenters {
        calls.push(vcenter.calls().await.sum().to_string());
    }
    (calls, lists() - before)
}

/// Writes the Secret and the VsphereCloudConfig of a second vCenter.
async fn add_vcenter(client: &Client, vcenter: &Vcenter) {
    let secret = json!({
        "metadata": {"name": "vc-two-credentials", "namespace": NAMESPACE},
        "stringData": {"username": vcenter.user(), "password": vcenter.password()},
    });
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let config = json!({
        "metadata": {"name": "vc-two", "namespace": NAMESPACE},
        "spec": {
            "vcIp": vcenter.address().to_string(),
            "insecure": false,
            "thumbprint": vcenter.thumbprint_sha1(),
            "credentials": "vc-two-credentials",
            "datacenters": ["DC0"],
        },
    });
    let config: VsphereCloudConfig = serde_json::from_value(config).unwrap();
    let create = PostParams::default();
    Api::namespaced(client.clone(), NAMESPACE).create(&create, &secret).await.unwrap();
    Api::namespaced(client.clone(), NAMESPACE).create(&create, &config).await.unwrap();
}

/// A ready pod of the storage driver on every node, like the DaemonSet's.
async fn run_storage(client: &Client, vms: &[Vm]) {
    let catalog = catalog::embedded();
    let release = catalog.releases_of(Driver::Csi, Implementation::Upstream).last().unwrap();
    let rendered =
        catalog::manifest::render(release, &Profile::new("v1.36.0".parse().unwrap())).unwrap();
    let mut sets = rendered.objects.iter().filter(|object| object.kind() == "DaemonSet");
    let set = sets.find(|set| set.name() == "vsphere-csi-node").unwrap();
    let template = &set.0["spec"]["template"];
    let pods = Api::<Pod>::namespaced(client.clone(), set.namespace());
    let running = vms.iter().map(|vm| {
        let mut pod = template.clone();
        pod["metadata"]["name"] = json!(format!("vsphere-csi-node-{}", vm.name));
        pod["metadata"]["labels"]["controller-revision-hash"] = json!("6d4b75cb6d");
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": set.name(), "uid": "u",
            "controller": true,
        }]);
        pod["spec"]["nodeName"] = json!(vm.name);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pods = pods.clone();
        async move {
            pods.create(&PostParams::default(), &pod).await.unwrap();
            let kinds = ["PodScheduled", "Initialized", "ContainersReady", "Ready"];
            let conditions = kinds.map(|kind| json!({"type": kind, "status": "True"}));
            let status = json!({"status": {"phase": "Running", "conditions": conditions}});
            let (name, how) = (pod.name_any(), PatchParams::default());
            pods.patch_status(&name, &how, &Patch::Merge(status)).await.unwrap();
        }
    });
    stream::iter(running).buffer_unordered(32).collect::<Vec<()>>().await;
}

/// Many nodes and VMs on two vCenters: the time until all are observed, memory, and the time until one more is.
async fn large(size: usize) {
    let vms: Vec<Vm> = (1..=size).map(|number| Vm::numbered("node", number)).collect();
    let (here, there) = vms.split_at(size / 2);
    let mut testbed = Testbed::without_nodes_with_vms(here.to_vec()).await;
    testbed.program = testkit::shipped("operator", "vdo");
    let second = Vcenter::start(Inventory::small().vms(there.to_vec())).await;
    let client = testbed.client();
    add_vcenter(&client, &second).await;
    testkit::add_bare_nodes(&client, &vms).await;
    run_storage(&client, &vms).await;
    testbed.configure(json!({"cloudProvider": {"vsphereCloudConfigs": ["vc", "vc-two"]}})).await;

    let begin = Instant::now();
    let operator = testbed.operator();
    let seen = async |count: usize| {
        eventually("all nodes are seen", 300, async || {
            let status = testbed.config().await.status.unwrap_or_default();
            let nodes = status.cpi.and_then(|cpi| cpi.nodes_ready);
            let missing = status.findings.iter().any(|finding| finding.code == "VDO-1201");
            let verified = api::condition::is_true(&status.conditions, "VcenterReady");
            if nodes == i32::try_from(count).ok() && verified && !missing {
                Ok(())
            } else {
                Err(format!("{nodes:?}"))
            }
        })
        .await;
    };
    seen(size).await;
    println!(
        "| {size} nodes: all observed after the start | {:.1} s |",
        begin.elapsed().as_secs_f64()
    );
    let extra = Vm::numbered("extra", 1);
    testbed.vcenter.add_vms("DC0", [extra.clone()]).await;
    let begin = Instant::now();
    testkit::add_bare_nodes(&client, &[extra]).await;
    seen(size + 1).await;
    println!(
        "| {size} nodes: one more is reflected after | {:.1} s |",
        begin.elapsed().as_secs_f64()
    );
    let (calls, lists) = quiet(&testbed, &[&testbed.vcenter, &second]).await;
    let (now, most) = operator.memory();
    println!("| {size} nodes: memory, now and at most | {}, {} |", mebibytes(now), mebibytes(most));
    let calls = calls.join(", ");
    println!("| {size} nodes: calls of each vCenter in {QUIET:?} of quiet | {calls} |");
    println!("| {size} nodes: Kubernetes lists in {QUIET:?} of quiet | {lists} |");
}
