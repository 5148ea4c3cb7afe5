//! The process runs the loops with everything that they need.

use k8s_openapi::api::{
    apps::v1::Deployment,
    storage::v1::{CSIStorageCapacity, StorageClass},
};
use serde_json::json;
use testkit::Port;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;

async fn metrics(address: &str) -> Result<String, std::io::Error> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_publishes_capacity_syncs_metadata_and_has_metrics() {
    let mut site = Site::start().await;
    let port = Port::reserve().unwrap();
    site.http_address = format!("127.0.0.1:{}", port.number);
    let client = site.plane.client();
    let pod = json!({"metadata": {"labels": {"app": "c"}}, "spec": {"containers": [{"name": "c", "image": "c"}]}});
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "vsphere-csi-controller"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "c"}}, "template": pod},
    }))
    .unwrap();
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let deployment = deployments.create(&PostParams::default(), &deployment).await.unwrap();
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": "delayed"}, "provisioner": csi::DRIVER_NAME,
        "volumeBindingMode": "WaitForFirstConsumer",
    }))
    .unwrap();
    let classes = Api::<StorageClass>::all(client.clone());
    classes.create(&PostParams::default(), &class).await.unwrap();

    let process = site.controller_with("leader", &[]).await;
    let capacities = Api::<CSIStorageCapacity>::namespaced(client, NAMESPACE);
    let published = eventually("the capacity is published", 60, async || {
        let mut all = capacities.list(&ListParams::default()).await.unwrap().items;
        all.pop().ok_or("nothing")
    })
    .await;
    assert_eq!(published.storage_class_name, "delayed");
    assert_ne!(published.capacity.unwrap().0, "0");
    assert_eq!(
        published.metadata.owner_references.unwrap()[0].uid,
        deployment.metadata.uid.unwrap()
    );

    site.create_at_last().await;
    let expected = [
        "vsphere_csi_volume_ops_histogram_count{voltype=\"block\",optype=\"create-volume\",status=\"pass\",faulttype=\"\"} 1",
        "vsphere_cns_volume_ops_histogram_count{voltype=\"block\",optype=\"create-volume\",status=\"pass\",faulttype=\"\"} 1",
        "vsphere_full_sync_ops_histogram_count{status=\"pass\"}",
        "workqueue_depth{name=\"provision\"} 0",
        "workqueue_retries_total{name=\"attach\"} 0",
        "vsphere_csi_attach_queue_depth 0",
        "vsphere_csi_operations_in_flight 0",
        "vsphere_csi_operation_record_writes_total 2",
        "vsphere_csi_info{",
        "request=\"CnsCreateVolume\"",
    ];
    eventually("all metrics are there", 30, async || {
        let page = metrics(&site.http_address).await.map_err(|error| error.to_string())?;
        let missing: Vec<_> = expected.iter().filter(|text| !page.contains(**text)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:#?} in\n{page}")) }
    })
    .await;
    process.kill();
}
