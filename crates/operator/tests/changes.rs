//! Changes around running drivers, one after the other on one cluster: vCenters and datacenters are added and
//! removed, a disk fills up, and the VDOConfig is deleted while no operator runs.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::{VDOConfig, VsphereCloudConfig};
use common::{NAMESPACE, Testbed};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Node as KubeNode, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::{Datacenter, Inventory, Node, Process, Vm, eventually};

const CSI: &str = "vmware-system-csi";
const CPI: &str = "vsphere-cloud-controller-manager";

struct Fixture {
    testbed: Testbed,
    operator: Process,
}

/// The generations of the cloud controller, the storage controller and the node driver.
type Generations = [Option<i64>; 3];

impl Fixture {
    async fn cloud_controller(&self) -> DaemonSet {
        Api::namespaced(self.testbed.client(), "kube-system").get(CPI).await.unwrap()
    }

    async fn generations(&self) -> Generations {
        [
            self.cloud_controller().await.metadata.generation,
            self.testbed.controller().await.metadata.generation,
            self.testbed.node_driver().await.metadata.generation,
        ]
    }

    /// Both controllers read their configuration only when they start. The node driver does not have it.
    async fn controllers_restarted_since(&self, before: Generations) {
        let now = self.generations().await;
        assert!(now[0] > before[0] && now[1] > before[1], "{before:?} to {now:?}");
        assert_eq!(now[2], before[2], "the node driver must not restart");
    }

    /// The configurations of the storage driver and of the cloud controller.
    async fn configurations(&self) -> [String; 2] {
        let storage = self.testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        let maps = Api::<ConfigMap>::namespaced(self.testbed.client(), "kube-system");
        let cloud = maps.get("cloud-config").await.or(maps.get("vsphere-cloud-config").await);
        let cloud = cloud.unwrap().data.unwrap().into_values().collect();
        [storage, cloud]
    }

    /// Waits until both configurations satisfy `is`.
    async fn both_configurations(&self, what: &str, is: impl Fn(&str) -> bool) {
        eventually(what, 90, async || {
            assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
            let configurations = self.configurations().await;
            if configurations.iter().all(|text| is(text)) {
                Ok(())
            } else {
                Err(self.operator.tail())
            }
        })
        .await;
    }

    async fn vcenters(&self, names: &[&str]) {
        let spec = json!({
            "cloudProvider": {"vsphereCloudConfigs": names},
            "storageProvider": {"vsphereCloudConfig": null, "vsphereCloudConfigs": names},
        });
        self.testbed.change(json!({"spec": spec})).await;
    }

    async fn datacenters(&self, names: &[&str]) {
        let vcenters = Api::<VsphereCloudConfig>::namespaced(self.testbed.client(), NAMESPACE);
        let patch = Patch::Merge(json!({"spec": {"datacenters": names}}));
        vcenters.patch("vc", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn writes_after_two_rounds(&self, since: Timestamp) -> Vec<String> {
        self.testbed.writes_after_two_rounds(&self.operator, since).await
    }

    async fn ready(&self) {
        self.testbed.ready(&self.operator, 120).await;
    }
}

/// Both vCenters have tags for zones and regions: a driver needs them with two vCenters.
fn inventory(vms: impl IntoIterator<Item = Vm>) -> Inventory {
    let inventory = Inventory::small().vms(vms).category("k8s-region", &[("region-1", &["/DC0"])]);
    inventory.category(
        "k8s-zone",
        &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
    )
}

#[tokio::test]
async fn running_drivers_follow_configuration_changes_and_restart_only_if_needed() {
    let mut testbed = Testbed::with_nodes(2).await;
    // Another datacenter, without nodes.
    let mut vms = inventory((1..=3).map(|number| Vm::numbered("node", number)));
    vms.datacenters.push(Datacenter { name: "DC1".into(), ..Datacenter::default() });
    testbed.vcenter.replace(vms).await;
    let operator = testbed.operator_with(&["--grace=5"]);
    testbed
        .configure(json!({
            "cloudProvider": {
                "vsphereCloudConfigs": ["vc"],
                "topology": {"zone": "k8s-zone", "region": "k8s-region"},
            },
            "storageProvider": {"vsphereCloudConfigs": ["vc"]},
        }))
        .await;
    testbed.ready(&operator, 120).await;
    let fixture = Fixture { testbed, operator };
    a_missing_vcenter_is_reported_and_changes_nothing(&fixture).await;
    a_second_object_for_a_vcenter_is_reported_and_its_fix_removes_it(&fixture).await;
    a_vcenter_is_added_and_removed(&fixture).await;
    datacenters_change(&fixture).await;
    a_disk_fills_up(&fixture).await;
    assert_eq!(fixture.testbed.denied_requests(), Vec::<String>::new());
    assert_eq!(fixture.testbed.deletions(), Vec::<String>::new());
    the_config_is_deleted_while_no_operator_runs(fixture).await;
}

async fn a_missing_vcenter_is_reported_and_changes_nothing(fixture: &Fixture) {
    let since = Timestamp::now();
    fixture.vcenters(&["vc", "elsewhere"]).await;
    let finding = fixture.testbed.finding_about("VDO-1002", 60, &["names elsewhere"]).await;
    assert!(finding.remedy[1].contains("create the object elsewhere"), "{finding:#?}");
    assert_eq!(fixture.writes_after_two_rounds(since).await, Vec::<String>::new());
    fixture.vcenters(&["vc"]).await;
    fixture.ready().await;
}

async fn a_second_object_for_a_vcenter_is_reported_and_its_fix_removes_it(fixture: &Fixture) {
    let testbed = &fixture.testbed;
    let vcenters = Api::<VsphereCloudConfig>::namespaced(testbed.client(), NAMESPACE);
    let mut spec = vcenters.get("vc").await.unwrap().spec;
    spec.datacenters = vec!["DC1".into()];
    let twin = VsphereCloudConfig::new("zz-twin", spec);
    vcenters.create(&PostParams::default(), &twin).await.unwrap();
    let since = Timestamp::now();
    fixture.vcenters(&["vc", "zz-twin"]).await;
    let finding = testbed.finding_about("VDO-1013", 60, &["vc, zz-twin", "spec.datacenters"]).await;
    assert_eq!(finding.severity, api::Severity::Blocker, "{finding:#?}");
    assert_eq!(fixture.writes_after_two_rounds(since).await, Vec::<String>::new());

    let patch = finding.remedy[1].split('\'').nth(1).unwrap();
    testbed.change(serde_json::from_str(patch).unwrap()).await;
    assert!(finding.remedy[2].contains(" zz-twin "), "{finding:#?}");
    vcenters.delete("zz-twin", &DeleteParams::default()).await.unwrap();
    testbed
        .status("nothing is reported any more", 60, |status| {
            status.findings.iter().all(|finding| finding.code != "VDO-1013")
        })
        .await;
    fixture.ready().await;
}

async fn a_vcenter_is_added_and_removed(fixture: &Fixture) {
    let testbed = &fixture.testbed;
    let other = testbed.another_vcenter(inventory([Vm::numbered("far", 1)])).await;
    let host = other.address().port().to_string();
    let before = fixture.generations().await;
    fixture.vcenters(&["vc", "other"]).await;
    fixture
        .both_configurations("both drivers have both vCenters", |text| text.contains(&host))
        .await;
    fixture.ready().await;
    fixture.controllers_restarted_since(before).await;
    let vm = Vm::numbered("far", 1);
    let far = Node::named("far-1").system_uuid(&vm.uuid);
    let far = far.provider_id(&format!("vsphere://{}", vm.uuid));
    testbed.nodes.as_ref().unwrap().add(far).await;
    testbed.attach("pv-far", "far-1").await;
    testbed
        .status("the node driver runs on the node", 60, |status| {
            status.csi.as_ref().and_then(|csi| csi.nodes_ready) == Some(4)
        })
        .await;

    // The vCenter must stay while a volume is attached that only it can detach.
    let (since, before) = (Timestamp::now(), fixture.generations().await);
    fixture.vcenters(&["vc"]).await;
    testbed.finding_about("VDO-1904", 60, &["pv-far"]).await;
    assert_eq!(fixture.writes_after_two_rounds(since).await, Vec::<String>::new());
    let attachments = Api::<VolumeAttachment>::all(testbed.client());
    attachments.delete("csi-pv-far", &DeleteParams::default()).await.unwrap();
    eventually("storage has one vCenter", 90, async || {
        let [storage, _] = fixture.configurations().await;
        if storage.contains(&host) { Err(fixture.operator.tail()) } else { Ok(()) }
    })
    .await;
    // For the cloud controller the VM would be gone, and it would delete the node.
    testbed
        .status("the cloud controller waits for the node to leave", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.contains("Find the virtual machine of every node") && plan.contains("far-1")
        })
        .await;
    assert!(fixture.configurations().await[1].contains(&host));
    let nodes = Api::<KubeNode>::all(testbed.client());
    nodes.delete("far-1", &DeleteParams::default()).await.unwrap();
    fixture
        .both_configurations("both drivers have one vCenter", |text| !text.contains(&host))
        .await;
    let vcenters = Api::<VsphereCloudConfig>::namespaced(testbed.client(), NAMESPACE);
    vcenters.delete("other", &DeleteParams::default()).await.unwrap();
    fixture.ready().await;
    fixture.controllers_restarted_since(before).await;
}

async fn datacenters_change(fixture: &Fixture) {
    let before = fixture.generations().await;
    fixture.datacenters(&["DC0", "DC1"]).await;
    fixture
        .both_configurations("both drivers have both datacenters", |text| text.contains("DC1"))
        .await;
    fixture.ready().await;
    fixture.controllers_restarted_since(before).await;

    // No driver gets a datacenter list that lacks the VMs of the nodes.
    let since = Timestamp::now();
    fixture.datacenters(&["DC1"]).await;
    fixture.testbed.finding_about("VDO-1201", 60, &["node-1"]).await;
    fixture
        .testbed
        .status("both drivers wait", 60, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.matches("Find the virtual machine of every node").count() == 2
        })
        .await;
    assert_eq!(fixture.writes_after_two_rounds(since).await, Vec::<String>::new());
    fixture.datacenters(&["DC0"]).await;
    fixture
        .both_configurations("both drivers have one datacenter", |text| !text.contains("DC1"))
        .await;
    fixture.ready().await;
}

async fn a_disk_fills_up(fixture: &Fixture) {
    let testbed = &fixture.testbed;
    testbed.attach("pv-2", "node-2").await;
    let (before, since) = (fixture.generations().await, Timestamp::now());
    testbed.nodes.as_ref().unwrap().fill_disk("node-2", true).await;
    let texts = ["vsphere-csi-node", "node-2 has DiskPressure"];
    testbed.finding_about("VDO-1621", 90, &texts).await;
    let writes = fixture.writes_after_two_rounds(since).await;
    assert_eq!(writes, Vec::<String>::new(), "VDO cannot fix this");
    testbed.nodes.as_ref().unwrap().fill_disk("node-2", false).await;
    // Kubernetes replaces the pod, and VDO only reports that it is back.
    testbed
        .status("every pod of the node driver is ready", 90, |status| {
            status.findings.iter().all(|finding| finding.code != "VDO-1621")
        })
        .await;
    let pods = Api::<Pod>::namespaced(testbed.client(), CSI);
    let on_node =
        ListParams::default().labels("app=vsphere-csi-node").fields("spec.nodeName=node-2");
    eventually("the node driver runs on the node", 60, async || {
        let on_node = pods.list(&on_node).await.unwrap();
        let runs = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.metadata.deletion_timestamp.is_none() && phase == Some("Running")
        };
        if on_node.iter().any(runs) { Ok(()) } else { Err(format!("{on_node:?}")) }
    })
    .await;
    fixture.ready().await;
    assert_eq!(fixture.generations().await, before);
    let attachments = Api::<VolumeAttachment>::all(testbed.client());
    attachments.get("csi-pv-2").await.unwrap();
}

/// The operator stops before it reports that the drivers stay: the next one reports it.
async fn the_config_is_deleted_while_no_operator_runs(fixture: Fixture) {
    let Fixture { testbed, operator } = fixture;
    testbed.stop(operator).await;
    let configs = Api::<VDOConfig>::namespaced(testbed.client(), NAMESPACE);
    configs.delete("vdo-config", &DeleteParams::default()).await.unwrap();
    let since = Timestamp::now();
    let operator = testbed.operator();
    let event = testbed.event("DriversRetained", "deletionPolicy: Remove").await;
    assert!(event.contains("CPI and CSI"), "{event}");
    assert_eq!(testbed.writes_since(since), Vec::<String>::new());
    assert!(operator.ended().is_none(), "{}", operator.tail());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}
