//! One object in, running drivers out: on a real control plane, with the real upstream cloud
//! controller and the real upstream storage controller reading what was rendered for them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::vdo_config::StepState;
use common::Stage;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node, storage::v1::StorageClass};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use testkit::{Fate, Process};

/// One the simulator has.
const POLICY: &str = "vSAN Default Storage Policy";

/// The releases of upstream's programs that the tests have.
const UPSTREAM_CPI: &str = "1.36.0";
const UPSTREAM_CSI: &str = "3.7.0";

fn the_programs_are_of_these_releases() {
    let required = |module: &str, name: &str, version: &str| {
        let text = testkit::repository().join(module).join("go.mod");
        let text = std::fs::read_to_string(text).unwrap();
        assert!(text.contains(&format!("{name} v{version}\n")), "{module} has another {name}");
    };
    required("peers", "k8s.io/cloud-provider-vsphere", UPSTREAM_CPI);
    required("peers/csi-driver", "sigs.k8s.io/vsphere-csi-driver/v3", UPSTREAM_CSI);
}

/// Forbids the scheduler every node, or allows it.
async fn cordon(stage: &Stage, closed: bool) {
    let nodes = Api::<Node>::all(stage.client());
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": closed}}));
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        nodes.patch(&node.name_any(), &PatchParams::default(), &cordon).await.unwrap();
    }
}

/// First there is no place for the storage controller, then its image cannot be had.
async fn a_step_that_is_stuck_says_why_and_the_next_waits(stage: &Stage) {
    let said = async |words: &str| {
        let stuck = format!("the step is stuck and says {words}");
        stage
            .status(&stuck, 90, |status| {
                let steps = status.plan.iter().flat_map(|plan| &plan.steps);
                let mut running = steps.filter(|step| step.state == StepState::Running);
                running.any(|step| {
                    let message = step.message.as_deref().unwrap_or_default();
                    message.contains(words) && step.since.is_some()
                })
            })
            .await;
    };
    said("unschedulable").await;
    let pods = stage.nodes.as_ref().unwrap();
    pods.pods("vsphere-csi-controller", Fate::ImagePullFails);
    cordon(stage, false).await;
    said("ImagePullBackOff").await;
    let sets = Api::<DaemonSet>::namespaced(stage.client(), "vmware-system-csi");
    assert!(sets.get_opt("vsphere-csi-node").await.unwrap().is_none(), "its turn has not come");
    pods.pods("vsphere-csi-controller", Fate::Ready);
}

#[tokio::test]
async fn one_object_leads_to_drivers_that_run_on_what_was_rendered_for_them() {
    let stage = Stage::set(2).await;
    let _configs = stage.use_catalog().await;
    let operator = stage.operator();
    cordon(&stage, true).await;
    // The releases of the programs that read it: nothing is rendered for another one.
    stage
        .configure(json!({
            "cloudProvider": {
                "vsphereCloudConfigs": ["vc"], "version": UPSTREAM_CPI,
                "topology": {"zone": "k8s-zone", "region": "k8s-region"},
            },
            "storageProvider": {
                "vsphereCloudConfig": "vc", "version": UPSTREAM_CSI,
                "storageClasses": [{"name": "fast", "storagePolicy": POLICY, "default": true}],
                "snapshots": {"installController": true},
            },
        }))
        .await;
    let _cloud_controller = stage.upstream_cloud_controller().await;
    a_step_that_is_stuck_says_why_and_the_next_waits(&stage).await;

    let config = stage.ready(&operator, 90).await;

    let status = config.status.unwrap();
    let (cpi, csi) = (status.cpi.unwrap(), status.csi.unwrap());
    assert_eq!(cpi.nodes_ready, Some(3));
    assert_eq!(cpi.version.as_deref(), Some(UPSTREAM_CPI));
    assert_eq!(csi.version.as_deref(), Some(UPSTREAM_CSI));
    the_programs_are_of_these_releases();
    assert!(status.cluster_id.unwrap().starts_with("vdo-"));
    let node = stage.node("node-1").await;
    let spec = node.spec.unwrap();
    assert!(spec.provider_id.unwrap().starts_with("vsphere://42"));
    let zone = &node.metadata.labels.unwrap()["topology.kubernetes.io/zone"];
    assert!(zone.starts_with("zone-"), "{zone}");
    let classes = Api::<StorageClass>::all(stage.client());
    let class = classes.get("fast").await.unwrap();
    assert_eq!(
        class.volume_binding_mode.as_deref(),
        Some("WaitForFirstConsumer"),
        "there are zones"
    );
    assert_eq!(class.parameters.unwrap()["storagepolicyname"], POLICY);
    let class = plan::ObjectId {
        api_version: "snapshot.storage.k8s.io/v1".into(),
        kind: "VolumeSnapshotClass".into(),
        namespace: String::new(),
        name: "vsphere-csi".into(),
    };
    let class = operator::act::api_of(&stage.client(), &class).unwrap().get("vsphere-csi").await;
    assert_eq!(class.unwrap().data["driver"], "csi.vsphere.vmware.com");

    let (driver, socket) = stage.upstream_storage_controller().await;
    let questions = [
        format!("--csi.endpoint=unix://{}", socket.display()),
        "--ginkgo.focus=Identity Service".into(),
        "--ginkgo.no-color".into(),
    ];
    let sanity = testkit::peer("csi-sanity");
    let asked = Process::spawn(&sanity, "csi-sanity", questions, &[], &stage.workdir).unwrap();
    let ended = asked.wait(60).await;
    assert!(ended.is_some_and(|ended| ended.success()), "{}\n{}", asked.tail(), driver.tail());
    let log = asked.output() + &asked.log();
    assert!(log.contains("Ran ") && !log.contains("Ran 0 of"), "Identity and Probe: {log}");
    for write in stage.writes() {
        // Only an apply may be forced.
        let parts = ["fieldManager=vdo", "force=true"];
        let applied = write.starts_with("patch ") && parts.iter().all(|p| write.contains(p));
        assert!(applied, "every write is a server-side apply under one field manager: {write}");
    }
    assert_eq!(stage.refusals(), Vec::<String>::new(), "the shipped RBAC is enough");
}
