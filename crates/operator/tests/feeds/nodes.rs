//! Faults of nodes and drivers.

use k8s_openapi::api::{core::v1::Pod, storage::v1::CSINode};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testkit::{Fate, Node, Vm, eventually};

use super::{CSI, DRIVER, Fixture, common::TENANT, field::Field, object, with};

const CONTROLLER: &str = "vsphere-csi-controller";
const CLOUD: &str = "vsphere-cloud-controller-manager";
const NODE_DRIVER: &str = "vsphere-csi-node";
const FEATURES: &str = "internal-feature-states.csi.vsphere.vmware.com";

impl Fixture {
    pub(super) async fn change_node(&self, row: &str, broken: bool) {
        let vm = |name: &str| Vm::named(name);
        let node = |name: &str| Node::named(name).system_uuid(&Vm::named(name).uuid);
        let known = |name: &str| node(name).provider_id(&format!("vsphere://{}", vm(name).uuid));
        match row {
            "4" => {
                let metal = Node::named("metal").provider_id("metal://rack-7");
                self.node(broken, metal.system_uuid("rack-7"), "metal", []).await;
            }
            "21" => {
                self.node(broken, known("down"), "down", [vm("down")]).await;
                self.volume_on_the_node_that_is_down(broken).await;
            }
            "45" => {
                self.testbed
                    .change(json!({"spec": {"storageProvider": {
                        "maxVolumesPerNode": broken.then_some(255),
                    }}}))
                    .await;
                self.limit("node-2", broken.then_some(59)).await;
            }
            "provider-id" => {
                let other = format!("vsphere://{}", vm("somebody else").uuid);
                let name = "mislabelled";
                let scsi = vec!["pvscsi".into(), "lsilogic".into()];
                let vm = Vm { scsi, ..vm(name) };
                self.node(broken, node(name).provider_id(&other), name, [vm]).await;
            }
            "unregistered" => self.register("node-1", !broken, |_| {}).await,
            "keys" => {
                let keys = if broken { Vec::new() } else { zone_keys() };
                self.register("node-1", true, |entry| entry["topologyKeys"] = json!(keys)).await;
            }
            "CPI-1" => self.node(broken, node("late"), "late", [vm("late")]).await,
            "CPI-2" => {
                let guest = Vm { host_name: "short.example.com".into(), ..vm("short") };
                self.node(broken, node("short").uninitialized(), "short", [guest]).await;
            }
            "CPI-3" => {
                let old = Vm { host_name: "twice".into(), ..vm("twice-old") };
                self.node(broken, node("twice").uninitialized(), "twice", [vm("twice"), old]).await;
            }
            _ => {
                let foreign = node("foreign").provider_id("k3s://foreign");
                self.node(broken, foreign, "foreign", [vm("foreign")]).await;
            }
        }
    }

    /// Adds or removes a node with its VMs.
    async fn node<const N: usize>(&self, comes: bool, node: Node, name: &str, vms: [Vm; N]) {
        let vcenter = &self.testbed.vcenter;
        if comes {
            vcenter.add_vms("DC0", vms).await;
            self.nodes().add(node).await;
            return;
        }
        self.delete(&object("v1", "Node", None, name)).await;
        self.delete(&object("storage.k8s.io/v1", "CSINode", None, name)).await;
        // No kubelet is left to terminate the pods.
        let pods = Api::<Pod>::all(self.client.clone());
        let on_it = ListParams::default().fields(&format!("spec.nodeName={name}"));
        for pod in pods.list(&on_it).await.unwrap() {
            let (home, name) = (pod.metadata.namespace.unwrap(), pod.metadata.name.unwrap());
            let pods = Api::<Pod>::namespaced(self.client.clone(), &home);
            let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
        }
        for vm in vms {
            vcenter.destroy_vm(&format!("/DC0/vm/{}", vm.name)).await;
        }
    }

    async fn volume_on_the_node_that_is_down(&self, broken: bool) {
        let attachment = object("storage.k8s.io/v1", "VolumeAttachment", None, "csi-kept");
        let volume = Self::volume("kept", "handle-of-kept");
        if !broken {
            self.delete(&object("v1", "Event", Some("default"), "waits")).await;
            self.delete(&attachment).await;
            self.delete(&volume).await;
            return;
        }
        self.apply(&volume).await;
        self.testbed.attach("kept", "down").await;
        self.apply_status(&with(attachment, json!({"status": {"attached": true}}))).await;
        self.nodes().set_ready("down", false).await;
        let waits = with(
            object("v1", "Event", Some("default"), "waits"),
            json!({
                "type": "Warning", "reason": "FailedAttachVolume",
                "message": "Multi-Attach error for volume \"kept\" Volume is already exclusively \
                            attached to one node and can't be attached to another",
                "involvedObject": {"kind": "Pod", "namespace": "default", "name": "web-1"},
            }),
        );
        self.apply(&waits).await;
    }

    /// Sets the volume limit of a node.
    pub(super) async fn limit(&self, node: &str, limit: Option<u32>) {
        let limit = limit.map(|limit| json!({"count": limit}));
        self.register(node, true, |entry| entry["allocatable"] = json!(limit)).await;
    }

    /// Registers the storage driver on a node, or removes the registration. An entry of a CSINode is immutable:
    /// this deletes and re-creates it.
    async fn register(&self, node: &str, registered: bool, edit: impl FnOnce(&mut Value)) {
        let nodes = Api::<CSINode>::all(self.client.clone());
        let now = nodes.get(node).await.unwrap();
        let entry = now.spec.drivers.iter().find(|driver| driver.name == DRIVER);
        let mut entry = match entry {
            Some(entry) => serde_json::to_value(entry).unwrap(),
            None => json!({
                "name": DRIVER, "topologyKeys": zone_keys(),
                "nodeID": Vm::numbered("node", 1).uuid,
            }),
        };
        edit(&mut entry);
        let after = if registered { json!([entry]) } else { json!([]) };
        for drivers in [json!([]), after] {
            let patch = Patch::Merge(json!({"spec": {"drivers": drivers}}));
            nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
        }
    }

    pub(super) async fn change_driver(&self, field: &mut Field, row: &'static str, broken: bool) {
        let says = |pods: &str, words: &'static str| {
            let fate = if broken { Fate::CrashesSaying(words) } else { Fate::Ready };
            self.nodes().pods(pods, fate);
        };
        match row {
            "1" => {
                let kind = "csinodetopologies.cns.vmware.com";
                let kind =
                    object("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, kind);
                if broken {
                    field.saved.insert("kind", self.saved(&kind).await);
                    self.delete(&kind).await;
                } else {
                    self.apply(&field.saved["kind"]).await;
                }
                says(
                    "vsphere-csi-node",
                    r#"no matches for kind "CSINodeTopology" in version "cns.vmware.com/v1alpha1""#,
                );
                self.template(field, row, CONTROLLER, broken, nowhere).await;
            }
            "12" => says(
                CONTROLLER,
                r"failed to parse config: 5:17: unquoted '\' must be followed by new line or double quote",
            ),
            "16" => self.older_switches(field, broken).await,
            "29" => {
                let elsewhere = |template: &mut Value| {
                    let text = template.to_string().replace("/var/lib/kubelet", "/opt/kubelet");
                    *template = serde_json::from_str(&text).unwrap();
                };
                self.template(field, row, NODE_DRIVER, broken, elsewhere).await;
            }
            "31" => says("vsphere-csi-node", "listen tcp :9808: bind: address already in use"),
            "CPI-6" => {
                says(CLOUD, "dial tcp: lookup vc-a.example.com on 10.96.0.10:53: no such host");
            }
            "CPI-8" => says(CLOUD, "no Virtual Center hosts defined"),
            "14" => {
                let moved = |template: &mut Value| {
                    let text = template.to_string().replace(
                        "registry.k8s.io/csi-vsphere/",
                        "gcr.io/cloud-provider-vsphere/csi/release/",
                    );
                    *template = serde_json::from_str(&text).unwrap();
                };
                self.template(field, row, CONTROLLER, broken, moved).await;
            }
            "older" => {
                for (kind, name) in [("DaemonSet", "vsphere-csi-node"), ("Deployment", CONTROLLER)]
                {
                    let workload = object("apps/v1", kind, Some(CSI), name);
                    let key = "app.kubernetes.io/version";
                    if broken {
                        let now = self.saved(&workload).await;
                        field.saved.insert(kind, now["metadata"]["labels"][key].clone());
                    }
                    let value = if broken { json!("3.1.2") } else { field.saved[kind].clone() };
                    let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
                    self.api(&workload).patch(name, &PatchParams::default(), &patch).await.unwrap();
                }
            }
            "17" => self.template(field, row, CONTROLLER, broken, nowhere).await,
            "32" => {
                let zones = |template: &mut Value| {
                    let containers = template["spec"]["containers"].as_array_mut().unwrap();
                    let is_it = |container: &&mut Value| container["name"] == "csi-provisioner";
                    let provisioner = containers.iter_mut().find(is_it).unwrap();
                    let flags = provisioner["args"].as_array_mut().unwrap();
                    flags.retain(|flag| !flag.to_string().contains("Topology="));
                    flags.push(json!("--feature-gates=Topology=true"));
                };
                self.template(field, row, CONTROLLER, broken, zones).await;
            }
            _ => {
                let moved = |template: &mut Value| {
                    let text = template.to_string().replace(
                        "registry.k8s.io/cloud-pv-vsphere/",
                        "gcr.io/cloud-provider-vsphere/cpi/release/",
                    );
                    *template = serde_json::from_str(&text).unwrap();
                };
                self.template(field, row, CLOUD, broken, moved).await;
            }
        }
    }

    /// Edits the pod template of a workload, or restores the template from before this row.
    async fn template(
        &self,
        field: &mut Field,
        row: &'static str,
        name: &str,
        broken: bool,
        edit: impl FnOnce(&mut Value),
    ) {
        let workload = match name {
            CLOUD => object("apps/v1", "DaemonSet", Some("kube-system"), name),
            NODE_DRIVER => object("apps/v1", "DaemonSet", Some(CSI), name),
            _ => object("apps/v1", "Deployment", Some(CSI), name),
        };
        let api = self.api(&workload);
        let template = if broken {
            let seen = serde_json::to_value(api.get(name).await.unwrap()).unwrap();
            let before = seen["spec"]["template"].clone();
            field.saved.insert(row, before.clone());
            let mut after = before.clone();
            edit(&mut after);
            assert_ne!(after, before, "row {row}");
            after
        } else {
            field.saved.remove(row).unwrap()
        };
        let patch = json!([{"op": "replace", "path": "/spec/template", "value": template}]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
        api.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Makes the workload of a row look as from the published manifests, without messages in the pod status, or as
    /// VDO's again.
    pub(super) async fn set_foreign_installer(
        &self,
        field: &mut Field,
        row: &'static str,
        theirs: bool,
    ) {
        let name = if row == "12" { CONTROLLER } else { CLOUD };
        self.template(field, row, name, theirs, as_published).await;
        let pods = Api::<Pod>::all(self.client.clone());
        eventually(&format!("all pods of {name} are new"), 60, async || {
            let all = pods.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let admins = all.iter().filter(|pod| pod.namespace().as_deref() != Some(TENANT));
            let own = admins.filter(|pod| pod.name_any().starts_with(name));
            let kept: Vec<bool> = own
                .flat_map(|pod| &pod.spec.as_ref().unwrap().containers)
                .map(|c| c.termination_message_policy.as_deref() == Some("FallbackToLogsOnError"))
                .collect();
            let new = !kept.is_empty() && !kept.contains(&theirs);
            new.then_some(()).ok_or(format!("{kept:?}"))
        })
        .await;
    }

    async fn older_switches(&self, field: &mut Field, broken: bool) {
        let map = object("v1", "ConfigMap", Some(CSI), FEATURES);
        if broken {
            let now = self.saved(&map).await;
            let (name, value) = now["data"].as_object().unwrap().iter().next().unwrap();
            field.saved.insert("16", json!({name: value}));
        }
        let mut data = field.saved["16"].clone();
        if broken {
            data.as_object_mut().unwrap().values_mut().for_each(|value| *value = Value::Null);
        }
        let patch = Patch::Merge(json!({"data": data}));
        self.api(&map).patch(FEATURES, &PatchParams::default(), &patch).await.unwrap();
    }
}

/// The topology keys with which the simulated kubelet registers the driver.
fn zone_keys() -> Vec<String> {
    ["k8s-region", "k8s-zone"].map(|key| format!("topology.csi.vmware.com/{key}")).into()
}

/// Containers as in the published manifests: crash logs are not in the container status.
fn as_published(template: &mut Value) {
    for container in template["spec"]["containers"].as_array_mut().unwrap() {
        container.as_object_mut().unwrap().remove("terminationMessagePolicy");
    }
}

fn nowhere(template: &mut Value) {
    template["spec"]["nodeSelector"]["example.com/nowhere"] = json!("");
}
