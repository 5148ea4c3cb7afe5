//! One VDOConfig leads to running drivers: on a real control plane, with the upstream cloud controller and the upstream
//! storage controller, which read the rendered configuration.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::vdo_config::StepState;
use common::Testbed;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node, storage::v1::StorageClass};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use testkit::{Fate, Process};

/// A storage policy of the simulator.
const POLICY: &str = "vSAN Default Storage Policy";

/// The releases of the upstream programs in `peers/`.
const UPSTREAM_CPI: &str = "1.36.0";
const UPSTREAM_CSI: &str = "3.7.0";

fn assert_peer_releases() {
    let required = |module: &str, name: &str, version: &str| {
        let text = testkit::repository().join(module).join("go.mod");
        let text = std::fs::read_to_string(text).unwrap();
        assert!(text.contains(&format!("{name} v{version}\n")), "{module} has another {name}");
    };
    required("peers", "k8s.io/cloud-provider-vsphere", UPSTREAM_CPI);
    required("peers/csi-driver", "sigs.k8s.io/vsphere-csi-driver/v3", UPSTREAM_CSI);
}

/// Cordons or uncordons every node.
async fn cordon(testbed: &Testbed, unschedulable: bool) {
    let nodes = Api::<Node>::all(testbed.client());
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        nodes.patch(&node.name_any(), &PatchParams::default(), &cordon).await.unwrap();
    }
}

/// First the storage controller cannot be scheduled, then its image cannot be pulled.
async fn a_stuck_step_reports_its_cause_and_the_next_waits(testbed: &Testbed) {
    let reports = async |text: &str| {
        let condition = format!("the running step reports {text}");
        testbed
            .status(&condition, 90, |status| {
                let steps = status.plan.iter().flat_map(|plan| &plan.steps);
                let mut running = steps.filter(|step| step.state == StepState::Running);
                running.any(|step| {
                    let message = step.message.as_deref().unwrap_or_default();
                    message.contains(text) && step.since.is_some()
                })
            })
            .await;
    };
    reports("unschedulable").await;
    let pods = testbed.nodes.as_ref().unwrap();
    pods.pods("vsphere-csi-controller", Fate::ImagePullFails);
    cordon(testbed, false).await;
    reports("ImagePullBackOff").await;
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), "vmware-system-csi");
    assert!(sets.get_opt("vsphere-csi-node").await.unwrap().is_none(), "its step must wait");
    pods.pods("vsphere-csi-controller", Fate::Ready);
}

#[tokio::test]
async fn one_vdoconfig_leads_to_running_drivers_with_the_rendered_configuration() {
    let testbed = Testbed::with_fresh_nodes(2).await;
    let _configs = testbed.use_catalog().await;
    let operator = testbed.operator();
    cordon(&testbed, true).await;
    // VDO renders configurations for the releases of the programs that read them.
    testbed
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
    let _cloud_controller = testbed.upstream_cloud_controller().await;
    a_stuck_step_reports_its_cause_and_the_next_waits(&testbed).await;

    let config = testbed.ready(&operator, 90).await;

    let status = config.status.unwrap();
    let (cpi, csi) = (status.cpi.unwrap(), status.csi.unwrap());
    assert_eq!(cpi.nodes_ready, Some(3));
    assert_eq!(cpi.version.as_deref(), Some(UPSTREAM_CPI));
    assert_eq!(csi.version.as_deref(), Some(UPSTREAM_CSI));
    assert_peer_releases();
    assert!(status.cluster_id.unwrap().starts_with("vdo-"));
    let node = testbed.node("node-1").await;
    let spec = node.spec.unwrap();
    assert!(spec.provider_id.unwrap().starts_with("vsphere://42"));
    let zone = &node.metadata.labels.unwrap()["topology.kubernetes.io/zone"];
    assert!(zone.starts_with("zone-"), "{zone}");
    let classes = Api::<StorageClass>::all(testbed.client());
    let class = classes.get("fast").await.unwrap();
    assert_eq!(
        class.volume_binding_mode.as_deref(),
        Some("WaitForFirstConsumer"),
        "the cluster has zones"
    );
    assert_eq!(class.parameters.unwrap()["storagepolicyname"], POLICY);
    let class = plan::ObjectId {
        api_version: "snapshot.storage.k8s.io/v1".into(),
        kind: "VolumeSnapshotClass".into(),
        namespace: String::new(),
        name: "vsphere-csi".into(),
    };
    let class = operator::act::api_of(&testbed.client(), &class).unwrap().get("vsphere-csi").await;
    assert_eq!(class.unwrap().data["driver"], "csi.vsphere.vmware.com");

    let (driver, socket) = testbed.upstream_storage_controller().await;
    let arguments = [
        format!("--csi.endpoint=unix://{}", socket.display()),
        "--ginkgo.focus=Identity Service".into(),
        "--ginkgo.no-color".into(),
    ];
    let sanity = testkit::peer("csi-sanity");
    let sanity_run =
        Process::spawn(&sanity, "csi-sanity", arguments, &[], &testbed.workdir).unwrap();
    let ended = sanity_run.wait(60).await;
    assert!(
        ended.is_some_and(|ended| ended.success()),
        "{}\n{}",
        sanity_run.output(),
        driver.tail()
    );
    assert!(
        !driver.log().contains("reloaded configuration"),
        "nobody changed it: {}",
        driver.tail()
    );
    let log = sanity_run.output() + &sanity_run.log();
    assert!(log.contains("Ran ") && !log.contains("Ran 0 of"), "Identity and Probe: {log}");
    for write in testbed.writes() {
        // Only an apply can be forced.
        let parts = ["fieldManager=vdo", "force=true"];
        let applied = write.starts_with("patch ") && parts.iter().all(|p| write.contains(p));
        assert!(applied, "every write is a server-side apply under one field manager: {write}");
    }
    assert_eq!(testbed.denied_requests(), Vec::<String>::new(), "the shipped RBAC is enough");
}
