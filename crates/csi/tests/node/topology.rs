//! The topology of a node, on a real API server. The test plays the controller.

use std::{collections::HashMap, sync::Arc};

use csi::{
    node::topology::CSINodeTopology,
    proto::csi::{NodeGetInfoRequest, NodeGetInfoResponse},
};
use k8s_openapi::{
    api::core::v1::Node,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, CustomResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::{ControlPlane, Disks, eventually};
use tonic::{Code, Status};

use crate::plugin::{TestNode, VM_UUID};

async fn info(node: &TestNode) -> Result<NodeGetInfoResponse, Status> {
    Ok(node.client().await.node_get_info(NodeGetInfoRequest {}).await?.into_inner())
}

/// Waits until the plugin asks, and answers.
async fn answer(client: &Client, change: serde_json::Value) {
    let api = Api::<CSINodeTopology>::all(client.clone());
    eventually("the plugin asks", 30, async || {
        let object = api.get("n1").await.map_err(|error| error.to_string())?;
        let asks = object.status.is_none_or(|status| status.status.is_empty());
        if asks { Ok(()) } else { Err("the status is still the old one".to_owned()) }
    })
    .await;
    api.patch("n1", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
}

/// The annotation with the number of volumes that the VM has room for.
fn room(volumes: u32) -> serde_json::Value {
    json!({"annotations": {"csi.vsphere.vmware.com/volume-limit": volumes.to_string()}})
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn the_topology_of_a_node_comes_from_the_controller() {
    let plane = ControlPlane::start().await;
    let client = plane.client();
    // As upstream installs it: without a status subresource.
    let mut definition = CSINodeTopology::crd();
    definition.spec.versions.iter_mut().for_each(|version| version.subresources = None);
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let mut object = Node::default();
    object.metadata.name = Some("n1".to_owned());
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
    let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
    let arguments = [kubeconfig.as_str(), "--topology-timeout-seconds=20"];
    let mut node = TestNode::start_with(Arc::new(Disks::start()), &arguments).await;

    let labels = json!([{"key": "topology.csi.vmware.com/zone", "value": "zone-a"}]);
    let success = json!({"status": "Success", "topologyLabels": labels, "errorMessage": ""});
    let success = json!({"metadata": room(44), "status": success});
    let (info_now, ()) = tokio::join!(info(&node), answer(&client, success));
    let info_now = info_now.unwrap();
    assert_eq!(info_now.max_volumes_per_node, 44);
    assert_eq!(info_now.node_id, VM_UUID);
    let zone = ("topology.csi.vmware.com/zone".to_owned(), "zone-a".to_owned());
    let expected = HashMap::from([zone]);
    assert_eq!(info_now.accessible_topology.unwrap().segments, expected);
    let api = Api::<CSINodeTopology>::all(client.clone());
    let object = api.get("n1").await.unwrap();
    assert_eq!((object.spec.node_id.as_str(), object.spec.node_uuid.as_str()), ("n1", VM_UUID));
    assert_eq!(object.metadata.owner_references.unwrap()[0].kind, "Node");

    // The kubelet asks again for the limit; the controller need not answer.
    let change = Patch::Merge(json!({ "metadata": room(43) }));
    api.patch("n1", &PatchParams::default(), &change).await.unwrap();
    let again = info(&node).await.unwrap();
    assert_eq!(again.max_volumes_per_node, 43);
    assert_eq!(again.accessible_topology.unwrap().segments, expected);

    // A controller that is down does not keep a node from registering again.
    node.restart_plugin().await;
    let again = info(&node).await.unwrap();
    assert_eq!(again.accessible_topology.unwrap().segments, expected);
    assert_eq!(again.max_volumes_per_node, 43);

    let failure = json!({"status": "Error", "errorMessage": "the VM has no tag of k8s-zone"});
    let (failed, ()) = tokio::join!(info(&node), answer(&client, json!({ "status": failure })));
    let error = failed.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains("the VM has no tag of k8s-zone"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_node_without_topology_registers_although_the_controller_is_down() {
    let plane = ControlPlane::start().await;
    let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
    let arguments = [kubeconfig.as_str(), "--topology=false", "--topology-timeout-seconds=1"];
    // There is not even the definition of CSINodeTopologies.
    let node = TestNode::start_with(Arc::new(Disks::start()), &arguments).await;
    let answer = info(&node).await.unwrap();
    assert_eq!(answer.max_volumes_per_node, 59);
    assert!(answer.accessible_topology.unwrap().segments.is_empty());
}
