//! `vdoctl storage-class`: a StorageClass without study.

use api::{VDOConfig, vdo_config::StorageClassSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::{
    maintenance::configure,
    stage::{NAMESPACE, Stage},
};

async fn classes(stage: &Stage) -> Vec<StorageClassSpec> {
    let configs = Api::<VDOConfig>::namespaced(stage.plane.client(), NAMESPACE);
    configs.get("vdo-config").await.unwrap().spec.storage_provider.unwrap().storage_classes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_class_is_chosen_explained_and_default_only_if_there_is_none() {
    let stage = Stage::set().await;
    configure(&stage).await;
    let output = stage.vdoctl_alongside(&["storage-class", "--dry-run"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(output.out.contains(": chosen, "), "{}", output.all());
    assert!(output.out.contains("it becomes the default"), "{}", output.all());
    assert_eq!(classes(&stage).await, []);

    let output = stage.vdoctl_alongside(&["storage-class", "--yes"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    let made = classes(&stage).await;
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!((made[0].name.0.as_str(), made[0].default), ("vsphere", Some(true)));
    let url = made[0].datastore_url.as_ref().unwrap().0.clone();
    assert!(output.out.contains(&url), "{}", output.all());
    let again = stage.vdoctl_alongside(&["storage-class", "--yes"]).await;
    assert_eq!(again.code, 2, "{}", again.all());

    // A policy from a tag. The first one stays the default.
    let arguments = ["storage-class", "gold", "--tag", "k8s-zone:zone-a", "--yes"];
    let output = stage.vdoctl_alongside(&arguments).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(output.out.contains("vsphere stays the default"), "{}", output.all());
    let made = classes(&stage).await;
    assert_eq!(made[1].storage_policy.as_deref(), Some("VDO k8s-zone:zone-a"), "{made:?}");
    assert_eq!(made[1].default, Some(false));
    assert_eq!(stage.vcenter.calls().await.count("PbmCreate"), 1);
    // The policy exists now.
    let arguments = ["storage-class", "silver", "--policy", "VDO k8s-zone:zone-a", "--yes"];
    let output = stage.vdoctl_alongside(&arguments).await;
    assert_eq!(output.code, 0, "{}", output.all());
    let arguments = ["storage-class", "bronze", "--policy", "Bronze", "--yes"];
    let output = stage.vdoctl_alongside(&arguments).await;
    assert_eq!(output.code, 2, "{}", output.all());
    assert!(output.err.contains("vc has no storage policy Bronze"), "{}", output.all());
    assert_eq!(classes(&stage).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_of_somebody_else_stays_the_default() {
    let stage = Stage::set().await;
    configure(&stage).await;
    let theirs: StorageClass = serde_json::from_value(json!({
        "metadata": {
            "name": "nfs",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "nfs.example.com",
    }))
    .unwrap();
    let all = Api::<StorageClass>::all(stage.plane.client());
    all.create(&PostParams::default(), &theirs).await.unwrap();
    let output = stage.vdoctl_alongside(&["storage-class", "--yes"]).await;
    assert_eq!(output.code, 0, "{}", output.all());
    assert!(output.out.contains("nfs stays the default"), "{}", output.all());
    assert_eq!(classes(&stage).await[0].default, Some(false));
}
