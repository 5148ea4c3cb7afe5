//! One cluster that becomes every kind of cluster in turn, under one operator: what it applies follows.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use api::vdo_config::Mode;
use common::Stage;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Affinity, Node as KubeNode, Pod, PodSpec},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testkit::{ApiServer, FaultProxy, Node, Process, Vm, eventually};

const CSI: &str = "vmware-system-csi";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
const RANCHER: &str = "node-role.kubernetes.io/controlplane";
const MICROK8S: &str = "node.kubernetes.io/microk8s-controlplane";
const USUAL: &str = "/var/lib/kubelet";
const VSPHERE: &str = "vdo.vmware.com/vsphere";

/// What of the applied objects depends on the kind of cluster.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    distribution: String,
    /// Controllers of the storage driver.
    replicas: i32,
    /// The labels of the nodes both controllers are sent to; none if any node will do.
    sent_to: BTreeSet<String>,
    kubelet: String,
}

impl Shape {
    fn of(distribution: &str, replicas: i32, sent_to: &[&str], kubelet: &str) -> Self {
        let sent_to = sent_to.iter().map(|label| (*label).to_owned()).collect();
        Self { distribution: distribution.into(), replicas, sent_to, kubelet: kubelet.into() }
    }
}

struct Scene {
    stage: Stage,
    operator: Process,
    balancer: FaultProxy,
}

impl Scene {
    fn nodes(&self) -> Api<KubeNode> {
        Api::all(self.stage.client())
    }

    async fn seen(&self) -> Result<Shape, String> {
        let controller = self.stage.controller().await.spec.unwrap();
        let pod = controller.template.spec.unwrap();
        let sets = Api::<DaemonSet>::namespaced(self.stage.client(), "kube-system");
        let cloud = sets.get("vsphere-cloud-controller-manager").await.unwrap();
        let cloud = cloud.spec.unwrap().template.spec.unwrap();
        let (sent_to, cloud) =
            (labels_of(pod.affinity.as_ref()), labels_of(cloud.affinity.as_ref()));
        if sent_to != cloud {
            return Err(format!(
                "the storage controller goes to {sent_to:?}, the other to {cloud:?}"
            ));
        }
        let node_driver = self.stage.node_driver().await.spec.unwrap().template.spec.unwrap();
        let versions = self.stage.config().await.status.unwrap_or_default().versions;
        Ok(Shape {
            distribution: versions.unwrap_or_default().distribution.unwrap_or_default(),
            replicas: controller.replicas.unwrap(),
            sent_to,
            kubelet: kubelet_of(&node_driver)?,
        })
    }

    /// Lets the operator look, and waits until the objects are as they should be.
    async fn becomes(&self, what: &str, shape: Shape) {
        let mut look = 0;
        eventually(what, 90, async || {
            assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
            look += 1;
            let look = format!("{what} {look}");
            self.stage.change(json!({"metadata": {"annotations": {"test/look": look}}})).await;
            match self.seen().await? {
                seen if seen == shape => Ok(()),
                seen => Err(format!("{seen:?}, not {shape:?}\n{}", self.operator.tail())),
            }
        })
        .await;
    }

    async fn label(&self, names: &[&str], labels: Value) {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        for name in names {
            self.nodes().patch(name, &PatchParams::default(), &patch).await.unwrap();
        }
    }

    /// The system of every node.
    async fn system(&self, image: &str) {
        let patch = Patch::Strategic(json!({"status": {"nodeInfo": {"osImage": image}}}));
        for node in self.nodes().list(&ListParams::default()).await.unwrap() {
            let params = PatchParams::default();
            self.nodes().patch_status(&node.name_any(), &params, &patch).await.unwrap();
        }
    }

    /// The pods of the node driver: node and uid.
    async fn node_pods(&self) -> BTreeMap<String, String> {
        let pods = Api::<Pod>::namespaced(self.stage.client(), CSI);
        let own = ListParams::default().labels("app=vsphere-csi-node");
        let pods = pods.list(&own).await.unwrap().items.into_iter();
        let living = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        living.filter_map(|pod| Some((pod.spec.as_ref()?.node_name.clone()?, pod.uid()?))).collect()
    }

    /// Waits until exactly these nodes have a pod of the node driver.
    async fn driver_is_on(&self, names: &[&str]) -> BTreeMap<String, String> {
        eventually("the node driver is where it should be", 90, async || {
            assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
            let pods = self.node_pods().await;
            let there: BTreeSet<&str> = pods.keys().map(String::as_str).collect();
            let wanted: BTreeSet<&str> = names.iter().copied().collect();
            if there == wanted { Ok(pods) } else { Err(format!("{there:?}, not {wanted:?}")) }
        })
        .await
    }

    /// The operator meets an API server that says to be of a distribution.
    async fn distribution(&self, suffix: &str) -> ApiServer {
        let version = self.stage.client().apiserver_version().await.unwrap().git_version;
        let says = format!("{version}{suffix}");
        let server = self.stage.plane.api_server_beside(None, Some(&says)).await;
        self.balancer.lead_to(&[server.address()]);
        server
    }

    /// Whether something the drivers would be told is done.
    async fn acts(&self, distribution: &str) {
        let desired = json!({"spec": {"storageProvider": {"clusterDistribution": distribution}}});
        self.stage.change(desired).await;
        eventually("the wish is fulfilled", 60, async || {
            let conf = self.stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
            if conf.contains(distribution) { Ok(()) } else { Err(self.operator.tail()) }
        })
        .await;
    }
}

/// The labels of the nodes an affinity asks for.
fn labels_of(affinity: Option<&Affinity>) -> BTreeSet<String> {
    let nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        nodes.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.into_iter().flat_map(|required| &required.node_selector_terms);
    let expressions = terms.flat_map(|term| term.match_expressions.iter().flatten());
    expressions.map(|expression| expression.key.clone()).collect()
}

/// Kubelet's directory, by every place that names it.
fn kubelet_of(pod: &PodSpec) -> Result<String, String> {
    let volumes = pod.volumes.iter().flatten().filter_map(|v| v.host_path.as_ref());
    let mut allowed_namespaces: BTreeSet<String> = volumes
        .filter_map(|host| {
            let path = host.path.trim_end_matches('/');
            let ends = ["/plugins_registry", "/plugins/csi.vsphere.vmware.com"];
            ends.iter().find_map(|end| path.strip_suffix(end)).map(str::to_owned)
        })
        .collect();
    let arguments = pod.containers.iter().flat_map(|c| c.args.iter().flatten());
    let socket = "/plugins/csi.vsphere.vmware.com/csi.sock";
    allowed_namespaces.extend(arguments.filter_map(|argument| {
        let path = argument.strip_prefix("--kubelet-registration-path=")?;
        path.strip_suffix(socket).map(str::to_owned)
    }));
    let mounts = pod.containers.iter().flat_map(|c| c.volume_mounts.iter().flatten());
    let pods = mounts.filter(|mount| mount.name == "pods-mount-dir");
    allowed_namespaces.extend(pods.map(|mount| mount.mount_path.clone()));
    match allowed_namespaces.len() {
        1 => Ok(allowed_namespaces.pop_first().unwrap()),
        _ => Err(format!("{allowed_namespaces:?}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_follows_from_the_kind_of_cluster_and_its_nodes() {
    let mut stage = Stage::of(5, false).await;
    let balancer = FaultProxy::before(stage.plane.address()).await;
    stage.api_address = Some(balancer.address());
    let operator = stage.operator_with(&["--settled=10"]);
    stage
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    stage.ready(&operator, 120).await;
    let scene = Scene { stage, operator, balancer };
    control_planes_of_every_size(&scene).await;
    distributions_told_by_their_nodes(&scene).await;
    a_node_of_another_cloud(&scene).await;
    distributions_told_by_their_api_server(&scene).await;
    openshift_on_everything(&scene).await;
    assert_eq!(scene.stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(scene.stage.refusals(), Vec::<String>::new());
}

async fn control_planes_of_every_size(scene: &Scene) {
    let vanilla = |replicas, sent_to| Shape::of("vanilla", replicas, sent_to, USUAL);
    scene.becomes("one node of the control plane", vanilla(1, &[CONTROL_PLANE])).await;
    scene.label(&["node-2", "node-3", "node-4", "node-5"], json!({CONTROL_PLANE: ""})).await;
    scene.becomes("five: three are enough", vanilla(3, &[CONTROL_PLANE])).await;
    scene.label(&["node-3", "node-4", "node-5"], json!({CONTROL_PLANE: null})).await;
    scene.becomes("two", vanilla(2, &[CONTROL_PLANE])).await;
    scene.label(&["node-3"], json!({CONTROL_PLANE: ""})).await;
    scene.becomes("three", vanilla(3, &[CONTROL_PLANE])).await;
    scene.label(&["node-1", "node-2", "node-3"], json!({CONTROL_PLANE: null})).await;
    scene.label(&["node-1", "node-2"], json!({RANCHER: "true"})).await;
    scene.becomes("a label of Rancher's", vanilla(2, &[RANCHER])).await;
    scene.label(&["node-1", "node-2"], json!({RANCHER: null})).await;
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    scene.nodes().patch("node-1", &PatchParams::default(), &untainted).await.unwrap();
    scene.becomes("the control plane is elsewhere", vanilla(3, &[])).await;
    scene.stage.ready(&scene.operator, 90).await;
}

async fn distributions_told_by_their_nodes(scene: &Scene) {
    let all = ["node-1", "node-2", "node-3"];
    scene
        .label(&all, json!({"microk8s.io/cluster": "true", MICROK8S: "microk8s-controlplane"}))
        .await;
    let snap = "/var/snap/microk8s/common/var/lib/kubelet";
    scene.becomes("MicroK8s", Shape::of("microk8s", 3, &[MICROK8S], snap)).await;
    scene.label(&all, json!({"microk8s.io/cluster": null, MICROK8S: null})).await;
    scene.system("Talos (v1.11.3)").await;
    scene.becomes("Talos", Shape::of("talos", 3, &[], USUAL)).await;
    scene.system("Simulated").await;
    scene.label(&["node-1"], json!({CONTROL_PLANE: ""})).await;
    scene.becomes("none of them", Shape::of("vanilla", 1, &[CONTROL_PLANE], USUAL)).await;
    scene.stage.ready(&scene.operator, 90).await;
}

/// A node that is no machine of vSphere gets no storage driver, until its machine is found after all.
async fn a_node_of_another_cloud(scene: &Scene) {
    let Scene { stage, .. } = scene;
    let own = ["node-1", "node-2", "node-3", "node-4", "node-5", "node-6"];
    let before = scene.driver_is_on(&own).await;
    let vm = Vm::numbered("cloud", 1);
    let node = Node::named("cloud-1").system_uuid(&vm.uuid);
    let node = node.provider_id("aws:///eu-central-1a/i-0123456789");
    stage.nodes.as_ref().unwrap().add(node).await;
    let said = stage.event("NodeLeftOut", "cloud-1").await;
    assert!(said.contains("aws:///"), "{said}");
    assert_eq!(scene.driver_is_on(&own).await, before, "no other pod was touched");
    assert_eq!(scene.nodes().get("cloud-1").await.unwrap().labels()[VSPHERE], "false");
    stage.ready(&scene.operator, 60).await;
    stage.vcenter.add_vms("DC0", [vm]).await;
    stage.event("NodeTakenBack", "cloud-1").await;
    scene.driver_is_on(&[&own[..], &["cloud-1"]].concat()).await;
    assert!(!scene.nodes().get("cloud-1").await.unwrap().labels().contains_key(VSPHERE));
    leaves(scene, "cloud-1").await;
    assert_eq!(scene.driver_is_on(&own).await, before, "no other pod was touched");
    stage.ready(&scene.operator, 90).await;
}

/// A node goes, with all that is on it: no kubelet is left to end its pods.
async fn leaves(scene: &Scene, name: &str) {
    scene.nodes().delete(name, &DeleteParams::default()).await.unwrap();
    let pods = Api::<Pod>::all(scene.stage.client());
    let on_it = ListParams::default().fields(&format!("spec.nodeName={name}"));
    for pod in pods.list(&on_it).await.unwrap() {
        let pods = Api::<Pod>::namespaced(scene.stage.client(), &pod.namespace().unwrap());
        let _ = pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
    }
}

async fn distributions_told_by_their_api_server(scene: &Scene) {
    let stage = &scene.stage;
    let of = |name: &str, path: &str| Shape::of(name, 1, &[CONTROL_PLANE], path);
    let _k3s = scene.distribution("+k3s1").await;
    scene.becomes("k3s", of("k3s", USUAL)).await;
    // Its own cloud controller gives provider ids to machines of vSphere and to others alike.
    let vm = Vm::numbered("agent", 1);
    stage.vcenter.add_vms("DC0", [vm.clone()]).await;
    let nodes = stage.nodes.as_ref().unwrap();
    let agent = Node::named("agent-1").system_uuid(&vm.uuid);
    nodes.add(agent.provider_id("k3s://agent-1")).await;
    let bare = Node::named("bare-1").system_uuid(&Vm::numbered("bare", 1).uuid);
    nodes.add(bare.provider_id("k3s://bare-1")).await;
    let own = ["node-1", "node-2", "node-3", "node-4", "node-5", "node-6", "agent-1"];
    scene.driver_is_on(&[&own[..], &["bare-1"]].concat()).await;
    stage.finding_about("VDO-1214", 90, &["agent-1"]).await;
    let missing = stage.finding_about("VDO-1201", 90, &["bare-1"]).await;
    let remedy = missing.remedy.iter().any(|step| step.contains("vdo.vmware.com/vsphere=false"));
    assert!(remedy, "{missing:?}");
    scene.label(&["bare-1"], json!({VSPHERE: "false"})).await;
    scene.driver_is_on(&own).await;
    leaves(scene, "bare-1").await;
    leaves(scene, "agent-1").await;
    stage.ready(&scene.operator, 90).await;
    let _rke2 = scene.distribution("+rke2r1").await;
    scene.becomes("RKE2", of("rke2", USUAL)).await;
    let _k0s = scene.distribution("+k0s").await;
    scene.becomes("k0s", of("k0s", "/var/lib/k0s/kubelet")).await;
    let _eks = scene.distribution("-eks-a1b2c3").await;
    scene.becomes("EKS Anywhere", of("eks-anywhere", USUAL)).await;
    let _tkg = scene.distribution("+vmware.1").await;
    scene.becomes("TKG", of("tkg", USUAL)).await;
    scene.balancer.lead_to(&[stage.plane.address()]);
}

/// On OpenShift the drivers are VDO's unless the platform brings them.
async fn openshift_on_everything(scene: &Scene) {
    let stage = &scene.stage;
    for platform in ["None", "External"] {
        stage.openshift(platform).await;
        scene.becomes(platform, Shape::of("openshift", 1, &[CONTROL_PLANE], USUAL)).await;
        scene.acts(&format!("on-{platform}")).await;
        let mode = stage.config().await.status.unwrap().csi.unwrap().mode;
        assert_eq!(mode, Some(Mode::Managed), "{platform}");
    }
    let roles = Api::<ClusterRole>::all(stage.client());
    let roles = roles.list(&ListParams::default()).await.unwrap().items.into_iter();
    let ours = roles.filter(|role| role.name_any().starts_with("vsphere-csi-"));
    let granted = ours.flat_map(|role| role.rules.unwrap_or_default());
    let resources = granted.flat_map(|rule| rule.resources.unwrap_or_default());
    let scc = "securitycontextconstraints";
    assert!(resources.into_iter().any(|resource| resource == scc), "the pods may run there");
    stage.ready(&scene.operator, 90).await;
    stage.openshift("VSphere").await;
    let observed = |mode: Option<Mode>| mode == Some(Mode::Observe);
    let mut look = 0;
    eventually("both drivers are only observed", 60, async || {
        look += 1;
        let look = json!({"metadata": {"annotations": {"test/look": look.to_string()}}});
        stage.change(look).await;
        let status = stage.config().await.status.unwrap();
        let modes = [status.cpi, status.csi].map(|driver| driver.and_then(|driver| driver.mode));
        if modes.iter().all(|mode| observed(*mode)) { Ok(()) } else { Err(format!("{modes:?}")) }
    })
    .await;
    let then = Timestamp::now();
    let desired = json!({"spec": {"storageProvider": {"clusterDistribution": "on-VSphere"}}});
    stage.change(desired).await;
    stage.check_now("on-vsphere").await;
    assert_eq!(stage.writes_since(then), Vec::<String>::new(), "nothing is applied");
}
