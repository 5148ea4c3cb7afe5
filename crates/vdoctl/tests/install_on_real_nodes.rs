//! VDO as its user gets it: images from a registry, pods on real kubelets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{
    net::SocketAddr,
    process::{Command, Output},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;
use testkit::{ControlPlane, Inventory, Nic, RealNode, Registry, Vcenter, Vm, Workdir, eventually};

const NAMESPACE: &str = "vmware-system-vdo";

/// A cluster of real nodes on VMs of a vCenter.
struct Cluster {
    plane: ControlPlane,
    registry: Registry,
    vcenter: Vcenter,
    vms: Vec<Vm>,
    nodes: Vec<RealNode>,
    workdir: Workdir,
}

impl Cluster {
    /// The first node belongs to the control plane.
    async fn with_nodes(count: u8) -> Self {
        let vms: Vec<Vm> = (1..=count)
            .map(|number| Vm {
                nics: vec![Nic::with_address(&format!("10.77.0.{}/24", 10 + number))],
                ..Vm::named(&format!("node-{number}"))
            })
            .collect();
        let listen = SocketAddr::new(RealNode::outside(), 0).to_string();
        let vcenter = Vcenter::builder(Inventory::small().vms(vms.clone()));
        let vcenter = vcenter.listen(&listen).start().await;
        let plane = ControlPlane::builder().with_controllers().start().await;
        let registry = Registry::start().await;
        let mut nodes = Vec::new();
        for (number, vm) in (1..=count).zip(&vms) {
            let node = RealNode::builder(&vm.name, number).vm(&vm.uuid);
            let node = if number == 1 { node.control_plane() } else { node };
            let mut node = node.start(&plane, &registry).await;
            node.reach(vcenter.address());
            nodes.push(node);
        }
        let workdir = Workdir::new("install").unwrap();
        Self { plane, registry, vcenter, vms, nodes, workdir }
    }

    async fn vdoctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vdoctl"));
        command
            .args(arguments)
            .env("KUBECONFIG", self.plane.kubeconfig())
            .current_dir(self.workdir.path());
        // The connections of the nodes go through this process: it must not block.
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
    }

    /// Runs a command that must succeed.
    async fn does(&self, arguments: &[&str]) -> String {
        let output = self.vdoctl(arguments).await;
        let text = text(&output);
        assert!(output.status.success(), "vdoctl {}\n{text}", arguments.join(" "));
        text
    }

    /// The objects of a user whose cluster has a mirror of the images.
    fn write_objects(&self) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": "credentials", "namespace": "kube-system"},
            "stringData": {"username": self.vcenter.user(), "password": self.vcenter.password()},
        });
        let vcenter = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VsphereCloudConfig",
            "metadata": {"name": "vcenter", "namespace": NAMESPACE},
            "spec": {
                "vcIp": self.vcenter.address().to_string(), "thumbprint": self.vcenter.thumbprint_sha1(),
                "credentials": "credentials", "datacenters": ["DC0"],
            },
        });
        let config = json!({
            "apiVersion": "vdo.vmware.com/v1alpha1", "kind": "VDOConfig",
            "metadata": {"name": "vdo", "namespace": NAMESPACE},
            "spec": {
                "cloudProvider": {"vsphereCloudConfigs": ["vcenter"], "implementation": "Rust"},
                "images": {"registry": Registry::HOST},
            },
        });
        let text = [secret, vcenter, config].map(|object| format!("{object:#}\n")).join("---\n");
        self.workdir.write("vdo.yaml", text).unwrap();
    }

    async fn pods(&self, namespace: &str, selector: &str) -> Vec<Pod> {
        let pods = Api::<Pod>::namespaced(self.plane.client(), namespace);
        pods.list(&ListParams::default().labels(selector)).await.unwrap().items
    }

    async fn node(&self, name: &str) -> Node {
        Api::<Node>::all(self.plane.client()).get(name).await.unwrap()
    }
}

fn text(output: &Output) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    part(&output.stdout) + &part(&output.stderr)
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().map(|taint| taint.key.clone()).collect()
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn vdo_is_installed_from_a_registry_and_its_pods_initialise_real_nodes() {
    let cluster = Cluster::with_nodes(1).await;
    let image = cluster.registry.push_own("vdo");
    cluster.registry.push_own("vdo-cloud-controller");
    let uninitialized = "node.cloudprovider.kubernetes.io/uninitialized".to_owned();
    assert!(taints(&cluster.node("node-1").await).contains(&uninitialized));

    cluster.does(&["deploy", "--image", &image, "--timeout", "120"]).await;
    cluster.write_objects();
    cluster.does(&["configure", "-f", "vdo.yaml"]).await;
    let shown = cluster.does(&["status", "--wait", "--timeout", "120"]).await;
    assert!(shown.contains("● Healthy"), "{shown}");

    // Pods of ours, in images of ours.
    let operators = cluster.pods(NAMESPACE, "app.kubernetes.io/name=vdo").await;
    assert_eq!(operators.len(), 2);
    let digest = image.split_once('@').unwrap().1;
    for pod in &operators {
        let status = pod.status.clone().unwrap().container_statuses.unwrap();
        assert!(status[0].image_id.ends_with(digest), "{status:?}");
        assert_eq!(status[0].restart_count, 0, "{status:?}");
    }

    // The node is what its VM is, and takes pods.
    let node = cluster.node("node-1").await;
    assert!(!taints(&node).contains(&uninitialized), "{node:?}");
    let provider = node.spec.unwrap().provider_id.unwrap();
    assert_eq!(provider, format!("vsphere://{}", cluster.vms[0].uuid));
    let addresses = node.status.unwrap().addresses.unwrap();
    let internal: Vec<_> = addresses.iter().filter(|a| a.type_ == "InternalIP").collect();
    assert_eq!(internal.len(), 1, "{addresses:?}");
    assert_eq!(internal[0].address, cluster.nodes[0].address().to_string());
    let pods = Api::<Pod>::default_namespaced(cluster.plane.client());
    let pod = json!({
        "metadata": {"name": "pause"},
        "spec": {
            "containers": [{"name": "pause", "image": "registry.test/pause:1"}],
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    eventually("an ordinary pod runs on the node", 60, async || {
        let status = pods.get("pause").await.unwrap().status.unwrap_or_default();
        if status.phase.as_deref() == Some("Running") { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    for program in ["vdo", "vsphere-cloud-controller-manager"] {
        let used = cluster.nodes[0].working_set(program).unwrap();
        println!("{program}: working set {:.1} MiB", used as f64 / 1_048_576.0);
    }
}
