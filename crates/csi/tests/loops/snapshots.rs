//! Snapshots, restores and clones. The tests do what the snapshot-controller does: they create and bind the objects.

use csi::DRIVER_NAME;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};
use testkit::eventually;
use tonic::Status;

use crate::{
    driver::Driver,
    stage::{NAMESPACE, Stage},
};

const GROUP: &str = "snapshot.storage.k8s.io";
const PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";

/// The kinds of snapshots, without their validation.
pub(crate) async fn install_kinds(stage: &Stage) {
    for (kind, scope) in [
        ("VolumeSnapshot", "Namespaced"),
        ("VolumeSnapshotContent", "Cluster"),
        ("VolumeSnapshotClass", "Cluster"),
    ] {
        let singular = kind.to_lowercase();
        let plural =
            if kind.ends_with("Class") { format!("{singular}es") } else { format!("{singular}s") };
        let subresources = if kind.ends_with("Class") { json!({}) } else { json!({"status": {}}) };
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        stage
            .create::<CustomResourceDefinition>(json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": format!("{plural}.{GROUP}"),
                    "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814"},
                },
                "spec": {
                    "group": GROUP, "scope": scope,
                    "names": {"kind": kind, "plural": plural, "singular": singular, "listKind": format!("{kind}List")},
                    "versions": [{
                        "name": "v1", "served": true, "storage": true, "subresources": subresources,
                        "schema": {"openAPIV3Schema": schema},
                    }],
                },
            }))
            .await;
    }
}

pub(crate) fn api(stage: &Stage, kind: &str) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk(GROUP, "v1", kind);
    let suffix = if kind.ends_with("Class") { "es" } else { "s" };
    let plural = format!("{}{suffix}", kind.to_lowercase());
    let resource = ApiResource::from_gvk_with_plural(&gvk, &plural);
    if kind == "VolumeSnapshot" {
        Api::namespaced_with(stage.client(), NAMESPACE, &resource)
    } else {
        Api::all_with(stage.client(), &resource)
    }
}

async fn create(
    stage: &Stage,
    kind: &str,
    name: &str,
    annotations: Value,
    data: Value,
) -> DynamicObject {
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name, "annotations": annotations},
    }))
    .unwrap();
    let object = object.data(data);
    let api = api(stage, kind);
    eventually("an object is created", 60, async || {
        api.create(&PostParams::default(), &object).await.map_err(|e| e.to_string())
    })
    .await
}

/// A VolumeSnapshot and its content for a volume, as the snapshot-controller makes them.
pub(crate) async fn take(stage: &Stage, name: &str, volume_handle: &str) {
    let source = json!({"spec": {"source": {"persistentVolumeClaimName": "data"}}});
    let snapshot = create(stage, "VolumeSnapshot", name, json!({}), source).await;
    let uid = snapshot.metadata.uid.unwrap();
    let content = json!({"spec": {
        "driver": DRIVER_NAME, "deletionPolicy": "Delete", "volumeSnapshotClassName": "snapshots",
        "source": {"volumeHandle": volume_handle}, "sourceVolumeMode": "Filesystem",
        "volumeSnapshotRef": {"namespace": NAMESPACE, "name": name, "uid": uid},
    }});
    create(stage, "VolumeSnapshotContent", &content_of(name), json!({}), content).await;
    let finalizers = Patch::Merge(json!({"metadata": {"finalizers": [PROTECTION]}}));
    let contents = api(stage, "VolumeSnapshotContent");
    contents.patch(&content_of(name), &PatchParams::default(), &finalizers).await.unwrap();
}

pub(crate) fn content_of(snapshot: &str) -> String {
    format!("snapcontent-{snapshot}")
}

/// Waits until the content is ready, and binds the snapshot.
pub(crate) async fn ready(stage: &Stage, name: &str) -> Value {
    let contents = api(stage, "VolumeSnapshotContent");
    let content = eventually("the snapshot is ready", 60, async || {
        let content = contents.get(&content_of(name)).await.unwrap();
        let annotations = content.metadata.annotations.clone().unwrap_or_default();
        let settled = !annotations.contains_key(BEING_CREATED);
        let is_ready = content.data["status"]["readyToUse"] == true;
        if is_ready && settled {
            Ok(content)
        } else {
            Err(format!("{annotations:?} {}", content.data))
        }
    })
    .await;
    let status = json!({"status": {
        "boundVolumeSnapshotContentName": content_of(name), "readyToUse": true, "restoreSize": "1Gi",
    }});
    let snapshots = api(stage, "VolumeSnapshot");
    snapshots.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    content.data["status"].clone()
}

pub(crate) async fn delete(stage: &Stage, name: &str) {
    let contents = api(stage, "VolumeSnapshotContent");
    let marked = json!({"metadata": {"annotations": {
        "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes",
    }}});
    contents
        .patch(&content_of(name), &PatchParams::default(), &Patch::Merge(marked))
        .await
        .unwrap();
    contents.delete(&content_of(name), &DeleteParams::default()).await.unwrap();
    stage.gone(&contents, &content_of(name)).await;
}

pub(crate) async fn class(stage: &Stage) {
    let class = json!({"driver": DRIVER_NAME, "deletionPolicy": "Delete", "parameters": {}});
    create(stage, "VolumeSnapshotClass", "snapshots", json!({}), class).await;
}

pub(crate) fn from_snapshot(name: &str) -> Value {
    json!({"dataSource": {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": name}})
}

pub(crate) fn clone_of(name: &str) -> Value {
    json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": name}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_taken_restored_and_deleted() {
    let stage = Stage::start().await;
    let _run = stage.run();
    stage.claim("data", "immediate").await;
    // Snapshots come to a cluster whose driver runs already.
    install_kinds(&stage).await;
    class(&stage).await;
    let volume = stage.bound("data").await;
    let handle = volume.spec.unwrap().csi.unwrap().volume_handle;

    stage
        .driver
        .fail("create-snapshot", [Status::internal("the datastore is in maintenance mode")]);
    take(&stage, "before-upgrade", &handle).await;
    let text = stage.until_event(&content_of("before-upgrade"), "SnapshotCreationFailed").await;
    assert!(text.ends_with("the datastore is in maintenance mode"), "{text}");
    let status = ready(&stage, "before-upgrade").await;
    assert_eq!(status["restoreSize"], 1_i64 << 30);
    assert_eq!(status["creationTime"], 1_700_000_000_000_000_000_i64);
    assert_eq!(status["error"], Value::Null);
    let taken = stage.driver.snapshots().into_values().next().unwrap();
    assert_eq!(status["snapshotHandle"], taken.snapshot_id);

    stage.claim_with("restored", "immediate", from_snapshot("before-upgrade")).await;
    let restored = stage.bound("restored").await.metadata.name.unwrap();
    assert!(source(&stage.driver, &restored).contains(&taken.snapshot_id));
    eventually("the snapshot can be deleted again", 60, async || {
        let snapshot = api(&stage, "VolumeSnapshot").get("before-upgrade").await.unwrap();
        let finalizers = snapshot.metadata.finalizers.unwrap_or_default();
        if finalizers.is_empty() { Ok(()) } else { Err(format!("{finalizers:?}")) }
    })
    .await;

    delete(&stage, "before-upgrade").await;
    assert!(stage.driver.snapshots().is_empty());

    // A snapshot that is deleted while it is being taken is not leaked.
    stage.driver.fail("create-snapshot", [Status::deadline_exceeded("the task is still running")]);
    take(&stage, "unwanted", &handle).await;
    stage.until_event(&content_of("unwanted"), "SnapshotCreationFailed").await;
    delete(&stage, "unwanted").await;
    assert!(stage.driver.snapshots().is_empty());
    // It is repeated if somebody else changed the content meanwhile.
    assert!(stage.driver.calls("delete-snapshot") >= 2);
}

fn source(driver: &Driver, volume: &str) -> String {
    format!("{:?}", driver.volumes()[volume].request.volume_content_source)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_keeps_its_source_until_it_is_made() {
    let stage = Stage::start().await;
    let _run = stage.run();
    stage.claim("data", "immediate").await;
    let original = stage.bound("data").await;
    let handle = original.spec.unwrap().csi.unwrap().volume_handle;
    stage
        .claim_with(
            "small",
            "immediate",
            json!({
                "dataSource": {"kind": "PersistentVolumeClaim", "name": "data"},
                "resources": {"requests": {"storage": "512Mi"}},
            }),
        )
        .await;
    let text = stage.until_event("small", "ProvisioningFailed").await;
    assert!(text.contains("requests 512Mi") && text.contains("has 1Gi"), "{text}");
    stage.claims().delete("small", &DeleteParams::default()).await.unwrap();

    stage.driver.hold("create");
    stage.claim_with("copy", "immediate", clone_of("data")).await;
    eventually("the clone is being made", 60, async || {
        if stage.driver.calls("create") == 2 { Ok(()) } else { Err("no call") }
    })
    .await;
    stage.claims().delete("data", &DeleteParams::default()).await.unwrap();
    let source_claim = stage.claims().get("data").await.unwrap();
    let finalizers = source_claim.metadata.finalizers.unwrap();
    assert!(finalizers.iter().any(|f| f.ends_with("cloning-protection")), "{finalizers:?}");
    stage.driver.release("create");
    let copy = stage.bound("copy").await.metadata.name.unwrap();
    assert!(source(&stage.driver, &copy).contains(&handle));
    stage.gone(&stage.claims(), "data").await;
    eventually("the source is deleted", 60, async || {
        let deleted = stage.driver.deleted();
        if deleted == [handle.clone()] { Ok(()) } else { Err(format!("{deleted:?}")) }
    })
    .await;
    assert_eq!(stage.driver.volumes().len(), 1, "the clone stays");

    // Another program fills this claim.
    stage
        .claim_with(
            "foreign",
            "immediate",
            json!({
                "dataSourceRef": {"apiGroup": "example.com", "kind": "Backup", "name": "monday"},
            }),
        )
        .await;
    let text = eventually("the claim is left to its populator", 60, async || {
        let all = stage.events_of("foreign").await;
        let found = all.iter().find(|(reason, _)| reason == "Provisioning");
        found.map(|(_, text)| text.clone()).ok_or(format!("{all:?}"))
    })
    .await;
    assert_eq!(text, "Assuming an external populator will provision the volume");
    assert_eq!(stage.driver.calls("create"), 2);
}
