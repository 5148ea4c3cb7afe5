//! A cluster without Internet access: all images come from a mirror that requires credentials.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use testkit::Registry;
use tokio::time::Instant;

use crate::{
    cluster::{CLOUD_CONTROLLER, Cluster, NAMESPACE, OPERATOR, cloud_provider, text, unwrapped},
    is_ready,
};

const USER: &str = "puller";
const PASSWORD: &str = "the password of the mirror";

fn pull_secrets(pod: &Pod) -> Vec<String> {
    let secrets = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    secrets.into_iter().map(|secret| secret.name.clone()).collect()
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn operator_and_drivers_come_from_a_mirror_that_requires_credentials() {
    let cluster = Cluster::with_nodes(1).await;
    let image = cluster.registry.push_own("vdo");
    cluster.registry.push_own("vdo-cloud-controller");
    cluster.registry.require_account(USER, PASSWORD);

    let began = Instant::now();
    let refused = cluster.vdoctl(&["deploy", "--image", &image]).await;
    let shown = unwrapped(&text(&refused));
    assert!(!refused.status.success(), "{shown}");
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}: {shown}", began.elapsed());
    assert!(shown.contains("the registry requires credentials"), "{shown}");
    assert!(shown.contains("--pull-secret NAME"), "{shown}");

    // As skopeo, podman and docker write it.
    let login = |password: &str| {
        let auth = STANDARD.encode(format!("{USER}:{password}"));
        let file = json!({"auths": {Registry::HOST: {"auth": auth}}}).to_string();
        cluster.workdir.write("auth.json", file).unwrap();
    };
    let deploy = ["deploy", "--image", &image, "--pull-secret", "registry"];
    let deploy = [&deploy[..], &["--pull-secret-file", "auth.json"]].concat();
    login("another password");
    let refused = cluster.vdoctl(&deploy).await;
    let shown = unwrapped(&text(&refused));
    assert!(!refused.status.success(), "{shown}");
    assert!(shown.contains("the registry requires credentials"), "{shown}");
    assert!(!shown.contains("another password"), "{shown}");

    login(PASSWORD);
    let shown = cluster.does(&deploy).await;
    assert!(!shown.contains(PASSWORD), "{shown}");
    let images = json!({"registry": Registry::HOST, "pullSecrets": ["registry"]});
    cluster.configure(json!({"cloudProvider": cloud_provider(), "images": images})).await;
    for (namespace, selector) in [(NAMESPACE, OPERATOR), ("kube-system", CLOUD_CONTROLLER)] {
        let pods = cluster.pods(namespace, selector).await;
        assert!(!pods.is_empty() && pods.iter().all(is_ready), "{selector}: {pods:?}");
        assert!(pods.iter().all(|pod| pull_secrets(pod) == ["registry"]), "{selector}: {pods:?}");
    }
}
