//! VDO remediates the faults that the spec allows it to, with the shipped RBAC, and undoes a repair on
//! request.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::BTreeMap;

use api::{VDOConfigStatus, vdo_config::RepairSummary};
use common::{NAMESPACE, Testbed, upstream_csi};
use health::repair::{Moved, Proposal, Repair};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration,
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node, Secret},
    storage::v1::{CSINode, VolumeAttachment},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use operator::{
    remediation::{self, RepairClients},
    webhook_certificates::Pair,
};
use serde_json::{Value, json};
use testkit::{
    ControlPlane, Inventory, Node as NewNode, Permission, Process, Role, Vcenter, Vm, eventually,
};

const CSI: &str = "vmware-system-csi";
const DRIVER: &str = "csi.vsphere.vmware.com";
const FEATURES: &str = "internal-feature-states.csi.vsphere.vmware.com";
const WEBHOOK: &str = "validation.csi.vsphere.vmware.com";
const SERVICE: &str = "vsphere-webhook-svc";
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// A node that joined without waiting for the cloud provider.
const LATE: &str = "late";

struct Fixture {
    testbed: Testbed,
    operator: Process,
}

/// Upstream's storage driver, of a release whose image registry was shut down.
fn foreign_driver() -> Vec<Value> {
    let texts = upstream_csi().into_iter().map(|document| {
        let text = document.to_string();
        text.replace("registry.k8s.io/csi-vsphere/", "gcr.io/cloud-provider-vsphere/csi/release/")
            .replace("v3.7.0", "v3.3.1")
            // The simulated kubelet does not expand variables.
            .replace(
                "$(DRIVER_REG_SOCK_PATH)",
                "/var/lib/kubelet/plugins/csi.vsphere.vmware.com/csi.sock",
            )
    });
    texts.map(|text| serde_json::from_str(&text).unwrap()).collect()
}

/// Its webhook, with a certificate that ends in two weeks.
fn foreign_webhook(old: &Pair) -> Vec<Value> {
    let secret: BTreeMap<String, Value> =
        old.data().into_iter().map(|(key, value)| (key, json!(value))).collect();
    let labels = json!({"app": "vsphere-csi-webhook"});
    vec![
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": plan::names::WEBHOOK_SECRET, "namespace": CSI}, "data": secret,
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "vsphere-csi-webhook", "namespace": CSI},
            "spec": {
                "replicas": 1, "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "containers": [{"name": "vsphere-webhook", "image": "registry.k8s.io/csi-vsphere/syncer:v3.3.1"}],
                        "volumes": [{"name": "certs", "secret": {"secretName": plan::names::WEBHOOK_SECRET}}],
                    },
                },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": SERVICE, "namespace": CSI},
            "spec": {"selector": labels, "ports": [{"port": 443, "targetPort": 8443}]},
        }),
        // No webhook server runs here, so the webhook must not block any request.
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": WEBHOOK},
            "webhooks": [{
                "name": WEBHOOK, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Ignore",
                "clientConfig": {
                    "service": {"name": SERVICE, "namespace": CSI, "path": "/validate"},
                    "caBundle": k8s_openapi::ByteString(old.authority.clone().into_bytes()),
                },
                "rules": [{
                    "apiGroups": ["storage.k8s.io"], "apiVersions": ["v1"], "operations": ["DELETE"],
                    "resources": ["storageclasses"],
                }],
            }],
        }),
    ]
}

impl Fixture {
    async fn start() -> Self {
        let testbed = Testbed::with_nodes(2).await;
        testbed.vcenter.add_vms("DC0", [Vm::named(LATE)]).await;
        let own = serde_json::from_value(json!({"key": "own", "effect": "PreferNoSchedule"}));
        let late = NewNode::named(LATE).system_uuid(&Vm::named(LATE).uuid).taint(own.unwrap());
        testbed.nodes.as_ref().unwrap().add(late).await;
        testbed.create("kubectl-create", foreign_driver()).await;
        // Report a node that did not wait at once, not after two minutes.
        let operator = testbed.operator_with(&["--grace=1"]);
        let spec = json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
            "adoption": "Never",
        });
        testbed.configure(spec).await;
        Self { testbed, operator }
    }

    async fn allow(&self, rules: Value) {
        self.testbed.change(json!({"spec": {"remediation": rules}})).await;
    }

    async fn undo(&self, what: Option<&str>) {
        let annotations = json!({"vdo.vmware.com/undo": what});
        self.testbed.change(json!({"metadata": {"annotations": annotations}})).await;
    }

    /// Waits until the status proposes a repair for this code.
    async fn proposed(&self, code: &str, is: impl Fn(&RepairSummary) -> bool) -> RepairSummary {
        let find = |status: &VDOConfigStatus| {
            let repairs = status.health.iter().flat_map(|health| &health.repairs);
            repairs.into_iter().find(|repair| repair.code == code && is(repair)).cloned()
        };
        let what = format!("a repair of {code} is proposed");
        find(&self.testbed.status(&what, 60, |status| find(status).is_some()).await).unwrap()
    }

    async fn controller_images(&self) -> Vec<String> {
        let pod = self.testbed.controller().await.spec.unwrap().template.spec.unwrap();
        let images = pod.containers.into_iter().filter_map(|container| container.image);
        images.filter(|image| image.contains("/driver:") || image.contains("/syncer:")).collect()
    }

    async fn images_come_from(&self, registry: &str) {
        eventually(&format!("images are pulled from {registry}"), 60, async || {
            let images = self.controller_images().await;
            let all = images.len() == 2 && images.iter().all(|image| image.starts_with(registry));
            all.then_some(()).ok_or(format!("{images:?}\n{}", self.operator.tail()))
        })
        .await;
    }

    /// A registry was shut down. The repair is proposed, not proposed if it is off, applied in one rollout, and undone for
    /// as long as the annotation exists.
    async fn images_are_pulled_from_the_new_registry(&self) {
        let proposed = self.proposed("VDO-1602", |repair| repair.count >= 2).await;
        assert!(!proposed.automatic && proposed.refused.is_none(), "{proposed:?}");
        let before = self.testbed.controller().await.metadata.generation.unwrap();
        self.allow(json!({"imageRegistry": "Off"})).await;
        let gone = |status: &VDOConfigStatus| {
            let health = status.health.clone().unwrap_or_default();
            health.repairs.iter().all(|repair| repair.code != "VDO-1602")
        };
        self.testbed.status("a disabled repair is not proposed", 60, gone).await;
        self.images_come_from("gcr.io/cloud-provider-vsphere/").await;

        self.allow(json!({"imageRegistry": "Fix"})).await;
        self.images_come_from("registry.k8s.io/csi-vsphere/").await;
        let after = self.testbed.controller().await.metadata.generation.unwrap();
        assert_eq!(after, before + 1, "two images of one workload need one rollout");
        self.testbed
            .event("Repaired", "VDO-1602: Sets the images of deployment/vsphere-csi-controller")
            .await;

        self.undo(Some("VDO-1602")).await;
        self.images_come_from("gcr.io/cloud-provider-vsphere/").await;
        self.testbed.event("RepairUndone", "VDO-1602.vmware-system-csi.deployment").await;
        self.testbed.finding("VDO-1602", 60).await;
        self.images_come_from("gcr.io/cloud-provider-vsphere/").await;
        self.undo(None).await;
        self.images_come_from("registry.k8s.io/csi-vsphere/").await;
    }

    async fn registered_id(&self, node: &str) -> Option<String> {
        let csi_node = Api::<CSINode>::all(self.testbed.client()).get(node).await.unwrap();
        let own = csi_node.spec.drivers.into_iter().find(|driver| driver.name == DRIVER);
        own.map(|driver| driver.node_id)
    }

    /// A registration under a deleted VM stays while a volume is attached. Then it is replaced by one under the current
    /// VM.
    async fn a_stale_registration_is_replaced(&self) {
        let (node, gone) = ("node-2", Vm::named("somebody else").uuid);
        let right = Vm::numbered("node", 2).uuid;
        let registered = async |id: &str| {
            eventually(&format!("{node} is registered as {id}"), 60, async || {
                let id_now = self.registered_id(node).await;
                (id_now.as_deref() == Some(id)).then_some(()).ok_or(format!("{id_now:?}"))
            })
            .await;
        };
        eventually("no pod of the driver is being replaced", 60, async || {
            let set = self.testbed.node_driver().await;
            let (status, generation) = (set.status.unwrap_or_default(), set.metadata.generation);
            let wanted = Some(status.desired_number_scheduled);
            let complete =
                [status.updated_number_scheduled, status.number_available] == [wanted; 2];
            let settled = complete && status.observed_generation == generation;
            settled.then_some(()).ok_or(format!("{status:?}"))
        })
        .await;
        registered(&right).await;
        self.allow(json!({"csiNodes": "Fix"})).await;
        self.permission_for_csi_nodes_is_granted_on_request().await;
        self.testbed.attach("pv-1", node).await;
        let nodes = Api::<CSINode>::all(self.testbed.client());
        for drivers in [json!([]), json!([{"name": DRIVER, "nodeID": gone}])] {
            let patch = Patch::Merge(json!({"spec": {"drivers": drivers}}));
            nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
        }
        self.testbed.finding("VDO-1222", 60).await;
        self.testbed
            .change(json!({"metadata": {"annotations": {"example.com/look": "again"}}}))
            .await;
        assert_eq!(
            self.registered_id(node).await.as_deref(),
            Some(gone.as_str()),
            "a volume is attached"
        );
        let attachments = Api::<VolumeAttachment>::all(self.testbed.client());
        attachments.delete("csi-pv-1", &DeleteParams::default()).await.unwrap();
        registered(&right).await;
        self.testbed.event("Repaired", "VDO-1222: Removes the entry").await;
    }

    /// The manifest has no permission to change CSINodes. VDO reports the command that grants it, and an admin runs it.
    async fn permission_for_csi_nodes_is_granted_on_request(&self) {
        let finding = self.testbed.finding("VDO-1917", 60).await;
        let role = "vdo-remediation-csinodes";
        let command = format!(
            "kubectl create clusterrolebinding {role} --clusterrole {role} --serviceaccount {NAMESPACE}:vdo"
        );
        assert!(finding.remedy[0].starts_with(&command), "{finding:?}");
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "vdo", "namespace": NAMESPACE}],
        });
        self.testbed.create("kubectl-create", [binding]).await;
        self.cleared("VDO-1917").await;
    }

    /// Waits for a condition; a failure shows the log of the operator.
    async fn becomes<T: std::fmt::Debug>(
        &self,
        what: &str,
        observe: impl AsyncFn() -> T,
        is: impl Fn(&T) -> bool,
    ) -> T {
        eventually(what, 60, async || {
            let now = observe().await;
            if is(&now) { Ok(now) } else { Err(format!("{now:?}\n{}", self.operator.tail())) }
        })
        .await
    }

    /// VDO adds a feature switch that the release needs, and leaves those of the admin alone. It undoes the change for as
    /// long as the annotation exists.
    async fn a_missing_feature_switch_is_added(&self) {
        let maps = Api::<ConfigMap>::namespaced(self.testbed.client(), CSI);
        let merge = async |data: Value| {
            let patch = Patch::Merge(json!({"data": data}));
            maps.patch(FEATURES, &PatchParams::default(), &patch).await.unwrap();
        };
        let switches = async || maps.get(FEATURES).await.unwrap().data.unwrap_or_default();
        let catalog = catalog::embedded();
        let mut releases =
            catalog.releases_of(catalog::Driver::Csi, catalog::Implementation::Upstream);
        let release = releases.find(|release| release.version.to_string() == "3.3.1").unwrap();
        let mut names = release.features.keys();
        let (missing, theirs) = (names.next().unwrap(), names.next().unwrap());
        let other = if release.features[theirs] { "false" } else { "true" };
        merge(json!({missing: null, theirs: other, "of-mine": "true"})).await;
        let proposed = self.proposed("VDO-1609", |repair| !repair.automatic).await;
        assert!(proposed.refused.is_none(), "{proposed:?}");
        assert!(!switches().await.contains_key(missing), "the repair is only proposed");

        self.allow(json!({"featureStates": "Fix"})).await;
        let now =
            self.becomes("the switch is added", switches, |now| now.contains_key(missing)).await;
        let usual = release.features[missing].to_string();
        assert_eq!(now[missing], usual, "the default of the release");
        assert_eq!((now[theirs].as_str(), now["of-mine"].as_str()), (other, "true"));
        self.testbed.event("Repaired", "VDO-1609").await;
        self.cleared("VDO-1609").await;

        self.undo(Some("VDO-1609")).await;
        let now = self
            .becomes("the switch is removed again", switches, |now| !now.contains_key(missing))
            .await;
        assert_eq!((now[theirs].as_str(), now["of-mine"].as_str()), (other, "true"));
        self.testbed.event("RepairUndone", "VDO-1609").await;
        self.testbed.finding("VDO-1609", 60).await;
        self.allow(json!({"featureStates": "Off"})).await;
        self.undo(None).await;
        merge(json!({missing: usual})).await;
        self.cleared("VDO-1609").await;
    }

    async fn cleared(&self, code: &str) {
        let none = |status: &VDOConfigStatus| status.findings.iter().all(|f| f.code != code);
        self.testbed.status(&format!("{code} is cleared"), 60, none).await;
    }

    /// VDO replaces an expiring certificate. The API server trusts the new and the old one. VDO cannot undo this, and
    /// reports that.
    async fn an_expiring_webhook_certificate_is_renewed(&self) {
        let host = format!("{SERVICE}.{CSI}.svc");
        let made = Timestamp::now() - SignedDuration::from_hours(24 * 350);
        let old = Pair::issue(&host, None, made).unwrap();
        self.testbed.create("kubectl-create", foreign_webhook(&old)).await;
        let deployments = Api::<Deployment>::namespaced(self.testbed.client(), CSI);
        let generation = async || {
            deployments.get("vsphere-csi-webhook").await.unwrap().metadata.generation.unwrap()
        };
        let secrets = Api::<Secret>::namespaced(self.testbed.client(), CSI);
        let secret = async || secrets.get(plan::names::WEBHOOK_SECRET).await.unwrap().data.unwrap();
        let proposed = self.proposed("VDO-1610", |repair| !repair.automatic).await;
        assert!(proposed.refused.is_none(), "{proposed:?}");
        let (before, data) = (generation().await, secret().await);
        let pair = Pair::read(&data).unwrap();
        assert_eq!(pair.certificate, old.certificate, "the repair is only proposed");

        self.allow(json!({"webhookCertificates": "Fix"})).await;
        let is_new = |secret: &BTreeMap<String, k8s_openapi::ByteString>| {
            Pair::read(secret).is_some_and(|pair| pair.certificate != old.certificate)
        };
        let data = self.becomes("the certificate is new", secret, is_new).await;
        let new = Pair::read(&data).unwrap();
        assert!(new.expires > Timestamp::now() + SignedDuration::from_hours(24 * 300));
        assert_eq!(data["webhook.config"], old.data()["webhook.config"], "the settings stay");
        let configurations = Api::<ValidatingWebhookConfiguration>::all(self.testbed.client());
        let hooks = configurations.get(WEBHOOK).await.unwrap().webhooks.unwrap();
        let trusted = hooks[0].client_config.ca_bundle.clone().unwrap();
        assert_eq!(String::from_utf8(trusted.0).unwrap(), new.authority);
        assert!(new.authority.ends_with(&old.authority), "the old certificate stays trusted");
        self.becomes("the webhook is restarted", generation, |now| *now == before + 1).await;
        self.testbed.event("Repaired", "VDO-1610").await;
        self.cleared("VDO-1610").await;

        self.undo(Some("VDO-1610")).await;
        self.testbed.event("UndoFailed", "VDO-1610").await;
        self.undo(None).await;
        assert_eq!(secret().await, data, "the certificate stays");
        assert_eq!(generation().await, before + 1, "one restart");
    }

    /// VDO never grants privileges in vCenter, and reports that if the remediation is on.
    async fn privileges_are_never_granted(&self) {
        let vcenter = &self.testbed.vcenter;
        self.allow(json!({"privileges": "Fix"})).await;
        vcenter.set_role(&Role::new("weak", &["System.Read", "System.View"])).await;
        vcenter.permit(&Permission::new(vcenter.user(), "weak", "/")).await;
        let check = json!({"vdo.vmware.com/check-now": "privileges"});
        self.testbed.change(json!({"metadata": {"annotations": check}})).await;
        let proposed = self.proposed("VDO-1401", |repair| repair.refused.is_some()).await;
        assert!(!proposed.automatic, "{proposed:?}");
        self.testbed.event("RepairNotPossible", "VDO never grants privileges").await;
        vcenter.permit(&Permission::new(vcenter.user(), "Admin", "/")).await;
        let check = json!({"vdo.vmware.com/check-now": "again"});
        self.testbed.change(json!({"metadata": {"annotations": check}})).await;
        self.cleared("VDO-1401").await;
    }

    async fn taints(&self) -> Vec<String> {
        let node = Api::<Node>::all(self.testbed.client()).get(LATE).await.unwrap();
        let taints = node.spec.unwrap().taints.unwrap_or_default();
        taints.into_iter().map(|taint| taint.key).collect()
    }

    /// VDO taints a node that did not wait for the cloud provider, and removes the taint when it is undone. Other taints
    /// stay.
    async fn a_node_that_did_not_wait_is_tainted(&self) {
        let is_tainted = async |wanted: bool| {
            eventually(&format!("the node is tainted: {wanted}"), 90, async || {
                let taints = self.taints().await;
                let is = taints.iter().any(|key| key == UNINITIALIZED);
                (is == wanted).then_some(()).ok_or(format!("{taints:?}\n{}", self.operator.tail()))
            })
            .await;
            assert!(self.taints().await.contains(&"own".to_owned()));
        };
        let reported =
            |status: &VDOConfigStatus| status.findings.iter().any(|f| f.code == "VDO-1217");
        self.testbed.status("the node is reported", 60, reported).await;
        assert!(
            !self.taints().await.contains(&UNINITIALIZED.to_owned()),
            "the repair is only proposed"
        );
        self.allow(json!({"nodeTaints": "Fix"})).await;
        is_tainted(true).await;
        self.testbed.event("Repaired", "VDO-1217: Taints late").await;
        self.undo(Some("VDO-1217.late")).await;
        is_tainted(false).await;
    }
}

/// `disk.EnableUUID` of the only VM.
async fn disk_uuid(vcenter: &Vcenter) -> Value {
    let truth = vcenter.truth().await;
    truth["datacenters"][0]["vms"][0]["extraConfig"]["disk.EnableUUID"].clone()
}

/// A repair of the only VM, and clients to make it.
async fn disk_uuid_repair(plane: &ControlPlane, vcenter: &Vcenter) -> (RepairClients, Proposal) {
    let session = vsphere::Client::builder(vcenter.address().to_string())
        .trust(vsphere::Trust::CaBundle(vcenter.ca_pem()))
        .credentials(vsphere::Credentials::new(vcenter.user(), vcenter.password()))
        .connect()
        .await
        .unwrap();
    let vm = session.find_vms().await.unwrap().vms()[0].reference.id.to_string();
    let clients = RepairClients {
        cluster: plane.client(),
        namespace: Some("default".into()),
        vcenters: [("vc".to_owned(), session)].into(),
    };
    let repair = Repair::SetDiskUuid { vcenter: "vc".into(), vm, node: "node-1".into() };
    (clients, proposal("VDO-1203", repair))
}

/// A refused change leaves no record, so an undo cannot overwrite what an admin set in the meantime. An undo restores the
/// previous value, and only if VDO's value is still there.
#[tokio::test]
async fn an_undo_changes_nothing_but_what_vdo_wrote() {
    let plane = ControlPlane::start().await;
    let mut inventory = Inventory::with_vms(1);
    inventory.datacenters[0].vms[0].disk_uuid = false;
    let vcenter = Vcenter::start(inventory).await;
    let path = "/DC0/vm/node-1";
    let set = async |value: &str| {
        vcenter.patch_vm(path, json!({"extraConfig": {"disk.EnableUUID": value}})).await;
    };
    let (clients, proposal) = disk_uuid_repair(&plane, &vcenter).await;
    let id = proposal.id();
    let records = async || remediation::made(&clients).await.unwrap();

    vcenter.permit(&Permission::new(vcenter.user(), "ReadOnly", "/")).await;
    let refused = remediation::carry_out(&clients, &proposal).await.unwrap_err();
    assert!(matches!(refused, remediation::Error::Vcenter { .. }), "{refused:?}");
    assert!(records().await.is_empty(), "vCenter refused the change, so VDO made none");
    vcenter.permit(&Permission::new(vcenter.user(), "Admin", "/")).await;
    set("TRUE").await;
    remediation::undo(&clients, &id).await.unwrap_err();
    assert_eq!(disk_uuid(&vcenter).await, "TRUE", "the admin's value stays");

    set("FALSE").await;
    remediation::carry_out(&clients, &proposal).await.unwrap();
    assert_eq!(disk_uuid(&vcenter).await, "TRUE");
    assert!(records().await.contains_key(&id));
    remediation::undo(&clients, &id).await.unwrap();
    assert_eq!(disk_uuid(&vcenter).await, "FALSE", "the value before the repair");
    assert!(records().await[&id].undone.is_some());
}

fn proposal(code: &str, repair: Repair) -> Proposal {
    Proposal {
        code: code.into(),
        repair,
        automatic: false,
        says: String::new(),
        then: None,
        undo: None,
        refused: None,
    }
}

/// Makes a repair that somebody else has made since the check. VDO records nothing, so it undoes nothing.
async fn records_nothing(clients: &RepairClients, code: &str, repair: Repair) {
    let proposal = proposal(code, repair);
    remediation::carry_out(clients, &proposal).await.unwrap();
    let records = remediation::made(clients).await.unwrap();
    assert!(!records.contains_key(&proposal.id()), "{records:?}");
    let refused = remediation::undo(clients, &proposal.id()).await.unwrap_err();
    assert!(matches!(refused, remediation::Error::NoRecord { .. }), "{refused:?}");
}

#[tokio::test]
async fn an_undo_leaves_what_somebody_else_did_before_vdo() {
    let plane = ControlPlane::start().await;
    let clients = RepairClients {
        cluster: plane.client(),
        namespace: Some("default".into()),
        vcenters: BTreeMap::new(),
    };
    let created = PostParams::default();

    let nodes = Api::<Node>::all(plane.client());
    let taint = json!({"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"});
    let node = json!({"metadata": {"name": LATE}, "spec": {"taints": [taint]}});
    nodes.create(&created, &serde_json::from_value(node).unwrap()).await.unwrap();
    records_nothing(&clients, "VDO-1217", Repair::TaintNode { node: LATE.into() }).await;
    let taints = nodes.get(LATE).await.unwrap().spec.unwrap().taints.unwrap();
    assert!(taints.iter().any(|taint| taint.key == UNINITIALIZED), "{taints:?}");

    let maps = Api::<ConfigMap>::namespaced(plane.client(), "default");
    let map = json!({"metadata": {"name": FEATURES}, "data": {"theirs": "true"}});
    maps.create(&created, &serde_json::from_value(map).unwrap()).await.unwrap();
    let features = |names: &[&str]| {
        let features = names.iter().map(|&name| (name.to_owned(), "true".to_owned()));
        Repair::SetFeatures { namespace: "default".into(), features: features.collect() }
    };
    records_nothing(&clients, "VDO-1609", features(&["theirs"])).await;
    let both = proposal("VDO-1609", features(&["ours", "theirs"]));
    remediation::carry_out(&clients, &both).await.unwrap();
    let data = async || maps.get(FEATURES).await.unwrap().data.unwrap();
    assert_eq!(data().await.len(), 2);
    remediation::undo(&clients, &both.id()).await.unwrap();
    assert_eq!(data().await.into_keys().collect::<Vec<_>>(), ["theirs"]);

    let deployments = Api::<Deployment>::namespaced(plane.client(), "default");
    let containers = json!([
        {"name": "ours", "image": "old.example.com/image"},
        {"name": "theirs", "image": "new.example.com/image"},
    ]);
    let labels = json!({"app": "controller"});
    let deployment = json!({
        "metadata": {"name": "controller"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    });
    deployments.create(&created, &serde_json::from_value(deployment).unwrap()).await.unwrap();
    let images = |names: &[&str]| {
        let (from, to) = ("old.example.com/image".to_owned(), "new.example.com/image".to_owned());
        let moved = Moved { from, to };
        let images = names.iter().map(|&name| (name.to_owned(), moved.clone()));
        Repair::ReplaceImages {
            namespace: "default".into(),
            workload: "deployment/controller".into(),
            images: images.collect(),
        }
    };
    records_nothing(&clients, "VDO-1602", images(&["theirs"])).await;
    let both = proposal("VDO-1602", images(&["ours", "theirs"]));
    remediation::carry_out(&clients, &both).await.unwrap();
    let seen = async || {
        let spec = deployments.get("controller").await.unwrap().spec.unwrap();
        let containers = spec.template.spec.unwrap().containers.into_iter();
        containers.map(|container| container.image.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(seen().await, ["new.example.com/image", "new.example.com/image"]);
    remediation::undo(&clients, &both.id()).await.unwrap();
    assert_eq!(seen().await, ["old.example.com/image", "new.example.com/image"]);
}

#[tokio::test]
async fn vdo_remediates_what_is_allowed_and_undoes_it_on_request() {
    let fixture = Fixture::start().await;
    fixture.images_are_pulled_from_the_new_registry().await;
    fixture.a_stale_registration_is_replaced().await;
    fixture.a_missing_feature_switch_is_added().await;
    fixture.an_expiring_webhook_certificate_is_renewed().await;
    fixture.privileges_are_never_granted().await;
    fixture.a_node_that_did_not_wait_is_tainted().await;
    let maps = Api::<ConfigMap>::namespaced(fixture.testbed.client(), NAMESPACE);
    let repairs = maps.get("vdo-repairs").await.unwrap().data.unwrap();
    assert!(
        repairs.keys().any(|id| id == "VDO-1222.node-2"),
        "every repair is recorded: {repairs:?}"
    );
    assert!(fixture.operator.ended().is_none(), "{}", fixture.operator.tail());
    assert_eq!(fixture.testbed.deletions(), Vec::<String>::new(), "VDO must delete nothing");
    assert_eq!(
        fixture.testbed.denied_requests(),
        Vec::<String>::new(),
        "the shipped RBAC is enough"
    );
}
