//! A cluster that works against the operator: a quota that refuses its objects, somebody who keeps
//! changing them. It says so, and recovers by itself.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{NAMESPACE, Stage};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ResourceQuota, Secret, Service},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::eventually;
use tokio::task::JoinSet;

const CSI: &str = "vmware-system-csi";
const CONTROLLER: &str = "vsphere-csi-controller";

#[tokio::test]
async fn what_is_refused_and_what_is_fought_over_is_said_and_put_right_when_it_can_be() {
    let (stage, operator) = Stage::with_storage(&[]).await;
    a_secret_of_theirs_has_the_name_of_ours(&stage).await;
    stage.ready(&operator, 90).await;
    a_quota_refuses(&stage).await;
    stage.ready(&operator, 90).await;
    somebody_keeps_changing_it(&stage).await;
    stage.ready(&operator, 90).await;
    assert_eq!(stage.deletions(), Vec::<String>::new());
}

/// The admin keeps a Secret to pull images with beside the driver, under the name of the one that VDO
/// is told to bring.
async fn a_secret_of_theirs_has_the_name_of_ours(stage: &Stage) {
    let secret = |password: &str| -> Secret {
        let auths = json!({"auths": {"registry.example.com": {"password": password}}}).to_string();
        let secret = json!({
            "metadata": {"name": "registry"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": auths},
        });
        serde_json::from_value(secret).unwrap()
    };
    let theirs = Api::<Secret>::namespaced(stage.client(), CSI);
    let ours = Api::<Secret>::namespaced(stage.client(), NAMESPACE);
    let before = theirs.create(&PostParams::default(), &secret("theirs")).await.unwrap();
    ours.create(&PostParams::default(), &secret("ours")).await.unwrap();
    stage.change(json!({"spec": {"images": {"pullSecrets": ["registry"]}}})).await;
    stage.finding_about("VDO-1909", 60, &["registry", "not made by VDO"]).await;
    assert_eq!(theirs.get("registry").await.unwrap().data, before.data, "it is as it was");

    theirs.delete("registry", &DeleteParams::default()).await.unwrap();
    let wanted = ours.get("registry").await.unwrap().data;
    eventually("VDO brings its own", 90, async || match theirs.get("registry").await {
        Ok(made) if made.data == wanted => Ok(()),
        other => Err(format!("{:?}", other.map(|secret| secret.metadata))),
    })
    .await;
}

/// A Service that somebody deleted cannot be made again while a quota allows none.
async fn a_quota_refuses(stage: &Stage) {
    let quotas = Api::<ResourceQuota>::namespaced(stage.client(), CSI);
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"services": "0"}}});
    let quota: ResourceQuota = serde_json::from_value(quota).unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    eventually("the quota holds", 30, async || {
        let status = quotas.get("none").await.unwrap().status.unwrap_or_default();
        status.hard.map(drop).ok_or("not yet")
    })
    .await;
    let services = Api::<Service>::namespaced(stage.client(), CSI);
    services.delete(CONTROLLER, &DeleteParams::default()).await.unwrap();
    stage.finding_about("VDO-1909", 60, &["exceeded quota", "Service"]).await;
    let ready = stage.controller().await.status.unwrap().ready_replicas;
    assert!(ready.unwrap_or_default() > 0, "the driver goes on");
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    eventually("the Service is there again", 90, async || services.get(CONTROLLER).await.map(drop))
        .await;
}

/// Somebody scales the controller to nothing whenever it is put right.
async fn somebody_keeps_changing_it(stage: &Stage) {
    let wanted = stage.controller().await.spec.unwrap().replicas;
    let deployments = Api::<Deployment>::namespaced(stage.client(), CSI);
    let mut rival = JoinSet::new();
    let theirs = deployments.clone();
    rival.spawn(async move {
        let by = PatchParams { field_manager: Some("rival".into()), ..Default::default() };
        let nothing = json!({"spec": {"replicas": 0}});
        loop {
            let now = theirs.get(CONTROLLER).await.unwrap().spec.unwrap().replicas;
            if now != Some(0) {
                theirs.patch(CONTROLLER, &by, &Patch::Merge(&nothing)).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    stage.finding_about("VDO-1805", 90, &["rival", CONTROLLER]).await;
    rival.shutdown().await;
    eventually("it is put right after a pause", 120, async || {
        let now = deployments.get(CONTROLLER).await.unwrap().spec.unwrap().replicas;
        if now == wanted { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
}
