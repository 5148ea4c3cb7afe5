//! One cluster becomes every supported platform in turn: the operator adapts the manifests.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use api::vdo_config::Mode;
use common::Testbed;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Affinity, EnvVar, Node as KubeNode, Pod, PodSpec},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testkit::{ApiServer, FaultProxy, Node, Process, User, Vm, eventually};

const CSI: &str = "vmware-system-csi";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
const RANCHER: &str = "node-role.kubernetes.io/controlplane";
const MICROK8S: &str = "node.kubernetes.io/microk8s-controlplane";
/// MicroK8s' label on every node.
const CLUSTER: &str = "microk8s.io/cluster";
const ALL: [&str; 6] = ["node-1", "node-2", "node-3", "node-4", "node-5", "node-6"];
const USUAL: &str = "/var/lib/kubelet";
const VSPHERE: &str = "vdo.vmware.com/vsphere";
const CLOUD: &str = "vsphere-cloud-controller-manager";
const PROXY: &str = "http://proxy.example.com:3128";

/// The parts of the applied objects that depend on the platform.
#[derive(Debug, PartialEq, Eq)]
struct Placement {
    distribution: String,
    /// Replicas of the storage controller.
    replicas: i32,
    /// The node labels that both controllers require; empty if they run on any node.
    node_labels: BTreeSet<String>,
    kubelet: String,
}

impl Placement {
    fn new(distribution: &str, replicas: i32, node_labels: &[&str], kubelet: &str) -> Self {
        let node_labels = node_labels.iter().map(|label| (*label).to_owned()).collect();
        Self { distribution: distribution.into(), replicas, node_labels, kubelet: kubelet.into() }
    }
}

struct Fixture {
    testbed: Testbed,
    operator: Process,
    balancer: FaultProxy,
}

impl Fixture {
    fn nodes(&self) -> Api<KubeNode> {
        Api::all(self.testbed.client())
    }

    async fn observed(&self) -> Result<Placement, String> {
        let controller = self.testbed.controller().await.spec.unwrap();
        let pod = controller.template.spec.unwrap();
        let sets = Api::<DaemonSet>::namespaced(self.testbed.client(), "kube-system");
        let cloud = sets.get(CLOUD).await.unwrap();
        let cloud = cloud.spec.unwrap().template.spec.unwrap();
        let (node_labels, cloud) =
            (labels_of(pod.affinity.as_ref()), labels_of(cloud.affinity.as_ref()));
        if node_labels != cloud {
            return Err(format!(
                "the storage controller requires {node_labels:?}, the cloud controller {cloud:?}"
            ));
        }
        let node_driver = self.testbed.node_driver().await.spec.unwrap().template.spec.unwrap();
        let versions = self.testbed.config().await.status.unwrap_or_default().versions;
        Ok(Placement {
            distribution: versions.unwrap_or_default().distribution.unwrap_or_default(),
            replicas: controller.replicas.unwrap(),
            node_labels,
            kubelet: kubelet_of(&node_driver)?,
        })
    }

    /// Triggers reconciles until the objects have this placement.
    async fn becomes(&self, what: &str, placement: Placement) {
        let mut attempt = 0;
        eventually(what, 90, async || {
            assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
            attempt += 1;
            let attempt = format!("{what} {attempt}");
            self.testbed.change(json!({"metadata": {"annotations": {"test/look": attempt}}})).await;
            match self.observed().await? {
                observed if observed == placement => Ok(()),
                observed => {
                    Err(format!("{observed:?}, not {placement:?}\n{}", self.operator.tail()))
                }
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

    /// Sets the OS image of every node.
    async fn os_image(&self, image: &str) {
        let patch = Patch::Strategic(json!({"status": {"nodeInfo": {"osImage": image}}}));
        for node in self.nodes().list(&ListParams::default()).await.unwrap() {
            let params = PatchParams::default();
            self.nodes().patch_status(&node.name_any(), &params, &patch).await.unwrap();
        }
    }

    /// The pods of the node driver: uid by node.
    async fn node_pods(&self) -> BTreeMap<String, String> {
        let pods = Api::<Pod>::namespaced(self.testbed.client(), CSI);
        let own = ListParams::default().labels("app=vsphere-csi-node");
        let pods = pods.list(&own).await.unwrap().items.into_iter();
        let living = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        living.filter_map(|pod| Some((pod.spec.as_ref()?.node_name.clone()?, pod.uid()?))).collect()
    }

    /// Waits until exactly these nodes have a pod of the node driver.
    async fn driver_is_on(&self, names: &[&str]) -> BTreeMap<String, String> {
        eventually("the node driver runs on the expected nodes", 90, async || {
            assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
            let pods = self.node_pods().await;
            let nodes: BTreeSet<&str> = pods.keys().map(String::as_str).collect();
            let wanted: BTreeSet<&str> = names.iter().copied().collect();
            if nodes == wanted { Ok(pods) } else { Err(format!("{nodes:?}, not {wanted:?}")) }
        })
        .await
    }

    /// Lets the operator connect to an API server that reports the version of a distribution.
    async fn distribution(&self, suffix: &str) -> ApiServer {
        let version = self.testbed.client().apiserver_version().await.unwrap().git_version;
        let version = format!("{version}{suffix}");
        let server = self.testbed.plane.another_api_server(None, Some(&version)).await;
        self.balancer.lead_to(&[server.address()]);
        server
    }

    /// Waits until the containers that connect to vCenter have these proxy variables, and no others.
    async fn proxy_is(&self, what: &str, wanted: &[(&str, &str)]) {
        let wanted: BTreeMap<&str, &str> = wanted.iter().copied().collect();
        eventually(what, 90, async || {
            assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
            let storage = self.testbed.controller().await.spec.unwrap().template.spec.unwrap();
            let sets = Api::<DaemonSet>::namespaced(self.testbed.client(), "kube-system");
            let cloud = sets.get(CLOUD).await.unwrap().spec.unwrap().template.spec.unwrap();
            for container in storage.containers.iter().chain(&cloud.containers) {
                let env = container.env.iter().flatten();
                let proxy = |variable: &&EnvVar| variable.name.ends_with("_PROXY");
                let found: BTreeMap<&str, &str> = env
                    .filter(proxy)
                    .map(|v| (v.name.as_str(), v.value.as_deref().unwrap_or_default()))
                    .collect();
                let connects =
                    [CLOUD, "vsphere-csi-controller", "vsphere-syncer"].contains(&&*container.name);
                let right = if connects { found == wanted } else { found.is_empty() };
                if !right {
                    let name = &container.name;
                    return Err(format!("{name}: {found:?}\n{}", self.operator.tail()));
                }
            }
            Ok(())
        })
        .await;
        self.testbed.ready(&self.operator, 90).await;
    }

    /// Changes a driver setting, and waits until VDO has applied it.
    async fn change_setting(&self, distribution: &str) {
        let change = json!({"spec": {"storageProvider": {"clusterDistribution": distribution}}});
        self.testbed.change(change).await;
        eventually("the driver has the setting", 60, async || {
            let conf = self.testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
            if conf.contains(distribution) { Ok(()) } else { Err(self.operator.tail()) }
        })
        .await;
    }
}

/// The node labels that an affinity requires.
fn labels_of(affinity: Option<&Affinity>) -> BTreeSet<String> {
    let nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        nodes.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.into_iter().flat_map(|required| &required.node_selector_terms);
    let expressions = terms.flat_map(|term| term.match_expressions.iter().flatten());
    expressions.map(|expression| expression.key.clone()).collect()
}

/// The kubelet's directory, which must be the same in all places.
fn kubelet_of(pod: &PodSpec) -> Result<String, String> {
    let volumes = pod.volumes.iter().flatten().filter_map(|v| v.host_path.as_ref());
    let mut directories: BTreeSet<String> = volumes
        .filter_map(|host| {
            let path = host.path.trim_end_matches('/');
            let ends = ["/plugins_registry", "/plugins/csi.vsphere.vmware.com"];
            ends.iter().find_map(|end| path.strip_suffix(end)).map(str::to_owned)
        })
        .collect();
    let arguments = pod.containers.iter().flat_map(|c| c.args.iter().flatten());
    let socket = "/plugins/csi.vsphere.vmware.com/csi.sock";
    directories.extend(arguments.filter_map(|argument| {
        let path = argument.strip_prefix("--kubelet-registration-path=")?;
        path.strip_suffix(socket).map(str::to_owned)
    }));
    let mounts = pod.containers.iter().flat_map(|c| c.volume_mounts.iter().flatten());
    let pods = mounts.filter(|mount| mount.name == "pods-mount-dir");
    directories.extend(pods.map(|mount| mount.mount_path.clone()));
    match directories.len() {
        1 => Ok(directories.pop_first().unwrap()),
        _ => Err(format!("{directories:?}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_depend_on_the_platform_and_its_nodes() {
    let mut testbed = Testbed::with_nodes(5).await;
    let balancer = FaultProxy::before(testbed.plane.address()).await;
    testbed.api_address = Some(balancer.address());
    let operator = testbed.operator_with(&["--settled=10"]);
    testbed
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    testbed.ready(&operator, 120).await;
    let fixture = Fixture { testbed, operator, balancer };
    control_planes_of_every_size(&fixture).await;
    distributions_detected_by_nodes(&fixture).await;
    a_compromised_worker(&fixture).await;
    a_node_of_another_cloud(&fixture).await;
    distributions_detected_by_api_server(&fixture).await;
    openshift_on_everything(&fixture).await;
    assert_eq!(fixture.testbed.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(fixture.testbed.denied_requests(), Vec::<String>::new());
}

async fn control_planes_of_every_size(fixture: &Fixture) {
    let vanilla = |replicas, node_labels| Placement::new("vanilla", replicas, node_labels, USUAL);
    fixture.becomes("one node of the control plane", vanilla(1, &[CONTROL_PLANE])).await;
    fixture.label(&["node-2", "node-3", "node-4", "node-5"], json!({CONTROL_PLANE: ""})).await;
    fixture.becomes("five: three are enough", vanilla(3, &[CONTROL_PLANE])).await;
    fixture.label(&["node-3", "node-4", "node-5"], json!({CONTROL_PLANE: null})).await;
    fixture.becomes("two", vanilla(2, &[CONTROL_PLANE])).await;
    fixture.label(&["node-3"], json!({CONTROL_PLANE: ""})).await;
    fixture.becomes("three", vanilla(3, &[CONTROL_PLANE])).await;
    fixture.label(&["node-1", "node-2", "node-3"], json!({CONTROL_PLANE: null})).await;
    fixture.label(&["node-1", "node-2"], json!({RANCHER: "true"})).await;
    fixture.becomes("a label of Rancher's", vanilla(2, &[RANCHER])).await;
    fixture.label(&["node-1", "node-2"], json!({RANCHER: null})).await;
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    fixture.nodes().patch("node-1", &PatchParams::default(), &untainted).await.unwrap();
    fixture.becomes("the control plane is elsewhere", vanilla(3, &[])).await;
    fixture.testbed.ready(&fixture.operator, 90).await;
}

async fn distributions_detected_by_nodes(fixture: &Fixture) {
    fixture
        .label(&["node-1", "node-2", "node-3"], json!({MICROK8S: "microk8s-controlplane"}))
        .await;
    fixture.label(&ALL, json!({CLUSTER: "true"})).await;
    let snap = "/var/snap/microk8s/common/var/lib/kubelet";
    fixture.becomes("MicroK8s", Placement::new("microk8s", 3, &[MICROK8S], snap)).await;
    fixture.label(&ALL, json!({CLUSTER: null, MICROK8S: null})).await;
    fixture.os_image("Talos (v1.11.3)").await;
    fixture.becomes("Talos", Placement::new("talos", 3, &[], USUAL)).await;
    fixture.os_image("Simulated").await;
    fixture.label(&["node-1"], json!({CONTROL_PLANE: ""})).await;
    fixture.becomes("none of them", Placement::new("vanilla", 1, &[CONTROL_PLANE], USUAL)).await;
    fixture.testbed.ready(&fixture.operator, 90).await;
}

/// Root on a worker writes what the API server accepts from a kubelet: no driver changes.
async fn a_compromised_worker(fixture: &Fixture) {
    let Fixture { testbed, operator, .. } = fixture;
    let before = fixture.observed().await.unwrap();
    let pods = fixture.driver_is_on(&ALL).await;
    let since = Timestamp::now();
    let kubelet = User::named("system:node:node-4").in_group("system:nodes");
    let nodes = Api::<KubeNode>::all(testbed.plane.client_as(&kubelet));
    let change = async |labels: Value| {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        nodes.patch("node-4", &PatchParams::default(), &patch).await
    };
    for role in [CONTROL_PLANE, RANCHER] {
        let refused = change(json!({role: ""})).await.unwrap_err();
        assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused:?}");
    }
    change(json!({MICROK8S: "x", CLUSTER: "true"})).await.unwrap();
    assert_eq!(testbed.writes_after_two_rounds(operator, since).await, Vec::<String>::new());
    assert_eq!(fixture.observed().await.unwrap(), before, "the manifests must not change");
    assert_eq!(fixture.driver_is_on(&ALL).await, pods, "the pods must not change");
    fixture.label(&["node-4"], json!({MICROK8S: null, CLUSTER: null})).await;
}

/// A node that is not a vSphere VM gets no storage driver, until its VM is found.
async fn a_node_of_another_cloud(fixture: &Fixture) {
    let Fixture { testbed, .. } = fixture;
    let own = ALL;
    let before = fixture.driver_is_on(&own).await;
    let vm = Vm::numbered("cloud", 1);
    let node = Node::named("cloud-1").system_uuid(&vm.uuid);
    let node = node.provider_id("aws:///eu-central-1a/i-0123456789");
    testbed.nodes.as_ref().unwrap().add(node).await;
    let event = testbed.event("NodeLeftOut", "cloud-1").await;
    assert!(event.contains("aws:///"), "{event}");
    assert_eq!(fixture.driver_is_on(&own).await, before, "other pods must not change");
    assert_eq!(fixture.nodes().get("cloud-1").await.unwrap().labels()[VSPHERE], "false");
    testbed.ready(&fixture.operator, 60).await;
    testbed.vcenter.add_vms("DC0", [vm]).await;
    testbed.event("NodeTakenBack", "cloud-1").await;
    fixture.driver_is_on(&[&own[..], &["cloud-1"]].concat()).await;
    assert!(!fixture.nodes().get("cloud-1").await.unwrap().labels().contains_key(VSPHERE));
    remove_node(fixture, "cloud-1").await;
    assert_eq!(fixture.driver_is_on(&own).await, before, "other pods must not change");
    testbed.ready(&fixture.operator, 90).await;
}

/// Deletes a node and its pods: no kubelet is left to terminate them.
async fn remove_node(fixture: &Fixture, name: &str) {
    fixture.nodes().delete(name, &DeleteParams::default()).await.unwrap();
    let pods = Api::<Pod>::all(fixture.testbed.client());
    let on_it = ListParams::default().fields(&format!("spec.nodeName={name}"));
    for pod in pods.list(&on_it).await.unwrap() {
        let pods = Api::<Pod>::namespaced(fixture.testbed.client(), &pod.namespace().unwrap());
        let _ = pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
    }
}

async fn distributions_detected_by_api_server(fixture: &Fixture) {
    let testbed = &fixture.testbed;
    let placement = |name: &str, path: &str| Placement::new(name, 1, &[CONTROL_PLANE], path);
    let _k3s = fixture.distribution("+k3s1").await;
    fixture.becomes("k3s", placement("k3s", USUAL)).await;
    // The distribution's own cloud controller gives provider ids to vSphere VMs and other nodes.
    let vm = Vm::numbered("agent", 1);
    testbed.vcenter.add_vms("DC0", [vm.clone()]).await;
    let nodes = testbed.nodes.as_ref().unwrap();
    let agent = Node::named("agent-1").system_uuid(&vm.uuid);
    nodes.add(agent.provider_id("k3s://agent-1")).await;
    let bare = Node::named("bare-1").system_uuid(&Vm::numbered("bare", 1).uuid);
    nodes.add(bare.provider_id("k3s://bare-1")).await;
    let own = [&ALL[..], &["agent-1"]].concat();
    fixture.driver_is_on(&[&own[..], &["bare-1"]].concat()).await;
    testbed.finding_about("VDO-1214", 90, &["agent-1"]).await;
    let missing = testbed.finding_about("VDO-1201", 90, &["bare-1"]).await;
    let remedy = missing.remedy.iter().any(|step| step.contains("vdo.vmware.com/vsphere=false"));
    assert!(remedy, "{missing:?}");
    fixture.label(&["bare-1"], json!({VSPHERE: "false"})).await;
    fixture.driver_is_on(&own).await;
    remove_node(fixture, "bare-1").await;
    remove_node(fixture, "agent-1").await;
    testbed.ready(&fixture.operator, 90).await;
    let _rke2 = fixture.distribution("+rke2r1").await;
    fixture.becomes("RKE2", placement("rke2", USUAL)).await;
    let _k0s = fixture.distribution("+k0s").await;
    fixture.becomes("k0s", placement("k0s", "/var/lib/k0s/kubelet")).await;
    let _eks = fixture.distribution("-eks-a1b2c3").await;
    fixture.becomes("EKS Anywhere", placement("eks-anywhere", USUAL)).await;
    let _tkg = fixture.distribution("+vmware.1").await;
    fixture.becomes("TKG", placement("tkg", USUAL)).await;
    fixture.balancer.lead_to(&[testbed.plane.address()]);
}

/// On OpenShift VDO manages the drivers unless the platform has its own.
async fn openshift_on_everything(fixture: &Fixture) {
    let testbed = &fixture.testbed;
    for platform in ["None", "External"] {
        testbed.openshift(platform).await;
        fixture.becomes(platform, Placement::new("openshift", 1, &[CONTROL_PLANE], USUAL)).await;
        fixture.change_setting(&format!("on-{platform}")).await;
        let mode = testbed.config().await.status.unwrap().csi.unwrap().mode;
        assert_eq!(mode, Some(Mode::Managed), "{platform}");
    }
    let roles = Api::<ClusterRole>::all(testbed.client());
    let roles = roles.list(&ListParams::default()).await.unwrap().items.into_iter();
    let ours = roles.filter(|role| role.name_any().starts_with("vsphere-csi-"));
    let granted = ours.flat_map(|role| role.rules.unwrap_or_default());
    let resources = granted.flat_map(|rule| rule.resources.unwrap_or_default());
    let scc = "securitycontextconstraints";
    assert!(resources.into_iter().any(|resource| resource == scc), "the roles must allow the SCC");
    testbed.ready(&fixture.operator, 90).await;
    the_proxy_of_the_cluster(fixture).await;
    testbed.openshift("VSphere").await;
    let observed = |mode: Option<Mode>| mode == Some(Mode::Observe);
    let mut attempt = 0;
    eventually("both drivers are only observed", 60, async || {
        attempt += 1;
        let attempt = json!({"metadata": {"annotations": {"test/look": attempt.to_string()}}});
        testbed.change(attempt).await;
        let status = testbed.config().await.status.unwrap();
        let modes = [status.cpi, status.csi].map(|driver| driver.and_then(|driver| driver.mode));
        if modes.iter().all(|mode| observed(*mode)) { Ok(()) } else { Err(format!("{modes:?}")) }
    })
    .await;
    let since = Timestamp::now();
    let change = json!({"spec": {"storageProvider": {"clusterDistribution": "on-VSphere"}}});
    testbed.change(change).await;
    testbed.openshift_proxy(json!({"httpsProxy": PROXY})).await;
    testbed.check_now("on-vsphere").await;
    assert_eq!(testbed.writes_since(since), Vec::<String>::new(), "VDO must apply nothing");
}

/// The drivers get OpenShift's proxy, unless `spec.overrides` has one.
async fn the_proxy_of_the_cluster(fixture: &Fixture) {
    let testbed = &fixture.testbed;
    let nodes = fixture.node_pods().await;
    let except = ".cluster.local,.svc,10.128.0.0/14,172.30.0.0/16,vc.example.com";
    let published = json!({"httpProxy": PROXY, "httpsProxy": PROXY, "noProxy": except});
    testbed.openshift_proxy(published).await;
    let direct = "$(KUBERNETES_SERVICE_HOST),localhost,127.0.0.1,.svc,.cluster.local";
    let except = format!("{direct},10.128.0.0/14,172.30.0.0/16,vc.example.com");
    let cluster = [("HTTP_PROXY", PROXY), ("HTTPS_PROXY", PROXY), ("NO_PROXY", except.as_str())];
    fixture.proxy_is("the drivers use the cluster's proxy", &cluster).await;
    let own = "http://own.example.com:8080";
    testbed.change(json!({"spec": {"overrides": {"proxy": {"url": own}}}})).await;
    let overrides = [("HTTPS_PROXY", own), ("NO_PROXY", direct)];
    fixture.proxy_is("the overrides win", &overrides).await;
    testbed.change(json!({"spec": {"overrides": null}})).await;
    fixture.proxy_is("without overrides, the cluster's proxy applies again", &cluster).await;
    testbed.openshift_proxy(json!({})).await;
    fixture.proxy_is("without a proxy, the drivers connect directly", &[]).await;
    assert_eq!(fixture.node_pods().await, nodes, "the node pods must not restart");
}
