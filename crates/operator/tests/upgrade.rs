//! From one release to the next, and back when the next one does not run.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::BTreeSet;

use common::Stage;
use k8s_openapi::api::{apps::v1::DaemonSet, storage::v1::VolumeAttachment};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;
use testkit::{Fate, eventually};

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

    stage.nodes.as_ref().unwrap().pods("v1.35.1", Fate::Crashes);
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

#[tokio::test]
async fn storage_goes_through_three_releases_of_a_catalog_in_the_cluster_under_load() {
    let stage = Stage::of(2, false).await;
    let configs = stage.use_catalog().await;
    let operator = stage.operator_with(&["--patience=5"]);
    let pinned = |version: &str| json!({"storageProvider": {"vsphereCloudConfig": "vc", "version": version}});
    stage.configure(pinned("3.6.3")).await;
    stage.ready(&operator, 60).await;
    for number in 0..200 {
        stage.attach(&format!("pv-{number}"), &format!("node-{}", number % 2 + 1)).await;
    }
    let attachments = Api::<VolumeAttachment>::all(stage.client());
    let attached = async || -> BTreeSet<Option<String>> {
        let all = attachments.list(&ListParams::default()).await.unwrap();
        all.iter().map(ResourceExt::uid).collect()
    };
    let before = attached().await;
    let (controller, node) = (stage.controller().await.uid(), stage.node_driver().await.uid());

    for version in ["3.7.3", "3.8.0"] {
        stage.change(json!({"spec": pinned(version)})).await;
        stage
            .status(version, 90, |status| {
                let csi = status.csi.clone().unwrap_or_default();
                let ready = api::condition::is_true(&status.conditions, "Ready");
                ready && csi.version.as_deref() == Some(version) && csi.target.is_none()
            })
            .await;
    }
    assert_eq!(attached().await, before, "no volume was detached");
    assert_eq!(stage.controller().await.uid(), controller, "changed, not made anew");
    assert_eq!(stage.node_driver().await.uid(), node);

    // A catalog that makes no sense changes nothing, and is named.
    let writes = stage.writes().len();
    stage.write_catalog("schema: nonsense").await;
    let message = eventually("the CompatibilityConfig says so", 30, async || {
        let status = configs.get("catalog").await.unwrap().status.unwrap_or_default();
        let ready = api::condition::get(&status.conditions, "Ready").cloned();
        ready.filter(|ready| ready.status == "False").map(|ready| ready.message).ok_or("not yet")
    })
    .await;
    assert!(message.contains("vdo-catalog"), "{message}");
    stage.finding("VDO-1102", 20).await;
    assert_eq!(stage.writes().len(), writes);
    assert_eq!(stage.forbidden_deletions(), Vec::<String>::new());
    assert_eq!(stage.refusals(), Vec::<String>::new());
}
