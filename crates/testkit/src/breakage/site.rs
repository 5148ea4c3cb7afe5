//! Injects and reverts faults.

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Secret},
    storage::v1::{CSINode, StorageClass},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use snafu::ResultExt;

use super::{Breakage, Kind};
use crate::{
    Error, Fate, Fault, FaultProxy, Nodes, Permission, Role, Vcenter, Vm, error::KubernetesSnafu,
    nodes::kubelet_version,
};

/// The namespace of VDO's objects.
const NAMESPACE: &str = "vmware-system-vdo";
const DRIVER: &str = "csi.vsphere.vmware.com";
const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// The prefix of the annotation with the previous value of a label.
const BEFORE: &str = "before.testkit.vdo";

/// A cluster and a vCenter that VDO manages. The faults affect one node and its VM.
///
/// It has no state: a fault injected through one value can be reverted through another.
pub struct Site<'a> {
    /// A cluster admin.
    pub client: Client,
    pub vcenter: &'a Vcenter,
    /// The proxy between VDO and vCenter.
    pub proxy: &'a FaultProxy,
    pub nodes: &'a Nodes,
    /// The affected VM without faults; its node has the same name.
    pub vm: Vm,
    /// The permission of VDO's account that a fault removes.
    pub permission: Permission,
    pub vcenter_config: &'a str,
    /// The name of the Secret with the vCenter credentials, in the operator's namespace.
    pub secret: &'a str,
}

impl Site<'_> {
    /// Injects the fault.
    ///
    /// # Errors
    /// If the API server rejects a change.
    ///
    /// # Panics
    /// If the simulator rejects a change.
    pub async fn make(&self, breakage: &Breakage) -> Result<(), Error> {
        self.change(breakage.kind, true).await
    }

    /// Reverts the fault.
    ///
    /// # Errors
    /// If the API server rejects a change.
    ///
    /// # Panics
    /// If the simulator rejects a change.
    pub async fn undo(&self, breakage: &Breakage) -> Result<(), Error> {
        self.change(breakage.kind, false).await
    }

    async fn change(&self, kind: Kind, broken: bool) -> Result<(), Error> {
        match kind {
            Kind::DiskUuid
            | Kind::Hardware
            | Kind::Snapshot
            | Kind::Tools
            | Kind::Maintenance
            | Kind::OldHost
            | Kind::PowerOff
            | Kind::NoVm
            | Kind::Copy
            | Kind::NoAddress => self.break_vm(kind, broken).await,
            Kind::OtherAddress
            | Kind::OldKubelet
            | Kind::Registration
            | Kind::Moved
            | Kind::Labels => self.node(kind, broken).await?,
            Kind::VcenterUnreachable
            | Kind::Certificate
            | Kind::Password
            | Kind::Datacenter
            | Kind::VolumeService
            | Kind::Privileges => self.vcenter_connection(kind, broken).await?,
            Kind::NoDatastore
            | Kind::NoPolicy
            | Kind::Parameter
            | Kind::DatastoreUnavailable
            | Kind::DatastoreFull
            | Kind::FileService
            | Kind::LostVolume => self.storage(kind, broken).await?,
            Kind::ImagePull => self.pods(if broken { Fate::ImagePullFails } else { Fate::Ready }),
            Kind::Crash => self.pods(if broken { Fate::Crashes } else { Fate::Ready }),
            Kind::NoTag => self.tag("/DC0/host/cluster-a", !broken).await,
            Kind::TagOnVm => self.tag(&self.path(), broken).await,
        }
        Ok(())
    }

    async fn break_vm(&self, kind: Kind, broken: bool) {
        let Self { vcenter, vm: original, .. } = self;
        let pick = |bad: Value, good: Value| if broken { bad } else { good };
        let vm = async |patch: Value| vcenter.patch_vm(&self.path(), patch).await;
        let host = async |patch: Value| vcenter.patch_host(&self.host().await, patch).await;
        match kind {
            Kind::DiskUuid => vm(json!({"diskUuid": !broken})).await,
            Kind::Hardware => {
                vm(json!({"version": pick(json!("vmx-11"), json!(original.version))})).await;
            }
            Kind::Snapshot => vm(json!({"snapshots": pick(json!(["backup"]), json!([]))})).await,
            Kind::Tools => {
                vm(json!({"tools": pick(json!("notRunning"), json!("running"))})).await;
            }
            Kind::Maintenance => host(json!({"maintenance": broken})).await,
            Kind::OldHost => {
                host(json!({"version": pick(json!("6.5.0"), json!("8.0.3"))})).await;
            }
            Kind::PowerOff => {
                self.nodes.set_ready(&original.name, !broken).await;
                vm(json!({"power": pick(json!("off"), json!("on"))})).await;
            }
            Kind::NoVm => {
                let other = Vm::named("somebody else").uuid;
                vm(json!({"uuid": pick(json!(other), json!(original.uuid))})).await;
            }
            Kind::Copy if broken => {
                let copy = Vm { uuid: original.uuid.clone(), ..Vm::named("copy") };
                vcenter.add_vms("DC0", [copy]).await;
            }
            Kind::Copy => vcenter.destroy_vm("/DC0/vm/copy").await,
            _ => vm(json!({"nics": pick(json!([]), json!(original.nics))})).await,
        }
    }

    async fn node(&self, kind: Kind, broken: bool) -> Result<(), Error> {
        let name = &self.vm.name;
        let nodes = self.all::<Node>();
        let pick = |bad: &str| broken.then(|| bad.to_owned());
        match kind {
            Kind::OtherAddress => {
                let value = pick("10.99.99.99");
                let key = "alpha.kubernetes.io/provided-node-ip";
                merge(&nodes, name, json!({"metadata": {"annotations": {key: value}}})).await
            }
            Kind::OldKubelet => {
                let version = pick("v1.20.0").unwrap_or_else(|| kubelet_version().into());
                let patch = json!({"status": {"nodeInfo": {"kubeletVersion": version}}});
                let parameters = PatchParams::default();
                let patched = nodes.patch_status(name, &parameters, &Patch::Merge(patch)).await;
                patched.map(drop).context(KubernetesSnafu { what: "changing a node" })
            }
            Kind::Registration => {
                let other = Vm::named("somebody else").uuid;
                self.register(if broken { &other } else { &self.vm.uuid }).await
            }
            Kind::Moved => self.label(&[(ZONE, "zone-x")], broken).await,
            _ => self.label(&[(REGION, "region-1"), (OLD_REGION, "other")], broken).await,
        }
    }

    async fn vcenter_connection(&self, kind: Kind, broken: bool) -> Result<(), Error> {
        let vcenter = self.vcenter;
        match kind {
            Kind::VcenterUnreachable if broken => self.proxy.cut(),
            Kind::VcenterUnreachable => self.proxy.heal(),
            Kind::Certificate => {
                let own = vcenter.thumbprint_sha1();
                let other = own.replace(|c: char| c.is_ascii_digit(), "0");
                self.configure(json!({"thumbprint": if broken { other } else { own }})).await?;
            }
            Kind::Password => {
                let password = if broken { "wrong" } else { vcenter.password() };
                let secrets = Api::<Secret>::namespaced(self.client.clone(), NAMESPACE);
                merge(&secrets, self.secret, json!({"stringData": {"password": password}})).await?;
            }
            Kind::Datacenter => {
                let name = if broken { "DC9" } else { "DC0" };
                self.configure(json!({"datacenters": [name]})).await?;
            }
            Kind::VolumeService if broken => {
                vcenter.fault(Fault::on("CnsQueryVolume").fails("SystemError")).await;
            }
            Kind::VolumeService => vcenter.clear_faults().await,
            _ => {
                vcenter.set_role(&Role::new("weak", &["System.Read", "System.View"])).await;
                let weak = Permission { role: "weak".into(), ..self.permission.clone() };
                vcenter.permit(if broken { &weak } else { &self.permission }).await;
            }
        }
        Ok(())
    }

    async fn storage(&self, kind: Kind, broken: bool) -> Result<(), Error> {
        let datastore = "/DC0/datastore/shared-a";
        match kind {
            Kind::NoDatastore => {
                self.class(broken, json!({"datastoreurl": "ds:///vmfs/volumes/none/"})).await
            }
            Kind::NoPolicy => {
                self.class(broken, json!({"storagepolicyname": "no such policy"})).await
            }
            Kind::Parameter => self.class(broken, json!({"speed": "high"})).await,
            Kind::DatastoreUnavailable => {
                self.vcenter.patch_datastore(datastore, json!({"accessible": !broken})).await;
                Ok(())
            }
            Kind::DatastoreFull => {
                let free = if broken { 1 } else { 900 };
                self.vcenter.patch_datastore(datastore, json!({"freeGiB": free})).await;
                Ok(())
            }
            Kind::FileService => self.shared_claim(broken).await,
            _ => self.lost_volume(broken).await,
        }
    }

    /// The inventory path of the VM.
    fn path(&self) -> String {
        let Vm { folder, name, .. } = &self.vm;
        if folder.is_empty() {
            format!("/DC0/vm/{name}")
        } else {
            format!("/DC0/vm/{folder}/{name}")
        }
    }

    /// The inventory path of the VM's host.
    async fn host(&self) -> String {
        let truth = self.vcenter.truth().await;
        let vms = truth["datacenters"][0]["vms"].as_array().cloned().unwrap_or_default();
        let vm = vms.into_iter().find(|vm| vm["name"] == self.vm.name.as_str());
        let vm = vm.unwrap_or_default();
        let text = |key: &str| vm[key].as_str().unwrap_or_default().to_owned();
        format!("/DC0/host/{}/{}", text("cluster"), text("host"))
    }

    async fn tag(&self, path: &str, attached: bool) {
        if attached {
            self.vcenter.attach_tag("k8s-zone", "zone-a", &[path]).await;
        } else {
            self.vcenter.detach_tag("k8s-zone", "zone-a", &[path]).await;
        }
    }

    fn pods(&self, fate: Fate) {
        self.nodes.pods("vsphere-csi-controller", fate);
    }

    fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Sets labels of the node, or restores the previous ones.
    async fn label(&self, labels: &[(&str, &str)], broken: bool) -> Result<(), Error> {
        let (name, nodes) = (&self.vm.name, self.all::<Node>());
        let node = nodes.get(name).await.context(KubernetesSnafu { what: "reading a node" })?;
        let (mut now, mut kept) = (json!({}), json!({}));
        for (key, value) in labels {
            let kept_as = format!("{BEFORE}/{}", key.replace('/', "_"));
            if broken {
                now[*key] = (*value).into();
                kept[kept_as] = node.labels().get(*key).cloned().unwrap_or_default().into();
            } else {
                let before = node.annotations().get(&kept_as).filter(|value| !value.is_empty());
                now[*key] = before.cloned().into();
                kept[kept_as] = Value::Null;
            }
        }
        merge(&nodes, name, json!({"metadata": {"labels": now, "annotations": kept}})).await
    }

    /// Patches the VsphereCloudConfig, whose type this crate does not have.
    async fn configure(&self, spec: Value) -> Result<(), Error> {
        let kind = GroupVersionKind::gvk("vdo.vmware.com", "v1alpha1", "VsphereCloudConfig");
        let resource = ApiResource::from_gvk(&kind);
        let configs =
            Api::<DynamicObject>::namespaced_with(self.client.clone(), NAMESPACE, &resource);
        merge(&configs, self.vcenter_config, json!({"spec": spec})).await
    }

    async fn class(&self, broken: bool, parameters: Value) -> Result<(), Error> {
        let class = json!({
            "metadata": {"name": "odd"}, "provisioner": DRIVER, "parameters": parameters,
        });
        put(&self.all::<StorageClass>(), "odd", broken.then_some(class)).await
    }

    async fn shared_claim(&self, broken: bool) -> Result<(), Error> {
        self.class(broken, json!({})).await?;
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), "default");
        let claim = json!({
            "metadata": {"name": "shared"},
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": "odd",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        put(&claims, "shared", broken.then_some(claim)).await
    }

    async fn lost_volume(&self, broken: bool) -> Result<(), Error> {
        let volume = json!({
            "metadata": {"name": "lost"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "none",
                "csi": {"driver": DRIVER, "volumeHandle": "no-such-volume"},
            },
        });
        put(&self.all::<PersistentVolume>(), "lost", broken.then_some(volume)).await
    }

    /// An entry of a CSINode is immutable: this deletes and re-creates it.
    async fn register(&self, id: &str) -> Result<(), Error> {
        let registered = self.all::<CSINode>();
        let entry =
            json!({"name": DRIVER, "nodeID": id, "topologyKeys": crate::nodes::topology_keys()});
        for entry in [None, Some(entry)] {
            let drivers: Vec<Value> = entry.into_iter().collect();
            merge(&registered, &self.vm.name, json!({"spec": {"drivers": drivers}})).await?;
        }
        Ok(())
    }
}

async fn merge<K>(api: &Api<K>, name: &str, patch: Value) -> Result<(), Error>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map(drop).with_context(|_| KubernetesSnafu { what: format!("changing {name}") })
}

/// Creates the object, or deletes the one with this name.
async fn put<K>(api: &Api<K>, name: &str, object: Option<Value>) -> Result<(), Error>
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let done = match object {
        Some(object) => {
            let object: K = serde_json::from_value(object).expect("an object of ours");
            api.create(&PostParams::default(), &object).await.map(drop)
        }
        None => api.delete(name, &DeleteParams::default()).await.map(drop),
    };
    done.with_context(|_| KubernetesSnafu { what: format!("creating or deleting {name}") })
}
