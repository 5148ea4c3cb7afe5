//! From one release to the next, and back when the next one does not run.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::Stage;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use serde_json::json;
use testkit::Fate;

const CPI: &str = "vsphere-cloud-controller-manager";

async fn image(stage: &Stage) -> String {
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "kube-system");
    let set = sets.get(CPI).await.unwrap();
    set.spec.unwrap().template.spec.unwrap().containers[0].image.clone().unwrap()
}

#[tokio::test]
async fn a_release_that_crashes_is_taken_back_and_one_that_runs_stays() {
    let stage = Stage::of(1, false).await;
    let operator = stage.operator_with(&["--patience=5"]);
    let pinned = |version: &str| json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"], "version": version}});
    stage.configure(pinned("1.35.0")).await;
    stage.ready(&operator, 60).await;
    assert!(image(&stage).await.contains("v1.35.0"));

    stage.nodes.pods("v1.35.1", Fate::Crashes);
    stage.change(json!({"spec": pinned("1.35.1")})).await;
    let finding = stage.finding("VDO-1905", 60).await;
    let seen = finding.seen.unwrap();
    assert!(seen.contains("1.35.1") && seen.contains("CrashLoopBackOff"), "{seen}");
    stage
        .status("the one before runs again", 60, |status| {
            api::condition::is_true(&status.conditions, "CloudProviderReady")
        })
        .await;
    assert!(image(&stage).await.contains("v1.35.0"));

    stage.change(json!({"spec": pinned("1.36.0")})).await;
    let config = stage.ready(&operator, 60).await;
    assert_eq!(config.status.unwrap().cpi.unwrap().version.as_deref(), Some("1.36.0"));
    assert!(image(&stage).await.contains("v1.36.0"));
    assert_eq!(stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}
