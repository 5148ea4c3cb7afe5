//! The rollout of the operator itself, with the real scheduler and Deployment controller, on one, two and three nodes.
//! KWOK simulates nodes and pods: no container runs.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node as KubeNode, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{EvictParams, ListParams, Patch, PatchParams},
};
use plan::ObjectId;
use serde_json::json;
use testkit::{ControlPlane, Fate, Node, Nodes, eventually};
use tokio::task::JoinSet;

const NAMESPACE: &str = "vmware-system-vdo";

/// Applies the install manifest with this release of the operator.
async fn install(client: &Client, release: &str) {
    let apply = PatchParams::apply("test").force();
    for mut object in operator::install::objects() {
        let id = ObjectId::from_object(&object);
        if id.kind == "Deployment" {
            let template = &mut object.0["spec"]["template"];
            template["metadata"]["labels"]["app.kubernetes.io/version"] = json!(release);
            let apart = &mut template["spec"]["affinity"]["podAntiAffinity"];
            let same = &mut apart["preferredDuringSchedulingIgnoredDuringExecution"][0];
            let same = &mut same["podAffinityTerm"]["labelSelector"]["matchLabels"];
            same["app.kubernetes.io/version"] = json!(release);
            let container = &mut template["spec"]["containers"][0];
            container["image"] = json!(format!("registry.example.com/vdo:{release}"));
        }
        let api = operator::act::api_of(client, &id).unwrap();
        api.patch(&id.name, &apply, &Patch::Apply(&object.0)).await.unwrap();
    }
}

async fn pods(client: &Client) -> Vec<Pod> {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let all = pods.list(&ListParams::default()).await.unwrap().items;
    all.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default()
}

/// Waits until exactly two pods of this release exist and are ready; returns their nodes.
async fn complete(client: &Client, release: &str) -> Vec<String> {
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    eventually(&format!("release {release} is rolled out"), 120, async || {
        let deployment = deployments.get("vdo").await.map_err(|error| error.to_string())?;
        let status = deployment.status.unwrap_or_default();
        let seen = status.observed_generation == deployment.metadata.generation;
        let all = pods(client).await;
        let of_release = |pod: &&Pod| {
            let containers = &pod.spec.as_ref().unwrap().containers;
            containers[0].image.as_deref().unwrap().ends_with(&format!(":{release}"))
        };
        let new: Vec<&Pod> = all.iter().filter(of_release).filter(|pod| is_ready(pod)).collect();
        if seen && new.len() == 2 && all.len() == 2 && status.updated_replicas == Some(2) {
            Ok(new.into_iter().map(node_of).collect())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await
}

/// Records the smallest number of ready pods until it is dropped.
struct MinReadyPods {
    seen: Arc<AtomicUsize>,
    _watching: JoinSet<()>,
}

impl MinReadyPods {
    fn watch(client: &Client) -> Self {
        let (client, seen) = (client.clone(), Arc::new(AtomicUsize::new(usize::MAX)));
        let mut watching = JoinSet::new();
        let noted = seen.clone();
        watching.spawn(async move {
            loop {
                let ready = pods(&client).await.iter().filter(|pod| is_ready(pod)).count();
                noted.fetch_min(ready, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        });
        Self { seen, _watching: watching }
    }

    fn count(&self) -> usize {
        let seen = self.seen.load(Ordering::SeqCst);
        assert_ne!(seen, usize::MAX, "nobody counted");
        seen
    }
}

async fn cordon(client: &Client, node: &str, unschedulable: bool) {
    let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
    let nodes = Api::<KubeNode>::all(client.clone());
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}

/// Like `kubectl drain`, which refuses pods with an `emptyDir` unless it is forced.
async fn drain(client: &Client, node: &str) {
    cordon(client, node, true).await;
    let api = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    eventually("the node is drained", 60, async || {
        let here: Vec<Pod> =
            pods(client).await.into_iter().filter(|p| node_of(p) == node).collect();
        for pod in &here {
            let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
            let local = volumes.into_iter().flatten().any(|volume| volume.empty_dir.is_some());
            assert!(!local, "kubectl drain would refuse {}", pod.name_any());
            api.evict(&pod.name_any(), &EvictParams::default()).await.map_err(|e| e.to_string())?;
        }
        if here.is_empty() { Ok(()) } else { Err("pods are left".to_owned()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_finishes_on_one_two_and_three_nodes_and_each_can_be_drained() {
    let plane = ControlPlane::builder().with_controllers().start().await;
    let nodes = Nodes::start(&plane).await;
    let client = plane.client();
    nodes.add(Node::named("node-1").uninitialized()).await;
    // No image of the operator runs there.
    nodes.add(Node::named("windows-1").windows()).await;
    install(&client, "1").await;
    complete(&client, "1").await;
    for count in 1..=3_usize {
        if count > 1 {
            nodes.add(Node::named(&format!("node-{count}")).uninitialized()).await;
        }
        for round in ["a", "b"] {
            let release = format!("{count}{round}");
            let fewest = MinReadyPods::watch(&client);
            install(&client, &release).await;
            let places: BTreeSet<String> = complete(&client, &release).await.into_iter().collect();
            assert!(fewest.count() >= 2, "{} pods were ready on {count} nodes", fewest.count());
            assert_eq!(places.len(), count.min(2), "on {count} nodes they are on {places:?}");
        }
        drain(&client, "node-1").await;
        if count > 1 {
            complete(&client, &format!("{count}b")).await;
        }
        cordon(&client, "node-1", false).await;
        complete(&client, &format!("{count}b")).await;
    }

    // The pods prefer control-plane nodes, and different nodes: with one of them, the other pod is on a worker.
    for count in 1..=2_usize {
        let name = format!("control-{count}");
        nodes.add(Node::named(&name).control_plane().uninitialized()).await;
        for round in ["a", "b"] {
            let release = format!("c{count}{round}");
            install(&client, &release).await;
            let places: BTreeSet<String> = complete(&client, &release).await.into_iter().collect();
            let controls = places.iter().filter(|node| node.starts_with("control-")).count();
            assert_eq!((places.len(), controls), (2, count), "{places:?}");
        }
    }

    // A release that never becomes ready replaces no ready pod.
    nodes.pods("vdo:broken", Fate::Crashes);
    let fewest = MinReadyPods::watch(&client);
    install(&client, "broken").await;
    eventually("a pod of the broken release crashes", 60, async || {
        let all = pods(&client).await;
        let crashed = all.iter().filter(|pod| {
            let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
            statuses.into_iter().any(|status| status.restart_count > 0)
        });
        if crashed.count() == 1 { Ok(()) } else { Err(format!("{} pods", all.len())) }
    })
    .await;
    assert_eq!(pods(&client).await.len(), 3, "one surge pod, and no ready pod less");
    assert!(fewest.count() >= 2);
}
