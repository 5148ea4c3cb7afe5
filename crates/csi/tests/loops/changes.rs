//! Claims that want a larger volume, or one of another class.

use csi::DRIVER_NAME;
use k8s_openapi::api::core::v1::PersistentVolumeClaimStatus;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};
use testkit::eventually;
use tonic::Status;

use crate::stage::Stage;

async fn change(stage: &Stage, claim: &str, spec: Value) {
    let patch = Patch::Merge(json!({"spec": spec}));
    stage.claims().patch(claim, &PatchParams::default(), &patch).await.unwrap();
}

async fn request(stage: &Stage, claim: &str, size: &str) {
    change(stage, claim, json!({"resources": {"requests": {"storage": size}}})).await;
}

async fn until_status(
    stage: &Stage,
    claim: &str,
    what: &str,
    is_so: impl Fn(&PersistentVolumeClaimStatus) -> bool,
) {
    eventually(what, 60, async || {
        let status = stage.claims().get(claim).await.unwrap().status.unwrap();
        if is_so(&status) { Ok(()) } else { Err(format!("{status:#?}")) }
    })
    .await;
}

fn capacity(status: &PersistentVolumeClaimStatus) -> &str {
    status.capacity.as_ref().map_or("", |capacity| capacity["storage"].0.as_str())
}

fn resize_state(status: &PersistentVolumeClaimStatus) -> Option<&str> {
    Some(status.allocated_resource_statuses.as_ref()?.get("storage")?.as_str())
}

fn has(status: &PersistentVolumeClaimStatus, condition: &str) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == condition && c.status == "True")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_requests_more_gets_a_larger_volume() {
    let stage = Stage::start().await;
    let _run = stage.run();
    // A raw device needs nothing from the kubelet.
    stage.claim_with("device", "immediate", json!({"volumeMode": "Block"})).await;
    stage.claim("files", "immediate").await;
    let device = stage.bound("device").await.metadata.name.unwrap();
    let files = stage.bound("files").await.metadata.name.unwrap();
    let before = stage.writes();
    request(&stage, "device", "2Gi").await;
    until_status(&stage, "device", "the device is larger", |status| {
        capacity(status) == "2Gi" && resize_state(status).is_none() && !has(status, "Resizing")
    })
    .await;
    let volume = stage.volumes().get(&device).await.unwrap();
    assert_eq!(volume.spec.unwrap().capacity.unwrap()["storage"].0, "2Gi");
    stage.until_event("device", "VolumeResizeSuccessful").await;
    println!("writes before {before:?}, after one resize {:?}", stage.writes());

    request(&stage, "files", "3Gi").await;
    until_status(&stage, "files", "the kubelet has to grow the file system", |status| {
        resize_state(status) == Some("NodeResizePending") && has(status, "FileSystemResizePending")
    })
    .await;
    assert_eq!(stage.driver.volumes()[&files].bytes, 3 << 30);
    let status = stage.claims().get("files").await.unwrap().status.unwrap();
    assert_eq!(capacity(&status), "1Gi", "the kubelet writes the new capacity");
    assert_eq!(stage.driver.calls("expand"), 2);

    // A size that cannot be made: the user requests another one.
    let large = "the datastore has no disks above 62Ti: request less";
    stage.driver.fail("expand", [Status::out_of_range(large)]);
    request(&stage, "device", "100Ti").await;
    until_status(&stage, "device", "the size is infeasible", |status| {
        resize_state(status) == Some("ControllerResizeInfeasible")
            && has(status, "ControllerResizeError")
    })
    .await;
    let text = stage.until_event("device", "VolumeResizeFailed").await;
    assert!(text.ends_with(large), "{text}");
    request(&stage, "device", "3Gi").await;
    until_status(&stage, "device", "the smaller size is made", |status| capacity(status) == "3Gi")
        .await;
}

async fn attributes_class(stage: &Stage, name: &str, driver: &str) {
    let kind = GroupVersionKind::gvk("storage.k8s.io", "v1", "VolumeAttributesClass");
    let resource = ApiResource::from_gvk_with_plural(&kind, "volumeattributesclasses");
    let class = json!({"driverName": driver, "parameters": {"storagepolicyname": name}});
    let class = DynamicObject::new(name, &resource).data(class);
    let api = Api::<DynamicObject>::all_with(stage.client(), &resource);
    api.create(&PostParams::default(), &class).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_with_another_class_gets_a_volume_with_its_parameters() {
    let stage = Stage::start().await;
    let _run = stage.run();
    attributes_class(&stage, "silver", DRIVER_NAME).await;
    stage.claim_with("data", "immediate", json!({"volumeAttributesClassName": "silver"})).await;
    let name = stage.bound("data").await.metadata.name.unwrap();
    let policy = || stage.driver.volumes()[&name].mutable["storagepolicyname"].clone();
    assert_eq!(policy(), "silver");

    // The class comes later than the claim.
    change(&stage, "data", json!({"volumeAttributesClassName": "gold"})).await;
    stage.until_event("data", "VolumeModifyFailed").await;
    attributes_class(&stage, "gold", DRIVER_NAME).await;
    until_status(&stage, "data", "the class is applied", |status| {
        status.current_volume_attributes_class_name.as_deref() == Some("gold")
            && status.modify_volume_status.is_none()
            && !has(status, "ModifyingVolume")
    })
    .await;
    assert_eq!(policy(), "gold");
    let volume = stage.volumes().get(&name).await.unwrap();
    assert_eq!(volume.spec.unwrap().volume_attributes_class_name.as_deref(), Some("gold"));
    stage.until_event("data", "VolumeModifySuccessful").await;

    stage.driver.fail("modify", [Status::invalid_argument("there is no storage policy bronze")]);
    attributes_class(&stage, "bronze", DRIVER_NAME).await;
    change(&stage, "data", json!({"volumeAttributesClassName": "bronze"})).await;
    until_status(&stage, "data", "the class is infeasible", |status| {
        status.modify_volume_status.as_ref().is_some_and(|m| m.status == "Infeasible")
    })
    .await;
    change(&stage, "data", json!({"volumeAttributesClassName": "gold"})).await;
    until_status(&stage, "data", "the modification is canceled", |status| {
        status.modify_volume_status.is_none() && !has(status, "ModifyVolumeError")
    })
    .await;
    assert_eq!(stage.driver.calls("modify"), 2);

    // No driver knows the parameters of another driver.
    attributes_class(&stage, "foreign", "other.example.com").await;
    change(&stage, "data", json!({"volumeAttributesClassName": "foreign"})).await;
    until_status(&stage, "data", "the class of another driver is infeasible", |status| {
        status.modify_volume_status.as_ref().is_some_and(|m| m.status == "Infeasible")
            && has(status, "ModifyVolumeError")
    })
    .await;
    assert_eq!(stage.driver.calls("modify"), 2);
}
