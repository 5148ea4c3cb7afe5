//! A cluster, a vCenter and the operator as a process, for every test of this folder.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "shared by tests; a failed unwrap fails the test"
)]

use std::{path::Path, time::Duration};

use api::{VDOConfig, VsphereCloudConfig};
use k8s_openapi::api::core::v1::{ConfigMap, Node as KubeNode, Secret};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use operator::facts::ObjectId;
use serde_json::{Value, json};
use testkit::{ControlPlane, Inventory, Node, Nodes, Process, User, Vcenter, Workdir, eventually};

pub const NAMESPACE: &str = "vmware-system-vdo";

/// Everything a test of the operator stands on.
pub struct Stage {
    pub plane: ControlPlane,
    pub vcenter: Vcenter,
    pub nodes: Nodes,
    pub workdir: Workdir,
}

impl Stage {
    /// One control-plane node and `workers` more, fresh and tainted, with a machine each.
    pub async fn set(workers: usize) -> Self {
        let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
        let inventory = Inventory::with_vms(workers + 1)
            .category("k8s-region", &[("region-1", &["/DC0"])])
            .category(
                "k8s-zone",
                &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
            );
        let vms = inventory.datacenters[0].vms.clone();
        let vcenter = Vcenter::start(inventory).await;
        let nodes = Nodes::start(&plane).await;
        for (number, vm) in vms.iter().enumerate() {
            let node = Node::named(&vm.name).system_uuid(&vm.uuid).uninitialized();
            nodes.add(if number == 0 { node.control_plane() } else { node }).await;
        }
        let stage = Self { plane, vcenter, nodes, workdir: Workdir::new("operator").unwrap() };
        stage.install().await;
        stage
    }

    /// Applies what a user applies, but for the Deployment: its pod cannot run here, the operator
    /// is a process of the test instead.
    async fn install(&self) {
        let client = self.plane.client();
        let apply = PatchParams::apply("test").force();
        for object in operator::install::objects() {
            let id = ObjectId::of(&object);
            if id.kind == "Deployment" {
                continue;
            }
            let api = operator::act::api_of(&client, &id).unwrap();
            api.patch(&id.name, &apply, &Patch::Apply(&object.0)).await.unwrap();
        }
        let configs = Api::<VDOConfig>::namespaced(client, NAMESPACE);
        eventually("the definitions are served", 20, async || {
            configs.list(&ListParams::default()).await.map(drop)
        })
        .await;
    }

    /// Requests of the operator that were refused for lack of rights.
    pub fn refusals(&self) -> Vec<String> {
        let events = self.plane.audit().into_iter();
        let refused = events.filter(|event| {
            event["responseStatus"]["code"] == 403
                && event["impersonatedUser"]["username"]
                    == format!("system:serviceaccount:{NAMESPACE}:vdo")
        });
        refused.map(|event| format!("{} {}", event["verb"], event["requestURI"])).collect()
    }

    /// Starts the operator under the identity of its service account.
    pub fn operator(&self) -> Process {
        let identity = User::service_account(NAMESPACE, "vdo");
        let kubeconfig = self.plane.kubeconfig_as(&identity);
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--listen=127.0.0.1:0".into(),
            "--log=info,operator=debug".into(),
        ];
        let program = Path::new(env!("CARGO_BIN_EXE_vdo"));
        Process::spawn(program, "vdo", arguments, &[], &self.workdir).unwrap()
    }

    /// Writes what a user writes: a Secret, a VsphereCloudConfig and a VDOConfig.
    pub async fn configure(&self, spec: Value) {
        let client = self.plane.client();
        self.write_secret(self.vcenter.password()).await;
        let vcenter = json!({
            "metadata": {"name": "vc", "namespace": NAMESPACE},
            "spec": {
                "vcIp": self.vcenter.address().to_string(),
                "insecure": false,
                "thumbprint": self.vcenter.thumbprint_sha1(),
                "credentials": "vc-credentials",
                "datacenters": ["DC0"],
            },
        });
        let vcenter: VsphereCloudConfig = serde_json::from_value(vcenter).unwrap();
        let config =
            json!({"metadata": {"name": "vdo-config", "namespace": NAMESPACE}, "spec": spec});
        let config: VDOConfig = serde_json::from_value(config).unwrap();
        let create = PostParams::default();
        Api::namespaced(client.clone(), NAMESPACE).create(&create, &vcenter).await.unwrap();
        Api::namespaced(client, NAMESPACE).create(&create, &config).await.unwrap();
    }

    pub async fn write_secret(&self, password: &str) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": "vc-credentials", "namespace": "kube-system"},
            "stringData": {"username": self.vcenter.user(), "password": password},
        });
        let secrets = Api::<Secret>::namespaced(self.plane.client(), "kube-system");
        let apply = PatchParams::apply("test").force();
        secrets.patch("vc-credentials", &apply, &Patch::Apply(secret)).await.unwrap();
    }

    pub async fn config(&self) -> VDOConfig {
        let configs = Api::<VDOConfig>::namespaced(self.plane.client(), NAMESPACE);
        configs.get("vdo-config").await.unwrap()
    }

    /// Starts the real upstream cloud controller with the very configuration VDO rendered: what the
    /// simulated kubelet does not do.
    pub async fn upstream_cloud_controller(&self) -> Process {
        let maps = Api::<ConfigMap>::namespaced(self.plane.client(), "kube-system");
        let config = eventually("VDO has rendered the configuration", 30, async || {
            let map = maps.get("vsphere-cloud-config").await.map_err(|e| e.to_string())?;
            let text = map.data.and_then(|mut data| data.remove("vsphere.conf"));
            text.ok_or("no vsphere.conf".to_owned())
        })
        .await;
        let config = self.workdir.write("vsphere.conf", config).unwrap();
        let kubeconfig = self.plane.kubeconfig().display().to_string();
        let arguments = [
            "--cloud-provider=vsphere".to_owned(),
            format!("--cloud-config={}", config.display()),
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--leader-elect=false".into(),
            "--bind-address=127.0.0.1".into(),
            "--secure-port=0".into(),
            "--webhook-secure-port=0".into(),
        ];
        let program = testkit::peer("vsphere-cloud-controller-manager");
        Process::spawn(&program, "cloud-controller", arguments, &[], &self.workdir).unwrap()
    }

    pub async fn ready(&self, operator: &Process, within: u64) -> VDOConfig {
        eventually("the VDOConfig is Ready", Duration::from_secs(within), async || {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let config = self.config().await;
            let status = config.status.clone().unwrap_or_default();
            if api::condition::is_true(&status.conditions, "Ready") {
                Ok(config)
            } else {
                let seen = serde_json::to_string_pretty(&status).unwrap();
                Err(format!("{seen}\n{}", operator.tail()))
            }
        })
        .await
    }

    pub async fn node(&self, name: &str) -> KubeNode {
        Api::<KubeNode>::all(self.plane.client()).get(name).await.unwrap()
    }

    pub fn client(&self) -> Client {
        self.plane.client()
    }
}
