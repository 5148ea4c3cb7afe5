//! What changes around drivers that run: vCenters come and go, datacenters are added, a disk fills up, the
//! VDOConfig goes while nobody looks. All on one cluster, one after the other.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::{VDOConfig, VsphereCloudConfig};
use common::{NAMESPACE, Stage};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Node as KubeNode, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use testkit::{Datacenter, Inventory, Node, Process, Vm, eventually};

const CSI: &str = "vmware-system-csi";
const CPI: &str = "vsphere-cloud-controller-manager";

struct Scene {
    stage: Stage,
    operator: Process,
}

/// How often each part of the drivers was changed: cloud controller, storage controller, node driver.
type Generations = [Option<i64>; 3];

impl Scene {
    async fn cloud_controller(&self) -> DaemonSet {
        Api::namespaced(self.stage.client(), "kube-system").get(CPI).await.unwrap()
    }

    async fn generations(&self) -> Generations {
        [
            self.cloud_controller().await.metadata.generation,
            self.stage.controller().await.metadata.generation,
            self.stage.node_driver().await.metadata.generation,
        ]
    }

    /// Both controllers read what they are told when they start; the node driver is told nothing of it.
    async fn controllers_restarted_since(&self, before: Generations) {
        let now = self.generations().await;
        assert!(now[0] > before[0] && now[1] > before[1], "{before:?} to {now:?}");
        assert_eq!(now[2], before[2], "the nodes were left alone");
    }

    /// What the storage driver is told, and what the cloud controller is.
    async fn told(&self) -> [String; 2] {
        let storage = self.stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        let maps = Api::<ConfigMap>::namespaced(self.stage.client(), "kube-system");
        let cloud = maps.get("cloud-config").await.or(maps.get("vsphere-cloud-config").await);
        let cloud = cloud.unwrap().data.unwrap().into_values().collect();
        [storage, cloud]
    }

    /// Waits until what both drivers are told is as it should be.
    async fn both_are_told(&self, what: &str, is: impl Fn(&str) -> bool) {
        eventually(what, 90, async || {
            assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
            let told = self.told().await;
            if told.iter().all(|text| is(text)) { Ok(()) } else { Err(self.operator.tail()) }
        })
        .await;
    }

    async fn vcenters(&self, names: &[&str]) {
        let desired = json!({
            "cloudProvider": {"vsphereCloudConfigs": names},
            "storageProvider": {"vsphereCloudConfig": null, "vsphereCloudConfigs": names},
        });
        self.stage.change(json!({"spec": desired})).await;
    }

    async fn datacenters(&self, names: &[&str]) {
        let vcenters = Api::<VsphereCloudConfig>::namespaced(self.stage.client(), NAMESPACE);
        let patch = Patch::Merge(json!({"spec": {"datacenters": names}}));
        vcenters.patch("vc", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn writes_in_the_end(&self, since: Timestamp) -> Vec<String> {
        self.stage.writes_in_the_end(&self.operator, since).await
    }

    async fn ready(&self) {
        self.stage.ready(&self.operator, 120).await;
    }
}

/// Tags of zones and regions on both vCenters: without them a driver would not know which one to ask.
fn inventory(vms: impl IntoIterator<Item = Vm>) -> Inventory {
    let inventory = Inventory::small().vms(vms).category("k8s-region", &[("region-1", &["/DC0"])]);
    inventory.category(
        "k8s-zone",
        &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
    )
}

#[tokio::test]
async fn running_drivers_follow_what_changes_around_them_and_only_what_must_restarts() {
    let mut stage = Stage::of(2, false).await;
    // A datacenter more, in which no node is.
    let mut vms = inventory((1..=3).map(|number| Vm::numbered("node", number)));
    vms.datacenters.push(Datacenter { name: "DC1".into(), ..Datacenter::default() });
    stage.vcenter.replace(vms).await;
    let operator = stage.operator_with(&["--grace=5"]);
    stage
        .configure(json!({
            "cloudProvider": {
                "vsphereCloudConfigs": ["vc"],
                "topology": {"zone": "k8s-zone", "region": "k8s-region"},
            },
            "storageProvider": {"vsphereCloudConfigs": ["vc"]},
        }))
        .await;
    stage.ready(&operator, 120).await;
    let scene = Scene { stage, operator };
    a_vcenter_comes_and_goes(&scene).await;
    datacenters_change(&scene).await;
    a_disk_fills_up(&scene).await;
    assert_eq!(scene.stage.refusals(), Vec::<String>::new());
    assert_eq!(scene.stage.deletions(), Vec::<String>::new());
    the_config_goes_while_nobody_looks(scene).await;
}

async fn a_vcenter_comes_and_goes(scene: &Scene) {
    let stage = &scene.stage;
    let other = stage.another_vcenter(inventory([Vm::numbered("far", 1)])).await;
    let host = other.address().port().to_string();
    let before = scene.generations().await;
    scene.vcenters(&["vc", "other"]).await;
    scene.both_are_told("both drivers are told of both", |text| text.contains(&host)).await;
    scene.ready().await;
    scene.controllers_restarted_since(before).await;
    let vm = Vm::numbered("far", 1);
    let far = Node::named("far-1").system_uuid(&vm.uuid);
    let far = far.provider_id(&format!("vsphere://{}", vm.uuid));
    stage.nodes.as_ref().unwrap().add(far).await;
    stage.attach("pv-far", "far-1").await;
    stage
        .status("the node is served", 60, |status| {
            status.csi.as_ref().and_then(|csi| csi.nodes_ready) == Some(4)
        })
        .await;

    // It may not go while a volume is attached where only it could detach it.
    let (then, before) = (Timestamp::now(), scene.generations().await);
    scene.vcenters(&["vc"]).await;
    stage.finding_about("VDO-1904", 60, &["pv-far"]).await;
    assert_eq!(scene.writes_in_the_end(then).await, Vec::<String>::new());
    let attachments = Api::<VolumeAttachment>::all(stage.client());
    attachments.delete("csi-pv-far", &DeleteParams::default()).await.unwrap();
    eventually("storage is told of one", 90, async || {
        let [storage, _] = scene.told().await;
        if storage.contains(&host) { Err(scene.operator.tail()) } else { Ok(()) }
    })
    .await;
    // To the cloud controller the machine would be gone, and the node with it.
    stage
        .status("the cloud controller waits for the node to leave", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.contains("Find the virtual machine of every node") && plan.contains("far-1")
        })
        .await;
    assert!(scene.told().await[1].contains(&host));
    let nodes = Api::<KubeNode>::all(stage.client());
    nodes.delete("far-1", &DeleteParams::default()).await.unwrap();
    scene.both_are_told("both drivers are told of one", |text| !text.contains(&host)).await;
    let vcenters = Api::<VsphereCloudConfig>::namespaced(stage.client(), NAMESPACE);
    vcenters.delete("other", &DeleteParams::default()).await.unwrap();
    scene.ready().await;
    scene.controllers_restarted_since(before).await;
}

async fn datacenters_change(scene: &Scene) {
    let before = scene.generations().await;
    scene.datacenters(&["DC0", "DC1"]).await;
    scene.both_are_told("both drivers are told of both", |text| text.contains("DC1")).await;
    scene.ready().await;
    scene.controllers_restarted_since(before).await;

    // Where the machines of the nodes are not, nobody is sent.
    let then = Timestamp::now();
    scene.datacenters(&["DC1"]).await;
    scene.stage.finding_about("VDO-1201", 60, &["node-1"]).await;
    scene
        .stage
        .status("both drivers wait", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.matches("Find the virtual machine of every node").count() == 2
        })
        .await;
    assert_eq!(scene.writes_in_the_end(then).await, Vec::<String>::new());
    scene.datacenters(&["DC0"]).await;
    scene.both_are_told("both drivers are told of one", |text| !text.contains("DC1")).await;
    scene.ready().await;
}

async fn a_disk_fills_up(scene: &Scene) {
    let stage = &scene.stage;
    stage.attach("pv-2", "node-2").await;
    let (before, then) = (scene.generations().await, Timestamp::now());
    stage.nodes.as_ref().unwrap().fill_disk("node-2", true).await;
    let words = ["vsphere-csi-node", "node-2 has DiskPressure"];
    stage.finding_about("VDO-1621", 90, &words).await;
    let writes = scene.writes_in_the_end(then).await;
    assert_eq!(writes, Vec::<String>::new(), "nobody can do anything about it");
    stage.nodes.as_ref().unwrap().fill_disk("node-2", false).await;
    scene.ready().await;
    assert_eq!(scene.generations().await, before);
    let pods = Api::<Pod>::namespaced(stage.client(), CSI);
    let there = ListParams::default().labels("app=vsphere-csi-node").fields("spec.nodeName=node-2");
    let there = pods.list(&there).await.unwrap();
    assert!(there.iter().any(|pod| pod.metadata.deletion_timestamp.is_none()));
    let attachments = Api::<VolumeAttachment>::all(stage.client());
    attachments.get("csi-pv-2").await.unwrap();
}

/// Whoever would have said that the drivers stay has ended: the next one says it.
async fn the_config_goes_while_nobody_looks(scene: Scene) {
    let Scene { stage, operator } = scene;
    stage.dismiss(operator).await;
    let configs = Api::<VDOConfig>::namespaced(stage.client(), NAMESPACE);
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    let then = Timestamp::now();
    let operator = stage.operator();
    let said = stage.event("DriversRetained", "deletionPolicy: Remove").await;
    assert!(said.contains("CPI and CSI"), "{said}");
    assert_eq!(stage.writes_since(then), Vec::<String>::new());
    assert!(operator.ended().is_none(), "{}", operator.tail());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}
