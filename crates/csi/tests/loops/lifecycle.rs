//! From the claim to the deleted volume.

use kube::api::DeleteParams;
use serde_json::json;

use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_gets_a_volume_that_follows_its_pod_and_is_deleted_with_it() {
    let stage = Stage::start().await;
    let run = stage.run();
    stage.claim("data", "immediate").await;
    let volume = stage.bound("data").await;
    let name = volume.metadata.name.unwrap();
    let made = stage.driver.volumes()[&name].clone();
    let source = volume.spec.unwrap().csi.unwrap();
    assert_eq!(source.volume_handle, made.id);
    assert_eq!(source.fs_type.as_deref(), Some("ext4"));
    assert_eq!(stage.driver.calls("create"), 1);
    let text = stage.until_event("data", "ProvisioningSucceeded").await;
    assert_eq!(text, format!("Successfully provisioned volume {name}"));

    stage.pod("app", "data", json!({})).await;
    let attachment = stage.attached(&name).await;
    let node = attachment.spec.node_name.clone();
    assert_eq!(stage.driver.volumes()[&name].nodes, [format!("vm-{node}")].into());
    let context = attachment.status.unwrap().attachment_metadata.unwrap();
    assert_eq!(context["diskUUID"], format!("6000{}", made.id));

    stage.delete_pod("app").await;
    stage.gone(&stage.attachments(), &attachment.metadata.name.unwrap()).await;
    assert!(stage.driver.volumes()[&name].nodes.is_empty());

    stage.claims().delete("data", &DeleteParams::default()).await.unwrap();
    stage.gone(&stage.volumes(), &name).await;
    assert_eq!(stage.driver.deleted(), [made.id]);
    println!("writes: {:#?}", stage.writes());
    run.stop().await;
}
