//! Breaks everything around the drivers for real. VDO reports each fault in the status, and clears it once it is
//! fixed. VDO is paused meanwhile, because it would fix most faults at once.
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
use common::{NAMESPACE, Testbed};
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

const CSI: &str = "vmware-system-csi";
const DRIVER: &str = "csi.vsphere.vmware.com";
/// The finding of a paused VDO.
const PAUSED: &str = "VDO-1906";

struct Fixture {
    testbed: Testbed,
    client: Client,
    /// Acts in vCenter as a driver would.
    vcenter: vsphere::Client,
    cluster_id: String,
    _operator: Process,
}

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

impl Fixture {
    async fn start() -> Self {
        let testbed = Testbed::with_nodes(1).await;
        // Report at once; the default grace period takes minutes.
        let operator = testbed.operator_with(&["--grace=1"]);
        testbed
            .configure(json!({
                "cloudProvider": {"vsphereCloudConfigs": ["vc"]},
                "storageProvider": {"vsphereCloudConfig": "vc"},
            }))
            .await;
        testbed.ready(&operator, 120).await;
        let client = testbed.client();
        let vcenter = vsphere::Client::builder(testbed.vcenter.address().to_string())
            .trust(vsphere::Trust::CaBundle(testbed.vcenter.ca_pem()))
            .credentials(vsphere::Credentials::new(
                testbed.vcenter.user(),
                testbed.vcenter.password(),
            ))
            .connect()
            .await
            .unwrap();
        let conf = testbed.secret(CSI, "vsphere-config-secret", "csi-vsphere.conf").await;
        let line = conf.lines().find(|line| line.trim_start().starts_with("cluster-id")).unwrap();
        let cluster_id = line.split('"').nth(1).unwrap().to_owned();
        Self { testbed, client, vcenter, cluster_id, _operator: operator }
    }

    fn nodes(&self) -> &Nodes {
        self.testbed.nodes.as_ref().unwrap()
    }

    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let resource = resource(object);
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
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

    /// Reads an object in a form that can be applied again.
    async fn saved(&self, object: &Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap();
        let mut copy = serde_json::to_value(self.api(object).get(name).await.unwrap()).unwrap();
        for server in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"]
        {
            copy["metadata"].as_object_mut().unwrap().remove(server);
        }
        copy.as_object_mut().unwrap().remove("status");
        copy["apiVersion"] = object["apiVersion"].clone();
        copy["kind"] = object["kind"].clone();
        copy
    }

    /// Waits for exactly one finding of this code. Returns the seconds since `begin`.
    async fn reported(&self, begin: Instant, code: &str, what: &str) -> f64 {
        let count = |status: &VDOConfigStatus| {
            status.findings.iter().filter(|finding| finding.code == code).count()
        };
        let condition = format!("{what} is reported: {code}");
        let status = self.testbed.status(&condition, 60, |status| count(status) > 0).await;
        assert_eq!(count(&status), 1, "reported once");
        begin.elapsed().as_secs_f64()
    }

    /// Waits until there is no finding but the pause. Returns the seconds since `begin`.
    async fn healthy_since(&self, begin: Instant, when: &str) -> f64 {
        let healthy = |status: &VDOConfigStatus| {
            let wrong = status.findings.iter().filter(|f| f.severity > Severity::Info);
            let wrong: BTreeSet<&str> = wrong.map(|finding| finding.code.as_str()).collect();
            wrong.is_empty() || wrong == BTreeSet::from([PAUSED])
        };
        self.testbed.status(&format!("no findings {when}"), 60, healthy).await;
        begin.elapsed().as_secs_f64()
    }

    async fn healthy(&self, when: &str) {
        self.healthy_since(Instant::now(), when).await;
    }

    /// Deletes an object, waits for the finding, and restores the object.
    async fn missing(&self, code: &str, object: Value) -> [f64; 2] {
        let what = format!("{} {}", object["kind"], object["metadata"]["name"]);
        let saved = self.saved(&object).await;
        let begin = Instant::now();
        self.delete(&object).await;
        let reported = self.reported(begin, code, &what).await;
        let begin = Instant::now();
        self.apply(&saved).await;
        [reported, self.healthy_since(begin, &format!("after {what} is back")).await]
    }

    /// Creates objects, waits for the finding, and deletes them.
    async fn superfluous(&self, code: &str, what: &str, objects: &[Value]) -> [f64; 2] {
        let begin = Instant::now();
        for object in objects {
            self.apply(object).await;
            if ["VolumeSnapshotContent", "VolumeAttachment"]
                .iter()
                .any(|kind| object["kind"] == *kind)
            {
                self.apply_status(object).await;
            }
        }
        let reported = self.reported(begin, code, what).await;
        let begin = Instant::now();
        for object in objects.iter().rev() {
            self.delete(object).await;
        }
        [reported, self.healthy_since(begin, &format!("after {what}")).await]
    }

    /// Edits an object, waits for the finding, and reverts the edit.
    async fn edited(&self, code: &str, object: Value, wrong: Value, right: Value) -> [f64; 2] {
        let what = format!("{} {} was changed", object["kind"], object["metadata"]["name"]);
        let name = object["metadata"]["name"].as_str().unwrap();
        let (api, parameters) = (self.api(&object), PatchParams::default());
        let begin = Instant::now();
        api.patch(name, &parameters, &Patch::Merge(wrong)).await.unwrap();
        let reported = self.reported(begin, code, &what).await;
        let begin = Instant::now();
        api.patch(name, &parameters, &Patch::Merge(right)).await.unwrap();
        [reported, self.healthy_since(begin, &format!("after {what} back")).await]
    }
}

/// A CRD without validation.
fn definition(group: &str, version: &str, kind: &str, plural: &str, status: bool) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut crd_version = json!({
        "name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": open},
    });
    if status {
        crd_version["subresources"] = json!({"status": {}});
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": group, "scope": "Cluster", "versions": [crd_version],
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

/// A webhook of the storage driver with an expired certificate.
fn webhook() -> [Value; 2] {
    let made = Timestamp::now() - SignedDuration::from_hours(24 * 366);
    let pair = Pair::issue("vsphere-webhook-svc.vmware-system-csi.svc", None, made).unwrap();
    let data = serde_json::to_value(pair.data()).unwrap();
    let secret = object("v1", "Secret", Some(CSI), "vsphere-webhook-certs");
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
                "service": {"name": "vsphere-webhook-svc", "namespace": CSI},
            },
        }]}),
    );
    [with(secret, json!({"data": data})), hook]
}

/// A volume with the maximum number of snapshots, and one more request.
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

/// OpenShift's Infrastructure lists a vCenter that its cloud provider configuration lacks.
fn openshift() -> Vec<Value> {
    let infrastructure = with(
        object("config.openshift.io/v1", "Infrastructure", None, "cluster"),
        json!({"spec": {"platformSpec": {
            "type": "VSphere",
            "vsphere": {"vcenters": [{"server": "vc-a"}, {"server": "vc-b"}]},
        }}}),
    );
    let config = "[VirtualCenter \"vc-a\"]\ndatacenters = \"DC0\"\n";
    vec![
        object("v1", "Namespace", None, "openshift-config"),
        with(
            object("v1", "ConfigMap", Some("openshift-config"), "cloud-provider-config"),
            json!({"data": {"config": config}}),
        ),
        infrastructure,
    ]
}

/// A second storage driver, not managed by VDO.
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

/// The kubelet cannot mount a disk that multipathd uses. A volume of the pod's namespace is attached to the node:
/// otherwise the Event proves nothing, because any tenant could have written it.
fn multipath_event() -> Vec<Value> {
    let volume = with(
        object("v1", "PersistentVolume", None, "taken"),
        json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "none",
            "claimRef": {"namespace": "default", "name": "data", "kind": "PersistentVolumeClaim"},
            "csi": {"driver": DRIVER, "volumeHandle": "v-taken"},
        }}),
    );
    let attachment = with(
        object("storage.k8s.io/v1", "VolumeAttachment", None, "taken"),
        json!({
            "spec": {
                "attacher": DRIVER, "nodeName": "node-2",
                "source": {"persistentVolumeName": "taken"},
            },
            "status": {"attached": true},
        }),
    );
    let event = with(
        object("v1", "Event", Some("default"), "taken"),
        json!({
            "type": "Warning", "reason": "FailedMount", "source": {"host": "node-2"},
            "message": "MountVolume.MountDevice failed: /dev/dm-3: no such file or directory",
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "web"},
        }),
    );
    vec![volume, attachment, event]
}

/// A lease that was renewed long ago.
fn stale_lease() -> Value {
    with(
        object("coordination.k8s.io/v1", "Lease", Some(CSI), "vsphere-syncer"),
        json!({"spec": {
            "holderIdentity": "gone", "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        }}),
    )
}

fn topology_error() -> Value {
    with(
        object("cns.vmware.com/v1alpha1", "CSINodeTopology", None, "node-2"),
        json!({"spec": {"nodeID": "node-2"}, "status": {"status": "Error", "errorMessage": "no such VM"}}),
    )
}

impl Fixture {
    /// Deletes, creates and edits objects around the drivers, one after the other.
    async fn break_surroundings(&self, field: &mut Field) {
        // The administrator's account has more privileges than needed, which VDO reports.
        self.reported(Instant::now(), "VDO-1410", "an account with more privileges than needed")
            .await;
        field.reported.insert("VDO-1410".into());
        let driver = object("storage.k8s.io/v1", "CSIDriver", None, DRIVER);
        let took = self.missing("VDO-1622", driver).await;
        field.note("VDO-1622", "driver not registered", took, "");
        let secret = object("v1", "Secret", Some(CSI), "vsphere-config-secret");
        let took = self.missing("VDO-1619", secret).await;
        field.note("VDO-1619", "no Secret for the driver", took, "");
        let level = |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
        let namespace = object("v1", "Namespace", None, CSI);
        let took = self.edited("VDO-1613", namespace, level("baseline"), level("privileged")).await;
        field.note("VDO-1613", "namespace without privileged pods", took, "30");
        let end = |end: Option<String>| json!({"metadata": {"annotations": {"vdo.vmware.com/password-expires": end}}});
        let soon = Timestamp::now() + SignedDuration::from_hours(6 * 24);
        let credentials = object("v1", "Secret", Some(NAMESPACE), "vc-credentials");
        let took =
            self.edited("VDO-1308", credentials, end(Some(soon.to_string())), end(None)).await;
        field.note("VDO-1308", "a password that ends within a week", took, "");
        for (code, what, objects, row) in [
            ("VDO-1610", "certificate of a webhook has expired", webhook().to_vec(), "28"),
            ("VDO-1611", "nobody answers for a webhook", webhook().to_vec(), ""),
            ("VDO-1617", "a second driver", vec![second_driver()], ""),
            ("VDO-1224", "a disk multipathd has taken", multipath_event(), "42"),
            ("VDO-1616", "a leader that is gone", vec![stale_lease()], ""),
            ("VDO-1606", "a node without a place", vec![topology_error()], "2"),
        ] {
            let took = self.superfluous(code, what, &objects).await;
            field.note(code, what, took, row);
        }
        // VDO finds CRDs that are created later.
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
        self.healthy("after a CRD is deleted").await;
    }
}

/// VDO reads the end of a log only if the container status has no message, and once for each crash.
fn logs_were_read_sparingly(requests: &[String]) {
    let unique: BTreeSet<&String> = requests.iter().collect();
    assert_eq!(unique.len(), requests.len(), "one request for each crash: {requests:#?}");
    let count = |name: &str| requests.iter().filter(|path| path.contains(name)).count();
    assert!(count("/vsphere-csi-controller-") > 0, "{requests:#?}");
    assert!(count("/vsphere-cloud-controller-manager-") > 0, "{requests:#?}");
    assert_eq!(count("/vsphere-csi-node-"), 0, "their status has a message: {requests:#?}");
    for path in requests {
        for limit in ["previous=true", "tailLines=20", "limitBytes=8192"] {
            assert!(path.contains(limit), "{path}");
        }
    }
}

#[tokio::test]
async fn each_fault_around_the_drivers_is_reported() {
    let fixture = Fixture::start().await;
    fixture.healthy("at first").await;
    fixture.testbed.change(json!({"spec": {"paused": true}})).await;
    fixture
        .testbed
        .status("VDO is paused", 60, |s| s.findings.iter().any(|f| f.code == PAUSED))
        .await;
    let mut field = Field::default();
    let logs = fixture.nodes().serve_logs().await;
    fixture.run_batches(&mut field).await;
    logs_were_read_sparingly(&logs.asked());
    fixture.break_surroundings(&mut field).await;
    let around = field::AROUND.iter().find(|code| !field.reported.contains(**code));
    assert_eq!(around, None, "every finding was reported");
    assert_eq!(
        fixture.testbed.denied_requests(),
        Vec::<String>::new(),
        "the shipped RBAC is enough"
    );
    if let Ok(path) = std::env::var("VDO_FIELD_SECONDS") {
        std::fs::write(path, field.seconds).unwrap();
    }
}
