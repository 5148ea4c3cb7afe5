//! VDO as its user gets it: images from a registry, pods on real kubelets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{
    cell::Cell,
    net::SocketAddr,
    process::{Command, Output},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;
use testkit::{ControlPlane, Inventory, Nic, RealNode, Registry, Vcenter, Vm, Workdir, eventually};
use tokio::time::sleep;

const NAMESPACE: &str = "vmware-system-vdo";
/// The pods of our cloud controller.
const CLOUD_CONTROLLER: &str = "name=vsphere-cloud-controller-manager";
/// How long an operator that vanished is taken to lead.
const LEASE: Duration = Duration::from_secs(15);

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
        let vms: Vec<Vm> = (1..=3)
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
        let workdir = Workdir::new("install").unwrap();
        let mut cluster = Self { plane, registry, vcenter, vms, nodes: Vec::new(), workdir };
        for _ in 0..count {
            cluster.add_node().await;
        }
        cluster
    }

    async fn add_node(&mut self) {
        let number = self.nodes.len();
        let vm = &self.vms[number];
        let node = RealNode::builder(&vm.name, u8::try_from(number + 1).unwrap()).vm(&vm.uuid);
        let node = if number == 0 { node.control_plane() } else { node };
        let mut node = node.start(&self.plane, &self.registry).await;
        node.reach(self.vcenter.address());
        self.nodes.push(node);
    }

    /// Installs VDO and our cloud controller, as a user with a mirror of the images does.
    async fn install(&self) -> String {
        let image = self.registry.push_own("vdo");
        self.registry.push_own("vdo-cloud-controller");
        self.does(&["deploy", "--image", &image, "--timeout", "120"]).await;
        self.write_objects();
        self.does(&["configure", "-f", "vdo.yaml"]).await;
        let shown = self.does(&["status", "--wait", "--timeout", "120"]).await;
        assert!(shown.contains("● Healthy"), "{shown}");
        image
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

    /// The uid and the restarts of each pod of the cloud controller.
    async fn cloud_controllers(&self) -> Vec<(String, i32)> {
        let pods = self.pods("kube-system", CLOUD_CONTROLLER).await;
        let identity = |pod: &Pod| {
            let status = pod.status.clone().unwrap_or_default();
            let restarts = status.container_statuses.into_iter().flatten().map(|c| c.restart_count);
            (pod.metadata.uid.clone().unwrap(), restarts.sum())
        };
        pods.iter().map(identity).collect()
    }

    /// Deploys an image and returns the longest time without a renewal of the leader's lease meanwhile.
    async fn upgrade(&self, image: &str) -> Duration {
        let leases = Api::<Lease>::namespaced(self.plane.client(), "kube-system");
        let longest = Cell::new(Duration::ZERO);
        let watch = async {
            let (mut renewed, mut since) = (None, Instant::now());
            loop {
                let spec = leases.get("vdo-leader").await.ok().and_then(|lease| lease.spec);
                let now = spec.and_then(|spec| spec.renew_time);
                if now != renewed {
                    (renewed, since) = (now, Instant::now());
                }
                longest.set(longest.get().max(since.elapsed()));
                sleep(Duration::from_millis(200)).await;
            }
        };
        let arguments = ["deploy", "--image", image, "--timeout", "120"];
        tokio::select! {
            shown = self.does(&arguments) => drop(shown),
            () = watch => {}
        }
        longest.get()
    }

    async fn operator_images(&self) -> Vec<String> {
        let pods = self.pods(NAMESPACE, "app.kubernetes.io/name=vdo").await;
        let image = |pod: &Pod| pod.spec.clone().unwrap().containers[0].image.clone().unwrap();
        pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).map(image).collect()
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
    let uninitialized = "node.cloudprovider.kubernetes.io/uninitialized".to_owned();
    assert!(taints(&cluster.node("node-1").await).contains(&uninitialized));
    let image = cluster.install().await;

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

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn an_image_that_cannot_be_pulled_is_reported_and_a_node_goes_with_its_vm() {
    let mut cluster = Cluster::with_nodes(2).await;
    let (began, missing) = (Instant::now(), "registry.test/vmware-tanzu/vdo:9.9.9");
    let refused = cluster.vdoctl(&["deploy", "--image", missing]).await;
    let shown = text(&refused);
    assert!(!refused.status.success(), "{shown}");
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}: {shown}", began.elapsed());
    assert!(shown.contains("ErrImagePull") || shown.contains("ImagePullBackOff"), "{shown}");
    assert!(shown.contains(missing), "{shown}");
    cluster.install().await;

    // Powered off and deleted in vCenter: the Node has nothing to come back to.
    drop(cluster.nodes.pop());
    cluster.vcenter.destroy_vm("/DC0/vm/node-2").await;
    let nodes = Api::<Node>::all(cluster.plane.client());
    eventually("the Node is deleted", 90, async || match nodes.get_opt("node-2").await.unwrap() {
        None => Ok(()),
        Some(node) => Err(format!("{:?}", node.status.unwrap_or_default().conditions)),
    })
    .await;
    assert!(nodes.get_opt("node-1").await.unwrap().is_some());
}

#[tokio::test]
#[ignore = "needs root, namespaces and cgroup v1: make test-nodes"]
async fn the_operator_is_upgraded_and_rolled_back_on_one_two_and_three_nodes() {
    let mut cluster = Cluster::with_nodes(1).await;
    let old = cluster.install().await;
    let drivers = cluster.cloud_controllers().await;
    assert!(!drivers.is_empty());
    let mut nodes = 1;
    loop {
        let new = cluster.registry.push_variant("vdo", &format!("0.7.{nodes}"));
        for image in [&new, &old] {
            let gap = cluster.upgrade(image).await;
            println!("{nodes} nodes: {gap:.1?} without a renewal of the lease");
            assert!(gap < LEASE, "{nodes} nodes: nobody led for {gap:?}");
            assert_eq!(cluster.operator_images().await, [image.clone(), image.clone()]);
        }
        assert_eq!(cluster.cloud_controllers().await, drivers, "the drivers are untouched");
        if nodes == 3 {
            break;
        }
        cluster.add_node().await;
        nodes += 1;
    }
}
