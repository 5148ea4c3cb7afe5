//! Faults of volumes and in vCenter.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testkit::{Permission, VcenterUser, Vm, eventually};
use vsphere::{
    MoRef,
    cns::{
        AttachSpec, BackingDetails, ContainerCluster, CreateSpec, EntityMetadata,
        SnapshotCreateSpec, VolumeId, VolumeMetadata,
    },
};

use super::{DRIVER, Fixture, field::Field, object, with};

const MINUTE: Duration = Duration::from_mins(1);
/// A user that never ends its sessions.
const FORGETFUL: &str = "backup@vsphere.local";

/// The CNS metadata of a Kubernetes object for a volume.
fn entity(cluster: &str, kind: &str, name: &str) -> EntityMetadata {
    EntityMetadata {
        name: name.into(),
        labels: Vec::new(),
        delete: None,
        cluster: Some(cluster.into()),
        kind: Some(kind.into()),
        namespace: (kind != "PERSISTENT_VOLUME").then(|| "shop".into()),
        refers: Vec::new(),
    }
}

impl Fixture {
    /// Creates volumes in vCenter that belong to a cluster.
    async fn make_volumes(
        &self,
        cluster: &str,
        entities: &[EntityMetadata],
        count: usize,
    ) -> Vec<VolumeId> {
        let owner = ContainerCluster {
            kind: "KUBERNETES".into(),
            id: cluster.into(),
            user: self.testbed.vcenter.user().into(),
            flavor: Some("VANILLA".into()),
            distribution: None,
            delete: None,
        };
        let spec = CreateSpec {
            name: "made-by-the-test".into(),
            id: None,
            datastores: Vec::new(),
            metadata: VolumeMetadata {
                cluster: Some(owner),
                entities: entities.to_vec(),
                clusters: Vec::new(),
            },
            backing: BackingDetails::block(1024),
            policy: None,
            permissions: Vec::new(),
            source: None,
        };
        let task = self.vcenter.create_volumes(vec![spec; count]).await.unwrap();
        let made = task.wait(MINUTE).await.unwrap();
        made.into_iter().map(|outcome| outcome.volume.unwrap()).collect()
    }

    async fn vm(&self, name: &str) -> MoRef {
        let truth = self.testbed.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().cloned().unwrap();
        let vm = vms.into_iter().find(|vm| vm["name"] == name).unwrap();
        MoRef::new("VirtualMachine", vm["moref"].as_str().unwrap())
    }

    async fn attach_in_vcenter(&self, volumes: &[VolumeId], vm_name: &str, attached: bool) {
        let vm = self.vm(vm_name).await;
        let specs =
            volumes.iter().map(|volume| AttachSpec { volume: volume.clone(), vm: vm.clone() });
        let specs: Vec<AttachSpec> = specs.collect();
        if attached {
            let task = self.vcenter.attach_volumes(&specs).await.unwrap();
            for outcome in task.wait(MINUTE).await.unwrap() {
                outcome.result.unwrap();
            }
        } else {
            let task = self.vcenter.detach_volumes(&specs).await.unwrap();
            task.wait(MINUTE).await.unwrap();
        }
    }

    /// A VolumeAttachment that is stuck with this error.
    async fn stuck(&self, volume: &str, detaching: bool, reason: &str) {
        self.testbed.attach(volume, "node-2").await;
        let name = format!("csi-{volume}");
        let attachment = object("storage.k8s.io/v1", "VolumeAttachment", None, &name);
        let error = json!({"message": reason});
        let status = if detaching {
            json!({"attached": true, "detachError": error})
        } else {
            json!({"attached": false, "attachError": error})
        };
        self.apply_status(&with(attachment.clone(), json!({"status": status}))).await;
        if detaching {
            let kept = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/attacher"]}}));
            self.api(&attachment).patch(&name, &PatchParams::default(), &kept).await.unwrap();
            self.delete(&attachment).await;
        }
    }

    async fn unstuck(&self, volume: &str, detaching: bool) {
        let name = format!("csi-{volume}");
        let attachment = object("storage.k8s.io/v1", "VolumeAttachment", None, &name);
        if detaching {
            let gone = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            self.api(&attachment).patch(&name, &PatchParams::default(), &gone).await.unwrap();
        } else {
            self.delete(&attachment).await;
        }
    }

    pub(super) async fn change_volumes(&self, field: &mut Field, row: &'static str, broken: bool) {
        let id = self.cluster_id.as_str();
        if broken {
            let made = match row {
                "9" => {
                    let pod = entity(id, "POD", "orders-0");
                    let claim = entity(id, "PERSISTENT_VOLUME_CLAIM", "orders");
                    self.make_volumes(id, &[pod, claim], 1).await
                }
                // With its own disk the maximum of four SCSI controllers of this version.
                "20" => self.make_volumes("elsewhere", &[], 59).await,
                "40" => {
                    let twice = ["old", "new"].map(|name| entity(id, "PERSISTENT_VOLUME", name));
                    self.make_volumes(id, &twice, 1).await
                }
                "23" | "24" | "26" | "43" | "unavailable" => self.make_volumes(id, &[], 1).await,
                "44" => self.make_volumes("prod-0", &[], 1).await,
                _ => Vec::new(),
            };
            field.volumes.insert(row, made);
        }
        let made = if broken { field.volumes[row].clone() } else { Vec::new() };
        let handle = made.first().map(|volume| volume.id.clone()).unwrap_or_default();
        match row {
            "unavailable" => {
                self.put(broken, &Self::volume("reached", &handle)).await;
                let state = json!({"accessible": !broken});
                self.testbed.vcenter.patch_datastore("/DC0/datastore/shared", state).await;
            }
            "claim" => self.waiting_claim(broken).await,
            "10" => {
                let map = object("v1", "ConfigMap", Some(super::CSI), "vsphere-csi-cluster-id");
                let map = with(map, json!({"data": {"clusterID": "made-by-the-driver"}}));
                self.put(broken, &map).await;
            }
            "20" => self.full_vm(&field.volumes["20"], broken).await,
            "22" => {
                self.put(broken, &Self::volume("forgotten", "no-such-volume")).await;
                let reason = "failed to detach: volumeID not found in QueryVolume";
                self.hang("forgotten", true, broken.then_some(reason)).await;
            }
            "23" => {
                if broken {
                    self.testbed.vcenter.add_vms("DC0", [Vm::named("old-worker")]).await;
                    self.attach_in_vcenter(&made, "old-worker", true).await;
                }
                self.put(broken, &Self::volume("held", &handle)).await;
                let reason = "The operation is not allowed in the current state.";
                self.hang("held", false, broken.then_some(reason)).await;
                if !broken {
                    self.attach_in_vcenter(&field.volumes["23"], "old-worker", false).await;
                    self.testbed.vcenter.destroy_vm("/DC0/vm/old-worker").await;
                }
            }
            "24" => {
                self.put(broken, &Self::volume("diskless", &handle)).await;
                let reason = "Failed to retrieve datastore for vol x: vim.fault.NotFound";
                self.hang("diskless", false, broken.then_some(reason)).await;
            }
            "26" => self.growing(&handle, broken).await,
            "36" => {
                for n in 0..52 {
                    let volume = Self::volume(&format!("lost-{n}"), &format!("no-such-{n}"));
                    self.put(broken, &volume).await;
                }
            }
            "40" => self.put(broken, &Self::volume("doubled", &handle)).await,
            "44" => self.put(broken, &Self::volume("older", &handle)).await,
            _ => {}
        }
        if !broken && let Some(made) = field.volumes.remove(row).filter(|made| !made.is_empty()) {
            let task = self.vcenter.delete_volumes(&made, true).await.unwrap();
            task.wait(MINUTE).await.unwrap();
        }
    }

    async fn put(&self, exists: bool, object: &Value) {
        if exists {
            self.apply(object).await;
        } else {
            self.delete(object).await;
        }
    }

    async fn hang(&self, volume: &str, detaching: bool, reason: Option<&str>) {
        match reason {
            Some(reason) => self.stuck(volume, detaching, reason).await,
            None => self.unstuck(volume, detaching).await,
        }
    }

    /// All disk slots of a VM are in use: a host of this version has 60.
    async fn full_vm(&self, volumes: &[VolumeId], broken: bool) {
        let host = self.host_of("node-2").await;
        let version = if broken { "7.0.3" } else { "8.0.3" };
        self.testbed.vcenter.patch_host(&host, json!({"version": version})).await;
        self.attach_in_vcenter(volumes, "node-2", broken).await;
        self.limit("node-2", broken.then_some(59)).await;
        if !broken {
            // vCenter does not remove the controllers that it added.
            self.testbed.vcenter.patch_vm("/DC0/vm/node-2", json!({"scsi": ["pvscsi"]})).await;
        }
    }

    async fn host_of(&self, vm_name: &str) -> String {
        let truth = self.testbed.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().cloned().unwrap();
        let vm = vms.into_iter().find(|vm| vm["name"] == vm_name).unwrap();
        let text = |key: &str| vm[key].as_str().unwrap().to_owned();
        format!("/DC0/host/{}/{}", text("cluster"), text("host"))
    }

    /// A claim requests more than the capacity of its volume, and the volume has a snapshot.
    async fn growing(&self, handle: &str, broken: bool) {
        let claim = with(
            object("v1", "PersistentVolumeClaim", Some("default"), "growing"),
            json!({"spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "volumeName": "growing", "resources": {"requests": {"storage": "1Gi"}},
            }}),
        );
        let snapshots = broken.then(|| json!({}));
        self.testbed.change(json!({"spec": {"storageProvider": {"snapshots": snapshots}}})).await;
        self.put(broken, &Self::volume("growing", handle)).await;
        self.put(broken, &claim).await;
        if !broken {
            return;
        }
        let spec = SnapshotCreateSpec {
            volume: VolumeId { id: handle.to_owned() },
            description: "by hand".into(),
        };
        let task = self.vcenter.create_volume_snapshots(&[spec]).await.unwrap();
        task.wait(MINUTE).await.unwrap();
        let api = self.api(&claim);
        eventually("the claim is bound", 30, async || {
            let seen = serde_json::to_value(api.get("growing").await.unwrap()).unwrap();
            let bound = seen["status"]["phase"] == "Bound";
            bound.then_some(()).ok_or(seen["status"].to_string())
        })
        .await;
        let less = Patch::Merge(json!({"status": {"capacity": {"storage": "512Mi"}}}));
        api.patch_status("growing", &PatchParams::default(), &less).await.unwrap();
    }

    /// A claim for which the driver cannot create a volume.
    async fn waiting_claim(&self, broken: bool) {
        let class = with(
            object("storage.k8s.io/v1", "StorageClass", None, "slow"),
            json!({"provisioner": DRIVER}),
        );
        let claim = with(
            object("v1", "PersistentVolumeClaim", Some("default"), "waiting"),
            json!({"spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "slow",
                "resources": {"requests": {"storage": "1Gi"}},
            }}),
        );
        let event = with(
            object("v1", "Event", Some("default"), "waiting"),
            json!({
                "type": "Warning", "reason": "ProvisioningFailed",
                "message": "failed to provision volume: rpc error: code = DeadlineExceeded",
                "involvedObject": {
                    "kind": "PersistentVolumeClaim", "namespace": "default", "name": "waiting",
                },
            }),
        );
        for object in [class, claim, event] {
            self.put(broken, &object).await;
        }
    }

    pub(super) async fn change_vcenter(&self, row: &str, broken: bool) {
        let vcenter = &self.testbed.vcenter;
        match row {
            "5" => {
                let only: &[&str] =
                    if broken { &["esx-a1"] } else { &["esx-a1", "esx-a2", "esx-a3"] };
                let all: Vec<&str> = if broken {
                    only.to_vec()
                } else {
                    vec!["esx-a1", "esx-a2", "esx-a3", "esx-b1", "esx-b2", "esx-b3"]
                };
                vcenter.patch_datastore("/DC0/datastore/shared", json!({"hosts": all})).await;
                vcenter.patch_datastore("/DC0/datastore/shared-a", json!({"hosts": only})).await;
            }
            "narrow" => self.class_on_shared(broken, "narrow").await,
            "tags" => {
                let host = self.host_of("node-1").await;
                if broken {
                    vcenter.attach_tag("k8s-zone", "zone-b", &[&host]).await;
                } else {
                    vcenter.detach_tag("k8s-zone", "zone-b", &[&host]).await;
                }
            }
            "clock" => vcenter.set_clock(if broken { -600 } else { 0 }).await,
            "vm" => self.weaken(broken, "/DC0/vm/node-2", "ReadOnly").await,
            "category" => self.categories(if broken { &["no-such"] } else { &[] }).await,
            "6" => {
                self.class_on_shared(broken, "on-shared").await;
                self.weaken(broken, "/DC0/datastore/shared", "ReadOnly").await;
            }
            "7" => self.weaken(broken, "/DC0/datastore", "ReadOnly").await,
            "8" => self.weaken(broken, "/DC0/host/cluster-a", "View").await,
            "11" => {
                let name = if broken { "k8s" } else { vcenter.user() };
                if broken {
                    vcenter.set_user(&VcenterUser::new("k8s", vcenter.password())).await;
                    vcenter.permit(&Permission::new("k8s", "Admin", "/")).await;
                }
                let secret = object("v1", "Secret", Some(super::NAMESPACE), "vc-credentials");
                let patch = Patch::Merge(json!({"stringData": {"username": name}}));
                let secrets = self.api(&secret);
                secrets.patch("vc-credentials", &PatchParams::default(), &patch).await.unwrap();
            }
            "35" => {
                let categories: &[&str] = if broken { &["k8s-region", "k8s-zone"] } else { &[] };
                self.testbed
                    .change(
                        json!({"spec": {"storageProvider": {"topologyCategories": categories}}}),
                    )
                    .await;
                let hosts: &[&str] =
                    if broken { &["esx-b1"] } else { &["esx-a1", "esx-a2", "esx-a3"] };
                let all: &[&str] = if broken {
                    &["esx-b1"]
                } else {
                    &["esx-a1", "esx-a2", "esx-a3", "esx-b1", "esx-b2", "esx-b3"]
                };
                vcenter.patch_datastore("/DC0/datastore/shared", json!({"hosts": all})).await;
                vcenter.patch_datastore("/DC0/datastore/shared-a", json!({"hosts": hosts})).await;
            }
            _ if broken => self.open_sessions(1001).await,
            _ => vcenter.expire_sessions(FORGETFUL).await,
        }
    }

    async fn categories(&self, names: &[&str]) {
        let storage = json!({"topologyCategories": names});
        self.testbed.change(json!({"spec": {"storageProvider": storage}})).await;
    }

    /// A StorageClass that names a datastore.
    async fn class_on_shared(&self, exists: bool, name: &str) {
        let class = with(
            object("storage.k8s.io/v1", "StorageClass", None, name),
            json!({
                "provisioner": DRIVER,
                "parameters": {"datastoreurl": "ds:///vmfs/volumes/shared/"},
            }),
        );
        self.put(exists, &class).await;
    }

    /// Gives VDO's account another role on one object, or removes it again.
    async fn weaken(&self, weak: bool, path: &str, role: &str) {
        let (vcenter, user) = (&self.testbed.vcenter, self.testbed.vcenter.user());
        if weak {
            vcenter.permit(&Permission::new(user, role, path)).await;
        } else {
            vcenter.forbid(path, user).await;
        }
    }

    /// Opens sessions and never ends them.
    async fn open_sessions(&self, count: usize) {
        let vcenter = &self.testbed.vcenter;
        vcenter.set_user(&VcenterUser::new(FORGETFUL, "forgetful")).await;
        vcenter.permit(&Permission::new(FORGETFUL, "ReadOnly", "/")).await;
        let authority = reqwest::Certificate::from_pem(vcenter.ca_pem().as_bytes()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([authority]).build().unwrap();
        let url = format!("https://{}/sdk", vcenter.address());
        let login = format!(
            "<soapenv:Envelope xmlns:soapenv=\"http://schemas.xmlsoap.org/soap/envelope/\"><soapenv:Body>\
             <Login xmlns=\"urn:vim25\"><_this type=\"SessionManager\">SessionManager</_this>\
             <userName>{FORGETFUL}</userName><password>forgetful</password></Login>\
             </soapenv:Body></soapenv:Envelope>"
        );
        for _ in 0..count {
            let answer = http.post(&url).body(login.clone()).send().await.unwrap();
            assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        }
    }
}
