//! What stands around the drivers, broken for real: each fault is named in the status, and no longer once
//! it is cured. VDO is paused meanwhile, for it would mend most of it at once.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;
#[path = "feeds/fed.rs"]
mod fed;
#[path = "feeds/field.rs"]
mod field;
#[path = "feeds/nodes.rs"]
mod nodes;
#[path = "feeds/storage.rs"]
mod storage;

use std::collections::BTreeSet;

use api::{Severity, VDOConfigStatus};
use common::Stage;
use field::Field;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
};
use operator::webhook_certificates::Pair;
use serde_json::{Value, json};
use testkit::{Nodes, Process, eventually};
use tokio::time::Instant;

const HOME: &str = "vmware-system-csi";
const DRIVER: &str = "csi.vsphere.vmware.com";
/// What VDO says while it is paused.
const PAUSED: &str = "VDO-1906";

struct Scene {
    stage: Stage,
    client: Client,
    /// What a driver would do in vCenter.
    vcenter: vsphere::Client,
    /// The cluster's id there.
    cluster_id: String,
    _operator: Process,
}

/// Where objects of a kind are served.
fn resource(object: &Value) -> ApiResource {
    let version = object["apiVersion"].as_str().unwrap();
    let kind = object["kind"].as_str().unwrap();
    let (group, short) = version.split_once('/').unwrap_or(("", version));
    let plural = match kind {
        "CSINodeTopology" => "csinodetopologies".to_owned(),
        "StorageClass" => "storageclasses".to_owned(),
        kind => format!("{}s", kind.to_ascii_lowercase()),
    };
    ApiResource {
        group: group.into(),
        version: short.into(),
        api_version: version.into(),
        kind: kind.into(),
        plural,
    }
}

impl Scene {
    async fn set() -> Self {
        let stage = Stage::of(1, false).await;
        // What is given time otherwise is reported at once: nobody waits for minutes here.
        let operator = stage.operator_with(&["--grace=1"]);
        stage
            .configure(json!({
                "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
                "storageProvider": {"vsphereCloudConfig": "vc"},
            }))
            .await;
        stage.ready(&operator, 120).await;
        let client = stage.client();
        let vcenter = vsphere::Client::builder(stage.vcenter.address().to_string())
            .trust(vsphere::Trust::CaBundle(stage.vcenter.ca_pem()))
            .credentials(vsphere::Credentials::new(stage.vcenter.user(), stage.vcenter.password()))
            .connect()
            .await
            .unwrap();
        let told = stage.secret(HOME, "vsphere-config-secret", "csi-vsphere.conf").await;
        let line = told.lines().find(|line| line.trim_start().starts_with("cluster-id")).unwrap();
        let cluster_id = line.split('"').nth(1).unwrap().to_owned();
        Self { stage, client, vcenter, cluster_id, _operator: operator }
    }

    fn nodes(&self) -> &Nodes {
        self.stage.nodes.as_ref().unwrap()
    }

    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let resource = resource(object);
        match object["metadata"]["namespace"].as_str() {
            Some(home) => Api::namespaced_with(self.client.clone(), home, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    async fn apply(&self, object: &Value) {
        let api = self.api(object);
        let name = object["metadata"]["name"].as_str().unwrap();
        let apply = PatchParams::apply("test").force();
        eventually(&format!("{name} is applied"), 30, async || {
            api.patch(name, &apply, &Patch::Apply(object)).await.map(drop)
        })
        .await;
    }

    async fn apply_status(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let apply = PatchParams::apply("test").force();
        self.api(object).patch_status(name, &apply, &Patch::Apply(object)).await.unwrap();
    }

    async fn delete(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        self.api(object).delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// An object as it is, to be put back as it was.
    async fn take(&self, object: &Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap();
        let mut taken = serde_json::to_value(self.api(object).get(name).await.unwrap()).unwrap();
        for server in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"]
        {
            taken["metadata"].as_object_mut().unwrap().remove(server);
        }
        taken.as_object_mut().unwrap().remove("status");
        taken["apiVersion"] = object["apiVersion"].clone();
        taken["kind"] = object["kind"].clone();
        taken
    }

    /// Waits until it is named; returns how many seconds after `begin` it was.
    async fn named(&self, begin: Instant, code: &str, what: &str) -> f64 {
        let count = |status: &VDOConfigStatus| {
            status.findings.iter().filter(|finding| finding.code == code).count()
        };
        let told = format!("{what} is named: {code}");
        let status = self.stage.status(&told, 60, |status| count(status) > 0).await;
        assert_eq!(count(&status), 1, "said once");
        begin.elapsed().as_secs_f64()
    }

    /// Nothing but the pause is left to say; returns how many seconds after `begin` that was so.
    async fn is_well_since(&self, begin: Instant, when: &str) -> f64 {
        let well = |status: &VDOConfigStatus| {
            let wrong = status.findings.iter().filter(|f| f.severity > Severity::Info);
            let wrong: BTreeSet<&str> = wrong.map(|finding| finding.code.as_str()).collect();
            wrong.is_empty() || wrong == BTreeSet::from([PAUSED])
        };
        self.stage.status(&format!("nothing is wrong {when}"), 60, well).await;
        begin.elapsed().as_secs_f64()
    }

    async fn is_well(&self, when: &str) {
        self.is_well_since(Instant::now(), when).await;
    }

    /// Something that should be there goes, and comes back.
    async fn missing(&self, code: &str, object: Value) -> [f64; 2] {
        let what = format!("{} {}", object["kind"], object["metadata"]["name"]);
        let taken = self.take(&object).await;
        let begin = Instant::now();
        self.delete(&object).await;
        let named = self.named(begin, code, &what).await;
        let begin = Instant::now();
        self.apply(&taken).await;
        [named, self.is_well_since(begin, &format!("after {what} is back")).await]
    }

    /// Something that should not be there comes, and goes.
    async fn superfluous(&self, code: &str, what: &str, objects: &[Value]) -> [f64; 2] {
        let begin = Instant::now();
        for object in objects {
            self.apply(object).await;
            if object["kind"] == "VolumeSnapshotContent" {
                self.apply_status(object).await;
            }
        }
        let named = self.named(begin, code, what).await;
        let begin = Instant::now();
        for object in objects.iter().rev() {
            self.delete(object).await;
        }
        [named, self.is_well_since(begin, &format!("after {what}")).await]
    }

    /// Somebody edits an object, and edits it back.
    async fn edited(&self, code: &str, object: Value, wrong: Value, right: Value) -> [f64; 2] {
        let what = format!("{} {} was changed", object["kind"], object["metadata"]["name"]);
        let name = object["metadata"]["name"].as_str().unwrap();
        let (api, parameters) = (self.api(&object), PatchParams::default());
        let begin = Instant::now();
        api.patch(name, &parameters, &Patch::Merge(wrong)).await.unwrap();
        let named = self.named(begin, code, &what).await;
        let begin = Instant::now();
        api.patch(name, &parameters, &Patch::Merge(right)).await.unwrap();
        [named, self.is_well_since(begin, &format!("after {what} back")).await]
    }
}

/// A definition that lets everything in.
fn definition(group: &str, version: &str, kind: &str, plural: &str, status: bool) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut served = json!({
        "name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": open},
    });
    if status {
        served["subresources"] = json!({"status": {}});
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": group, "scope": "Cluster", "versions": [served],
            "names": {"kind": kind, "plural": plural, "singular": kind.to_ascii_lowercase()},
        },
    })
}

fn object(version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

fn with(mut object: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { unreachable!("fields are an object") };
    object.as_object_mut().unwrap().extend(fields);
    object
}

/// A webhook of the storage driver whose certificate has ended.
fn webhook() -> [Value; 2] {
    let made = Timestamp::now() - SignedDuration::from_hours(24 * 366);
    let pair = Pair::make("vsphere-webhook-svc.vmware-system-csi.svc", None, made).unwrap();
    let data = serde_json::to_value(pair.data()).unwrap();
    let secret = object("v1", "Secret", Some(HOME), "vsphere-webhook-certs");
    let bundle = serde_json::to_value(k8s_openapi::ByteString(pair.authority.into())).unwrap();
    let version = "admissionregistration.k8s.io/v1";
    let kind = "ValidatingWebhookConfiguration";
    let hook = with(
        object(version, kind, None, "validation.csi.vsphere.vmware.com"),
        json!({"webhooks": [{
            "name": "validation.csi.vsphere.vmware.com",
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "caBundle": bundle,
                "service": {"name": "vsphere-webhook-svc", "namespace": HOME},
            },
        }]}),
    );
    [with(secret, json!({"data": data})), hook]
}

/// A volume with as many snapshots as it may have, and one more that is asked for.
fn snapshots() -> Vec<Value> {
    let volume = with(
        object("v1", "PersistentVolume", None, "many"),
        json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "none",
            "csi": {"driver": DRIVER, "volumeHandle": "v-1"},
        }}),
    );
    let content = |n: u32| {
        let name = format!("content-{n}");
        let made = (n <= 3).then(|| json!({"snapshotHandle": format!("v-1+s-{n}")}));
        with(
            object("snapshot.storage.k8s.io/v1", "VolumeSnapshotContent", None, &name),
            json!({
                "spec": {"driver": DRIVER, "source": {"volumeHandle": "v-1"}},
                "status": made.unwrap_or_else(|| json!({})),
            }),
        )
    };
    std::iter::once(volume).chain((1..=4).map(content)).collect()
}

/// OpenShift knows a vCenter its cloud provider is not told of.
fn openshift() -> Vec<Value> {
    let infrastructure = with(
        object("config.openshift.io/v1", "Infrastructure", None, "cluster"),
        json!({"spec": {"platformSpec": {
            "type": "VSphere",
            "vsphere": {"vcenters": [{"server": "vc-a"}, {"server": "vc-b"}]},
        }}}),
    );
    let told = "[VirtualCenter \"vc-a\"]\ndatacenters = \"DC0\"\n";
    vec![
        object("v1", "Namespace", None, "openshift-config"),
        with(
            object("v1", "ConfigMap", Some("openshift-config"), "cloud-provider-config"),
            json!({"data": {"config": told}}),
        ),
        infrastructure,
    ]
}

/// A second storage driver, by other hands.
fn second_driver() -> Value {
    let labels = json!({"app": "storage"});
    with(
        object("apps/v1", "Deployment", Some("kube-system"), "storage"),
        json!({"spec": {
            "replicas": 0, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [
                    {"name": "driver", "image": "registry.k8s.io/csi-vsphere/driver:v3.7.0"},
                ]},
            },
        }}),
    )
}

/// Kubelet cannot mount a disk that multipathd has taken.
fn taken_disk() -> Value {
    with(
        object("v1", "Event", Some("default"), "taken"),
        json!({
            "type": "Warning", "reason": "FailedMount", "source": {"host": "node-2"},
            "message": "MountVolume.MountDevice failed: /dev/dm-3: no such file or directory",
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "web"},
        }),
    )
}

/// A leader that has not been heard of since long ago.
fn stale_lease() -> Value {
    with(
        object("coordination.k8s.io/v1", "Lease", Some(HOME), "vsphere-syncer"),
        json!({"spec": {
            "holderIdentity": "gone", "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        }}),
    )
}

fn unknown_place() -> Value {
    with(
        object("cns.vmware.com/v1alpha1", "CSINodeTopology", None, "node-2"),
        json!({"spec": {"nodeID": "node-2"}, "status": {"status": "Error", "errorMessage": "no such VM"}}),
    )
}

impl Scene {
    /// What stands around the drivers goes, comes or is edited, one thing after the other.
    async fn look_around(&self, field: &mut Field) {
        // The administrator's account may do everything, which is good to know.
        self.named(Instant::now(), "VDO-1410", "an account that may do more").await;
        field.made.insert("VDO-1410".into());
        let driver = object("storage.k8s.io/v1", "CSIDriver", None, DRIVER);
        let took = self.missing("VDO-1622", driver).await;
        field.note("VDO-1622", "driver not registered", took, "");
        let secret = object("v1", "Secret", Some(HOME), "vsphere-config-secret");
        let took = self.missing("VDO-1619", secret).await;
        field.note("VDO-1619", "no Secret for the driver", took, "");
        let level = |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
        let home = object("v1", "Namespace", None, HOME);
        let took = self.edited("VDO-1613", home, level("baseline"), level("privileged")).await;
        field.note("VDO-1613", "namespace without privileged pods", took, "30");
        let end = |end: Option<String>| json!({"metadata": {"annotations": {"vdo.vmware.com/password-expires": end}}});
        let soon = Timestamp::now() + SignedDuration::from_hours(6 * 24);
        let credentials = object("v1", "Secret", Some("kube-system"), "vc-credentials");
        let took =
            self.edited("VDO-1308", credentials, end(Some(soon.to_string())), end(None)).await;
        field.note("VDO-1308", "a password that ends within a week", took, "");
        for (code, what, objects, row) in [
            ("VDO-1610", "certificate of a webhook has expired", webhook().to_vec(), "28"),
            ("VDO-1611", "nobody answers for a webhook", webhook().to_vec(), ""),
            ("VDO-1617", "a second driver", vec![second_driver()], ""),
            ("VDO-1224", "a disk multipathd has taken", vec![taken_disk()], "42"),
            ("VDO-1616", "a leader that is gone", vec![stale_lease()], ""),
            ("VDO-1606", "a node without a place", vec![unknown_place()], "2"),
        ] {
            let took = self.superfluous(code, what, &objects).await;
            field.note(code, what, took, row);
        }
        // Kinds that come later, and go again: they are found when they come.
        let group = "snapshot.storage.k8s.io";
        let contents =
            definition(group, "v1", "VolumeSnapshotContent", "volumesnapshotcontents", true);
        self.apply(&contents).await;
        let took = self.superfluous("VDO-1521", "a snapshot too many", &snapshots()).await;
        field.note("VDO-1521", "a snapshot too many", took, "27");
        let platform =
            definition("config.openshift.io", "v1", "Infrastructure", "infrastructures", false);
        self.apply(&platform).await;
        let took = self.superfluous("VDO-1807", "two views of vSphere", &openshift()).await;
        field.note("VDO-1807", "two views of vSphere", took, "");
        self.delete(&contents).await;
        self.is_well("after a kind is gone").await;
    }
}

/// Of containers whose status says nothing the end of the log was read, once for each crash; of the
/// others nothing.
fn logs_were_read_sparingly(asked: &[String]) {
    let once: BTreeSet<&String> = asked.iter().collect();
    assert_eq!(once.len(), asked.len(), "the same crash is asked for once: {asked:#?}");
    let of = |name: &str| asked.iter().filter(|path| path.contains(name)).count();
    assert!(of("/vsphere-csi-controller-") > 0, "{asked:#?}");
    assert!(of("/vsphere-cloud-controller-manager-") > 0, "{asked:#?}");
    assert_eq!(of("/vsphere-csi-node-"), 0, "they say it in their status: {asked:#?}");
    for path in asked {
        for limit in ["previous=true", "tailLines=20", "limitBytes=8192"] {
            assert!(path.contains(limit), "{path}");
        }
    }
}

#[tokio::test]
async fn what_stands_around_the_drivers_is_watched_and_each_fault_is_named() {
    let scene = Scene::set().await;
    scene.is_well("at first").await;
    scene.stage.change(json!({"spec": {"paused": true}})).await;
    scene.stage.status("it is paused", 60, |s| s.findings.iter().any(|f| f.code == PAUSED)).await;
    let mut field = Field::default();
    let logs = scene.nodes().serve_logs().await;
    scene.play(&mut field).await;
    logs_were_read_sparingly(&logs.asked());
    scene.look_around(&mut field).await;
    let around = field::AROUND.iter().find(|code| !field.made.contains(**code));
    assert_eq!(around, None, "all of them were made");
    assert_eq!(scene.stage.refusals(), Vec::<String>::new(), "the shipped RBAC is enough");
    if let Ok(path) = std::env::var("VDO_FIELD_SECONDS") {
        std::fs::write(path, field.seconds).unwrap();
    }
}
