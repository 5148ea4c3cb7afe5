//! Faults of registry, images, nodes and API server, one after the other on one cluster: VDO recovers by itself, or
//! vdoctl names the cause.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::DaemonSet, coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, LogParams, PostParams},
};
use serde_json::json;
use testkit::{RealNode, eventually};
use tokio::time::Instant;

use crate::{
    cluster::{Cluster, NAMESPACE, OPERATOR, TIMEOUT, cloud_provider, text, unwrapped},
    is_ready,
};

/// Larger than the images and the files of pods; it is sparse.
const NODE_DISK: u64 = 8 << 30;
/// The DaemonSet of the cloud controller.
const CLOUD_CONTROLLERS: &str = "vsphere-cloud-controller-manager";

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn every_bad_day_ends_in_recovery_or_in_a_named_cause() {
    let mut cluster = Cluster::with_node_disks(2, NODE_DISK).await;
    let image = cluster.registry.push_own("vdo");
    cluster.registry.push_own("vdo-cloud-controller");

    passed("the registry is unreachable", registry_unreachable(&cluster, &image)).await;
    passed("the kubelets restart during the installation", kubelets_restart(&cluster, &image))
        .await;
    passed("an image for another architecture", other_architecture(&cluster)).await;
    passed("an image with another digest", other_digest(&cluster, &image)).await;
    passed("the registry never answers", registry_silent(&cluster)).await;
    passed("back to the first image", deploys(&cluster, &image)).await;
    passed("the clock of the operator is wrong", clock_skewed(&cluster, &image)).await;
    passed("the disks of the nodes are full", disks_full(&cluster, &image)).await;
    passed("the leader's node is drained", leader_drained(&cluster)).await;
    passed("the leader crashes", leader_crashes(&cluster)).await;
    passed("containerd is killed", containerd_killed(&cluster)).await;
    passed("the API server restarts", api_server_restarts(&cluster)).await;
    passed("the leader's node loses its network", leader_cut(&cluster)).await;
    passed("a node loses its power", power_lost(&mut cluster)).await;
}

async fn passed(name: &str, scenario: impl Future<Output = ()>) {
    let began = Instant::now();
    println!("{name} ...");
    scenario.await;
    println!("{name}: ok after {:.1?}", began.elapsed());
}

/// Deploys an image that cannot run. Returns what vdoctl reports within a minute.
async fn refused(cluster: &Cluster, image: &str) -> String {
    let began = Instant::now();
    let output = cluster.vdoctl(&["deploy", "--image", image]).await;
    let shown = unwrapped(&text(&output));
    assert!(!output.status.success(), "{shown}");
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}: {shown}", began.elapsed());
    println!("{}", shown.rsplit("✖").next().unwrap_or_default());
    shown
}

async fn deploys(cluster: &Cluster, image: &str) {
    cluster.does(&["deploy", "--image", image, "--timeout", TIMEOUT]).await;
    is_healthy(cluster).await;
}

async fn is_healthy(cluster: &Cluster) {
    let shown = cluster.does(&["status", "--wait", "--timeout", TIMEOUT]).await;
    assert!(shown.contains("● Healthy"), "{shown}");
}

async fn registry_unreachable(cluster: &Cluster, image: &str) {
    cluster.registry.cut();
    let shown = refused(cluster, image).await;
    assert!(shown.contains("the node cannot reach the registry"), "{shown}");
    cluster.registry.heal();
}

async fn kubelets_restart(cluster: &Cluster, image: &str) {
    let restarts = async {
        eventually("a pod of the operator is on a node", 60, async || {
            let pods = cluster.pods(NAMESPACE, OPERATOR).await;
            let placed = pods.iter().any(|pod| node_of(pod).is_some());
            if placed { Ok(()) } else { Err("no pod is on a node") }
        })
        .await;
        cluster.nodes.iter().for_each(RealNode::kill_kubelet);
    };
    let deploy = ["deploy", "--image", image, "--timeout", TIMEOUT];
    tokio::join!(cluster.does(&deploy), restarts);
    eventually("the kubelets run again", 60, async || {
        let runs = |node: &&RealNode| !node.proc_files("kubelet", "comm").is_empty();
        match cluster.nodes.iter().find(|node| !runs(node)) {
            None => Ok(()),
            Some(node) => Err(format!("no kubelet runs on {}", node.name())),
        }
    })
    .await;
    let configure = cluster.configure(json!({"cloudProvider": cloud_provider()}));
    let restart = async { cluster.nodes.iter().for_each(RealNode::kill_kubelet) };
    tokio::join!(configure, restart);
}

async fn other_architecture(cluster: &Cluster) {
    let other = if cfg!(target_arch = "aarch64") { "linux/amd64" } else { "linux/arm64" };
    let image = cluster.registry.push_for_platform("vdo", "other-architecture", other);
    let shown = refused(cluster, &image).await;
    assert!(shown.contains("no variant for the architecture of the node"), "{shown}");
    assert!(shown.contains("the previous version keeps running"), "{shown}");
}

async fn other_digest(cluster: &Cluster, image: &str) {
    let newer = cluster.registry.push_variant("vdo", "newer");
    cluster.registry.manipulate(&newer, image);
    let shown = refused(cluster, &newer).await;
    assert!(shown.contains("serves other content than the digest"), "{shown}");
    cluster.registry.heal();
}

/// The runtime gives up after five minutes, so until then nothing but the pull itself is known.
async fn registry_silent(cluster: &Cluster) {
    let newer = cluster.registry.push_variant("vdo", "from-a-silent-registry");
    cluster.registry.fall_silent();
    let output = cluster.vdoctl(&["deploy", "--image", &newer, "--timeout", "60"]).await;
    let shown = unwrapped(&text(&output));
    assert!(!output.status.success(), "{shown}");
    assert!(shown.contains("the registry has not delivered it to node-"), "{shown}");
    assert!(shown.contains(&format!("Pulling image \"{newer}\"")), "{shown}");
    assert!(shown.contains("the previous version keeps running"), "{shown}");
    cluster.registry.heal();
}

/// An operator whose clock is wrong goes on, and names the cause. Its standby has the same clock: a lease depends on
/// neither.
async fn clock_skewed(cluster: &Cluster, image: &str) {
    let ahead = Duration::from_mins(150);
    let skewed = cluster.registry.push_with_clock_ahead("vdo", "skewed", ahead);
    cluster.does(&["deploy", "--image", &skewed, "--timeout", TIMEOUT]).await;
    eventually("the finding about the clock is reported", 60, async || {
        let shown = unwrapped(&text(&cluster.vdoctl(&["status"]).await));
        let is_named = shown.contains("VDO-1309") && shown.contains("its clock is 2 hours behind");
        let runs = shown.contains("Cloud provider Ready");
        if is_named && runs { Ok(()) } else { Err(shown) }
    })
    .await;
    deploys(cluster, image).await;
    let shown = text(&cluster.vdoctl(&["status"]).await);
    assert!(!shown.contains("VDO-1309"), "{shown}");
}

/// The kubelets evict pods and take no others. VDO is back when there is space again.
async fn disks_full(cluster: &Cluster, image: &str) {
    cluster.nodes.iter().for_each(RealNode::fill_disk);
    for node in &cluster.nodes {
        has_disk_pressure(cluster, node, "True").await;
    }
    let newer = cluster.registry.push_variant("vdo", "for-full-disks");
    let shown = refused(cluster, &newer).await.to_lowercase();
    assert!(shown.contains("disk-pressure") || shown.contains("diskpressure"), "{shown}");
    cluster.nodes.iter().for_each(RealNode::free_disk);
    for node in &cluster.nodes {
        has_disk_pressure(cluster, node, "False").await;
    }
    deploys(cluster, image).await;
}

async fn has_disk_pressure(cluster: &Cluster, node: &RealNode, expected: &str) {
    eventually("the kubelet reports the state of the disk", 90, async || {
        let status = cluster.node(node.name()).await.status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        let pressure = conditions.find(|condition| condition.type_ == "DiskPressure").unwrap();
        if pressure.status == expected { Ok(()) } else { Err(format!("{pressure:?}")) }
    })
    .await;
}

async fn leader_drained(cluster: &Cluster) {
    let (leader, node) = leader(cluster).await;
    node.drain(&cluster.plane).await;
    another_leads(cluster, &leader).await;
    is_healthy(cluster).await;
    node.uncordon(&cluster.plane).await;
}

/// Its container restarts in the same pod and knows that the leader is dead, so it need not wait for the lease.
async fn leader_crashes(cluster: &Cluster) {
    let (leader, node) = leader(cluster).await;
    has_standby_elsewhere(cluster, &leader, node).await;
    let before = cluster.restarts(NAMESPACE, OPERATOR).await;
    node.kill("vdo");
    let pods = Api::<Pod>::namespaced(cluster.plane.client(), NAMESPACE);
    eventually("the container restarts and resumes the lease", 60, async || {
        let log = pods.logs(&leader, &LogParams::default()).await.map_err(|e| e.to_string())?;
        if log.contains("crashed: resuming its lease") { Ok(()) } else { Err(log) }
    })
    .await;
    // The next scenario counts the restarts.
    eventually("the kubelet reports the restart", 60, async || {
        let now = cluster.restarts(NAMESPACE, OPERATOR).await;
        if now == before { Err(format!("{now:?}")) } else { Ok(()) }
    })
    .await;
    is_healthy(cluster).await;
}

/// The pods go on, and the node takes new ones.
async fn containerd_killed(cluster: &Cluster) {
    let before = cluster.restarts(NAMESPACE, OPERATOR).await;
    let node = &cluster.nodes[1];
    node.kill_containerd();
    let pods = Api::<Pod>::default_namespaced(cluster.plane.client());
    let pod = json!({"metadata": {"name": "pause"}, "spec": {
        "nodeName": node.name(),
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "pause", "image": "registry.test/pause:1"}],
    }});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    eventually("a new pod runs on the node", 60, async || {
        let status = pods.get("pause").await.unwrap().status.unwrap_or_default();
        if status.phase.as_deref() == Some("Running") { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    pods.delete("pause", &DeleteParams::default()).await.unwrap();
    assert_eq!(cluster.restarts(NAMESPACE, OPERATOR).await, before, "the pods go on");
    is_healthy(cluster).await;
}

/// The operator leads again, and its watches work: it re-creates the cloud controller that somebody deletes.
async fn api_server_restarts(cluster: &Cluster) {
    cluster.plane.restart_api_server().await;
    let leases = Api::<Lease>::namespaced(cluster.plane.client(), "kube-system");
    let renewed = async || {
        let lease = leases.get("vdo-leader").await.map_err(|error| error.to_string())?;
        Ok::<_, String>(lease.spec.and_then(|spec| spec.renew_time).map(|time| time.0))
    };
    let before = renewed().await.unwrap();
    eventually("a pod of the operator leads", 60, async || {
        let now = renewed().await?;
        if now > before { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;

    let sets = Api::<DaemonSet>::namespaced(cluster.plane.client(), "kube-system");
    let set = sets.get(CLOUD_CONTROLLERS).await.unwrap().metadata.uid;
    sets.delete(CLOUD_CONTROLLERS, &DeleteParams::default()).await.unwrap();
    eventually("VDO re-creates the cloud controller", 60, async || {
        let now = sets.get_opt(CLOUD_CONTROLLERS).await.unwrap();
        let uid = now.and_then(|set| set.metadata.uid);
        if uid.is_some() && uid != set { Ok(()) } else { Err(format!("{uid:?}")) }
    })
    .await;
    is_healthy(cluster).await;
}

async fn leader_cut(cluster: &Cluster) {
    let (leader, node) = leader(cluster).await;
    has_standby_elsewhere(cluster, &leader, node).await;
    node.cut();
    another_leads(cluster, &leader).await;
    node.heal();
    is_healthy(cluster).await;
}

/// The scheduler separates pods that start, and leaves alone those that run: the standby starts again.
async fn has_standby_elsewhere(cluster: &Cluster, leader: &str, node: &RealNode) {
    let pods = Api::<Pod>::namespaced(cluster.plane.client(), NAMESPACE);
    for pod in cluster.operators().await.iter().filter(|pod| pod.name_any() != leader) {
        if node_of(pod) == Some(node.name()) {
            pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
        }
    }
    eventually("a standby is ready on another node", 60, async || {
        let pods = cluster.operators().await;
        let mut elsewhere = pods.iter().filter(|pod| node_of(pod) != Some(node.name()));
        if elsewhere.any(is_ready) { Ok(()) } else { Err("no standby on another node") }
    })
    .await;
}

async fn power_lost(cluster: &mut Cluster) {
    let (leader, node) = leader(cluster).await;
    has_standby_elsewhere(cluster, &leader, node).await;
    let before = cluster.restarts(NAMESPACE, OPERATOR).await;
    cluster.nodes[1].power_off();
    cluster.nodes[1].power_on(&cluster.plane).await;
    cluster.reconnect_disks(1);
    eventually("the operator's pods are ready, and one has started again", 90, async || {
        let now = cluster.restarts(NAMESPACE, OPERATOR).await;
        let pods = cluster.operators().await;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        if ready == 2 && now != before { Ok(()) } else { Err(format!("{ready} ready: {now:?}")) }
    })
    .await;
    is_healthy(cluster).await;
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

async fn holder(cluster: &Cluster) -> Result<String, String> {
    let leases = Api::<Lease>::namespaced(cluster.plane.client(), "kube-system");
    let lease = leases.get("vdo-leader").await.map_err(|error| error.to_string())?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    // The identity is the namespace of the pod, its name and a random number.
    let pod = holder.rsplit_once('_').and_then(|(pod, _)| pod.rsplit('/').next());
    pod.map(str::to_owned).ok_or_else(|| format!("nobody leads: {holder}"))
}

/// The pod that leads, and its node. A pod that ends can lead for a moment: it does not count.
async fn leader(cluster: &Cluster) -> (String, &RealNode) {
    let (leader, node) = eventually("a pod leads", 60, async || {
        let leader = holder(cluster).await?;
        let pods = cluster.operators().await;
        let pod = pods.iter().find(|pod| pod.name_any() == leader);
        let node = pod.and_then(node_of).map(str::to_owned);
        node.map(|node| (leader.clone(), node)).ok_or_else(|| format!("{leader} is gone"))
    })
    .await;
    let node = cluster.nodes.iter().find(|one| one.name() == node).unwrap();
    (leader, node)
}

async fn another_leads(cluster: &Cluster, before: &str) {
    eventually("another pod leads", 60, async || match holder(cluster).await? {
        now if now == before => Err(format!("{now} still leads")),
        _ => Ok(()),
    })
    .await;
}
