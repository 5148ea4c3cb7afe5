//! A cluster, a vCenter and the operator as a process, for every test in this folder.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "shared by tests; a failed unwrap fails the test"
)]

mod adversary;
mod audit;
pub mod fixes;
mod published;
mod usage;

use std::{path::PathBuf, process::Stdio, time::Duration};

use api::{CompatibilityConfig, Finding, VDOConfig, VDOConfigStatus, VsphereCloudConfig};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{ConfigMap, Node as KubeNode, Secret},
        events::v1::Event as KubeEvent,
        storage::v1::VolumeAttachment,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{
    CloudController, ControlPlane, Inventory, Node, Nodes, Process, User, Vcenter, Vm, Workdir,
    eventually,
};

use adversary::Adversary;
pub use adversary::{TENANT, admin_objects_at_rest};
use plan::ObjectId;
pub use published::{catalog, upstream_cpi, upstream_csi};

pub const NAMESPACE: &str = "vmware-system-vdo";

/// Long enough that even a busy computer renews it in time.
const LEASE: u32 = 120;

/// The vCenter account of an admin who runs govc.
pub const GOVC_USER: &str = "admin@vsphere.local";
pub const GOVC_PASSWORD: &str = "admin";

/// The environment of a test of the operator.
pub struct Testbed {
    /// Dropped before the control plane, whose audit log it reads.
    usage: usage::Usage,
    pub plane: ControlPlane,
    pub vcenter: Vcenter,
    /// None if nothing simulates kubelets.
    pub nodes: Option<Nodes>,
    pub workdir: Workdir,
    /// The address of a proxy in front of vCenter.
    pub address: Option<std::net::SocketAddr>,
    /// The address of a proxy in front of the API server, for the operator.
    pub api_address: Option<std::net::SocketAddr>,
    /// Environment variables of the operator.
    pub variables: Vec<(&'static str, &'static str)>,
    pub program: PathBuf,
    /// The lease duration in seconds. Make it short only if the test kills operators: a leader that gets no
    /// CPU for two thirds of it stops leading.
    pub lease: u32,
    pub adversary: Adversary,
}

impl Drop for Testbed {
    /// Every test that passes also checks that the tenant's tricks had no effect, and that the operator neither writes
    /// unchanged statuses nor lists objects of tenants in large pages.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let repeated = self.repeated_status_writes();
            assert!(repeated.is_empty(), "the same status again: {repeated:?}");
            let large = self.lists_in_large_pages();
            assert!(large.is_empty(), "a tenant decides how large these pages are: {large:?}");
            adversary::assert_held_to_the_end(&self.adversary, &self.plane);
        }
    }
}

impl Testbed {
    /// Starts the storage driver alone: the quickest way to a running driver.
    pub async fn with_storage(operator: &[&str]) -> (Self, Process) {
        let testbed = Self::with_nodes(1).await;
        let operator = testbed.operator_with(operator);
        testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
        testbed.ready(&operator, 60).await;
        (testbed, operator)
    }

    /// One control-plane node and `workers` more, with a VM each, that wait for a cloud controller.
    pub async fn with_fresh_nodes(workers: usize) -> Self {
        let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
        Self::on_plane(plane, workers, true).await
    }

    /// One control-plane node and `workers` more, with a VM each, that a cloud controller has initialised.
    pub async fn with_nodes(workers: usize) -> Self {
        let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
        Self::on_plane(plane, workers, false).await
    }

    pub async fn on_plane(plane: ControlPlane, workers: usize, fresh: bool) -> Self {
        Self::on_inventory(plane, Inventory::with_vms(workers + 1), fresh).await
    }

    /// A node for each VM of a vCenter.
    pub async fn on_inventory(plane: ControlPlane, inventory: Inventory, fresh: bool) -> Self {
        let inventory = inventory.category("k8s-region", &[("region-1", &["/DC0"])]).category(
            "k8s-zone",
            &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
        );
        let vms = inventory.datacenters[0].vms.clone();
        let (vcenter, adversary) =
            tokio::join!(Vcenter::start(inventory), Adversary::settle(&plane));
        let nodes = Nodes::start(&plane).await;
        for (number, vm) in vms.iter().enumerate() {
            let node = Node::named(&vm.name).system_uuid(&vm.uuid);
            let node = if fresh {
                node.uninitialized()
            } else {
                node.provider_id(&format!("vsphere://{}", vm.uuid))
            };
            nodes.add(if number == 0 { node.control_plane() } else { node }).await;
        }
        let testbed = Self {
            usage: usage::Usage::new(&plane),
            plane,
            vcenter,
            nodes: Some(nodes),
            workdir: Workdir::new("operator").unwrap(),
            address: None,
            api_address: None,
            variables: Vec::new(),
            program: env!("CARGO_BIN_EXE_vdo").into(),
            lease: LEASE,
            adversary,
        };
        testbed.install().await;
        testbed.adversary.attack(&testbed.plane).await;
        testbed
    }

    /// A vCenter with `vms` VMs, and a cluster without nodes, controller-manager and scheduler.
    pub async fn without_nodes(vms: usize) -> Self {
        Self::without_nodes_with_vms((1..=vms).map(|number| Vm::numbered("node", number))).await
    }

    pub async fn without_nodes_with_vms(vms: impl IntoIterator<Item = Vm>) -> Self {
        let plane = ControlPlane::builder().with_audit().start().await;
        let inventory = Inventory::small().vms(vms);
        let (vcenter, adversary) =
            tokio::join!(Vcenter::start(inventory), Adversary::settle(&plane));
        let workdir = Workdir::new("operator").unwrap();
        let testbed = Self {
            usage: usage::Usage::new(&plane),
            plane,
            vcenter,
            nodes: None,
            workdir,
            address: None,
            api_address: None,
            variables: Vec::new(),
            program: env!("CARGO_BIN_EXE_vdo").into(),
            lease: LEASE,
            adversary,
        };
        testbed.install().await;
        testbed.adversary.attack(&testbed.plane).await;
        testbed
    }

    /// Applies the install manifest without the Deployment: the test runs the operator as a process instead.
    pub async fn install(&self) {
        let client = self.plane.client();
        let apply = PatchParams::apply("test").force();
        let credentials = operator::observe::credentials_in_kube_system(&client, NAMESPACE).await;
        let credentials = credentials.unwrap();
        let allowed = operator::install::Allowed { credentials, ..Default::default() };
        for object in operator::install::objects_for(&allowed) {
            let id = ObjectId::from_object(&object);
            if id.kind == "Deployment" {
                continue;
            }
            let api = operator::act::api_of(&client, &id).unwrap();
            api.patch(&id.name, &apply, &Patch::Apply(&object.0)).await.unwrap();
        }
        let (configs, vcenters, catalogs) = (
            Api::<VDOConfig>::namespaced(client.clone(), NAMESPACE),
            Api::<VsphereCloudConfig>::namespaced(client.clone(), NAMESPACE),
            Api::<CompatibilityConfig>::namespaced(client, NAMESPACE),
        );
        let some = ListParams::default().limit(1);
        eventually("the CRDs are served", 20, async || {
            configs.list(&some).await?;
            vcenters.list(&some).await?;
            catalogs.list(&some).await.map(drop)
        })
        .await;
    }

    /// Changes a CRD, and retries on conflicts.
    pub async fn change_crd(&self, name: &str, change: impl Fn(&mut CustomResourceDefinition)) {
        let definitions = Api::<CustomResourceDefinition>::all(self.client());
        eventually("the CRD is changed", 20, async || {
            let mut definition = definitions.get(name).await?;
            change(&mut definition);
            definitions.replace(name, &PostParams::default(), &definition).await.map(drop)
        })
        .await;
    }

    /// Starts the operator under the identity of its service account.
    pub fn operator(&self) -> Process {
        self.operator_with(&[])
    }

    pub fn operator_with(&self, more: &[&str]) -> Process {
        let identity = User::service_account(NAMESPACE, "vdo");
        let kubeconfig = match self.api_address {
            Some(address) => self.plane.kubeconfig_via(&identity, address),
            None => self.plane.kubeconfig_as(&identity),
        };
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--listen=127.0.0.1:0".into(),
            format!("--lease={}", self.lease),
            "--log=info,operator=debug".into(),
        ];
        let arguments = arguments.into_iter().chain(more.iter().map(|&a| a.to_owned()));
        Process::spawn(&self.program, "vdo", arguments, &self.variables, &self.workdir).unwrap()
    }

    /// Creates the Secret, the VsphereCloudConfig and the VDOConfig.
    pub async fn configure(&self, spec: Value) {
        let client = self.plane.client();
        self.write_secret(self.vcenter.password()).await;
        let address = self.address.unwrap_or(self.vcenter.address());
        let vcenter = json!({
            "metadata": {"name": "vc", "namespace": NAMESPACE},
            "spec": {
                "vcIp": address.to_string(),
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
            "metadata": {"name": "vc-credentials", "namespace": NAMESPACE},
            "stringData": {"username": self.vcenter.user(), "password": password},
        });
        let secrets = Api::<Secret>::namespaced(self.plane.client(), NAMESPACE);
        let apply = PatchParams::apply("test").force();
        secrets.patch("vc-credentials", &apply, &Patch::Apply(secret)).await.unwrap();
    }

    /// Starts another vCenter, and creates the Secret and the VsphereCloudConfig `other` for it.
    pub async fn another_vcenter(&self, mut inventory: Inventory) -> Vcenter {
        for datastore in inventory.datacenters.iter_mut().flat_map(|dc| &mut dc.datastores) {
            datastore.url = format!("ds:///vmfs/volumes/other-{}/", datastore.name);
        }
        let other = Vcenter::start(inventory).await;
        let login = json!({"username": other.user(), "password": other.password()});
        let secret = json!({"metadata": {"name": "other-credentials"}, "stringData": login});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        let secrets = Api::<Secret>::namespaced(self.client(), NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await.unwrap();
        let config = json!({
            "metadata": {"name": "other"},
            "spec": {
                // A driver has one entry for each host, whatever the port.
                "vcIp": format!("localhost:{}", other.address().port()), "insecure": false,
                "thumbprint": other.thumbprint_sha1(),
                "credentials": "other-credentials", "datacenters": ["DC0"],
            },
        });
        let config: VsphereCloudConfig = serde_json::from_value(config).unwrap();
        let vcenters = Api::<VsphereCloudConfig>::namespaced(self.client(), NAMESPACE);
        vcenters.create(&PostParams::default(), &config).await.unwrap();
        other
    }

    pub async fn config(&self) -> VDOConfig {
        let configs = Api::<VDOConfig>::namespaced(self.plane.client(), NAMESPACE);
        let config = configs.get("vdo-config").await.unwrap();
        adversary::assert_ignored(&config);
        config
    }

    /// Starts the upstream cloud controller with the arguments, configuration and RBAC that VDO rendered.
    /// The simulated kubelet does not do this.
    pub async fn upstream_cloud_controller(&self) -> Process {
        let rendered = eventually("VDO has rendered the cloud controller", 30, async || {
            let rendered = CloudController::rendered(&self.plane, &self.workdir).await;
            rendered.map_err(|e| e.full_text())?.ok_or("no DaemonSet".to_owned())
        })
        .await;
        rendered.upstream("cloud-controller", &self.plane, &self.workdir).unwrap()
    }

    /// Starts the upstream storage controller with the flags, variables, Secret and service account that VDO
    /// applied. Returns the process and its socket.
    pub async fn upstream_storage_controller(&self) -> (Process, PathBuf) {
        let namespace = "vmware-system-csi";
        let config = self.secret(namespace, "vsphere-config-secret", "csi-vsphere.conf").await;
        // Alone in its folder, as in the pod: the driver loads it again after each change of any file next to it,
        // such as a log.
        std::fs::create_dir_all(self.workdir.path().join("storage")).unwrap();
        let config = self.workdir.write("storage/csi-vsphere.conf", config).unwrap();
        let socket = self.workdir.path().join("csi.sock");
        let account = User::service_account(namespace, "vsphere-csi-controller");
        let kubeconfig = self.plane.kubeconfig_as(&account).display().to_string();
        // Only the paths of the files differ.
        let local = |text: &str| {
            text.replace("/etc/cloud/csi-vsphere.conf", &config.display().to_string())
                .replace("/csi/csi.sock", &socket.display().to_string())
                .replace("$(CSI_NAMESPACE)", namespace)
        };
        let pod = self.controller().await.spec.unwrap().template.spec.unwrap();
        let driver = pod.containers.iter().find(|c| c.name == "vsphere-csi-controller").unwrap();
        let given = driver.env.iter().flatten();
        let given = given.filter_map(|v| Some((v.name.clone(), local(v.value.as_deref()?))));
        let mut variables: Vec<(String, String)> = given.collect();
        variables.push(("KUBECONFIG".into(), kubeconfig));
        variables.push(("CSI_NAMESPACE".into(), namespace.into()));
        let variables: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let flags: Vec<String> = driver.args.iter().flatten().map(|flag| local(flag)).collect();
        let program = testkit::peer("vsphere-csi");
        let process = Process::spawn(&program, "csi", flags, &variables, &self.workdir).unwrap();
        eventually("the storage controller answers on its socket", 120, async || {
            assert!(process.ended().is_none(), "{}", process.tail());
            let connected = tokio::net::UnixStream::connect(&socket).await;
            connected.map(drop).map_err(|error| format!("{error}\n{}", process.tail()))
        })
        .await;
        (process, socket)
    }

    /// Stops an operator gracefully, so that the next one can lead at once.
    pub async fn stop(&self, operator: Process) {
        operator.signal(rustix::process::Signal::TERM);
        let ended = operator.wait(30).await;
        assert!(ended.is_some_and(|ended| ended.success()), "{}", operator.tail());
    }

    pub async fn metrics(&self, operator: &Process) -> String {
        self.http_get(operator, "/metrics").await.1
    }

    /// Gets a path from the operator's own HTTP server.
    pub async fn http_get(&self, operator: &Process, path: &str) -> (u16, String) {
        let log = operator.log();
        // Earlier operators wrote to the same log.
        let address = log.rsplit_once("listen\":\"").and_then(|(_, rest)| rest.split('"').next());
        let address =
            address.unwrap_or_else(|| panic!("the operator does not log its address: {log}"));
        let answer = reqwest::get(format!("http://{address}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Runs a command from a finding in a shell, as an admin does. The text after three spaces explains the
    /// command.
    pub async fn run(&self, step: &str) -> String {
        let command = step.split("   ").next().unwrap();
        self.shell(command).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a command as cluster admin and as [`GOVC_USER`]. `VCENTER_USER` and `VCENTER_PASSWORD` are VDO's account.
    /// Returns the output, as an error if the command fails or hangs.
    pub async fn shell(&self, command: &str) -> Result<String, String> {
        let folder = |program| testkit::peer(program).parent().unwrap().display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let home = self.workdir.path().join("admin");
        std::fs::create_dir_all(&home).unwrap();
        let authority = self.workdir.write("vcenter-ca.pem", self.vcenter.ca_pem()).unwrap();
        let mut shell = tokio::process::Command::new("sh");
        shell
            .args(["-c", command])
            .env("PATH", format!("{}:{}:{path}", folder("kubectl"), folder("govc")))
            .env("KUBECONFIG", self.plane.kubeconfig())
            .env("GOVC_URL", self.vcenter.address().to_string())
            .env("GOVC_USERNAME", GOVC_USER)
            .env("GOVC_PASSWORD", GOVC_PASSWORD)
            .env("GOVC_TLS_CA_CERTS", authority)
            .env("VCENTER_USER", self.vcenter.user())
            .env("VCENTER_PASSWORD", self.vcenter.password())
            .env("HOME", &home)
            .current_dir(&home)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(30), shell.output()).await;
        let output = output.map_err(|_| format!("still runs after 30 s: {command}"))?.unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        if output.status.success() { Ok(text) } else { Err(format!("{command}: {text}")) }
    }

    /// Waits for two more reconcile rounds: a round writes its status before it does anything else.
    pub async fn two_more_rounds(&self, operator: &Process) {
        for _ in 0..2 {
            let before = self.rounds(operator).await;
            let nudge = json!({"example.com/nudge": Timestamp::now().to_string()});
            self.change(json!({"metadata": {"annotations": nudge}})).await;
            eventually("the operator completes another round", 60, async || {
                let now = self.rounds(operator).await;
                if now > before { Ok(()) } else { Err(operator.tail()) }
            })
            .await;
        }
    }

    pub async fn rounds(&self, operator: &Process) -> u64 {
        let metrics = self.metrics(operator).await;
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix("vdo_rounds_total ")?.parse().ok());
        count.unwrap_or_else(|| panic!("vdo_rounds_total is missing: {metrics}"))
    }

    /// Changes the VDOConfig as `kubectl patch --type merge` does.
    pub async fn change(&self, patch: Value) {
        let configs = Api::<VDOConfig>::namespaced(self.plane.client(), NAMESPACE);
        configs.patch("vdo-config", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Waits until the status of the VDOConfig satisfies `is`.
    pub async fn status(
        &self,
        what: &str,
        within: u64,
        is: impl Fn(&VDOConfigStatus) -> bool,
    ) -> VDOConfigStatus {
        eventually(what, within, async || {
            let status = self.config().await.status.unwrap_or_default();
            if is(&status) {
                return Ok(status);
            }
            Err(serde_json::to_string_pretty(&status).unwrap())
        })
        .await
    }

    /// Whether the status of the VDOConfig satisfies `is` within this time.
    pub async fn becomes(&self, within: Duration, is: impl Fn(&VDOConfigStatus) -> bool) -> bool {
        let satisfied = async || {
            while !is(&self.config().await.status.unwrap_or_default()) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(within, satisfied()).await.is_ok()
    }

    /// Requests a complete check, including vCenter, and waits for it. `value` must be new.
    pub async fn check_now(&self, value: &str) {
        let patch = json!({"metadata": {"annotations": {"vdo.vmware.com/check-now": value}}});
        self.change(patch).await;
        let checked = |status: &VDOConfigStatus| {
            let health = status.health.as_ref();
            health.and_then(|health| health.checked.as_deref()) == Some(value)
        };
        self.status("everything was checked", 150, checked).await;
    }

    pub async fn finding(&self, code: &str, within: u64) -> Finding {
        self.finding_about(code, within, &[]).await
    }

    /// Waits for a finding whose text contains all `texts`: an older one of the same code can still exist.
    pub async fn finding_about(&self, code: &str, within: u64, texts: &[&str]) -> Finding {
        let is = |finding: &&Finding| {
            let seen = finding.seen.as_deref().unwrap_or_default();
            finding.code == code && texts.iter().all(|text| seen.contains(text))
        };
        let what = format!("{code} {texts:?}");
        let status = self.status(&what, within, |status| status.findings.iter().any(|f| is(&f)));
        status.await.findings.iter().find(is).unwrap().clone()
    }

    pub async fn secret(&self, namespace: &str, name: &str, key: &str) -> String {
        let secrets = Api::<Secret>::namespaced(self.plane.client(), namespace);
        let secret = secrets.get(name).await.unwrap();
        String::from_utf8(secret.data.unwrap()[key].0.clone()).unwrap()
    }

    pub async fn controller(&self) -> Deployment {
        let deployments = Api::<Deployment>::namespaced(self.plane.client(), "vmware-system-csi");
        deployments.get("vsphere-csi-controller").await.unwrap()
    }

    pub async fn node_driver(&self) -> DaemonSet {
        let sets = Api::<DaemonSet>::namespaced(self.plane.client(), "vmware-system-csi");
        sets.get("vsphere-csi-node").await.unwrap()
    }

    /// Creates objects as some other installer does.
    pub async fn create(&self, manager: &str, documents: impl IntoIterator<Item = Value>) {
        let create = PostParams { field_manager: Some(manager.into()), ..Default::default() };
        for document in documents {
            let id = ObjectId::from_object(&catalog::manifest::Object(document.clone()));
            let object: DynamicObject = serde_json::from_value(document).unwrap();
            let api = operator::act::api_of(&self.client(), &id).unwrap();
            match api.create(&create, &object).await {
                Ok(_) => {}
                // The namespace comes with VDO's own manifest too.
                Err(kube::Error::Api(status)) if status.code == 409 && id.kind == "Namespace" => {}
                Err(error) => panic!("{id}: {error}"),
            }
        }
    }

    /// Waits for an event on the VDOConfig with this reason, whose text contains `text`.
    pub async fn event(&self, reason: &str, text: &str) -> String {
        let events = Api::<KubeEvent>::namespaced(self.client(), NAMESPACE);
        eventually(&format!("an event {reason} about {text}"), 60, async || {
            let all = events.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let describe = |event: &KubeEvent| format!("{:?}: {:?}", event.reason, event.note);
            let found = all.iter().find(|event| {
                let note = event.note.as_deref().unwrap_or_default();
                event.reason.as_deref() == Some(reason) && note.contains(text)
            });
            found
                .map(describe)
                .ok_or_else(|| all.iter().map(describe).collect::<Vec<_>>().join("\n"))
        })
        .await
    }

    /// The uid of an object, to detect whether it is re-created.
    pub async fn uid(&self, kind: &str, namespace: &str, name: &str) -> String {
        let id = ObjectId {
            api_version: "apps/v1".into(),
            kind: kind.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        let api = operator::act::api_of(&self.client(), &id).unwrap();
        api.get(name).await.unwrap().metadata.uid.unwrap()
    }

    /// Makes the cluster look like OpenShift on this platform. The tests have no OpenShift programs, so this
    /// creates the CRD and the object itself.
    pub async fn openshift(&self, platform: &str) {
        let status = json!({"platformStatus": {"type": platform}});
        self.openshift_object("Infrastructure", "infrastructures", status).await;
    }

    /// Sets OpenShift's proxy of the whole cluster. OpenShift's own operator writes the status.
    pub async fn openshift_proxy(&self, status: Value) {
        self.openshift_object("Proxy", "proxies", status).await;
    }

    async fn openshift_object(&self, kind: &str, plural: &str, status: Value) {
        let group = "config.openshift.io";
        let name = format!("{plural}.{group}");
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name},
            "spec": {
                "group": group, "scope": "Cluster",
                "names": {
                    "kind": kind, "listKind": format!("{kind}List"),
                    "plural": plural, "singular": kind.to_lowercase(),
                },
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }}}],
            },
        });
        let apply = PatchParams::apply("openshift").force();
        let definitions = Api::<CustomResourceDefinition>::all(self.client());
        definitions.patch(&name, &apply, &Patch::Apply(definition)).await.unwrap();
        let gvk = kube::core::GroupVersionKind::gvk(group, "v1", kind);
        let resource = kube::api::ApiResource::from_gvk_with_plural(&gvk, plural);
        let all = Api::<DynamicObject>::all_with(self.client(), &resource);
        let object = json!({
            "apiVersion": "config.openshift.io/v1", "kind": kind,
            "metadata": {"name": "cluster"}, "spec": {}, "status": status,
        });
        eventually(&format!("the {kind} is created"), 30, async || {
            all.patch("cluster", &apply, &Patch::Apply(&object)).await.map(drop)
        })
        .await;
    }

    pub async fn attach(&self, volume: &str, node: &str) {
        let attachment = json!({
            "metadata": {"name": format!("csi-{volume}")},
            "spec": {
                "attacher": "csi.vsphere.vmware.com", "nodeName": node,
                "source": {"persistentVolumeName": volume},
            },
        });
        let attachment: VolumeAttachment = serde_json::from_value(attachment).unwrap();
        Api::all(self.client()).create(&PostParams::default(), &attachment).await.unwrap();
    }

    /// Waits until the VDOConfig is Ready for its current spec, and vCenter is Ready too: an operator that has
    /// just started keeps the old conditions until it has reached vCenter.
    pub async fn ready(&self, operator: &Process, within: u64) -> VDOConfig {
        let ready = eventually("the VDOConfig is Ready", within, async || {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let config = self.config().await;
            let status = config.status.clone().unwrap_or_default();
            let observed = status.observed_generation == config.metadata.generation;
            let holds = |kind| api::condition::is_true(&status.conditions, kind);
            if observed && holds("Ready") && holds(api::condition::VCENTER_READY) {
                Ok(config)
            } else {
                let status = serde_json::to_string_pretty(&status).unwrap();
                Err(format!("{status}\n{}", operator.tail()))
            }
        })
        .await;
        self.adversary.assert_held(&self.client()).await;
        ready
    }

    pub async fn node(&self, name: &str) -> KubeNode {
        Api::<KubeNode>::all(self.plane.client()).get(name).await.unwrap()
    }

    pub fn client(&self) -> Client {
        self.plane.client()
    }

    pub async fn write_catalog(&self, text: &str) {
        let maps = Api::<ConfigMap>::namespaced(self.client(), NAMESPACE);
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "vdo-catalog", "namespace": NAMESPACE},
            "data": {"catalog.yaml": text},
        });
        let apply = PatchParams::apply("test").force();
        maps.patch("vdo-catalog", &apply, &Patch::Apply(map)).await.unwrap();
    }

    /// Lets the operator use [`catalog`].
    pub async fn use_catalog(&self) -> Api<CompatibilityConfig> {
        self.write_catalog(&catalog()).await;
        self.follow_catalog().await
    }

    /// Lets the operator use the catalog of `write_catalog`.
    pub async fn follow_catalog(&self) -> Api<CompatibilityConfig> {
        let config = json!({
            "metadata": {"name": "catalog", "namespace": NAMESPACE},
            "spec": {"bundle": {"configMap": "vdo-catalog"}},
        });
        let config: CompatibilityConfig = serde_json::from_value(config).unwrap();
        let configs = Api::<CompatibilityConfig>::namespaced(self.client(), NAMESPACE);
        configs.create(&PostParams::default(), &config).await.unwrap();
        configs
    }
}
