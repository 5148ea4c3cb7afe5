//! The whole way with the real Controller service and the vCenter simulator.

use std::sync::Arc;

use csi::loops::Settings;
use kube::api::{DeleteParams, Patch, PatchParams};
use runtime::lease::Mandate;
use serde_json::json;
use testkit::{Inventory, eventually};

use crate::{
    common::{Stage as Driver, node},
    snapshots,
    stage::Stage,
};

const HOST: &str = "kubernetes.io/hostname";

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_vcenter_follows_its_claim() {
    let (stage, driver) =
        tokio::join!(Stage::without_nodes(), Driver::with(Inventory::with_vms(3)));
    for number in 1..=3 {
        let name = format!("node-{number}");
        stage.register(&name, HOST, &name, &node(number)).await;
    }
    snapshots::install_kinds(&stage).await;
    snapshots::class(&stage).await;
    let settings = Settings { topology: false, ..Stage::settings() };
    let service = Arc::new(driver.service.clone());
    let run = stage.run_on(service.clone(), settings.clone(), Mandate::unlimited());

    stage.claim_with("data", "immediate", json!({"volumeMode": "Block"})).await;
    let volume = stage.bound("data").await;
    let name = volume.metadata.name.unwrap();
    let handle = volume.spec.unwrap().csi.unwrap().volume_handle;
    let ids = async || {
        let all = driver.volumes().await;
        all.into_iter().map(|volume| volume.id.id).collect::<Vec<_>>()
    };
    assert_eq!(ids().await, std::slice::from_ref(&handle));

    // The process is killed and started again between any two steps.
    drop(run);
    let run = stage.run_on(service.clone(), settings.clone(), Mandate::unlimited());
    stage.pod("app", "data", json!({HOST: "node-2"})).await;
    let attachment = stage.attached(&name).await;
    let context = attachment.status.unwrap().attachment_metadata.unwrap();
    assert!(context.contains_key("diskUUID"), "{context:?}");

    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    stage.claims().patch("data", &PatchParams::default(), &Patch::Merge(larger)).await.unwrap();
    eventually("the volume is larger", 60, async || {
        let status = stage.claims().get("data").await.unwrap().status.unwrap();
        if status.capacity.as_ref().unwrap()["storage"].0 == "2Gi" {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;

    stage.delete_pod("app").await;
    stage.gone(&stage.attachments(), &attachment.metadata.name.unwrap()).await;
    snapshots::take(&stage, "monday", &handle).await;
    let status = snapshots::ready(&stage, "monday").await;
    assert_eq!(status["restoreSize"], 2_i64 << 30);
    let mut restored = snapshots::from_snapshot("monday");
    restored["resources"] = json!({"requests": {"storage": "3Gi"}});
    stage.claim_with("restored", "immediate", restored).await;
    stage.bound("restored").await;
    let mut copy = snapshots::clone_of("data");
    copy["volumeMode"] = "Block".into();
    copy["resources"] = json!({"requests": {"storage": "2Gi"}});
    stage.claim_with("copy", "immediate", copy).await;
    stage.bound("copy").await;
    assert_eq!(ids().await.len(), 3);

    snapshots::delete(&stage, "monday").await;
    for claim in ["data", "restored", "copy"] {
        stage.claims().delete(claim, &DeleteParams::default()).await.unwrap();
    }
    eventually("no volume is left", 60, async || {
        let left = ids().await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    eventually("no PersistentVolume is left", 60, async || {
        let left = stage.volumes().list(&kube::api::ListParams::default()).await.unwrap().items;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    println!("writes: {:#?}", stage.writes());
    run.stop().await;
}
