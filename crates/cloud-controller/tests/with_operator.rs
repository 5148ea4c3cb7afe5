//! The controller as VDO runs it: a field of the VDOConfig chooses the implementation, and changing it is an
//! upgrade. The simulated kubelet only reports pods as running, so the test starts the programs with the
//! arguments, files and permissions that the operator rendered.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use std::path::Path;

use api::{
    VDOConfig, VsphereCloudConfig,
    vdo_config::{DriverStatus, Implementation},
};
use common::{UNINITIALIZED, addresses, apply, has_taint, label};
use jiff::SignedDuration;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node as KubeNode, Secret},
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use operator::{engine::Engine, report::OperatorMetrics};
use runtime::{build::BuildInfo, checks::Checks};
use serde_json::json;
use testkit::{
    CloudController, ControlPlane, Fate, Inventory, Node, Nodes, Process, User, Vcenter, Vm,
    Workdir, eventually,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The hostile tenant of the operator's tests.
#[allow(dead_code, unreachable_pub, reason = "this test uses a part of it")]
#[path = "../../operator/tests/common/adversary.rs"]
mod adversary;

use adversary::Adversary;

const NAMESPACE: &str = api::NAMESPACE;
const OPERATOR: &str = "system:serviceaccount:vmware-system-vdo:vdo";
const OURS: &str = "system:serviceaccount:kube-system:vsphere-cloud-controller-manager";
const THEIRS: &str = "system:serviceaccount:kube-system:cloud-controller-manager";

struct Product {
    plane: ControlPlane,
    vcenter: Vcenter,
    nodes: Nodes,
    workdir: Workdir,
    adversary: Adversary,
    _operator: JoinSet<operator::engine::Ended>,
}

impl Product {
    /// A new cluster with the operator and its own RBAC.
    async fn start() -> Self {
        let plane = ControlPlane::builder().with_controllers().with_audit().start().await;
        let inventory =
            Inventory::with_vms(3).category("k8s-region", &[("region-1", &["/DC0"])]).category(
                "k8s-zone",
                &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
            );
        let vms = inventory.datacenters[0].vms.clone();
        let vcenter = Vcenter::start(inventory).await;
        let adversary = Adversary::settle(&plane).await;
        let nodes = Nodes::start(&plane).await;
        for (number, vm) in vms.iter().enumerate() {
            let node = Node::named(&vm.name).system_uuid(&vm.uuid).uninitialized();
            nodes.add(if number == 0 { node.control_plane() } else { node }).await;
        }
        for object in operator::install::objects().iter().filter(|o| o.kind() != "Deployment") {
            eventually("the operator's objects are applied", 60, async || {
                apply(&plane.client(), object).await
            })
            .await;
        }
        let configs = Api::<VDOConfig>::namespaced(plane.client(), NAMESPACE);
        let vcenters = Api::<VsphereCloudConfig>::namespaced(plane.client(), NAMESPACE);
        eventually("the definitions are served", 60, async || {
            configs.list(&ListParams::default()).await?;
            vcenters.list(&ListParams::default()).await.map(drop)
        })
        .await;
        adversary.attack(&plane).await;
        let client = plane.client_as(&User::service_account(NAMESPACE, "vdo"));
        let working = Checks::default().register("rounds", "");
        operator::permissions::wait(
            &client,
            NAMESPACE,
            &std::collections::BTreeSet::new(),
            &working,
        )
        .await;
        let build = BuildInfo::new("vdo");
        let timeouts = SignedDuration::from_mins(15);
        let engine =
            Engine::start(client, NAMESPACE, timeouts, build, OperatorMetrics::default()).await;
        let mut operator = JoinSet::new();
        operator.spawn(engine.unwrap().run(CancellationToken::new(), working));
        let workdir = Workdir::new("in-the-product").unwrap();
        Self { plane, vcenter, nodes, workdir, adversary, _operator: operator }
    }

    async fn configure(&self, implementation: Implementation) {
        let create = PostParams::default();
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "vc", "namespace": NAMESPACE},
            "stringData": {"username": self.vcenter.user(), "password": self.vcenter.password()},
        }))
        .unwrap();
        let secrets = Api::namespaced(self.plane.client(), NAMESPACE);
        secrets.create(&create, &secret).await.unwrap();
        let vcenter: VsphereCloudConfig = serde_json::from_value(json!({
            "metadata": {"name": "vc", "namespace": NAMESPACE},
            "spec": {
                "vcIp": self.vcenter.address().to_string(),
                "thumbprint": self.vcenter.thumbprint_sha1(),
                "credentials": "vc",
                "datacenters": ["DC0"],
            },
        }))
        .unwrap();
        Api::namespaced(self.plane.client(), NAMESPACE).create(&create, &vcenter).await.unwrap();
        let config: VDOConfig = serde_json::from_value(json!({
            "metadata": {"name": "vdo", "namespace": NAMESPACE},
            "spec": {"cloudProvider": {
                "vsphereCloudConfigs": ["vc"],
                "topology": {"zone": "k8s-zone", "region": "k8s-region"},
                "implementation": implementation,
            }},
        }))
        .unwrap();
        self.configs().create(&create, &config).await.unwrap();
    }

    fn configs(&self) -> Api<VDOConfig> {
        Api::namespaced(self.plane.client(), NAMESPACE)
    }

    async fn choose(&self, implementation: Implementation) {
        let patch = json!({"spec": {"cloudProvider": {"implementation": implementation}}});
        let patched =
            self.configs().patch("vdo", &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.unwrap();
    }

    /// Waits until the operator has rendered the controller with this image.
    async fn rendered(&self, image: &str) -> CloudController {
        let found = eventually("the controller is rendered", 60, async || {
            let found = CloudController::rendered(&self.plane, &self.workdir).await;
            match found.map_err(|e| e.full_text())? {
                Some(found) if found.image().contains(image) => Ok(found),
                other => Err(format!("{other:?}\n{:?}", self.status().await)),
            }
        })
        .await;
        // Even a busy computer renews it in time.
        found
            .set("leader-elect-lease-duration", "180s")
            .set("leader-elect-renew-deadline", "120s")
            .set("leader-elect-retry-period", "1s")
    }

    async fn status(&self) -> api::VDOConfigStatus {
        let config = self.configs().get("vdo").await.unwrap();
        adversary::assert_ignored(&config);
        config.status.unwrap_or_default()
    }

    /// Waits until this controller runs, `nodes` are initialised, and there is no finding above Info.
    async fn ready(&self, implementation: Implementation, nodes: i32) -> DriverStatus {
        eventually("the VDOConfig is Ready", 90, async || {
            let status = self.status().await;
            let cpi = status.cpi.clone().unwrap_or_default();
            let ready = api::condition::is_true(&status.conditions, "Ready");
            let well = ready && problems(&status.findings).is_empty();
            if well && cpi.implementation == Some(implementation) && cpi.nodes_ready == Some(nodes)
            {
                return Ok(cpi);
            }
            Err(serde_json::to_string_pretty(&status).unwrap())
        })
        .await
    }

    async fn add(&self, name: &str) {
        let vm = Vm::named(name);
        self.vcenter.add_vms("DC0", [vm.clone()]).await;
        self.nodes.add(Node::named(name).system_uuid(&vm.uuid).uninitialized()).await;
    }

    async fn initialised(&self, name: &str, by: &Process) -> KubeNode {
        let api = Api::<KubeNode>::all(self.plane.client());
        eventually(&format!("{name} is initialised"), 90, async || {
            assert!(by.ended().is_none(), "it ended:\n{}", by.tail());
            let node = api.get(name).await.map_err(|e| e.to_string())?;
            // The upstream controller writes the addresses last.
            let done = !has_taint(&node, UNINITIALIZED) && addresses(&node).len() > 1;
            if done { Ok(node) } else { Err(format!("{:?}\n{}", node.spec, by.tail())) }
        })
        .await
    }

    /// Write requests of an account to nodes, as `patch node-1`.
    fn node_writes(&self, account: &str) -> Vec<String> {
        let all = self.plane.audit();
        let own = all.iter().filter(|request| request["impersonatedUser"]["username"] == account);
        own.filter(|request| request["objectRef"]["resource"] == "nodes")
            .filter(|request| !["get", "list", "watch"].iter().any(|verb| request["verb"] == *verb))
            .map(|r| format!("{} {}", r["verb"], r["objectRef"]["name"]).replace('"', ""))
            .collect()
    }

    /// Requests of an account that were forbidden.
    fn refusals(&self, account: &str) -> Vec<String> {
        let all = self.plane.audit();
        let own = all.iter().filter(|request| request["impersonatedUser"]["username"] == account);
        own.filter(|request| request["responseStatus"]["code"] == 403)
            .map(|request| format!("{} {}", request["verb"], request["requestURI"]))
            .collect()
    }

    async fn holder(&self) -> String {
        let leases = Api::<Lease>::namespaced(self.plane.client(), "kube-system");
        let lease = leases.get_opt("cloud-controller-manager").await.unwrap();
        lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
    }

    /// Releases the lease of a killed holder, so that the next one need not wait for its expiry.
    async fn release_lease(&self) {
        let leases = Api::<Lease>::namespaced(self.plane.client(), "kube-system");
        let free = json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
        let merge = Patch::Merge(free);
        let written =
            leases.patch("cloud-controller-manager", &PatchParams::default(), &merge).await;
        written.unwrap();
    }

    /// Replaces one controller by another as a rolling update does: for a while both run. Only the leader
    /// writes, and the new controller writes to no initialised node.
    async fn replace(&self, from: Process, to: &Process, account: &str, marker: &str) {
        let writes = self.node_writes(account);
        let holder = self.holder().await;
        self.add(&format!("{marker}-1")).await;
        self.initialised(&format!("{marker}-1"), &from).await;
        assert!(to.ended().is_none(), "{}", to.tail());
        assert_eq!(self.node_writes(account), writes, "it writes although it is not the leader");
        assert_eq!(self.holder().await, holder);
        from.kill();
        self.release_lease().await;
        self.add(&format!("{marker}-2")).await;
        self.initialised(&format!("{marker}-2"), to).await;
        assert_ne!(self.holder().await, holder);
        let new = self.node_writes(account).split_off(writes.len());
        let unnecessary: Vec<_> =
            new.iter().filter(|write| !write.ends_with(&format!("{marker}-2"))).collect();
        assert_eq!(unnecessary, Vec::<&String>::new(), "initialised nodes do not change");
    }

    async fn has_role(&self, name: &str) -> bool {
        Api::<ClusterRole>::all(self.plane.client()).get_opt(name).await.unwrap().is_some()
    }
}

/// Findings above Info: the administrator's excess privileges are reported as Info.
fn problems(findings: &[api::Finding]) -> Vec<api::Finding> {
    let above = |finding: &&api::Finding| finding.severity > api::Severity::Info;
    findings.iter().filter(above).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_field_chooses_the_controller_and_changing_it_is_an_upgrade_in_both_directions() {
    let program = Path::new(env!("CARGO_BIN_EXE_vsphere-cloud-controller-manager"));
    let product = Product::start().await;
    product.configure(Implementation::Rust).await;

    let rendered = product.rendered("vdo-cloud-controller").await;
    let ours = rendered.run(program, "ours", &product.plane, &product.workdir).unwrap();
    for name in ["node-1", "node-2", "node-3"] {
        let node = product.initialised(name, &ours).await;
        assert!(label(&node, "topology.kubernetes.io/zone").unwrap().starts_with("zone-"));
    }
    let cpi = product.ready(Implementation::Rust, 3).await;
    assert_eq!(cpi.version.as_deref(), Some(env!("CARGO_PKG_VERSION")));

    // To the upstream controller. Its pods become ready after its process started.
    product.nodes.pods("cloud-provider-vsphere", Fate::Pending);
    product.choose(Implementation::Upstream).await;
    let rendered = product.rendered("cloud-provider-vsphere").await;
    let theirs = rendered.upstream("theirs", &product.plane, &product.workdir).unwrap();
    product.replace(ours, &theirs, THEIRS, "there").await;
    assert!(product.has_role("vdo:vsphere-cloud-controller-manager").await, "not pruned too early");
    product.nodes.pods("cloud-provider-vsphere", Fate::Ready);
    product.ready(Implementation::Upstream, 5).await;
    assert!(!product.has_role("vdo:vsphere-cloud-controller-manager").await, "pruned");
    let budgets = Api::<PodDisruptionBudget>::namespaced(product.plane.client(), "kube-system");
    assert!(budgets.list(&ListParams::default()).await.unwrap().items.is_empty());

    // And back.
    product.nodes.pods("vdo-cloud-controller", Fate::Pending);
    product.choose(Implementation::Rust).await;
    let rendered = product.rendered("vdo-cloud-controller").await;
    let ours = rendered.run(program, "ours-again", &product.plane, &product.workdir).unwrap();
    product.replace(theirs, &ours, OURS, "back").await;
    product.nodes.pods("vdo-cloud-controller", Fate::Ready);
    product.ready(Implementation::Rust, 7).await;
    assert!(!product.has_role("system:cloud-controller-manager").await, "pruned");

    for account in [OPERATOR, OURS, THEIRS] {
        assert_eq!(product.refusals(account), Vec::<String>::new(), "{account}");
    }
    product.adversary.assert_held(&product.plane.client()).await;
    adversary::assert_held_to_the_end(&product.adversary, &product.plane);
}
