//! Clusters in which somebody else installed the drivers, with volumes attached: the Go VDO,
//! upstream's manifests, charts. Nothing is deleted or made anew, names and identity stay.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;
#[path = "switching/go_vdo.rs"]
mod go_vdo;
#[path = "switching/rancher.rs"]
mod rancher;

use std::time::Duration;

use api::vdo_config::PlanState;
use common::{NAMESPACE, Stage, upstream_cpi, upstream_csi};
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
use testkit::{Process, User, eventually};
use vsphere::{
    Client, Credentials, Trust,
    cns::{BackingDetails, ContainerCluster, CreateSpec, EntityMetadata, VolumeId, VolumeMetadata},
};

const CSI: &str = "vmware-system-csi";

fn storage_secret(home: &str, conf: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "vsphere-config-secret", "namespace": home},
        "stringData": {"csi-vsphere.conf": conf},
    })
}

/// A manifest with the storage driver of another release.
fn of_release(documents: Vec<Value>, from: &str, to: &str) -> Vec<Value> {
    let texts = documents.into_iter().map(|document| document.to_string().replace(from, to));
    texts.map(|text| serde_json::from_str(&text).unwrap()).collect()
}

/// A volume under an identity, for the claim `shop/orders`.
async fn volume_under(stage: &Stage, id: &str) -> (Client, VolumeId) {
    let client = Client::builder(stage.vcenter.address().to_string())
        .trust(Trust::CaBundle(stage.vcenter.ca_pem()))
        .credentials(Credentials::new(stage.vcenter.user(), stage.vcenter.password()))
        .connect()
        .await
        .unwrap();
    let cluster = ContainerCluster {
        kind: "KUBERNETES".into(),
        id: id.into(),
        user: stage.vcenter.user().into(),
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
async fn drivers_of_charts_are_adopted_under_their_names_when_asked_and_upgraded() {
    let stage = Stage::of(1, false).await;
    let _configs = stage.use_catalog().await;
    stage.create("helm", chart_cpi()).await;
    stage.create("helm", rancher::csi()).await;
    stage.create("helm", [storage_secret("kube-system", rancher::CONF)]).await;
    stage.attach("pv-1", "node-1").await;
    let parts = [
        ("DaemonSet", "vsphere-cpi"),
        ("Deployment", "vsphere-csi-controller"),
        ("DaemonSet", "vsphere-csi-node"),
    ];
    let mut before = Vec::new();
    for (kind, name) in parts {
        before.push(stage.uid(kind, "kube-system", name).await);
    }

    let operator = stage.operator();
    stage
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    let told = [
        "it is CPI 1.36.0",
        "it is CSI 3.6.3",
        "leaves the Helm release cpi",
        "the container vsphere-cpi goes",
        "them@vsphere.local",
        "insecure-flag",
    ];
    let status = stage
        .status("it says what adoption would change", 40, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            told.iter().all(|text| plan.contains(text))
        })
        .await;
    assert!(!serde_json::to_string(&status).unwrap().contains("theirs"), "no password");
    let writes = stage.writes_in_the_end(&operator, Timestamp::MIN).await;
    assert_eq!(writes, Vec::<String>::new(), "adoption is proposed, and waits");

    stage.change(json!({"spec": {"adoption": "Automatic"}})).await;
    let status = stage.ready(&operator, 120).await.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"));
    assert_eq!(status.csi.unwrap().version.as_deref(), Some("3.7.3"), "brought up to date");
    let mut after = Vec::new();
    for (kind, name) in parts {
        after.push(stage.uid(kind, "kube-system", name).await);
    }
    assert_eq!(after, before, "nothing is made anew");
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "kube-system");
    let names: Vec<String> = sets
        .list(&ListParams::default())
        .await
        .unwrap()
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(!names.contains(&"vsphere-cloud-controller-manager".into()), "not doubled: {names:?}");
    let cpi = sets.get("vsphere-cpi").await.unwrap().spec.unwrap().template.spec.unwrap();
    assert_eq!(cpi.containers.len(), 1, "the chart's container made room: {cpi:?}");
    let elsewhere = Api::<Deployment>::namespaced(stage.client(), CSI);
    assert_eq!(elsewhere.list(&ListParams::default()).await.unwrap().items.len(), 0);
    let conf = stage.secret("kube-system", "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("prod-7") && !conf.contains("theirs"), "{conf}");
    assert_eq!(stage.deletions(), Vec::<String>::new(), "nothing is deleted");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn drivers_installed_from_upstreams_manifests_are_adopted_with_their_volumes_and_upgraded() {
    let stage = Stage::of(1, false).await;
    let _configs = stage.use_catalog().await;
    stage.create("kubectl-create", upstream_csi()).await;
    stage.create("kubectl-create", of_release(upstream_cpi(), "v1.36.0", "v1.35.0")).await;
    let cloud =
        async || stage.uid("DaemonSet", "kube-system", "vsphere-cloud-controller-manager").await;
    let cloud_before = cloud().await;
    let conf = "[Global]\ncluster-id = \"10.10.10.10\"\n[VirtualCenter \"10.10.10.10\"]\n\
                user = \"k8s@vsphere.local\"\npassword = \"theirs\"\n";
    stage.create("kubectl-create", [storage_secret(CSI, conf)]).await;
    stage.attach("pv-1", "node-1").await;
    let (controller, node) = (stage.controller().await.uid(), stage.node_driver().await.uid());

    let operator = stage.operator();
    stage
        .configure(json!({
            "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
            "storageProvider": {"vsphereCloudConfig": "vc"},
        }))
        .await;
    stage.finding("VDO-1902", 30).await;
    stage
        .status("it says what adoption means", 20, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.contains("it is CSI 3.7.0") && plan.contains("it is CPI 1.35.0")
        })
        .await;
    stage.check_now("before adoption").await;
    assert_eq!(stage.writes(), Vec::<String>::new(), "adoption is proposed, and waits");

    stage.change(json!({"spec": {"adoption": "Automatic"}})).await;
    let config = stage.ready(&operator, 90).await;
    let status = config.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("10.10.10.10"), "volumes are known by it");
    let versions = [status.cpi, status.csi].map(|driver| driver.unwrap().version.unwrap());
    assert_eq!(versions, ["1.36.0", "3.7.3"], "and they are brought up to date");
    assert_eq!(cloud().await, cloud_before, "nothing is made anew");
    let conf = stage.secret("vmware-system-csi", "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("10.10.10.10") && !conf.contains("theirs"), "{conf}");
    assert_eq!(stage.controller().await.uid(), controller, "nothing is made anew");
    assert_eq!(stage.node_driver().await.uid(), node);
    assert_eq!(stage.deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn a_driver_in_a_namespace_of_its_own_is_adopted_where_it_is_once_vdo_is_let() {
    let stage = Stage::of(1, false).await;
    let there = |text: String| text.replace(CSI, "storage");
    let documents = upstream_csi().into_iter().map(|document| there(document.to_string()));
    let documents = documents.map(|text| serde_json::from_str(&text).unwrap());
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "storage"}});
    stage.create("kubectl-create", [namespace]).await;
    stage.create("helm", documents).await;
    let conf = "[Global]\ncluster-id = \"prod-7\"\n[VirtualCenter \"10.10.10.10\"]\n\
                user = \"k8s@vsphere.local\"\npassword = \"theirs\"\n";
    stage.create("helm", [storage_secret("storage", conf)]).await;
    let parts = [("Deployment", "vsphere-csi-controller"), ("DaemonSet", "vsphere-csi-node")];
    let uids = async || {
        let mut uids = Vec::new();
        for (kind, name) in parts {
            uids.push(stage.uid(kind, "storage", name).await);
        }
        uids
    };
    let before = uids().await;
    let operator = stage.operator();
    let desired = json!({"adoption": "Automatic", "storageProvider": {"vsphereCloudConfig": "vc"}});
    stage.configure(desired).await;
    stage
        .status("it says how to let VDO", 30, |status| {
            let plan = serde_json::to_string(&status.plan).unwrap();
            plan.contains("vdoctl deploy --driver-namespace storage")
        })
        .await;
    let writes = stage.writes_in_the_end(&operator, Timestamp::MIN).await;
    assert_eq!(writes, Vec::<String>::new());
    stage.dismiss(operator).await;

    let more = std::collections::BTreeSet::from(["storage".to_owned()]);
    let rights = operator::install::objects_with(&more).into_iter();
    let rights = rights.filter(|object| object.namespace() == "storage").map(|object| object.0);
    stage.create("vdoctl", rights).await;
    // Beside it is Rancher's cloud provider.
    stage.create("helm", rancher::cpi()).await;
    let cloud = stage.uid("DaemonSet", "kube-system", rancher::CPI).await;
    stage.change(json!({"spec": {"cloudProvider": {"vsphereCloudConfigs": ["vc"]}}})).await;
    let operator = stage.operator_with(&["--driver-namespace=storage"]);
    let status = stage.ready(&operator, 120).await.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"), "volumes are known by it");
    let versions = [status.cpi, status.csi].map(|driver| driver.unwrap().version.unwrap());
    assert_eq!(versions, ["1.36.0", "3.8.0"], "they are brought up to date");
    assert_eq!(stage.uid("DaemonSet", "kube-system", rancher::CPI).await, cloud);
    let theirs = stage.secret("kube-system", rancher::CREDENTIALS, "vc.example.com.username").await;
    assert_eq!(theirs, "them", "what VDO does not need of it is left as it is");
    stage.dismiss(operator).await;

    // Somebody applied the plain manifest: the driver stays where it is, and is cared for there, as soon
    // as VDO has its rights again.
    let roles = Api::<Role>::namespaced(stage.client(), "storage");
    let role = roles.get("vdo").await.unwrap();
    roles.delete("vdo", &DeleteParams::default()).await.unwrap();
    let operator = stage.operator();
    stage
        .status("it says which rights are missing, and how to give them back", 60, |status| {
            let said = status.csi.as_ref().and_then(|csi| csi.status_msg.as_deref());
            said.is_some_and(|said| said.contains("VDO-1912") && said.contains("run vdoctl deploy"))
        })
        .await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "vdo", "namespace": "storage"}, "rules": role.rules});
    stage.create("vdoctl", [role]).await;
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "storage");
    let meddled = json!({"spec": {"template": {"spec": {"hostNetwork": false}}}});
    let by = PatchParams::default();
    sets.patch("vsphere-csi-node", &by, &Patch::Merge(meddled)).await.unwrap();
    eventually("what a human changed is put right", 60, async || {
        let set = sets.get("vsphere-csi-node").await.map_err(|e| e.to_string())?;
        let network = set.spec.unwrap().template.spec.unwrap().host_network;
        (network == Some(true)).then_some(()).ok_or(format!("{network:?}"))
    })
    .await;
    stage.ready(&operator, 90).await;
    assert_eq!(uids().await, before, "nothing is made anew");
    let elsewhere = Api::<Deployment>::namespaced(stage.client(), CSI);
    assert_eq!(elsewhere.list(&ListParams::default()).await.unwrap().items.len(), 0);
    assert_eq!(stage.deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn volumes_whose_driver_was_taken_away_are_those_of_the_driver_that_comes() {
    let stage = Stage::of(1, false).await;
    let (_vsphere, volume) = volume_under(&stage, "prod-7").await;
    let volumes = Api::<PersistentVolume>::all(stage.client());
    let create = PostParams::default();
    volumes.create(&create, &persistent("pvc-orders", &volume)).await.unwrap();
    let operator = stage.operator();
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let status = stage.ready(&operator, 90).await.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("prod-7"), "the volume is known by it");
    let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("cluster-id = \"prod-7\""), "{conf}");
    a_record_is_restored_from_another_cluster(&stage, operator).await;
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

/// The other cluster lives, and has a volume under the same identity.
async fn a_record_is_restored_from_another_cluster(stage: &Stage, operator: Process) {
    stage.dismiss(operator).await;
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
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
    let (vsphere, volume) = volume_under(stage, "prod-7").await;
    let then = Timestamp::now();
    let operator = stage.operator();
    stage
        .status("it is said whose the identity may be", 60, |status| {
            let mut findings = status.findings.iter();
            let shared = findings.any(|finding| finding.code == "VDO-1512");
            let plan = status.plan.as_ref().and_then(|plan| plan.state);
            assert!(operator.ended().is_none(), "{}", operator.tail());
            shared && plan == Some(PlanState::Blocked)
        })
        .await;
    let writes = stage.writes_in_the_end(&operator, then).await;
    assert_eq!(writes, Vec::<String>::new(), "two clusters never share an id");
    let gone = vsphere.delete_volumes(&[volume], true).await.unwrap();
    gone.wait(Duration::from_mins(1)).await.unwrap();
    // The pauses between two questions to CNS have grown: whoever cleaned up asks for it now.
    let asked = json!({"vdo.vmware.com/check-now": "the-other-cluster-is-gone"});
    stage.change(json!({"metadata": {"annotations": asked}})).await;
    eventually("it is this cluster's", 120, async || {
        let now = record().await;
        if now["cluster"] == own["cluster"] { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    stage.ready(&operator, 60).await;
}

#[tokio::test]
async fn volumes_under_two_cluster_ids_wait_for_somebody_to_say_which_is_right() {
    let stage = Stage::of(1, false).await;
    let volumes = Api::<PersistentVolume>::all(stage.client());
    for (name, id) in [("pvc-orders", "prod-7"), ("pvc-bills", "10.10.10.10")] {
        let (_vsphere, volume) = volume_under(&stage, id).await;
        volumes.create(&PostParams::default(), &persistent(name, &volume)).await.unwrap();
    }
    let operator = stage.operator();
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let finding = stage.finding("VDO-1913", 60).await;
    assert!(finding.seen.as_deref().unwrap().contains("10.10.10.10 and prod-7"), "{finding:?}");
    let writes = stage.writes_in_the_end(&operator, Timestamp::MIN).await;
    assert_eq!(writes, Vec::<String>::new(), "no driver comes under a guessed id");

    // As the remedy says.
    let said = "[Global]\ncluster-id = prod-7\n";
    stage.create("kubectl-create", [storage_secret(CSI, said)]).await;
    stage
        .status("the driver runs under the id that was said", 90, |status| {
            let done = status.plan.as_ref().and_then(|plan| plan.state) == Some(PlanState::Done);
            done && status.cluster_id.as_deref() == Some("prod-7")
        })
        .await;
    stage.finding_about("VDO-1515", 60, &["pvc-bills"]).await;
    let conf = stage.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("cluster-id = \"prod-7\"") && conf.contains("VirtualCenter"), "{conf}");
    assert_eq!(stage.refusals(), Vec::<String>::new());
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
