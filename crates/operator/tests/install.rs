//! One object in, running drivers out: on a real control plane, with the real upstream cloud
//! controller and the real upstream storage controller reading what was rendered for them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::Stage;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use serde_json::json;
use testkit::Process;

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

#[tokio::test]
async fn one_object_leads_to_drivers_that_run_on_what_was_rendered_for_them() {
    let stage = Stage::set(2).await;
    let _configs = stage.use_catalog().await;
    let operator = stage.operator();
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
    let class = operator::facts::ObjectId {
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
        let applied = write.starts_with("patch ") && write.contains("fieldManager=vdo");
        assert!(applied, "every write is a server-side apply under one field manager: {write}");
    }
    assert_eq!(stage.refusals(), Vec::<String>::new(), "the shipped RBAC is enough");
}
