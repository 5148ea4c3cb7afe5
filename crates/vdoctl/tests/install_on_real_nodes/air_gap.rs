//! A cluster without Internet access: all images come from a mirror that requires credentials.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use testkit::Registry;
use tokio::time::Instant;

use crate::{
    cluster::{
        CLOUD_CONTROLLER, Cluster, NAMESPACE, OPERATOR, TIMEOUT, cloud_provider, text, unwrapped,
    },
    is_ready,
};

pub(crate) const USER: &str = "puller";
pub(crate) const PASSWORD: &str = "the password of the mirror";

/// The file with the login to a registry, as skopeo, podman and docker write it.
pub(crate) fn login_file(registry: &str, password: &str) -> String {
    let auth = STANDARD.encode(format!("{USER}:{password}"));
    json!({"auths": {registry: {"auth": auth}}}).to_string()
}

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

    let login = |password: &str| {
        cluster.workdir.write("auth.json", login_file(Registry::HOST, password)).unwrap();
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

/// The nodes are in network namespaces of their own, with a route only to the registry of the site and to vCenter. The
/// first registry listens on the loopback address of another namespace, and is gone before the import.
#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn exported_and_imported_images_install_vdo_behind_an_air_gap() {
    let cluster = Cluster::with_nodes(1).await;
    let upstream = Registry::start().await;
    for name in ["vdo", "vdo-cloud-controller"] {
        upstream.push_own(name);
    }
    let (version, from) = (env!("CARGO_PKG_VERSION"), upstream.address().to_string());
    let export = ["images", "export", "--driver", "cpi", "--version", version, "-o", "bundle.tar"];
    cluster.does(&[&export[..], &["--from", &from, "--plain-http"]].concat()).await;
    drop(upstream);

    let site = cluster.registry.address().to_string();
    let import = ["images", "import", "bundle.tar", "--plain-http", "--registry", &site];
    let shown = unwrapped(&cluster.does(&import).await);
    assert!(shown.contains(&format!("registry: {site}")), "{shown}");
    // The command that vdoctl prints, with the name by which the nodes know the registry.
    let (_, image) = shown.split_once("vdoctl deploy --image ").unwrap();
    let image = image.split_whitespace().next().unwrap().replace(&site, Registry::HOST);
    cluster.does(&["deploy", "--image", &image, "--timeout", TIMEOUT]).await;
    let images = json!({"registry": Registry::HOST});
    let drivers = json!({"cloudProvider": cloud_provider(), "images": images});
    cluster.configure_with_present_images(drivers).await;
    for (namespace, selector) in [(NAMESPACE, OPERATOR), ("kube-system", CLOUD_CONTROLLER)] {
        let pods = cluster.pods(namespace, selector).await;
        assert!(!pods.is_empty() && pods.iter().all(is_ready), "{selector}: {pods:?}");
    }
}
