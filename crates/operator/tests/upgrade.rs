//! From one release to the next, and back when the next one does not run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod common;

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use api::CompatibilityConfig;
use common::{NAMESPACE, Stage};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Secret},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use operator::facts::ObjectId;
use serde_json::{Value, json};
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

/// The embedded catalog, with two older lines of the storage driver let onto this cluster.
fn catalog() -> String {
    let text = catalog::EMBEDDED
        .replace(
            r#"kubernetes: { min: "1.32", max: "1.34" }"#,
            r#"kubernetes: { min: "1.32", max: "1.36" }"#,
        )
        .replace(
            r#"kubernetes: { min: "1.33", max: "1.35" }"#,
            r#"kubernetes: { min: "1.33", max: "1.36" }"#,
        );
    assert_ne!(text, catalog::EMBEDDED);
    text
}

async fn write_catalog(stage: &Stage, text: &str) {
    let maps = Api::<ConfigMap>::namespaced(stage.client(), NAMESPACE);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "vdo-catalog", "namespace": NAMESPACE},
        "data": {"catalog.yaml": text},
    });
    let apply = PatchParams::apply("test").force();
    maps.patch("vdo-catalog", &apply, &Patch::Apply(map)).await.unwrap();
}

async fn use_catalog(stage: &Stage) -> Api<CompatibilityConfig> {
    write_catalog(stage, &catalog()).await;
    let config = json!({
        "metadata": {"name": "catalog", "namespace": NAMESPACE},
        "spec": {"bundle": {"configMap": "vdo-catalog"}},
    });
    let config: CompatibilityConfig = serde_json::from_value(config).unwrap();
    let configs = Api::<CompatibilityConfig>::namespaced(stage.client(), NAMESPACE);
    configs.create(&PostParams::default(), &config).await.unwrap();
    configs
}

/// Upstream's own manifest of the storage driver, as it is published with the driver's sources.
fn upstream_manifest() -> Vec<Value> {
    let folder = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/vsphere-csi-driver/v3"])
        .current_dir(testkit::repository().join("peers/csi-driver"))
        .output()
        .unwrap();
    assert!(folder.status.success(), "{}", String::from_utf8_lossy(&folder.stderr));
    let folder = PathBuf::from(String::from_utf8(folder.stdout).unwrap().trim());
    let file = folder.join("manifests/vanilla/vsphere-csi-driver.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let documents = text.split("\n---").map(|text| text.trim_start_matches("---"));
    documents.map(|text| serde_saphyr::from_str(text).unwrap()).collect()
}

#[tokio::test]
async fn a_driver_installed_from_upstreams_manifest_is_adopted_with_its_volumes_and_upgraded() {
    let stage = Stage::of(1, false).await;
    let _configs = use_catalog(&stage).await;
    let create = PostParams { field_manager: Some("kubectl-create".into()), ..Default::default() };
    for document in upstream_manifest() {
        let id = ObjectId::of(&catalog::manifest::Object(document.clone()));
        let object: DynamicObject = serde_json::from_value(document).unwrap();
        let made =
            operator::act::api_of(&stage.client(), &id).unwrap().create(&create, &object).await;
        match made {
            Ok(_) => {}
            // The namespace comes with VDO's own manifest too.
            Err(kube::Error::Api(status)) if status.code == 409 && id.kind == "Namespace" => {}
            Err(error) => panic!("{id}: {error}"),
        }
    }
    let conf = "[Global]\ncluster-id = \"10.10.10.10\"\n[VirtualCenter \"10.10.10.10\"]\n\
                user = \"k8s@vsphere.local\"\npassword = \"theirs\"\n";
    let secret = json!({
        "metadata": {"name": "vsphere-config-secret", "namespace": "vmware-system-csi"},
        "stringData": {"csi-vsphere.conf": conf},
    });
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let secrets = Api::<Secret>::namespaced(stage.client(), "vmware-system-csi");
    secrets.create(&create, &secret).await.unwrap();
    stage.attach("pv-1", "node-1").await;
    let (controller, node) = (stage.controller().await.uid(), stage.node_driver().await.uid());

    let operator = stage.operator();
    stage.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    stage.finding("VDO-1902", 30).await;
    assert_eq!(stage.writes(), Vec::<String>::new(), "adoption is proposed, and waits");
    stage
        .status("it says what adoption means", 20, |status| {
            serde_json::to_string(&status.plan).unwrap().contains("it is CSI 3.7.0")
        })
        .await;

    stage.change(json!({"spec": {"adoption": "Automatic"}})).await;
    let config = stage.ready(&operator, 90).await;
    let status = config.status.unwrap();
    assert_eq!(status.cluster_id.as_deref(), Some("10.10.10.10"), "volumes are known by it");
    assert_eq!(
        status.csi.unwrap().version.as_deref(),
        Some("3.7.3"),
        "and it is brought up to date"
    );
    let conf = stage.secret("vmware-system-csi", "vsphere-config-secret", "csi-vsphere.conf").await;
    assert!(conf.contains("10.10.10.10") && !conf.contains("theirs"), "{conf}");
    assert_eq!(stage.controller().await.uid(), controller, "nothing is made anew");
    assert_eq!(stage.node_driver().await.uid(), node);
    let deleted = stage.writes().into_iter().filter(|write| write.starts_with("delete"));
    assert_eq!(deleted.collect::<Vec<_>>(), Vec::<String>::new(), "nothing is deleted");
    assert_eq!(stage.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn storage_goes_through_three_releases_of_a_catalog_in_the_cluster_under_load() {
    let stage = Stage::of(2, false).await;
    let configs = use_catalog(&stage).await;
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
    write_catalog(&stage, "schema: nonsense").await;
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
