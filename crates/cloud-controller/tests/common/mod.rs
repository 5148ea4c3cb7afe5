//! The test environment: a control plane with nodes, a vCenter, and the controller.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "each test uses a part of it")]

use std::{collections::BTreeMap, path::PathBuf};

use catalog::{
    Driver, Implementation,
    manifest::{self, Object, Profile, Stage as When},
};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Event, Node as KubeNode, Secret},
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use testkit::{
    ControlPlane, ControlPlaneBuilder, Inventory, Node, Nodes, Process, Role as VcenterRole, User,
    Vcenter, VcenterUser, Vm, Workdir, eventually,
};

pub(crate) const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
pub(crate) const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
pub(crate) const RECORD: &str = "vdo.vmware.com/virtual-machine";
pub(crate) const CONFIGURATION: &str = "vsphere.conf";
pub(crate) const SECRET: &str = "vsphere-cloud-secret";

pub(crate) const USER: &str = "ccm@vsphere.local";
pub(crate) const PASSWORD: &str = "cloud-Contr0ller!";

pub(crate) struct Stage {
    pub(crate) nodes: Nodes,
    pub(crate) plane: ControlPlane,
    pub(crate) vcenter: Vcenter,
    pub(crate) workdir: Workdir,
}

impl Stage {
    /// Starts a vCenter and a control plane with RBAC and the Secret.
    pub(crate) async fn with(inventory: Inventory) -> Self {
        Self::on(ControlPlane::builder(), inventory).await
    }

    pub(crate) async fn on(plane: ControlPlaneBuilder, inventory: Inventory) -> Self {
        let (plane, vcenter) = tokio::join!(plane.start(), Vcenter::start(readable(inventory)));
        let nodes = Nodes::start(&plane).await;
        let workdir = Workdir::new("cloud-controller").unwrap();
        allow(&plane.client()).await;
        let stage = Self { nodes, plane, vcenter, workdir };
        stage.set_secret(&[("127.0.0.1", USER, PASSWORD)]).await;
        stage
    }

    pub(crate) async fn set_secret(&self, credentials: &[(&str, &str, &str)]) {
        let data = credentials.iter().flat_map(|(server, user, password)| {
            [(format!("{server}.username"), *user), (format!("{server}.password"), *password)]
        });
        let data: BTreeMap<_, _> =
            data.map(|(key, value)| (key, ByteString(value.as_bytes().to_vec()))).collect();
        let mut secret = Secret { data: Some(data), ..Secret::default() };
        secret.metadata.name = Some(SECRET.into());
        let api = Api::<Secret>::namespaced(self.plane.client(), "kube-system");
        let parameters = PatchParams::apply("test").force();
        api.patch(SECRET, &parameters, &Patch::Apply(&secret)).await.unwrap();
    }

    /// The configuration for the stage's vCenter, with `more` appended.
    pub(crate) fn configuration(&self, more: &str) -> PathBuf {
        self.configuration_at(self.vcenter.address().port(), more)
    }

    /// The same with another port for the vCenter.
    pub(crate) fn configuration_at(&self, port: u16, more: &str) -> PathBuf {
        let ca = self.workdir.write("ca.pem", self.vcenter.ca_pem()).unwrap();
        let text = format!(
            "global:\n  port: {port}\n  caFile: {}\n  secretName: {SECRET}\n  secretNamespace: kube-system\n\
             vcenter:\n  one:\n    server: 127.0.0.1\n    datacenters: [DC0]\n{more}\n",
            ca.display(),
        );
        self.workdir.write(CONFIGURATION, text).unwrap()
    }

    /// Starts our controller with the configuration of [`Stage::configuration`].
    pub(crate) fn controller(&self, more: &str, flags: &[&str]) -> Process {
        let path = self.configuration(more);
        self.controller_with(&path, flags)
    }

    pub(crate) fn controller_with(
        &self,
        configuration: &std::path::Path,
        flags: &[&str],
    ) -> Process {
        self.controller_named("ccm", configuration, flags, &[])
    }

    pub(crate) fn controller_named(
        &self,
        label: &str,
        configuration: &std::path::Path,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> Process {
        let user = User::service_account("kube-system", "vsphere-cloud-controller-manager");
        let kubeconfig = self.plane.kubeconfig_as(&user);
        self.controller_as(label, &kubeconfig, configuration, flags, environment)
    }

    pub(crate) fn controller_as(
        &self,
        label: &str,
        kubeconfig: &std::path::Path,
        configuration: &std::path::Path,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> Process {
        let mut arguments = vec![
            format!("--cloud-config={}", configuration.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--secure-port=0".into(),
            "--vcenter-retry-period=1s".into(),
        ];
        arguments.extend(flags.iter().map(ToString::to_string));
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_vsphere-cloud-controller-manager"));
        Process::spawn(program, label, arguments, environment, &self.workdir).unwrap()
    }

    pub(crate) fn api(&self) -> Api<KubeNode> {
        Api::all(self.plane.client())
    }

    pub(crate) async fn node(&self, name: &str) -> KubeNode {
        self.api().get(name).await.unwrap()
    }

    /// Adds an uninitialised node for each VM.
    pub(crate) async fn add_nodes(&self, vms: &[Vm]) {
        for vm in vms {
            self.nodes.add(Node::named(&vm.name).system_uuid(&vm.uuid).uninitialized()).await;
        }
    }

    /// Waits until a node is initialised and returns it.
    pub(crate) async fn initialised(&self, name: &str, ccm: &Process) -> KubeNode {
        eventually(&format!("{name} is initialised"), 60, async || {
            assert!(ccm.ended().is_none(), "the controller ended:\n{}", ccm.tail());
            let node = self.api().get(name).await.map_err(|e| e.to_string())?;
            let done = !has_taint(&node, UNINITIALIZED) && addresses(&node).len() > 1;
            if done { Ok(node) } else { Err(format!("{:?}\n{}", node.spec, ccm.tail())) }
        })
        .await
    }

    /// Waits for an event about a node.
    pub(crate) async fn event(&self, node: &str, reason: &str) -> String {
        self.event_containing(node, reason, "").await
    }

    pub(crate) async fn event_containing(&self, node: &str, reason: &str, text: &str) -> String {
        self.event_containing_all(node, reason, &[text]).await
    }

    /// Waits for an event about a node whose message contains all `texts`.
    pub(crate) async fn event_containing_all(
        &self,
        node: &str,
        reason: &str,
        texts: &[&str],
    ) -> String {
        let api = Api::<Event>::namespaced(self.plane.client(), "default");
        eventually(&format!("the event {reason} about {node}"), 60, async || {
            let all = api.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let about =
                all.items.iter().filter(|e| e.involved_object.name.as_deref() == Some(node));
            let mut seen = Vec::new();
            for event in about {
                let message = event.message.clone().unwrap_or_default();
                let contains_all = texts.iter().all(|text| message.contains(text));
                if event.reason.as_deref() == Some(reason) && contains_all {
                    return Ok(message);
                }
                seen.push(format!("{:?}: {:?}", event.reason, event.message));
            }
            Err(seen.join("\n"))
        })
        .await
    }

    pub(crate) async fn until(
        &self,
        what: &str,
        name: &str,
        matches: impl Fn(&KubeNode) -> bool,
    ) -> KubeNode {
        eventually(what, 60, async || {
            let node = self.api().get(name).await.map_err(|e| e.to_string())?;
            if matches(&node) {
                Ok(node)
            } else {
                Err(format!("{:?} {:?}", node.spec, addresses(&node)))
            }
        })
        .await
    }

    pub(crate) async fn until_deleted(&self, name: &str) {
        eventually(&format!("{name} is deleted"), 60, async || {
            match self.api().get_opt(name).await {
                Ok(None) => Ok(()),
                Ok(Some(_)) => Err("it still exists".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    /// Adds the node `marker` and waits until it is initialised. By then the controller has handled all
    /// earlier changes.
    pub(crate) async fn settle(&self, ccm: &Process, marker: &str) {
        let vm = Vm::named(marker);
        self.vcenter.add_vms("DC0", [vm.clone()]).await;
        self.add_nodes(&[vm]).await;
        self.initialised(marker, ccm).await;
    }

    /// All write requests to nodes so far whose user agent contains `agent`.
    pub(crate) fn node_writes(&self, agent: &str) -> Vec<String> {
        self.node_writes_since(Timestamp::MIN, agent)
    }

    /// The same since this time. The audit log can get an entry after the answer was sent, so the time of
    /// the request decides, not the length of the list.
    pub(crate) fn node_writes_since(&self, since: Timestamp, agent: &str) -> Vec<String> {
        self.writes(|request| {
            let received = request["requestReceivedTimestamp"].as_str().unwrap_or_default();
            // A conflict wrote nothing.
            let conflict = request["responseStatus"]["code"] == 409;
            request["objectRef"]["resource"] == "nodes"
                && !conflict
                && received.parse::<Timestamp>().is_ok_and(|received| received >= since)
                && request["userAgent"].as_str().unwrap_or_default().contains(agent)
        })
    }

    /// All matching write requests so far.
    pub(crate) fn writes(&self, matches: impl Fn(&serde_json::Value) -> bool) -> Vec<String> {
        let writes = ["update", "patch", "delete", "create"];
        self.plane
            .audit()
            .iter()
            .filter(|r| writes.contains(&r["verb"].as_str().unwrap_or_default()) && matches(r))
            .map(|r| format!("{} {}", r["verb"], r["requestURI"]))
            .collect()
    }
}

/// Adds the controller's user with read-only privileges, which is all it needs.
pub(crate) fn readable(inventory: Inventory) -> Inventory {
    let role = VcenterRole::new("reader", &["System.Anonymous", "System.View", "System.Read"]);
    inventory.user(VcenterUser::new(USER, PASSWORD), &role, &["/"])
}

/// Grants the controller the RBAC permissions of its manifest, and no more.
async fn allow(client: &Client) {
    let version = env!("CARGO_PKG_VERSION").parse().unwrap();
    let release = catalog::embedded().find(Driver::Cpi, Implementation::Rust, &version).unwrap();
    let mut profile = Profile::new("1.36".parse().unwrap());
    profile.cpi.secret = SECRET.into();
    let rendered = manifest::render(release, &profile).unwrap();
    for object in rendered.objects.iter().filter(|object| object.stage() == When::Access) {
        // Namespaces exist a moment after the API server starts.
        eventually("an account or a role is created", 60, async || apply(client, object).await)
            .await;
    }
}

pub(crate) async fn apply(client: &Client, object: &Object) -> Result<(), String> {
    let id = plan::ObjectId::from_object(object);
    let api = operator::act::api_of(client, &id).map_err(|e| e.to_string())?;
    let parameters = PatchParams::apply("test").force();
    let applied = api.patch(&id.name, &parameters, &Patch::Apply(&object.0)).await;
    applied.map(drop).map_err(|e| e.to_string())
}

pub(crate) fn has_taint(node: &KubeNode, key: &str) -> bool {
    node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == key)
}

/// `Hostname=a`, `InternalIP=10.0.0.1`, ...
pub(crate) fn addresses(node: &KubeNode) -> Vec<String> {
    let all = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    all.map(|a| format!("{}={}", a.type_, a.address)).collect()
}

pub(crate) fn label<'a>(node: &'a KubeNode, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn provider_id(node: &KubeNode) -> &str {
    node.spec.as_ref().and_then(|s| s.provider_id.as_deref()).unwrap_or_default()
}

pub(crate) fn record(node: &KubeNode) -> Option<serde_json::Value> {
    serde_json::from_str(node.metadata.annotations.as_ref()?.get(RECORD)?).ok()
}

/// Whether the controller ever wrote to a node.
pub(crate) fn is_written(node: &KubeNode) -> bool {
    let all = node.metadata.managed_fields.iter().flatten();
    all.into_iter().any(|e| e.manager.as_deref() == Some("vsphere-cloud-controller-manager"))
}

/// Two datacenters, `DC0` and `DC1`, with these VMs.
pub(crate) fn two_datacenters(first: &[Vm], second: &[Vm]) -> Inventory {
    let mut inventory = Inventory::small().vms(first.to_vec());
    let mut other = inventory.datacenters[0].clone();
    other.name = "DC1".into();
    other.vms = second.to_vec();
    other.datastores.truncate(1);
    other.clusters.truncate(1);
    other.clusters[0].hosts.iter_mut().for_each(|host| host.name = format!("dc1-{}", host.name));
    inventory.datacenters.push(other);
    inventory
}

pub(crate) async fn until_logged(ccm: &Process, text: &str) {
    eventually(&format!("the log contains {text:?}"), 60, async || {
        if ccm.log().contains(text) { Ok(()) } else { Err(ccm.tail()) }
    })
    .await;
}

/// Mounts a Secret as the kubelet does: a folder for each `version`, the link `..data` to the current one,
/// and a link for each file through `..data`.
pub(crate) fn mount(at: &std::path::Path, version: &str, files: &[(&str, &str)]) {
    use std::{fs, os::unix::fs::symlink, path::Path};
    fs::create_dir_all(at.join(version)).unwrap();
    for (name, content) in files {
        fs::write(at.join(version).join(name), content).unwrap();
        if fs::symlink_metadata(at.join(name)).is_err() {
            symlink(Path::new("..data").join(name), at.join(name)).unwrap();
        }
    }
    symlink(version, at.join("..data_tmp")).unwrap();
    fs::rename(at.join("..data_tmp"), at.join("..data")).unwrap();
}
