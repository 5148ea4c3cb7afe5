//! Five thousand nodes with several faults each: the status stays small, and no finding is lost.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use api::VDOConfigStatus;
use common::{NAMESPACE, Testbed};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::json;
use testkit::Vm;

const NODES: usize = 5_000;
/// The faults of every VM.
const FAULTS: [&str; 3] = ["VDO-1203", "VDO-1204", "VDO-1207"];

fn broken(number: usize) -> Vm {
    Vm {
        disk_uuid: false,
        version: "vmx-11".into(),
        snapshots: vec!["nightly".into()],
        ..Vm::numbered("node", number)
    }
}

#[tokio::test]
async fn five_thousand_broken_nodes_fit_into_the_status_and_a_configmap_lists_all() {
    let testbed = Testbed::without_nodes_with_vms((1..=NODES).map(broken)).await;
    let client = testbed.client();
    let vms: Vec<Vm> = (1..=NODES).map(broken).collect();
    testkit::add_bare_nodes(&client, &vms).await;
    testbed.configure(json!({"storageProvider": {"vsphereCloudConfig": "vc"}})).await;
    let operator = testbed.operator();
    let all = |status: &VDOConfigStatus| {
        FAULTS.iter().all(|code| {
            let mut counts = status.findings.iter().filter(|f| f.code == *code).map(|f| f.count);
            counts.any(|count| usize::try_from(count) == Ok(NODES))
        })
    };
    let status = testbed.status("every fault of every node is counted", 180, all).await;
    let bytes = serde_json::to_vec(&testbed.config().await).unwrap().len();
    assert!(bytes < 256 * 1024, "{bytes} bytes");
    assert!(status.findings.iter().all(|finding| finding.objects.len() <= 10));

    let list = status.health.unwrap().list.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client, NAMESPACE);
    let data = maps.get(&list).await.unwrap().data.unwrap();
    for code in FAULTS {
        let lines: Vec<&str> = data[code].lines().collect();
        assert_eq!(lines.len(), NODES, "{code} names every node");
        assert!(lines.iter().any(|line| line.contains("node-5000")), "{code}: {:?}", lines[0]);
    }
    let (_, most) = operator.memory();
    assert!(most < 400 << 20, "{} MiB", most >> 20);
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}
