//! Attachments that fail, and nodes that are gone.

use csi::DRIVER_NAME;
use k8s_openapi::api::storage::v1::CSINode;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use testkit::eventually;
use tonic::Status;

use crate::stage::{Stage, ZONE};

async fn until_error(stage: &Stage, volume: &str, part: &str) {
    eventually("the attachment reports its error", 60, async || {
        let attachment = stage.attachment_of(volume).await;
        let status = attachment.as_ref().and_then(|a| a.status.as_ref());
        let error = status.and_then(|s| s.attach_error.as_ref()).and_then(|e| e.message.as_ref());
        if error.is_some_and(|message| message.contains(part)) {
            return Ok(());
        }
        Err(format!("{attachment:?} {:#?}", stage.events_of("app").await))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_reports_why_it_waits_and_continues_at_once() {
    let stage = Stage::start().await;
    let _run = stage.run();
    let unregistered = json!({"spec": {"drivers": []}});
    stage.patch::<CSINode>("n-a", unregistered).await;
    stage.claim("data", "immediate").await;
    let name = stage.bound("data").await.metadata.name.unwrap();
    // Immediate claims ignore the pod: place the pod where the volume is.
    let volume = stage.driver.volumes()[&name].clone();
    let topology = volume.request.accessibility_requirements.unwrap().preferred[0].clone();
    let zone = topology.segments[ZONE].clone();
    let node = format!("n-{zone}");
    stage.patch::<CSINode>(&node, json!({"spec": {"drivers": []}})).await;
    stage.pod("app", "data", json!({ZONE: zone})).await;
    until_error(&stage, &name, &format!("the driver has not registered on the node {node}")).await;
    assert_eq!(stage.driver.calls("publish"), 0);
    let attachment = stage.attachment_of(&name).await.unwrap();
    assert_eq!(attachment.metadata.finalizers, None, "it stays deletable");

    let full = "the VM has no free slot for a disk: move a pod to another node";
    stage.driver.fail("publish", [Status::resource_exhausted(full)]);
    let registered = json!({"spec": {"drivers": [
        {"name": DRIVER_NAME, "nodeID": format!("vm-{node}"), "topologyKeys": [ZONE]},
    ]}});
    stage.patch::<CSINode>(&node, registered).await;
    until_error(&stage, &name, full).await;
    let attached = stage.attached(&name).await;
    assert!(attached.status.unwrap().attach_error.is_none());

    // The node is gone, with its CSINode: the volume is detached from the VM it was attached to.
    Api::<CSINode>::all(stage.client()).delete(&node, &DeleteParams::default()).await.unwrap();
    stage.delete_pod("app").await;
    stage.gone(&stage.attachments(), &attached.metadata.name.unwrap()).await;
    assert!(stage.driver.volumes()[&name].nodes.is_empty());
    assert_eq!(stage.driver.calls("unpublish"), 1);
}

/// A new VM registers under the name of this node. Returns its id.
async fn rebuild(stage: &Stage, node: &str) -> String {
    let id = format!("rebuilt-vm-{node}");
    let rebuilt = json!({"spec": {"drivers": [
        {"name": DRIVER_NAME, "nodeID": id, "topologyKeys": [ZONE]},
    ]}});
    // The id of a registered driver cannot change.
    stage.patch::<CSINode>(node, json!({"spec": {"drivers": []}})).await;
    stage.patch::<CSINode>(node, rebuilt).await;
    id
}

/// The answer of the attach to the old VM was lost, so the attachment does not count as attached.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuilt_node_gets_the_disk_after_its_old_vm_lost_it() {
    let stage = Stage::start().await;
    let run = stage.run();
    stage.claim("data", "immediate").await;
    let name = stage.bound("data").await.metadata.name.unwrap();
    stage.pod("app", "data", json!({})).await;
    let attachment = stage.attached(&name).await;
    run.stop().await;
    let id = rebuild(&stage, &attachment.spec.node_name).await;
    let attachments = stage.attachments();
    let attachment = attachment.metadata.name.unwrap();
    let lost = Patch::Merge(json!({"status": {"attached": false}}));
    attachments.patch_status(&attachment, &PatchParams::default(), &lost).await.unwrap();
    let _run = stage.run();
    eventually("only the new VM has the disk", 60, async || {
        let nodes = stage.driver.volumes()[&name].nodes.clone();
        if nodes == [id.clone()].into() { Ok(()) } else { Err(format!("{nodes:?}")) }
    })
    .await;
}

/// The new VM registers under the name of the old one, and the old one still has the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_rebuilt_under_its_name_loses_the_disk_of_its_old_vm() {
    let stage = Stage::start().await;
    let _run = stage.run();
    stage.claim("data", "immediate").await;
    let name = stage.bound("data").await.metadata.name.unwrap();
    stage.pod("app", "data", json!({})).await;
    let attachment = stage.attached(&name).await;
    rebuild(&stage, &attachment.spec.node_name).await;
    stage.delete_pod("app").await;
    stage.gone(&stage.attachments(), &attachment.metadata.name.unwrap()).await;
    let nodes = stage.driver.volumes()[&name].nodes.clone();
    assert!(nodes.is_empty(), "the disk is on {nodes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_was_detached_by_hand_is_attached_again() {
    let stage = Stage::start().await;
    let run = stage.run();
    stage.claim("data", "immediate").await;
    let name = stage.bound("data").await.metadata.name.unwrap();
    stage.pod("app", "data", json!({})).await;
    let attachment = stage.attached(&name).await;
    run.stop().await;
    stage.driver.detach_by_hand(&name);
    let _run = stage.run();
    let vm = format!("vm-{}", attachment.spec.node_name);
    eventually("the disk is attached again", 60, async || {
        let nodes = stage.driver.volumes()[&name].nodes.clone();
        if nodes == [vm.clone()].into() { Ok(()) } else { Err(format!("{nodes:?}")) }
    })
    .await;
    assert_eq!(stage.driver.calls("publish"), 2);
}
