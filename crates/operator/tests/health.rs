//! Faults of the field, made for real: each is named in the status, and no longer once it is cured.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{fmt::Write as _, time::Duration};

use api::{Severity, VDOConfigStatus, VsphereCloudConfig};
use common::{NAMESPACE, Stage};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSINode, StorageClass},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testkit::{Fate, Fault, FaultProxy, Permission, Process, Role, Vm};
use tokio::time::Instant;

/// A fault: what it is, the finding that names it, how it is made and cured. Where vCenter has to be
/// asked to notice, that is done by annotation, as an admin would.
struct Case {
    what: &'static str,
    code: &'static str,
    asks: bool,
}

const fn case(code: &'static str, what: &'static str) -> Case {
    Case { what, code, asks: false }
}

const fn asking(code: &'static str, what: &'static str) -> Case {
    Case { what, code, asks: true }
}

const CASES: &[Case] = &[
    case("VDO-1203", "disk ids hidden"),
    case("VDO-1204", "old hardware"),
    case("VDO-1207", "machine snapshot"),
    case("VDO-1208", "tools not running"),
    case("VDO-1213", "host in maintenance"),
    case("VDO-1212", "old host"),
    case("VDO-1230", "machine off"),
    case("VDO-1201", "machine not found"),
    case("VDO-1202", "machine copied"),
    case("VDO-1218", "other address"),
    case("VDO-1219", "no address"),
    case("VDO-1220", "old kubelet"),
    case("VDO-1222", "stale registration"),
    case("VDO-1301", "vcenter away"),
    case("VDO-1302", "other certificate"),
    case("VDO-1305", "wrong password"),
    case("VDO-1315", "no such datacenter"),
    asking("VDO-1313", "volume service down"),
    asking("VDO-1401", "privileges taken away"),
    case("VDO-1503", "class names no datastore"),
    case("VDO-1505", "class names no policy"),
    case("VDO-1507", "class with odd parameter"),
    case("VDO-1508", "datastore away"),
    case("VDO-1509", "datastore full"),
    case("VDO-1511", "no file service"),
    case("VDO-1515", "volume unknown to vcenter"),
    case("VDO-1603", "image not pulled"),
    case("VDO-1604", "driver crashes"),
    asking("VDO-1702", "tag missing"),
    asking("VDO-1704", "tag on a machine"),
    case("VDO-1705", "machine moved to another zone"),
    case("VDO-1706", "labels contradict"),
];

const MACHINE: &str = "/DC0/vm/node-2";
const NODE: &str = "node-2";

struct Scene {
    stage: Stage,
    proxy: FaultProxy,
    operator: Process,
    asked: u32,
}

impl Scene {
    async fn set() -> Self {
        let mut stage = Stage::of(2, false).await;
        let proxy = FaultProxy::before(stage.vcenter.address()).await;
        stage.address = Some(proxy.address());
        let operator = stage.operator();
        stage
            .configure(json!({
                "cloudProvider": {
                    "vsphereCloudConfigs": ["vc"],
                    "topology": {"zone": "k8s-zone", "region": "k8s-region"},
                },
                "storageProvider": {"vsphereCloudConfig": "vc"},
            }))
            .await;
        stage.ready(&operator, 90).await;
        Self { stage, proxy, operator, asked: 0 }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = ()>,
    {
        Api::all(self.stage.client())
    }

    async fn merge<K>(&self, api: Api<K>, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn node(&self, metadata: Value) {
        self.merge(self.api::<Node>(), NODE, json!({"metadata": metadata})).await;
    }

    async fn vcenter_config(&self, spec: Value) {
        let configs = Api::<VsphereCloudConfig>::namespaced(self.stage.client(), NAMESPACE);
        self.merge(configs, "vc", json!({"spec": spec})).await;
    }

    async fn create<K>(&self, api: Api<K>, object: Value)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn delete<K>(&self, api: Api<K>, name: &str)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn class(&self, broken: bool, parameters: Value) {
        if broken {
            let class = json!({
                "metadata": {"name": "odd"}, "provisioner": "csi.vsphere.vmware.com",
                "parameters": parameters,
            });
            self.create(self.api::<StorageClass>(), class).await;
        } else {
            self.delete(self.api::<StorageClass>(), "odd").await;
        }
    }

    /// An entry of a CSINode is taken out and put in anew: it cannot be changed.
    async fn register(&self, id: &str) {
        let nodes = self.api::<CSINode>();
        for entry in [None, Some(json!({"name": "csi.vsphere.vmware.com", "nodeID": id}))] {
            let drivers: Vec<Value> = entry.into_iter().collect();
            self.merge(nodes.clone(), NODE, json!({"spec": {"drivers": drivers}})).await;
        }
    }

    /// Makes a fault, or cures it.
    async fn change(&self, what: &str, broken: bool) {
        let Self { stage, .. } = self;
        let vcenter = &stage.vcenter;
        let pick = |bad: Value, good: Value| if broken { bad } else { good };
        let vm = async |patch: Value| vcenter.patch_vm(MACHINE, patch).await;
        let own = Vm::numbered("node", 2);
        match what {
            "disk ids hidden" => vm(json!({"diskUuid": !broken})).await,
            "old hardware" => vm(json!({"version": pick(json!("vmx-11"), json!("vmx-19"))})).await,
            "machine snapshot" => {
                vm(json!({"snapshots": pick(json!(["backup"]), json!([]))})).await;
            }
            "tools not running" => {
                vm(json!({"tools": pick(json!("notRunning"), json!("running"))})).await;
            }
            "host in maintenance" => {
                let host = self.host_of_node().await;
                vcenter.patch_host(&host, json!({"maintenance": broken})).await;
            }
            "old host" => {
                let host = self.host_of_node().await;
                let version = pick(json!("6.5.0"), json!("8.0.3"));
                vcenter.patch_host(&host, json!({"version": version})).await;
            }
            "machine off" => {
                stage.nodes.as_ref().unwrap().set_ready(NODE, !broken).await;
                vm(json!({"power": pick(json!("off"), json!("on"))})).await;
            }
            "machine not found" => {
                let other = Vm::named("somebody else").uuid;
                vm(json!({"uuid": pick(json!(other), json!(own.uuid))})).await;
            }
            "machine copied" if broken => {
                vcenter.add_vms("DC0", [Vm { uuid: own.uuid, ..Vm::named("copy") }]).await;
            }
            "machine copied" => vcenter.destroy_vm("/DC0/vm/copy").await,
            "other address" => {
                let value = pick(json!("10.99.99.99"), Value::Null);
                self.node(json!({"annotations": {"alpha.kubernetes.io/provided-node-ip": value}}))
                    .await;
            }
            "no address" => {
                let nics = serde_json::to_value(&own.nics).unwrap();
                vm(json!({"nics": pick(json!([]), nics)})).await;
            }
            "old kubelet" => {
                let version = pick(json!("v1.20.0"), json!("v1.36.4"));
                let patch = json!({"status": {"nodeInfo": {"kubeletVersion": version}}});
                let nodes = self.api::<Node>();
                let parameters = PatchParams::default();
                nodes.patch_status(NODE, &parameters, &Patch::Merge(patch)).await.unwrap();
            }
            "stale registration" => {
                let other = Vm::named("somebody else").uuid;
                self.register(if broken { &other } else { &own.uuid }).await;
            }
            "vcenter away" if broken => self.proxy.cut(),
            "vcenter away" => self.proxy.heal(),
            "other certificate" => {
                let own = vcenter.thumbprint_sha1();
                let other = own.replace(|c: char| c.is_ascii_digit(), "0");
                self.vcenter_config(json!({"thumbprint": if broken { other } else { own }})).await;
            }
            "wrong password" => {
                stage.write_secret(if broken { "wrong" } else { vcenter.password() }).await;
            }
            "no such datacenter" => {
                let datacenters = pick(json!(["DC9"]), json!(["DC0"]));
                self.vcenter_config(json!({"datacenters": datacenters})).await;
            }
            "volume service down" if broken => {
                vcenter.fault(Fault::on("CnsQueryVolume").fails("SystemError")).await;
            }
            "volume service down" => vcenter.clear_faults().await,
            "privileges taken away" => {
                let user = vcenter.user();
                vcenter.set_role(&Role::new("weak", &["System.Read", "System.View"])).await;
                let role = if broken { "weak" } else { "Admin" };
                vcenter.permit(&Permission::new(user, role, "/")).await;
            }
            "class names no datastore" => {
                self.class(broken, json!({"datastoreurl": "ds:///vmfs/volumes/none/"})).await;
            }
            "class names no policy" => {
                self.class(broken, json!({"storagepolicyname": "no such policy"})).await;
            }
            "class with odd parameter" => self.class(broken, json!({"speed": "high"})).await,
            "datastore away" => {
                let patch = json!({"accessible": !broken});
                vcenter.patch_datastore("/DC0/datastore/shared-a", patch).await;
            }
            "datastore full" => {
                let free = pick(json!(1), json!(900));
                vcenter.patch_datastore("/DC0/datastore/shared-a", json!({"freeGiB": free})).await;
            }
            "no file service" => self.shared_claim(broken).await,
            "volume unknown to vcenter" => self.volume(broken).await,
            "image not pulled" => {
                self.pods(if broken { Fate::ImagePullFails } else { Fate::Ready });
            }
            "driver crashes" => self.pods(if broken { Fate::Crashes } else { Fate::Ready }),
            "tag missing" if broken => {
                vcenter.detach_tag("k8s-zone", "zone-a", &["/DC0/host/cluster-a"]).await;
            }
            "tag missing" => {
                vcenter.attach_tag("k8s-zone", "zone-a", &["/DC0/host/cluster-a"]).await;
            }
            "tag on a machine" if broken => {
                vcenter.attach_tag("k8s-zone", "zone-a", &[MACHINE]).await;
            }
            "tag on a machine" => vcenter.detach_tag("k8s-zone", "zone-a", &[MACHINE]).await,
            "machine moved to another zone" => {
                let zone = pick(json!("zone-x"), Value::Null);
                self.node(json!({"labels": {"topology.kubernetes.io/zone": zone}})).await;
            }
            "labels contradict" => {
                self.node(json!({"labels": {
                    "topology.kubernetes.io/region": pick(json!("region-1"), Value::Null),
                    "failure-domain.beta.kubernetes.io/region": pick(json!("other"), Value::Null),
                }}))
                .await;
            }
            other => unreachable!("nobody knows how to make {other}"),
        }
    }

    async fn host_of_node(&self) -> String {
        let truth = self.stage.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().unwrap();
        let vm = vms.iter().find(|vm| vm["name"] == NODE).unwrap();
        let (cluster, host) = (vm["cluster"].as_str().unwrap(), vm["host"].as_str().unwrap());
        format!("/DC0/host/{cluster}/{host}")
    }

    fn pods(&self, fate: Fate) {
        self.stage.nodes.as_ref().unwrap().pods("vsphere-csi-controller", fate);
    }

    async fn shared_claim(&self, broken: bool) {
        self.class(broken, json!({})).await;
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.stage.client(), "default");
        if !broken {
            return self.delete(claims, "shared").await;
        }
        let claim = json!({
            "metadata": {"name": "shared"},
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": "odd",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        self.create(claims, claim).await;
    }

    async fn volume(&self, broken: bool) {
        if !broken {
            return self.delete(self.api::<PersistentVolume>(), "lost").await;
        }
        let volume = json!({
            "metadata": {"name": "lost"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "none",
                "csi": {"driver": "csi.vsphere.vmware.com", "volumeHandle": "no-such-volume"},
            },
        });
        self.create(self.api::<PersistentVolume>(), volume).await;
    }

    /// Asks for a check of everything, and waits until it was made.
    async fn ask(&mut self) {
        self.asked += 1;
        let value = format!("{}", self.asked);
        let patch = json!({"metadata": {"annotations": {"vdo.vmware.com/check-now": value}}});
        self.stage.change(patch).await;
        let checked = |status: &VDOConfigStatus| {
            let health = status.health.as_ref();
            health.and_then(|health| health.checked.as_deref()) == Some(value.as_str())
        };
        self.stage.status("everything was checked", 60, checked).await;
    }

    async fn is_well(&self, when: &str) {
        let well = |status: &VDOConfigStatus| {
            status.findings.iter().all(|finding| finding.severity == Severity::Info)
        };
        self.stage.status(&format!("nothing is wrong {when}"), 60, well).await;
    }

    /// A finding somebody lives with is shown as such, and nothing is degraded by it.
    async fn accept_a_finding(&self) {
        let accepted = json!([{"code": "VDO-1203", "object": "node-2", "reason": "next week"}]);
        self.stage.change(json!({"spec": {"acknowledgements": accepted}})).await;
        self.change("disk ids hidden", true).await;
        let shown = |status: &VDOConfigStatus| {
            let finding = status.findings.iter().find(|finding| finding.code == "VDO-1203");
            let reason = finding.and_then(|finding| finding.acknowledged.as_ref());
            reason.is_some_and(|accepted| accepted.reason == "next week")
                && api::condition::is_true(&status.conditions, "Ready")
                && status.health.as_ref().is_some_and(|h| (h.errors, h.acknowledged) == (0, 1))
        };
        self.stage.status("the finding is accepted", 60, shown).await;
        self.stage.change(json!({"spec": {"acknowledgements": null}})).await;
        let raised = |status: &VDOConfigStatus| {
            status.findings.iter().any(|f| f.code == "VDO-1203" && f.acknowledged.is_none())
        };
        self.stage.status("it is raised again", 60, raised).await;
    }

    /// What VDO may repair it repairs, and it says what is left to do.
    async fn let_vdo_repair(&self) {
        self.stage.change(json!({"spec": {"remediation": {"diskUuid": "Fix"}}})).await;
        let only = |code: &str, status: &VDOConfigStatus| {
            let wrong = status.findings.iter().filter(|f| f.severity > Severity::Info);
            wrong.map(|finding| finding.code.as_str()).eq([code])
        };
        let waits = |status: &VDOConfigStatus| only("VDO-1231", status);
        self.stage.status("the machine needs a power cycle", 60, waits).await;
        let truth = self.stage.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().unwrap();
        let vm = vms.iter().find(|vm| vm["name"] == NODE).unwrap();
        assert_eq!(vm["diskUuid"], true, "it is set in vCenter");
        self.stage.vcenter.patch_vm(MACHINE, json!({"power": "off"})).await;
        self.stage.vcenter.patch_vm(MACHINE, json!({"power": "on"})).await;
        self.is_well("after the repair and a power cycle").await;
    }

    /// Makes a fault and cures it; returns how long each took to be noticed.
    async fn play(&mut self, case: &Case) -> (Duration, Duration) {
        let named = |status: &VDOConfigStatus| {
            status.findings.iter().any(|finding| finding.code == case.code)
        };
        let what = format!("{} is named: {}", case.what, case.code);
        self.change(case.what, true).await;
        let begin = Instant::now();
        if case.asks {
            self.ask().await;
        }
        self.stage.status(&what, 60, named).await;
        let appeared = begin.elapsed();
        self.change(case.what, false).await;
        let begin = Instant::now();
        if case.asks {
            self.ask().await;
        }
        let cleared = format!("{} is cured: no {}", case.what, case.code);
        self.stage.status(&cleared, 60, |status| !named(status)).await;
        let cured = begin.elapsed();
        assert!(self.operator.ended().is_none(), "{}", self.operator.tail());
        (appeared, cured)
    }
}

#[tokio::test]
async fn every_fault_is_named_while_it_lasts_and_a_healthy_cluster_has_none() {
    let mut scene = Scene::set().await;
    scene.is_well("at first").await;
    let mut seconds = String::new();
    for case in CASES {
        let (appeared, cured) = scene.play(case).await;
        scene.is_well(&format!("after {}", case.what)).await;
        let (appeared, cured) = (appeared.as_secs_f64(), cured.as_secs_f64());
        let asked = if case.asks { ", asked for" } else { "" };
        let line = format!("{}\t{}{asked}\t{appeared:.1}\t{cured:.1}", case.code, case.what);
        writeln!(seconds, "{line}").unwrap();
    }
    assert!(CASES.len() >= 25);
    scene.accept_a_finding().await;
    scene.let_vdo_repair().await;
    assert_eq!(scene.stage.refusals(), Vec::<String>::new(), "the shipped RBAC is enough");
    if let Ok(path) = std::env::var("VDO_HEALTH_SECONDS") {
        std::fs::write(path, seconds).unwrap();
    }
}
