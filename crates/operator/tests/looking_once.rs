//! A cluster looked at once, without VDO in it: nothing is written, and what may not be read is said.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeSet;

use health::{Examination, facts::Facts};
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
};
use operator::survey::{Target, once};
use serde_json::json;
use testkit::{ControlPlane, Inventory, Node, Nodes, User, Vcenter};

async fn target(vcenter: &Vcenter) -> Target {
    let connection = vsphere::Client::builder(vcenter.address().to_string())
        .trust(vsphere::Trust::CaBundle(vcenter.ca_pem()))
        .credentials(vsphere::Credentials::new(vcenter.user(), vcenter.password()))
        .connect()
        .await;
    Target {
        name: "vc".into(),
        address: vcenter.address().to_string(),
        secret: String::new(),
        user: vcenter.user().into(),
        datacenters: vec!["DC0".into()],
        connection: Ok(connection.unwrap()),
    }
}

/// Lets a user list some resources, and nothing else.
async fn let_list(client: &Client, user: &str, resources: &[&str]) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": user},
        "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["list"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    for object in [role, binding] {
        let id = operator::facts::ObjectId::of(&catalog::manifest::Object(object.clone()));
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let api: Api<DynamicObject> = operator::act::api_of(client, &id).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

fn codes(facts: Facts) -> BTreeSet<String> {
    let examination = Examination::of(facts);
    let findings = examination.report().all().into_iter();
    findings.filter(|finding| finding.severity > api::Severity::Info).map(|f| f.code).collect()
}

/// Requests that were not reading; asking for one's own rights writes nothing.
fn writes(plane: &ControlPlane, user: &str) -> Vec<String> {
    let by = |event: &serde_json::Value| event["impersonatedUser"]["username"] == user;
    let reads = |event: &serde_json::Value| {
        let verb = event["verb"].as_str().unwrap_or_default();
        let uri = event["requestURI"].as_str().unwrap_or_default();
        matches!(verb, "get" | "list" | "watch") || uri.contains("selfsubjectaccessreviews")
    };
    let events = plane.audit().into_iter().filter(|event| by(event) && !reads(event));
    events.map(|event| format!("{} {}", event["verb"], event["requestURI"])).collect()
}

#[tokio::test]
async fn a_cluster_without_vdo_is_looked_at_without_writing_and_missing_rights_are_findings() {
    let plane = ControlPlane::builder().with_audit().start().await;
    let inventory = Inventory::with_vms(2);
    let vms = inventory.datacenters[0].vms.clone();
    let vcenter = Vcenter::start(inventory).await;
    let nodes = Nodes::start(&plane).await;
    for vm in &vms {
        let id = format!("vsphere://{}", vm.uuid);
        nodes.add(Node::named(&vm.name).system_uuid(&vm.uuid).provider_id(&id)).await;
    }
    vcenter.patch_vm("/DC0/vm/node-2", json!({"diskUuid": false})).await;
    vcenter.forget_calls().await;

    // There is no definition of ours in this cluster, and no operator.
    let_list(&plane.client(), "reader", &["nodes"]).await;
    let few = plane.client_as(&User::named("reader").in_group("system:authenticated"));
    let facts = once(Some(&few), vec![target(&vcenter).await], None).await;
    assert_eq!(facts.cluster.nodes.get().unwrap().len(), 2);
    assert!(facts.storage.volumes.get().is_none(), "not known is not none");
    let found = codes(facts);
    assert!(found.contains("VDO-1803"), "the missing rights are named: {found:?}");
    assert!(found.contains("VDO-1203"), "what can be seen is judged: {found:?}");
    assert_eq!(writes(&plane, "reader"), Vec::<String>::new());

    let all = User::named("boss").in_group("system:masters");
    let facts = once(Some(&plane.client_as(&all)), vec![target(&vcenter).await], None).await;
    let found = codes(facts);
    assert!(!found.contains("VDO-1803") && found.contains("VDO-1203"), "{found:?}");
    assert_eq!(writes(&plane, "boss"), Vec::<String>::new());

    let changing =
        ["Reconfig", "Create", "Delete", "Destroy", "Power", "Set", "Update", "Add", "Remove"];
    // A view and a filter exist in the session alone.
    let harmless = [
        "CreateContainerView",
        "CreateFilter",
        "DestroyView",
        "DestroyPropertyFilter",
        "CreatePropertyCollector",
        "DestroyPropertyCollector",
        "CreateListView",
    ];
    for method in vcenter.calls().await.total.keys() {
        let changes = changing.iter().any(|word| method.starts_with(word));
        assert!(!changes || harmless.contains(&method.as_str()), "{method}");
    }
}
