//! Every way to install VDO leads to Ready pods on a real node. Each way follows the one before it, as the pages about
//! installing describe the switch: the drivers do not notice, and no object of the user goes.
//!
//! OLM's controllers do not run: the test applies the objects of the bundle, and those that OLM creates from its
//! ClusterServiceVersion.

use std::{fs, path::Path, process::Command};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use testkit::eventually;

use crate::{
    cluster::{Cluster, TIMEOUT, cloud_provider, text},
    is_ready,
};

/// The image in the manifests.
const PUBLISHED: &str = concat!("ghcr.io/vmware-tanzu/vdo:", env!("CARGO_PKG_VERSION"));
const APPLY: &str = "kubectl apply --server-side --force-conflicts";
const FORGET_RELEASE: &str =
    "kubectl delete secret --namespace vmware-system-vdo --selector owner=helm,name=vdo";

/// Runs commands with kubectl and helm, in the folder of the cluster's user.
async fn shell(cluster: &Cluster, script: &str) -> String {
    let folders = [testkit::peer("helm"), testkit::peer("kubectl")];
    let folders = folders.iter().filter_map(|program| program.parent()).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", script]).current_dir(cluster.workdir.path());
    shell.env("PATH", path).env("HOME", cluster.workdir.path());
    shell.env("KUBECONFIG", cluster.plane.kubeconfig());
    // The connections of the nodes go through this process: it must not block.
    let output = tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{script}\n{}", text(&output));
    text(&output)
}

/// Waits for the pods of the Deployment, and until their operator has looked at the VDOConfig and finds it Ready.
async fn is_installed(cluster: &Cluster, way: &str, image: &str) {
    let rollout = "kubectl rollout status deployment/vdo --namespace vmware-system-vdo";
    shell(cluster, &format!("{rollout} --timeout={TIMEOUT}s")).await;
    let digest = image.split_once('@').unwrap().1;
    eventually(&format!("{way}: two pods of the new image"), 120, async || {
        let pods = cluster.operators().await;
        let images = pods.iter().filter(|pod| is_ready(pod)).map(|pod| {
            let status = pod.status.clone().unwrap().container_statuses.unwrap();
            status[0].image_id.clone()
        });
        let images: Vec<String> = images.collect();
        let are_new = images.len() == 2 && images.iter().all(|id| id.ends_with(digest));
        if are_new && pods.len() == 2 { Ok(()) } else { Err(format!("{images:?}")) }
    })
    .await;
    cluster.is_checked(&way.replace(' ', "-")).await;
    println!("{way}: Ready");
}

/// Whether the operator's pods use the host network.
async fn uses_host_network(cluster: &Cluster) -> bool {
    let pods = cluster.operators().await;
    let uses = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    assert!(!pods.is_empty());
    pods.iter().all(uses)
}

/// Copies a generated folder or file, with the image of the test.
fn copy(cluster: &Cluster, from: &str, image: &str) {
    let mut paths = vec![testkit::repository().join(from)];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let name = path.strip_prefix(testkit::repository()).unwrap();
        let target = cluster.workdir.path().join(name);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, fs::read_to_string(path).unwrap().replace(PUBLISHED, image)).unwrap();
    }
}

/// The manifests of the bundle, and the objects that OLM creates from them.
fn applied_by_olm(cluster: &Cluster) -> String {
    let folder = cluster.workdir.path().join("deploy/olm/bundle/manifests");
    let mut objects = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let object: Value = serde_saphyr::from_str(&text).unwrap();
        match object["kind"].as_str() {
            Some("ClusterServiceVersion") => objects.extend(testkit::created_by_olm(&object)),
            _ => objects.push(object),
        }
    }
    let texts: Vec<String> = objects.iter().map(|object| format!("{object:#}\n")).collect();
    texts.join("---\n")
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn every_way_to_install_leads_to_ready_pods_and_switches_to_the_next() {
    let cluster = Cluster::with_nodes(1).await;
    // Each way has another image than the one before, so that its pods are new.
    let first = cluster.registry.push_own("vdo");
    let second = cluster.registry.push_variant("vdo", "second");
    assert_ne!(first, second);

    copy(&cluster, "deploy/chart", PUBLISHED);
    let helm = |command: &str, image: &str| {
        let (name, digest) = image.split_once('@').unwrap();
        let registry = name.split('/').next().unwrap();
        let values = format!("--set image.registry={registry} --set image.digest={digest}");
        let wait = format!("--namespace vmware-system-vdo --wait --timeout {TIMEOUT}s");
        format!("helm {command} vdo deploy/chart {values} {wait}")
    };
    // A cluster in which nothing of VDO exists.
    let namespace = "kubectl create namespace vmware-system-vdo
        kubectl label namespace vmware-system-vdo pod-security.kubernetes.io/enforce=privileged";
    shell(&cluster, namespace).await;
    shell(&cluster, &helm("install", &second)).await;
    cluster.configure(json!({"cloudProvider": cloud_provider()})).await;
    is_installed(&cluster, "helm install in a new cluster", &second).await;
    assert!(uses_host_network(&cluster).await);
    let drivers = cluster.cloud_controllers().await;
    assert!(!drivers.is_empty());

    shell(&cluster, FORGET_RELEASE).await;
    let pod_network = ["deploy", "--image", &first, "--host-network", "never"];
    cluster.does(&[&pod_network[..], &["--timeout", TIMEOUT]].concat()).await;
    is_installed(&cluster, "vdoctl deploy", &first).await;
    assert!(!uses_host_network(&cluster).await);

    // Helm keeps the pod network. The manifests use the host network, and the bundle for OLM the pod network.
    let on_pod_network = "install --take-ownership --set hostNetwork=false";
    shell(&cluster, &helm(on_pod_network, &second)).await;
    is_installed(&cluster, "helm install", &second).await;
    assert!(!uses_host_network(&cluster).await);
    shell(&cluster, &helm("upgrade --set hostNetwork=false", &first)).await;
    is_installed(&cluster, "helm upgrade", &first).await;
    let rollback = "helm rollback vdo 1 --namespace vmware-system-vdo --wait";
    shell(&cluster, &format!("{rollback} --timeout {TIMEOUT}s")).await;
    is_installed(&cluster, "helm rollback", &second).await;

    shell(&cluster, FORGET_RELEASE).await;
    copy(&cluster, "deploy/install.yaml", &first);
    shell(&cluster, &format!("{APPLY} -f deploy/install.yaml")).await;
    is_installed(&cluster, "kubectl apply", &first).await;
    assert!(uses_host_network(&cluster).await);

    copy(&cluster, "deploy/kustomize", PUBLISHED);
    let (name, digest) = second.split_once('@').unwrap();
    let overlay = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../../base"],
        "images": [{"name": "ghcr.io/vmware-tanzu/vdo", "newName": name, "digest": digest}],
    });
    let folder = cluster.workdir.path().join("deploy/kustomize/overlays/site");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("kustomization.yaml"), overlay.to_string()).unwrap();
    shell(&cluster, &format!("{APPLY} -k deploy/kustomize/overlays/site")).await;
    is_installed(&cluster, "kubectl apply -k", &second).await;

    copy(&cluster, "deploy/olm", &first);
    shell(&cluster, &format!("{APPLY} -f deploy/olm/prerequisites.yaml")).await;
    cluster.workdir.write("olm.yaml", applied_by_olm(&cluster)).unwrap();
    shell(&cluster, &format!("{APPLY} --field-manager olm -f olm.yaml")).await;
    is_installed(&cluster, "OLM", &first).await;
    assert!(!uses_host_network(&cluster).await);
    shell(&cluster, "kubectl delete clusterrolebinding,clusterrole vdo vdo-drivers").await;
    shell(&cluster, "kubectl delete rolebinding,role vdo --namespace vmware-system-vdo").await;
    is_installed(&cluster, "OLM alone", &first).await;

    assert_eq!(cluster.cloud_controllers().await, drivers, "the drivers did not notice");
}
