//! The memory of our pods on real nodes: the working set of the container's cgroup, as the kubelet computes it. The
//! upstream cloud controller runs as a pod on the same nodes, after ours. `make bench ARGS=nodes` starts it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench fails by panicking, and prints its result"
)]

#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/install_on_real_nodes/cluster.rs"]
mod cluster;

use std::{collections::BTreeMap, process::Command, time::Duration};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::{Registry, eventually};
use tokio::time::sleep;

use cluster::{Cluster, NAMESPACE, cloud_provider};

const UPSTREAM: &str = "cloud-provider-vsphere:bench";
const CLOUD_CONTROLLER: &str = "vsphere-cloud-controller-manager";
/// How long every program runs before and while it is measured.
const SETTLE: Duration = Duration::from_mins(2);
const SAMPLES: u32 = 30;
const SAMPLE_PAUSE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() {
    let images = Registry::own_images();
    let which = if std::env::var_os("VDO_TEST_IMAGES").is_some() {
        "as shipped"
    } else {
        "NOT as shipped: those of the tests, not optimised"
    };
    println!("images: {which} ({})", images.display());
    let cluster = Cluster::with_nodes(2).await;
    cluster.registry.push_own("vdo-csi");
    let storage = json!({"vsphereCloudConfig": "vcenter", "implementation": "Rust"});
    let drivers = json!({"cloudProvider": cloud_provider(), "storageProvider": storage});
    cluster.install_with(drivers).await;
    sleep(SETTLE).await;
    let ours = measure(&cluster, &["vdo", CLOUD_CONTROLLER, "vsphere-csi"]).await;
    let upstream = upstream(&cluster).await;

    println!("\n| pod, on 2 nodes | median | at most |\n|---|---|---|");
    for (name, samples) in ours.iter().chain(&upstream) {
        println!("| {name} | {} | {} |", mib(median(samples)), mib(*samples.iter().max().unwrap()));
    }
    println!(
        "\n{SAMPLES} readings, {SAMPLE_PAUSE:?} apart, {SETTLE:?} after the drivers were ready"
    );
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// The working sets of every container with one of these programs, by node and command.
async fn measure(cluster: &Cluster, programs: &[&str]) -> BTreeMap<String, Vec<u64>> {
    let mut samples = BTreeMap::<String, Vec<u64>>::new();
    for _ in 0..SAMPLES {
        for (node, program) in
            cluster.nodes.iter().flat_map(|n| programs.iter().map(move |p| (n, p)))
        {
            for (line, used) in node.working_sets(&format!("/{program}")) {
                let mut words = line.split(' ').skip(1).filter(|word| !word.starts_with('-'));
                let name =
                    format!("{} {program} {}", node.name(), words.next().unwrap_or_default());
                samples.entry(name.trim_end().to_owned()).or_default().push(used);
            }
        }
        sleep(SAMPLE_PAUSE).await;
    }
    samples
}

/// Replaces our cloud controller with the upstream one, which gets the same configuration, and measures it.
async fn upstream(cluster: &Cluster) -> BTreeMap<String, Vec<u64>> {
    push_upstream(cluster);
    let client = cluster.plane.client();
    let sets = Api::<DaemonSet>::namespaced(client.clone(), "kube-system");
    let spec = sets.get(CLOUD_CONTROLLER).await.unwrap().spec.unwrap().template.spec.unwrap();
    // VDO would install ours again.
    let configs = Api::<api::VDOConfig>::namespaced(client.clone(), NAMESPACE);
    let pause = Patch::Merge(json!({"spec": {"paused": true}}));
    configs.patch("vdo", &PatchParams::default(), &pause).await.unwrap();
    eventually("our cloud controller is gone", 60, async || {
        let _ = sets.delete(CLOUD_CONTROLLER, &Default::default()).await;
        let left = cluster.cloud_controllers().await.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} pods")) }
    })
    .await;

    let account = spec.service_account_name.clone().unwrap_or_default();
    let binding = json!({
        "metadata": {"name": "bench-upstream"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}],
    });
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    let binding = serde_json::from_value(binding).unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    // A node that the upstream controller has to initialise shows that it works.
    let nodes = Api::<Node>::all(client.clone());
    let mut pod = json!({"metadata": {"name": "upstream"}, "spec": spec});
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!(format!("{}/{UPSTREAM}", Registry::HOST));
    let flags = container["args"].as_array().unwrap().iter().filter_map(|flag| flag.as_str());
    let configuration = flags.filter(|flag| flag.starts_with("--cloud-config"));
    let flags = configuration.chain(["--cloud-provider=vsphere", "--v=2"]);
    container["args"] = json!(flags.collect::<Vec<_>>());
    for field in ["command", "env", "livenessProbe", "readinessProbe", "startupProbe", "ports"] {
        container.as_object_mut().unwrap().remove(field);
    }
    pod["spec"]["nodeName"] = json!(cluster.nodes[0].name());
    let pods = Api::<Pod>::namespaced(client, "kube-system");
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    eventually("the upstream cloud controller leads and has seen the nodes", 120, async || {
        let log = pods.logs("upstream", &Default::default()).await.unwrap_or_default();
        let names = nodes.list(&ListParams::default()).await.unwrap().items;
        let seen = names.iter().filter_map(|node| node.metadata.name.as_deref());
        if log.contains("acquired lease") && seen.count() == cluster.nodes.len() {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    sleep(SETTLE).await;
    let status = pods.get("upstream").await.unwrap().status.unwrap();
    let restarts = status.container_statuses.unwrap()[0].restart_count;
    assert_eq!(restarts, 0, "the upstream cloud controller restarted");
    let measured = measure(cluster, &[CLOUD_CONTROLLER]).await;
    assert_eq!(measured.len(), 1, "{measured:?}");
    measured.into_iter().map(|(name, samples)| (format!("{name} (upstream)"), samples)).collect()
}

fn push_upstream(cluster: &Cluster) {
    let program = testkit::peer(CLOUD_CONTROLLER);
    let layer = cluster.workdir.path().join("upstream.tar");
    let packed = Command::new("tar")
        .args(["--owner=0", "--group=0", "--mode=0755", "-C"])
        .arg(program.parent().unwrap())
        .arg("-cf")
        .arg(&layer)
        .arg(CLOUD_CONTROLLER)
        .status()
        .unwrap();
    assert!(packed.success());
    let entry = format!("/{CLOUD_CONTROLLER}");
    cluster.registry.push_layer(&layer, UPSTREAM, &["--entrypoint", &entry]).unwrap();
}
