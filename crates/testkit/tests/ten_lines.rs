//! The example in docs/testing.md.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use testkit::{ControlPlane, Inventory, Node, Nodes, Vcenter, eventually};

#[tokio::test]
async fn a_fresh_node_becomes_ready_and_its_vm_is_in_vcenter() {
    let plane = ControlPlane::builder().with_controllers().start().await;
    let vcenter = Vcenter::start(Inventory::with_vms(1)).await;
    let nodes = Nodes::start(&plane).await;
    nodes.add(Node::named("node-1").uninitialized()).await;
    let api = kube::Api::<k8s_openapi::api::core::v1::Node>::all(plane.client());
    eventually("the node is Ready", 30, async || {
        let node = api.get("node-1").await.map_err(|e| e.to_string())?;
        let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
        let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        if ready { Ok(()) } else { Err(format!("{conditions:?}")) }
    })
    .await;
    assert_eq!(vcenter.truth().await["datacenters"][0]["vms"][0]["name"], "node-1");
}

#[test]
fn the_documentation_shows_this_file() {
    let read = |path: &str| std::fs::read_to_string(testkit::repository().join(path)).unwrap();
    let page = read("docs/testing.md");
    let shown = page.split("<!-- ten_lines.rs -->\n```rust\n").nth(1).unwrap();
    let shown = shown.split("\n```").next().unwrap();
    assert!(read("crates/testkit/tests/ten_lines.rs").contains(shown), "docs/testing.md differs");
}
