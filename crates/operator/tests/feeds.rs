//! What stands around the drivers, broken for real: each fault is named in the status, and no longer once
//! it is cured. VDO is paused meanwhile, for it would mend most of it at once.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::BTreeSet;

use api::{Severity, VDOConfigStatus};
use common::Stage;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
};
use operator::webhook_certificates::Pair;
use serde_json::{Value, json};
use testkit::{Process, eventually};

const HOME: &str = "vmware-system-csi";
const DRIVER: &str = "csi.vsphere.vmware.com";
/// What VDO says while it is paused.
const PAUSED: &str = "VDO-1906";

struct Scene {
    stage: Stage,
    client: Client,
    _operator: Process,
}

/// Where objects of a kind are served.
fn resource(object: &Value) -> ApiResource {
    let version = object["apiVersion"].as_str().unwrap();
    let kind = object["kind"].as_str().unwrap();
    let (group, short) = version.split_once('/').unwrap_or(("", version));
    let plural = match kind {
        "CSINodeTopology" => "csinodetopologies".to_owned(),
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
        let operator = stage.operator();
        stage
            .configure(json!({
                "cloudProvider": {"vsphereCloudConfigs": ["vc"], "implementation": "Rust"},
                "storageProvider": {"vsphereCloudConfig": "vc"},
            }))
            .await;
        stage.ready(&operator, 120).await;
        let client = stage.client();
        Self { stage, client, _operator: operator }
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

    async fn named(&self, code: &str, what: &str) {
        let count = |status: &VDOConfigStatus| {
            status.findings.iter().filter(|finding| finding.code == code).count()
        };
        let told = format!("{what} is named: {code}");
        self.stage.status(&told, 60, |status| count(status) > 0).await;
        let status = self.stage.status(&told, 60, |status| count(status) > 0).await;
        assert_eq!(count(&status), 1, "said once");
    }

    /// Nothing but the pause is left to say.
    async fn is_well(&self, when: &str) {
        let well = |status: &VDOConfigStatus| {
            let wrong = status.findings.iter().filter(|f| f.severity > Severity::Info);
            let wrong: BTreeSet<&str> = wrong.map(|finding| finding.code.as_str()).collect();
            wrong.is_empty() || wrong == BTreeSet::from([PAUSED])
        };
        self.stage.status(&format!("nothing is wrong {when}"), 60, well).await;
    }

    /// Something that should be there goes, and comes back.
    async fn missing(&self, code: &str, object: Value) {
        let what = format!("{} {}", object["kind"], object["metadata"]["name"]);
        let taken = self.take(&object).await;
        self.delete(&object).await;
        self.named(code, &what).await;
        self.apply(&taken).await;
        self.is_well(&format!("after {what} is back")).await;
    }

    /// Something that should not be there comes, and goes.
    async fn superfluous(&self, code: &str, what: &str, objects: &[Value]) {
        for object in objects {
            self.apply(object).await;
            if object["kind"] == "VolumeSnapshotContent" {
                self.apply_status(object).await;
            }
        }
        self.named(code, what).await;
        for object in objects.iter().rev() {
            self.delete(object).await;
        }
        self.is_well(&format!("after {what}")).await;
    }

    /// Somebody edits an object, and edits it back.
    async fn edited(&self, code: &str, object: Value, wrong: Value, right: Value) {
        let what = format!("{} {} was changed", object["kind"], object["metadata"]["name"]);
        let name = object["metadata"]["name"].as_str().unwrap();
        let (api, parameters) = (self.api(&object), PatchParams::default());
        api.patch(name, &parameters, &Patch::Merge(wrong)).await.unwrap();
        self.named(code, &what).await;
        api.patch(name, &parameters, &Patch::Merge(right)).await.unwrap();
        self.is_well(&format!("after {what} back")).await;
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

/// A webhook of the storage driver whose certificate ends within days.
fn webhook() -> [Value; 2] {
    let made = Timestamp::now() - SignedDuration::from_hours(24 * 355);
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
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
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
        object("apps/v1", "Deployment", Some("default"), "storage"),
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

#[tokio::test]
async fn what_stands_around_the_drivers_is_watched_and_each_fault_is_named() {
    let scene = Scene::set().await;
    scene.is_well("at first").await;
    scene.stage.change(json!({"spec": {"paused": true}})).await;
    scene.stage.status("it is paused", 60, |s| s.findings.iter().any(|f| f.code == PAUSED)).await;
    scene.missing("VDO-1622", object("storage.k8s.io/v1", "CSIDriver", None, DRIVER)).await;
    scene.missing("VDO-1619", object("v1", "Secret", Some(HOME), "vsphere-config-secret")).await;
    let features = "internal-feature-states.csi.vsphere.vmware.com";
    let features = object("v1", "ConfigMap", Some(HOME), features);
    scene.missing("VDO-1609", features).await;
    let level = |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
    let home = object("v1", "Namespace", None, HOME);
    scene.edited("VDO-1613", home, level("baseline"), level("privileged")).await;
    scene.superfluous("VDO-1610", "a certificate that ends", &webhook()).await;
    scene.superfluous("VDO-1617", "a second driver", &[second_driver()]).await;
    scene.superfluous("VDO-1224", "a disk multipathd has taken", &[taken_disk()]).await;
    scene.superfluous("VDO-1616", "a leader that is gone", &[stale_lease()]).await;
    // Kinds that come later, and go again: they are found when they come.
    let crd = "apiextensions.k8s.io/v1";
    let zones = "csinodetopologies.cns.vmware.com";
    let zones = object(crd, "CustomResourceDefinition", None, zones);
    scene.missing("VDO-1605", zones).await;
    scene.superfluous("VDO-1606", "a node without a place", &[unknown_place()]).await;
    let group = "snapshot.storage.k8s.io";
    let contents = definition(group, "v1", "VolumeSnapshotContent", "volumesnapshotcontents", true);
    scene.apply(&contents).await;
    scene.superfluous("VDO-1521", "a snapshot too many", &snapshots()).await;
    let platform =
        definition("config.openshift.io", "v1", "Infrastructure", "infrastructures", false);
    scene.apply(&platform).await;
    scene.superfluous("VDO-1807", "two views of vSphere", &openshift()).await;
    scene.delete(&contents).await;
    scene.is_well("after a kind is gone").await;
    assert_eq!(scene.stage.refusals(), Vec::<String>::new(), "the shipped RBAC is enough");
}
