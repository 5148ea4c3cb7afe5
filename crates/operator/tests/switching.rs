//! Clusters with drivers that are not managed by VDO, and with attached volumes: the Go VDO, upstream's
//! manifests, charts. VDO deletes and re-creates nothing, and keeps names and the cluster id.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "switching/adopted_password.rs"]
mod adopted_password;
mod common;
#[path = "switching/go_vdo.rs"]
mod go_vdo;
#[path = "switching/rancher.rs"]
mod rancher;

use std::time::Duration;

use api::{
    VDOConfigStatus,
    vdo_config::{DriverStatus, PlanState, PlanStep, StepState},
};
use common::{NAMESPACE, Testbed, upstream_cpi, upstream_csi};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{ConfigMap, Event, PersistentVolume},
        rbac::v1::Role,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceValidation,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use testkit::{Fault, Process, User, eventually};
use vsphere::{
    Client, Credentials, Trust,
    cns::{BackingDetails, ContainerCluster, CreateSpec, EntityMetadata, VolumeId, VolumeMetadata},
};

const CSI: &str = "vmware-system-csi";

fn storage_secret(namespace: &str, conf: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "vsphere-config-secret", "namespace": namespace},
        "stringData": {"csi-vsphere.conf": conf},
    })
}

/// A manifest with the storage driver of another release.
fn of_release(documents: Vec<Value>, from: &str, to: &str) -> Vec<Value> {
    let texts = documents.into_iter().map(|document| document.to_string().replace(from, to));
    texts.map(|text| serde_json::from_str(&text).unwrap()).collect()
}

/// A volume under a cluster id, for the claim `shop/orders`.
async fn volume_under(testbed: &Testbed, id: &str) -> (Client, VolumeId) {
    let client = Client::builder(testbed.vcenter.address().to_string())
        .trust(Trust::CaBundle(testbed.vcenter.ca_pem()))
        .credentials(Credentials::new(testbed.vcenter.user(), testbed.vcenter.password()))
        .connect()
        .await
        .unwrap();
    let cluster = ContainerCluster {
        kind: "KUBERNETES".into(),
        id: id.into(),
        user: testbed.vcenter.user().into(),
        flavor: Some("VANILLA".into()),
        distribution: None,
        delete: None,
    };
    let claim = EntityMetadata {
        name: "orders".into(),
        labels: Vec::new(),
        delete: None,
        cluster: Some(id.into()),
        kind: Some("PERSISTENT_VOLUME_CLAIM".into()),
        namespace: Some("shop".into()),
        refers: Vec::new(),
    };
    let spec = CreateSpec {
        name: "pvc-orders".into(),
        id: None,
        datastores: Vec::new(),
        metadata: VolumeMetadata {
            cluster: Some(cluster),
            entities: vec![claim],
            clusters: Vec::new(),
        },
        backing: BackingDetails::block(1024),
        policy: None,
        permissions: Vec::new(),
        source: None,
    };
    let made = client.create_volumes(vec![spec]).await.unwrap();
    let made = made.wait(Duration::from_mins(1)).await.unwrap();
    let volume = made[0].volume.clone().unwrap();
    (client, volume)
}

/// The release of a driver that VDO proposes: another one, or the one that runs.
fn proposed(driver: Option<&DriverStatus>) -> Option<String> {
    let driver = driver?;
    driver.target.clone().or_else(|| driver.version.clone())
}

/// Waits until VDO has adopted the drivers, and returns the status. The audit log has no write but those of VDO's
/// own records: nothing of the drivers changes, however long nobody asks.
async fn adopted(testbed: &Testbed, operator: &Process, count: usize) -> VDOConfigStatus {
    let status = testbed
        .status("the drivers are adopted", 120, |status| {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let plan = status.plan.clone().unwrap_or_default();
            let adopted = plan.steps.iter().filter(|step| {
                step.title.contains("Adopt the existing driver") && step.state == StepState::Done
            });
            adopted.count() == count && plan.state == Some(PlanState::Waiting)
        })
        .await;
    let codes: Vec<&str> = status.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert!(!codes.contains(&"VDO-1619"), "the driver reads its own Secret: {codes:?}");
    let mut writes = testbed.writes_after_two_rounds(operator, Timestamp::MIN).await;
    writes.retain(|write| !write.contains(&format!("/namespaces/{NAMESPACE}/")));
    assert_eq!(writes, Vec::<String>::new(), "adoption changes nothing");
    status
}

/// VDO asks CNS who uses the cluster id before it proposes an adoption. While nobody answers the proposal, VDO does not list
/// all volumes again and again.
async fn a_proposal_needs_cns_once(testbed: &Testbed, operator: &Process) {
    testbed.vcenter.fault(Fault::on("CnsQueryVolume").fails("SystemError")).await;
    tokio::time::sleep(Duration::from_secs(16)).await;
    testbed.two_more_rounds(operator).await;
    assert_eq!(asks_cns(testbed).await, None);
    testbed.vcenter.clear_faults().await;
    testbed.check_now("CNS answers a proposal").await;
}

/// The step in which VDO waits for an answer of CNS.
async fn asks_cns(testbed: &Testbed) -> Option<PlanStep> {
    let plan = testbed.config().await.status.unwrap().plan.unwrap();
    plan.steps.into_iter().find(|step| step.title.contains("Ask CNS"))
}

/// A list of all volumes is expensive, and nothing changes a recorded cluster id: VDO does not ask for them again while an
/// adopted driver waits for its approval.
async fn a_recorded_id_needs_no_cns(testbed: &Testbed) {
    testbed.vcenter.fault(Fault::on("CnsQueryVolume").fails("SystemError")).await;
    testbed.check_now("while CNS does not answer").await;
    assert_eq!(asks_cns(testbed).await, None);
    testbed.vcenter.clear_faults().await;
    testbed.check_now("CNS answers").await;
}

/// Approves the proposed releases with the commands in the status, and waits until they run.
async fn approve(testbed: &Testbed, operator: &Process, status: &VDOConfigStatus, within: u64) {
    let drivers = [("cpi", status.cpi.as_ref()), ("csi", status.csi.as_ref())];
    let asked: Vec<(&str, String)> =
        drivers.into_iter().filter_map(|(name, driver)| Some((name, proposed(driver)?))).collect();
    for (name, version) in &asked {
        let annotation = format!("vdo.vmware.com/approve-{name}");
        testbed.change(json!({"metadata": {"annotations": {annotation: version}}})).await;
    }
    testbed
        .status("the approved releases run", within, |status| {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let plan = status.plan.clone().unwrap_or_default();
            let untouched =
                plan.steps.iter().any(|step| step.title.contains("Adopt the existing driver"));
            let runs = |name: &str, version: &String| {
                let driver = if name == "cpi" { &status.cpi } else { &status.csi };
                driver.as_ref().and_then(|driver| driver.version.as_ref()) == Some(version)
            };
            !untouched && asked.iter().all(|(name, version)| runs(name, version))
        })
        .await;
}

/// Upstream's chart of the cloud controller, as Helm renders it.
fn chart_cpi() -> [Value; 2] {
    let labels = json!({"app": "vsphere-cpi"});
    let helm = json!({"meta.helm.sh/release-name": "cpi", "meta.helm.sh/release-namespace": "kube-system"});
    let conf = "global:\n  port: 443\n  insecureFlag: true\nvcenter:\n  vc.example.com:\n    \
                server: vc.example.com\n    datacenters:\n      - DC0\nlabels:\n  region: k8s-region\n  zone: k8s-zone\n";
    [
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "vsphere-cloud-config", "namespace": "kube-system", "annotations": helm},
            "data": {"vsphere.conf": conf},
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "vsphere-cpi", "namespace": "kube-system", "annotations": helm},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [{
                            "name": "vsphere-cpi",
                            "image": "registry.k8s.io/cloud-pv-vsphere/cloud-provider-vsphere:v1.36.0",
                            "args": ["--cloud-provider=vsphere", "--v=2", "--cloud-config=/etc/cloud/vsphere.conf"],
                            "volumeMounts": [{"mountPath": "/etc/cloud", "name": "vsphere-config-volume", "readOnly": true}],
                        }],
                        "volumes": [{"name": "vsphere-config-volume", "configMap": {"name": "vsphere-cloud-config"}}],
                    },
                },
            },
        }),
    ]
}

#[tokio::test]
async fn drivers_installed_by_charts_are_adopted_under_their_names_on_request_and_upgraded() {
    let testbed = Testbed::with_nodes(1).await;
    let _configs = testbed.use_catalog().await;
    testbed.create("helm", chart_cpi()).await;
    testbed.create("helm", rancher::csi()).await;
    testbed.create("helm", [storage_secret("kube-system", rancher::CONF)]).await;
    testbed.attach("pv-1", "node-1").await;
    let workloads = [
        ("DaemonSet", "vsphere-cpi"),
        ("Deployment", "vsphere-csi-controller"),
        ("DaemonSet", "vsphere-csi-node"),
    ];
    let mut before = Vec::new();
    for (kind, name) in workloads {
        before.push(testbed.uid(kind, "kube-system", name).await);
    }

    let operator = testbed.operator();
    testbed
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    let changes = [
        "it is CPI 1.36.0",
        "it is CSI 3.6.3",
        "leaves the Helm release cpi",
        "the container vsphere-cpi goes",
        "them@vsphere.local",
        "insecure-flag",
    ];
    let status = testbed
        .status("the plan shows what adoption would change", 40, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            changes.iter().all(|text| plan.contains(text))
        })
        .await;
    assert!(
        !serde_json::to_string(&status).unwrap().contains("theirs"),
        "no password in the status"
    );
    let writes = testbed.writes_after_two_rounds(&operator, Timestamp::MIN).await;
    assert_eq!(writes, Vec::<String>::new(), "VDO proposes adoption and waits");

    testbed.change(json!({"spec": {"adoption": "Automatic"}})).await;
    let status = adopted(&testbed, &operator, 2).await;
    approve(&testbed, &operator, &status, 120).await;
    let status = testbed.ready(&operator, 120).await.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"));
    assert_eq!(status.csi.unwrap().version.as_deref(), Some("3.7.3"), "the driver is upgraded");
    let mut after = Vec::new();
    for (kind, name) in workloads {
        after.push(testbed.uid(kind, "kube-system", name).await);
    }
    assert_eq!(after, before, "no workload is re-created");
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), "kube-system");
    let names: Vec<String> = sets
        .list(&ListParams::default())
        .await
        .unwrap()
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(
        !names.contains(&"vsphere-cloud-controller-manager".into()),
        "there is only one cloud controller: {names:?}"
    );
    let cpi = sets.get("vsphere-cpi").await.unwrap().spec.unwrap().template.spec.unwrap();
    assert_eq!(cpi.containers.len(), 1, "the chart's container is replaced: {cpi:?}");
    let in_default_namespace = Api::<Deployment>::namespaced(testbed.client(), CSI);
    assert_eq!(in_default_namespace.list(&ListParams::default()).await.unwrap().items.len(), 0);
    let conf = testbed.secret("kube-system", "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("prod-7") && !conf.contains("theirs"), "{conf}");
    assert_eq!(testbed.deletions(), Vec::<String>::new(), "VDO must delete nothing");
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn drivers_installed_from_upstreams_manifests_are_adopted_with_their_volumes_and_upgraded() {
    let testbed = Testbed::with_nodes(1).await;
    let _configs = testbed.use_catalog().await;
    testbed.create("kubectl-create", upstream_csi()).await;
    testbed.create("kubectl-create", of_release(upstream_cpi(), "v1.36.0", "v1.35.0")).await;
    let cloud =
        async || testbed.uid("DaemonSet", "kube-system", "vsphere-cloud-controller-manager").await;
    let cloud_before = cloud().await;
    let conf = "[Global]\ncluster-id = \"10.10.10.10\"\n[VirtualCenter \"10.10.10.10\"]\n\
                user = \"k8s@vsphere.local\"\npassword = \"theirs\"\n";
    testbed.create("kubectl-create", [storage_secret(CSI, conf)]).await;
    testbed.attach("pv-1", "node-1").await;
    let (controller, node) = (testbed.controller().await.uid(), testbed.node_driver().await.uid());

    let operator = testbed.operator();
    testbed
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    testbed.finding("VDO-1902", 30).await;
    testbed
        .status("the plan names both releases", 20, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.contains("it is CSI 3.7.0") && plan.contains("it is CPI 1.35.0")
        })
        .await;
    testbed.check_now("before adoption").await;
    assert_eq!(testbed.writes(), Vec::<String>::new(), "VDO proposes adoption and waits");
    a_proposal_needs_cns_once(&testbed, &operator).await;

    testbed.change(json!({"spec": {"adoption": "Automatic"}})).await;
    let status = adopted(&testbed, &operator, 2).await;
    assert_eq!(status.cluster_id.as_deref(), Some("10.10.10.10"), "the volumes have this id");
    a_recorded_id_needs_no_cns(&testbed).await;
    approve(&testbed, &operator, &status, 120).await;
    let config = testbed.ready(&operator, 90).await;
    let status = config.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("10.10.10.10"), "the volumes have this id");
    let versions = [status.cpi, status.csi].map(|driver| driver.unwrap().version.unwrap());
    assert_eq!(versions, ["1.36.0", "3.7.3"], "both drivers are upgraded");
    assert_eq!(cloud().await, cloud_before, "it is not re-created");
    let conf =
        testbed.secret("vmware-system-csi", "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("10.10.10.10") && !conf.contains("theirs"), "{conf}");
    assert_eq!(testbed.controller().await.uid(), controller, "it is not re-created");
    assert_eq!(testbed.node_driver().await.uid(), node);
    assert_eq!(testbed.deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_driver_in_its_own_namespace_is_adopted_there_once_vdo_has_permission() {
    let testbed = Testbed::with_nodes(1).await;
    let moved = |text: String| text.replace(CSI, "storage");
    let documents = upstream_csi().into_iter().map(|document| moved(document.to_string()));
    let documents = documents.map(|text| serde_json::from_str(&text).unwrap());
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "storage"}});
    testbed.create("kubectl-create", [namespace]).await;
    testbed.create("helm", documents).await;
    let conf = "[Global]\ncluster-id = \"prod-7\"\n[VirtualCenter \"10.10.10.10\"]\n\
                user = \"k8s@vsphere.local\"\npassword = \"theirs\"\n";
    testbed.create("helm", [storage_secret("storage", conf)]).await;
    let workloads = [("Deployment", "vsphere-csi-controller"), ("DaemonSet", "vsphere-csi-node")];
    let uids = async || {
        let mut uids = Vec::new();
        for (kind, name) in workloads {
            uids.push(testbed.uid(kind, "storage", name).await);
        }
        uids
    };
    let before = uids().await;
    let operator = testbed.operator();
    let spec = json!({"adoption": "Automatic", "storageProvider": {"vsphereCloudConfig": "vc"}});
    testbed.configure(spec).await;
    testbed
        .status("the plan shows the command that grants permissions", 30, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.contains("vdoctl deploy --driver-namespace storage")
        })
        .await;
    let writes = testbed.writes_after_two_rounds(&operator, Timestamp::MIN).await;
    assert_eq!(writes, Vec::<String>::new());
    testbed.stop(operator).await;

    let more = std::collections::BTreeSet::from(["storage".to_owned()]);
    let roles = operator::install::objects_with(&more).into_iter();
    let roles = roles.filter(|object| object.namespace() == "storage").map(|object| object.0);
    testbed.create("vdoctl", roles).await;
    // The cloud provider is Rancher's.
    testbed.create("helm", rancher::cpi()).await;
    let cloud = testbed.uid("DaemonSet", "kube-system", rancher::CPI).await;
    testbed.change(json!({"spec": {"cloudProvider": {"vsphereCloudConfigs": ["vc"]}}})).await;
    let operator = testbed.operator_with(&["--driver-namespace=storage"]);
    let status = adopted(&testbed, &operator, 2).await;
    approve(&testbed, &operator, &status, 120).await;
    let status = testbed.ready(&operator, 120).await.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"), "the volumes have this id");
    let versions = [status.cpi, status.csi].map(|driver| driver.unwrap().version.unwrap());
    assert_eq!(versions, ["1.36.0", "3.7.3"], "both drivers are upgraded");
    assert_eq!(testbed.uid("DaemonSet", "kube-system", rancher::CPI).await, cloud);
    let theirs =
        testbed.secret("kube-system", rancher::CREDENTIALS, "vc.example.com.username").await;
    assert_eq!(theirs, "them", "VDO leaves the keys that it does not use");
    testbed.stop(operator).await;

    // An admin applied the plain manifest: the driver stays, and VDO manages it again as soon as it has its permissions.
    let roles = Api::<Role>::namespaced(testbed.client(), "storage");
    let role = roles.get("vdo").await.unwrap();
    roles.delete("vdo", &DeleteParams::default()).await.unwrap();
    let operator = testbed.operator();
    testbed
        .status("the status names the missing permissions and the fix", 60, |status| {
            let message = status.csi.as_ref().and_then(|csi| csi.status_msg.as_deref());
            message.is_some_and(|message| {
                message.contains("VDO-1912") && message.contains("run vdoctl deploy")
            })
        })
        .await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "vdo", "namespace": "storage"}, "rules": role.rules});
    testbed.create("vdoctl", [role]).await;
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), "storage");
    let changed = json!({"spec": {"template": {"spec": {"hostNetwork": false}}}});
    let by = PatchParams::default();
    sets.patch("vsphere-csi-node", &by, &Patch::Merge(changed)).await.unwrap();
    eventually("VDO reverts the manual change", 60, async || {
        let set = sets.get("vsphere-csi-node").await.map_err(|e| e.to_string())?;
        let network = set.spec.unwrap().template.spec.unwrap().host_network;
        (network == Some(true)).then_some(()).ok_or(format!("{network:?}"))
    })
    .await;
    testbed.ready(&operator, 90).await;
    assert_eq!(uids().await, before, "no workload is re-created");
    let in_default_namespace = Api::<Deployment>::namespaced(testbed.client(), CSI);
    assert_eq!(in_default_namespace.list(&ListParams::default()).await.unwrap().items.len(), 0);
    assert_eq!(testbed.deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_new_driver_serves_the_volumes_of_a_removed_driver() {
    let testbed = Testbed::with_nodes(1).await;
    let (_vsphere, volume) = volume_under(&testbed, "prod-7").await;
    let volumes = Api::<PersistentVolume>::all(testbed.client());
    let create = PostParams::default();
    volumes.create(&create, &persistent("pvc-orders", &volume)).await.unwrap();
    let operator = testbed.operator();
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let status = testbed.ready(&operator, 90).await.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"), "the volume has this id");
    let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("cluster-id = \"prod-7\""), "{conf}");
    a_record_is_restored_from_another_cluster(&testbed, operator).await;
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// The other cluster still exists, and has a volume under the same id.
async fn a_record_is_restored_from_another_cluster(testbed: &Testbed, operator: Process) {
    testbed.stop(operator).await;
    let maps = Api::<ConfigMap>::namespaced(testbed.client(), NAMESPACE);
    let record = async || -> Value {
        let map = maps.get("vdo-record-csi").await.unwrap();
        serde_json::from_str(&map.data.unwrap()["record.json"]).unwrap()
    };
    let own = record().await;
    let mut theirs = own.clone();
    theirs["cluster"] = json!("another");
    let restored = json!({"data": {"record.json": theirs.to_string()}});
    let parameters = PatchParams::default();
    maps.patch("vdo-record-csi", &parameters, &Patch::Merge(restored)).await.unwrap();
    let (vsphere, volume) = volume_under(testbed, "prod-7").await;
    let since = Timestamp::now();
    let operator = testbed.operator();
    testbed
        .status("VDO reports the shared id", 60, |status| {
            let mut findings = status.findings.iter();
            let shared = findings.any(|finding| finding.code == "VDO-1512");
            let plan = status.plan.as_ref().and_then(|plan| plan.state);
            assert!(operator.ended().is_none(), "{}", operator.tail());
            shared && plan == Some(PlanState::Blocked)
        })
        .await;
    let writes = testbed.writes_after_two_rounds(&operator, since).await;
    assert_eq!(writes, Vec::<String>::new(), "two clusters must never share an id");
    let gone = vsphere.delete_volumes(&[volume], true).await.unwrap();
    gone.wait(Duration::from_mins(1)).await.unwrap();
    // VDO queries CNS less and less often: the admin who cleaned up requests a check.
    let check = json!({"vdo.vmware.com/check-now": "the-other-cluster-is-gone"});
    testbed.change(json!({"metadata": {"annotations": check}})).await;
    eventually("the record belongs to this cluster", 120, async || {
        let now = record().await;
        if now["cluster"] == own["cluster"] { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    testbed.ready(&operator, 60).await;
}

#[tokio::test]
async fn with_volumes_under_two_cluster_ids_vdo_waits_for_the_admin_to_choose() {
    let testbed = Testbed::with_nodes(1).await;
    let volumes = Api::<PersistentVolume>::all(testbed.client());
    for (name, id) in [("pvc-orders", "prod-7"), ("pvc-bills", "10.10.10.10")] {
        let (_vsphere, volume) = volume_under(&testbed, id).await;
        volumes.create(&PostParams::default(), &persistent(name, &volume)).await.unwrap();
    }
    let operator = testbed.operator();
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let finding = testbed.finding("VDO-1913", 60).await;
    assert!(finding.seen.as_deref().unwrap().contains("10.10.10.10 and prod-7"), "{finding:?}");
    let writes = testbed.writes_after_two_rounds(&operator, Timestamp::MIN).await;
    assert_eq!(writes, Vec::<String>::new(), "VDO must not guess an id");

    // The remediation in the finding.
    let conf = "[Global]\ncluster-id = prod-7\n";
    testbed.create("kubectl-create", [storage_secret(CSI, conf)]).await;
    testbed
        .status("the driver runs with the chosen id", 90, |status| {
            let done = status.plan.as_ref().and_then(|plan| plan.state) == Some(PlanState::Done);
            done && status.cluster_id.as_deref() == Some("prod-7")
        })
        .await;
    testbed.finding_about("VDO-1515", 60, &["pvc-bills"]).await;
    let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("cluster-id = \"prod-7\"") && conf.contains("VirtualCenter"), "{conf}");
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

/// A PersistentVolume of the claim shop/orders.
fn persistent(name: &str, volume: &VolumeId) -> PersistentVolume {
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "csi.vsphere.vmware.com", "volumeHandle": volume.id},
            "claimRef": {"namespace": "shop", "name": "orders"},
        },
    });
    serde_json::from_value(volume).unwrap()
}
