//! A volume is deleted only when nobody needs it any more.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::DeleteParams;
use serde_json::json;
use testkit::eventually;
use tonic::Status;

use crate::stage::Stage;

const PROTECTION: &str = "external-provisioner.volume.kubernetes.io/finalizer";

fn is_protected(volume: &PersistentVolume) -> bool {
    volume.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_volume_of_a_claim_survives_the_deletion_of_its_object() {
    let stage = Stage::start().await;
    let _run = stage.run();
    stage.claim("data", "immediate").await;
    let name = stage.bound("data").await.metadata.name.unwrap();
    stage.volumes().delete(&name, &DeleteParams::default()).await.unwrap();
    // A second claim shows that the loops have seen the deletion.
    stage.claim("later", "immediate").await;
    let later = stage.bound("later").await;
    let volume = stage.volumes().get(&name).await.unwrap();
    assert!(volume.metadata.deletion_timestamp.is_some() && is_protected(&volume), "{volume:?}");
    assert_eq!(stage.driver.calls("delete"), 0);

    stage.claims().delete("data", &DeleteParams::default()).await.unwrap();
    stage.gone(&stage.volumes(), &name).await;
    assert_eq!(stage.driver.deleted().len(), 1);

    // The admin keeps the other one.
    let name = later.metadata.name.unwrap();
    let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    stage.patch::<PersistentVolume>(&name, retain).await;
    eventually("the protection is removed", 60, async || {
        let volume = stage.volumes().get(&name).await.unwrap();
        if is_protected(&volume) { Err(format!("{volume:?}")) } else { Ok(()) }
    })
    .await;
    stage.claims().delete("later", &DeleteParams::default()).await.unwrap();
    eventually("the volume is released", 60, async || {
        let status = stage.volumes().get(&name).await.unwrap().status.unwrap();
        if status.phase.as_deref() == Some("Released") {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    stage.volumes().delete(&name, &DeleteParams::default()).await.unwrap();
    stage.gone(&stage.volumes(), &name).await;
    assert_eq!(stage.driver.deleted().len(), 1, "its data is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_claim_is_deleted_meanwhile_is_not_leaked() {
    let stage = Stage::start().await;
    let _run = stage.run();
    stage.driver.fail("create", [Status::deadline_exceeded("the task is still running")]);
    stage.driver.hold("create");
    stage.claim("data", "immediate").await;
    eventually("the volume is being made", 60, async || {
        if stage.driver.calls("create") == 1 { Ok(()) } else { Err("no call") }
    })
    .await;
    stage.claims().delete("data", &DeleteParams::default()).await.unwrap();
    stage.gone(&stage.claims(), "data").await;
    // The first answer is lost; the second attempt finds the volume.
    stage.driver.release("create");
    eventually("the volume is deleted", 60, async || {
        let (made, deleted) = (stage.driver.volumes(), stage.driver.deleted());
        if made.is_empty() && deleted.len() == 1 {
            Ok(())
        } else {
            Err(format!("{made:?} {deleted:?}"))
        }
    })
    .await;
    assert_eq!(stage.driver.calls("create"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_two_objects_name_is_not_deleted() {
    let stage = Stage::start().await;
    let _run = stage.run();
    stage.claim("data", "immediate").await;
    let mut volume = stage.bound("data").await;
    let name = volume.metadata.name.clone().unwrap();
    volume.metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: Some("copy".into()),
        ..Default::default()
    };
    volume.spec.as_mut().unwrap().claim_ref = None;
    stage.create::<PersistentVolume>(serde_json::to_value(&volume).unwrap()).await;
    stage.claims().delete("data", &DeleteParams::default()).await.unwrap();
    let text = stage.until_event(&name, "VolumeFailedDelete").await;
    assert!(text.contains("the PersistentVolume copy uses the same volume"), "{text}");
    assert_eq!(stage.driver.calls("delete"), 0);
}
