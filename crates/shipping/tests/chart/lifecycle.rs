//! A release on a real API server with simulated nodes: install, upgrade, roll back, uninstall, and from kubectl to Helm.
//! The commands are those of the page about Helm.

use std::{cell::RefCell, fs};

use api::VDOConfig;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, PodSpec},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, ResourceExt as _, api::PostParams};
use serde_json::json;
use testkit::{ControlPlane, Node, Nodes};

use crate::helm::Helm;

const PAGE: &str = include_str!("../../../../docs/install-helm.md");
const DEFINITION: &str = "vdoconfigs.vdo.vmware.com";

/// The commands of the page that were not run yet.
struct Commands(RefCell<Vec<&'static str>>);

impl Commands {
    fn of_the_page() -> Self {
        let blocks = PAGE.split("```sh\n").skip(1);
        Self(RefCell::new(blocks.map(|block| block.split_once("```").unwrap().0).collect()))
    }

    /// The block that contains a command.
    fn take(&self, command: &str) -> &'static str {
        let mut blocks = self.0.borrow_mut();
        let at = blocks.iter().position(|block| block.contains(command));
        blocks.remove(at.unwrap_or_else(|| panic!("the page has no `{command}`")))
    }
}

async fn deployment(client: &Client) -> Deployment {
    Api::namespaced(client.clone(), api::NAMESPACE).get("vdo").await.unwrap()
}

fn image(deployment: &Deployment) -> String {
    let pod = deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    pod.containers[0].image.clone().unwrap()
}

async fn definition(client: &Client) -> CustomResourceDefinition {
    Api::all(client.clone()).get(DEFINITION).await.unwrap()
}

async fn assert_nothing_of_the_user_is_gone(client: &Client) {
    for name in [api::NAMESPACE, "vmware-system-csi"] {
        let namespace = Api::<Namespace>::all(client.clone()).get(name).await.unwrap();
        assert_eq!(namespace.metadata.deletion_timestamp, None, "{name}");
    }
    for crd in api::crds() {
        let name = crd.name_any();
        let definitions = Api::<CustomResourceDefinition>::all(client.clone());
        let definition = definitions.get(&name).await.unwrap();
        assert_eq!(definition.metadata.deletion_timestamp, None, "{name}");
    }
    let configs = Api::<VDOConfig>::namespaced(client.clone(), api::NAMESPACE);
    assert_eq!(configs.get("vdo").await.unwrap().metadata.deletion_timestamp, None);
}

// Helm waits for pods that the simulated kubelet of this process makes ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_installs_upgrades_rolls_back_and_leaves_what_is_the_users() {
    let plane = ControlPlane::builder().with_controllers().start().await;
    let nodes = Nodes::start(&plane).await;
    for name in ["node-1", "node-2"] {
        nodes.add(Node::named(name)).await;
    }
    let client = plane.client();
    let helm = Helm::new(Some(plane.kubeconfig()));
    let page = Commands::of_the_page();

    helm.script(page.take("kubectl create namespace"));
    let first = deployment(&client).await;
    assert_eq!(first.status.clone().unwrap().ready_replicas, Some(2), "--wait waits");
    let csi = Api::<Namespace>::all(client.clone()).get("vmware-system-csi").await.unwrap();
    assert_eq!(csi.labels()["pod-security.kubernetes.io/enforce"], "privileged");
    let config = json!({
        "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
        "metadata": {"name": "vdo", "namespace": api::NAMESPACE},
        "spec": {"storageProvider": {"vsphereCloudConfig": "vc"}},
    });
    let config: VDOConfig = serde_json::from_value(config).unwrap();
    let configs = Api::<VDOConfig>::namespaced(client.clone(), api::NAMESPACE);
    configs.create(&PostParams::default(), &config).await.unwrap();

    // The next chart has another definition, and its user another image.
    let file = helm.workdir.path().join("deploy/chart/files/crds/vdoconfigs.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("  - vdo\n", "  - vdo\n    - vdos\n", 1)).unwrap();
    assert_ne!(fs::read_to_string(&file).unwrap(), text, "no short name to add one");
    let digest = format!("sha256:{}", "ab".repeat(32));
    helm.workdir.write("my-values.yaml", json!({"image": {"digest": digest}}).to_string()).unwrap();
    let history = helm.script(page.take("helm upgrade"));
    assert!(history.contains("superseded") && history.contains("deployed"), "{history}");
    let upgraded = deployment(&client).await;
    assert_eq!(image(&upgraded), format!("{}@{digest}", image(&first)));
    let short_names = |definition: &CustomResourceDefinition| {
        definition.spec.names.short_names.clone().unwrap_or_default()
    };
    assert_eq!(short_names(&definition(&client).await), ["vdo", "vdos"]);

    helm.script(page.take("helm rollback"));
    assert_eq!(image(&deployment(&client).await), image(&first));
    assert_eq!(short_names(&definition(&client).await), ["vdo"]);
    fs::write(&file, text).unwrap();

    let uninstall = page.take("helm uninstall");
    helm.script(uninstall);
    let deployments = Api::<Deployment>::namespaced(client.clone(), api::NAMESPACE);
    assert!(deployments.get_opt("vdo").await.unwrap().is_none());
    assert_nothing_of_the_user_is_gone(&client).await;

    // From kubectl to Helm: the same Deployment goes on.
    helm.script("kubectl apply --server-side -f deploy/install.yaml");
    let applied = deployment(&client).await;
    helm.script(page.take("--take-ownership"));
    let adopted = deployment(&client).await;
    assert_eq!(adopted.metadata.uid, applied.metadata.uid);
    let labels = adopted.metadata.labels.unwrap();
    assert_eq!(labels["app.kubernetes.io/managed-by"], "Helm");
    helm.script(uninstall);
    assert_nothing_of_the_user_is_gone(&client).await;

    // From Helm to kubectl: Helm forgets the release, and the same Deployment goes on.
    let install = "helm install vdo deploy/chart --namespace vmware-system-vdo --wait --timeout 5m";
    helm.script(install);
    let installed = deployment(&client).await;
    helm.script(page.take("--selector owner=helm"));
    helm.script("kubectl apply --server-side --force-conflicts -f deploy/install.yaml");
    assert_eq!(deployment(&client).await.metadata.uid, installed.metadata.uid);
    assert_eq!(helm.script("helm list --all-namespaces --all --short").trim(), "");
    assert_nothing_of_the_user_is_gone(&client).await;
    switches_on_the_pod_network(&helm, &page, &client).await;
    assert_nothing_of_the_user_is_gone(&client).await;
    assert_eq!(*page.0.borrow(), Vec::<&str>::new(), "commands that no test runs");
}

fn pod(deployment: &Deployment) -> PodSpec {
    deployment.spec.clone().unwrap().template.spec.unwrap()
}

/// The address on which the operator serves metrics.
fn listen(pod: &PodSpec) -> Vec<Option<String>> {
    let variables = pod.containers[0].env.iter().flatten();
    let listen = variables.filter(|variable| variable.name == operator::install::LISTEN);
    listen.map(|variable| variable.value.clone()).collect()
}

/// `vdoctl deploy` uses the pod network where there is one. Helm keeps that on request, and refuses to reject the pods;
/// kubectl moves the operator to the host network.
async fn switches_on_the_pod_network(helm: &Helm, page: &Commands, client: &Client) {
    let mut objects = operator::install::objects();
    operator::install::use_pod_network(&mut objects);
    let objects = catalog::manifest::to_yaml(&objects).unwrap();
    helm.workdir.write("pod-network.yaml", objects).unwrap();
    let rollout = "kubectl rollout status deployment/vdo -n vmware-system-vdo --timeout 5m";
    // With the field manager of vdoctl.
    let apply = "kubectl apply --server-side --force-conflicts --field-manager vdoctl";
    helm.script(&format!("{apply} -f pod-network.yaml\n{rollout}"));
    let before = deployment(client).await;
    assert_ne!(pod(&before).host_network, Some(true));
    assert_eq!(listen(&pod(&before)), [Some("[::]:8089".to_owned())]);

    let install = "install vdo deploy/chart --namespace vmware-system-vdo --take-ownership --wait";
    let refused = helm.run(&install.split(' ').collect::<Vec<_>>());
    let text = crate::helm::shown(&refused);
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains("enforces the pod security level restricted"), "{text}");
    assert!(text.contains("set hostNetwork=false"), "{text}");
    assert_eq!(deployment(client).await.metadata.generation, before.metadata.generation);
    assert_eq!(helm.script("helm list --all-namespaces --all --short").trim(), "");

    helm.script(page.take("--set hostNetwork=false"));
    let adopted = deployment(client).await;
    assert_eq!(adopted.metadata.uid, before.metadata.uid);
    assert_ne!(pod(&adopted).host_network, Some(true));
    assert_eq!(adopted.status.unwrap().ready_replicas, Some(2), "--wait waits");

    // Helm moves its own release. The cluster rejects no pod, so the level of the namespace comes first.
    let label = "kubectl label namespace vmware-system-vdo --overwrite";
    let level = "pod-security.kubernetes.io/enforce";
    helm.script(&format!("{label} {level}=privileged"));
    let upgrade = "helm upgrade vdo deploy/chart --namespace vmware-system-vdo --wait --timeout 5m";
    // Without a value, Helm would keep the last one.
    helm.script(&format!("{upgrade} --set hostNetwork=true"));
    let moved = pod(&deployment(client).await);
    assert_eq!(moved.host_network, Some(true));
    assert_eq!(listen(&moved), [Some("127.0.0.1:8089".to_owned())]);
    helm.script(&format!("{upgrade} --set hostNetwork=false"));
    assert_ne!(pod(&deployment(client).await).host_network, Some(true));

    // From the pod network to kubectl, which uses the host network.
    helm.script("kubectl delete secret -n vmware-system-vdo --selector owner=helm,name=vdo");
    helm.script(&format!("{apply} -f pod-network.yaml\n{rollout}"));
    let apply = "kubectl apply --server-side --force-conflicts -f deploy/install.yaml";
    helm.script(&format!("{apply}\n{rollout}"));
    let applied = deployment(client).await;
    assert_eq!(applied.metadata.uid, before.metadata.uid);
    let applied = pod(&applied);
    assert_eq!(applied.host_network, Some(true));
    assert_eq!(listen(&applied), [Some("127.0.0.1:8089".to_owned())]);
    // With a port of the node, only one of the pods could run there.
    assert_eq!(applied.containers[0].ports, None);
}
