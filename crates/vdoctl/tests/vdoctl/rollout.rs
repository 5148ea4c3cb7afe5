//! `vdoctl deploy` waits for the new version and reports why it does not start. Scheduler, quota and Deployment
//! controller are real; KWOK simulates the kubelet.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Node, Pod, ResourceQuota},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::{Fate, eventually};

use crate::stage::{CommandOutput, NAMESPACE, Stage};

/// Deploys an image that does not start, with this timeout in seconds.
async fn refused(stage: &Stage, image: &str, timeout: &str) -> CommandOutput {
    let image = format!("registry.example.com/vdo:{image}");
    let output = stage.vdoctl_alongside(&["deploy", "--image", &image, "--timeout", timeout]).await;
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("✖ Start the operator"), "{}", output.all());
    assert_eq!(ready(stage).await, 2, "the version before it runs: {}", output.all());
    output
}

/// Compares the output without its line breaks.
fn says(output: &CommandOutput, words: &str) {
    let flat = output.err.replace(['│', '×'], " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(words), "{words}: {}", output.all());
}

async fn ready(stage: &Stage) -> usize {
    let pods = Api::<Pod>::namespaced(stage.plane.client(), NAMESPACE);
    let pods = pods.list(&ListParams::default()).await.unwrap();
    let ready = pods.into_iter().filter(|pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
    });
    ready.count()
}

async fn cordon(stage: &Stage, closed: bool) {
    let nodes = Api::<Node>::all(stage.plane.client());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": closed}}));
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        nodes.patch(&node.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }
}

/// Waits until all pods use this image.
async fn settled(stage: &Stage, image: &str) {
    let pods = Api::<Pod>::namespaced(stage.plane.client(), NAMESPACE);
    eventually("only the new version is left", 60, async || {
        let all = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let images = all.items.iter().flat_map(|pod| &pod.spec.as_ref().unwrap().containers);
        let images: Vec<_> = images.filter_map(|container| container.image.clone()).collect();
        let new = images.len() == 2 && images.iter().all(|one| one.ends_with(image));
        if new { Ok(()) } else { Err(format!("{images:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_does_not_start_is_reported_and_replaces_nothing() {
    let stage = Stage::set().await;
    stage.nodes.pods("vdo:no-image", Fate::ImagePullFails);
    stage.nodes.pods("vdo:crashes", Fate::CrashesSaying("panic: index out of range"));
    stage.nodes.pods("vdo:pending", Fate::Pending);
    let output =
        stage.vdoctl_alongside(&["deploy", "--image", "registry.example.com/vdo:works"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(output.err.contains("✔ Start the operator  2 of 2 pods"), "{}", output.all());

    // Long before the timeout.
    let begin = tokio::time::Instant::now();
    let output = refused(&stage, "no-image", "300").await;
    assert!(begin.elapsed().as_secs() < 60 + 30, "{:?}: {}", begin.elapsed(), output.all());
    says(&output, "does not start: ImagePullBackOff: Back-off pulling image");
    says(&output, "the previous version keeps running");
    says(&refused(&stage, "crashes", "90").await, "Error, exit code 1: panic: index out of range");

    cordon(&stage, true).await;
    says(&refused(&stage, "no-place", "90").await, "fits on no node: 0/3 nodes are available");
    cordon(&stage, false).await;
    settled(&stage, "no-place").await;

    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}});
    let quota: ResourceQuota = serde_json::from_value(quota).unwrap();
    let quotas = Api::<ResourceQuota>::namespaced(stage.plane.client(), NAMESPACE);
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    eventually("the quota is enforced", 60, async || {
        let quota = quotas.get("few").await.map_err(|error| error.to_string())?;
        let used = quota.status.and_then(|status| status.used);
        used.filter(|used| used.get("pods").is_some_and(|pods| pods.0 == "2"))
            .ok_or("not yet".to_owned())
    })
    .await;
    says(&refused(&stage, "over-quota", "90").await, "exceeded quota: few");
    quotas.delete("few", &DeleteParams::default()).await.unwrap();

    // No error is known, but the timeout expires.
    let image = "registry.example.com/vdo:pending";
    let output = stage.vdoctl_alongside(&["deploy", "--image", image, "--timeout", "5"]).await;
    assert_eq!(output.code, 4, "{}", output.all());
    says(&output, "the operator did not start within 5 seconds");

    // After the fix, the same command succeeds.
    let output =
        stage.vdoctl_alongside(&["deploy", "--image", "registry.example.com/vdo:works"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    let deployments = Api::<Deployment>::namespaced(stage.plane.client(), NAMESPACE);
    let status = deployments.get("vdo").await.unwrap().status.unwrap();
    assert_eq!((status.updated_replicas, status.replicas), (Some(2), Some(2)));
}

/// The pod security level of the operator's namespace.
async fn level(stage: &Stage) -> String {
    let namespaces = Api::<Namespace>::all(stage.plane.client());
    let namespace = namespaces.get(NAMESPACE).await.unwrap();
    namespace.labels()["pod-security.kubernetes.io/enforce"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_move_to_the_pod_network_leaves_a_version_that_kubernetes_can_replace() {
    let stage = Stage::set().await;
    stage.nodes.pods("vdo:no-image", Fate::ImagePullFails);
    let deploy = async |image: &str, network: &str| {
        let image = format!("registry.example.com/vdo:{image}");
        let arguments = ["deploy", "--image", &image, "--host-network", network, "--timeout", "60"];
        stage.vdoctl_alongside(&arguments).await
    };
    let output = deploy("works", "always").await;
    assert_eq!(output.code, 0, "{}", output.all());
    // The second attempt finds a Deployment on the pod network, whose earlier pods use the host network.
    for attempt in 1..=2 {
        let output = deploy("no-image", "never").await;
        assert_eq!(output.code, 1, "{}", output.all());
        assert_eq!(level(&stage).await, "privileged", "attempt {attempt}: {}", output.all());
    }
    let pods = Api::<Pod>::namespaced(stage.plane.client(), NAMESPACE);
    let all = pods.list(&ListParams::default()).await.unwrap().items;
    let on_host = |pod: &&Pod| pod.spec.as_ref().unwrap().host_network == Some(true);
    let lost = all.iter().find(on_host).unwrap().name_any();
    pods.delete(&lost, &DeleteParams::default()).await.unwrap();
    eventually("the lost pod has a successor", 60, async || {
        let all = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let is_gone = all.iter().all(|pod| pod.name_any() != lost);
        let count = ready(&stage).await;
        if is_gone && count == 2 { Ok(()) } else { Err(format!("{count} pods are ready")) }
    })
    .await;

    let output = deploy("works", "never").await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert_eq!(level(&stage).await, "restricted");
}
