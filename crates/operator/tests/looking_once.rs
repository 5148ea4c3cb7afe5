//! A single check of a cluster without VDO: it writes nothing, and reports missing permissions.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeSet;

use driver_config::credentials::Credentials;
use health::{Examination, facts::Facts};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ContainerStatus, Namespace, Pod},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
};
use operator::{health_facts::collect_once, vcenters::ConnectionInputs};
use runtime::build::BuildInfo;
use serde_json::json;
use testkit::{ControlPlane, Fate, Inventory, Node, Nodes, User, Vcenter, eventually};

/// Looks once at the cluster and at this vCenter.
async fn look(client: &Client, vcenter: &Vcenter) -> Facts {
    let data = [("username", vcenter.user()), ("password", vcenter.password())];
    let data = data.map(|(key, text)| (key.to_owned(), text.as_bytes().to_vec()));
    let credentials = Credentials::read(&data.into_iter().collect()).unwrap();
    let address = vcenter.address().to_string();
    let spec = json!({"vcIp": address, "credentials": "none", "datacenters": ["DC0"]});
    let wanted = ConnectionInputs {
        spec: serde_json::from_value(spec).unwrap(),
        ca_bundle: Some(vcenter.ca_pem()),
        credential: credentials.for_server(&address).unwrap().clone(),
        version: String::new(),
        revision: String::new(),
        refused: None,
    };
    let cluster = Some((client, api::NAMESPACE));
    let collected = collect_once(cluster, Some(wanted), BuildInfo::new("test")).await;
    for session in collected.sessions.values() {
        session.shut_down().await;
    }
    collected.facts
}

/// Lets a user list these resources, and nothing else.
async fn let_list(client: &Client, user: &str, resources: &[&str]) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": user},
        "rules": [{"apiGroups": ["", "apps"], "resources": resources, "verbs": ["list"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    for object in [role, binding] {
        let id = plan::ObjectId::from_object(&catalog::manifest::Object(object.clone()));
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let api: Api<DynamicObject> = operator::act::api_of(client, &id).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// The permissions of a storage driver for the default account of the namespace `storage`.
async fn let_attach(client: &Client) {
    let role = json!({"metadata": {"name": "storage"}, "rules": [
        {"apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments"], "verbs": ["patch"]},
    ]});
    let role: ClusterRole = serde_json::from_value(role).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &role).await.unwrap();
    let binding = json!({
        "metadata": {"name": "storage"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "storage"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "storage", "name": "default"}],
    });
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();
}

/// A storage driver not managed by VDO, whose pod crashes.
async fn add_foreign_driver(client: &Client) {
    let_attach(client).await;
    let labels = json!({"app": "storage"});
    let containers =
        json!([{"name": "driver", "image": "registry.k8s.io/csi-vsphere/driver:v3.7.0"}]);
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "storage"}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let set: DaemonSet = serde_json::from_value(json!({
        "metadata": {"name": "vsphere-csi-node"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }))
    .unwrap();
    let sets = Api::<DaemonSet>::namespaced(client.clone(), "storage");
    let made = sets.create(&PostParams::default(), &set).await.unwrap();
    // No controller-manager creates its pods here.
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": "vsphere-csi-node-x7k2p", "labels": labels,
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "vsphere-csi-node",
                "uid": made.metadata.uid, "controller": true,
            }],
        },
        "spec": {"nodeName": "node-1", "containers": containers},
    }))
    .unwrap();
    let pods = Api::<Pod>::namespaced(client.clone(), "storage");
    pods.create(&PostParams::default(), &pod).await.unwrap();
    eventually("it crashes", 30, async || {
        let pod = pods.get("vsphere-csi-node-x7k2p").await.map_err(|e| e.to_string())?;
        let statuses = pod.status.unwrap_or_default().container_statuses.unwrap_or_default();
        let waits = |c: &ContainerStatus| c.state.as_ref().is_some_and(|s| s.waiting.is_some());
        statuses.iter().any(waits).then_some(()).ok_or(format!("{statuses:?}"))
    })
    .await;
}

fn codes(facts: Facts) -> BTreeSet<String> {
    let examination = Examination::run(facts);
    let findings = examination.report().all().into_iter();
    findings.filter(|finding| finding.severity > api::Severity::Info).map(|f| f.code).collect()
}

/// Requests other than reads and access reviews.
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
async fn a_cluster_without_vdo_is_checked_without_writes_and_missing_permissions_are_findings() {
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
    let message = "listen tcp :9808: bind: address already in use";
    nodes.pods("vsphere-csi-node", Fate::CrashesSaying(message));
    let _logs = nodes.serve_logs().await;
    add_foreign_driver(&plane.client()).await;
    vcenter.forget_calls().await;

    // The cluster has neither our CRDs nor an operator.
    let_list(&plane.client(), "reader", &["nodes"]).await;
    let few = plane.client_as(&User::named("reader").in_group("system:authenticated"));
    let facts = look(&few, &vcenter).await;
    assert_eq!(facts.cluster.nodes.get().unwrap().len(), 2);
    assert!(facts.storage.volumes.get().is_none(), "unknown volumes are not an empty list");
    let found = codes(facts);
    assert!(found.contains("VDO-1803"), "the missing permissions are reported: {found:?}");
    assert!(found.contains("VDO-1203"), "readable objects are checked: {found:?}");
    assert_eq!(writes(&plane, "reader"), Vec::<String>::new());

    // Without permission for the log, the report says that the crash log is unknown.
    let resources = ["nodes", "pods", "events", "daemonsets", "deployments"];
    let_list(&plane.client(), "looker", &resources).await;
    let some = plane.client_as(&User::named("looker").in_group("system:authenticated"));
    let examination = Examination::run(look(&some, &vcenter).await);
    let report = examination.report();
    let unread = report.page("VDO-1801", 0, usize::MAX);
    let unread = unread.entries.iter().any(|entry| entry.seen.contains("cannot read logs"));
    assert!(unread, "{:#?}", report.page("VDO-1801", 0, usize::MAX).entries);
    let missing_privileges = report.page("VDO-1803", 0, usize::MAX);
    let missing_privileges =
        missing_privileges.entries.iter().any(|entry| entry.seen.contains("pods/log"));
    assert!(missing_privileges, "{:#?}", report.page("VDO-1803", 0, usize::MAX).entries);
    assert!(report.page("VDO-1614", 0, 1).entries.is_empty(), "the log was not readable");

    let all = User::named("boss").in_group("system:masters");
    let facts = look(&plane.client_as(&all), &vcenter).await;
    let found = codes(facts);
    assert!(!found.contains("VDO-1803") && found.contains("VDO-1203"), "{found:?}");
    assert!(found.contains("VDO-1614"), "the crash log is explained: {found:?}");
    assert!(!found.contains("VDO-1801"), "nothing is unknown: {found:?}");
    assert_eq!(writes(&plane, "boss"), Vec::<String>::new());

    let changing =
        ["Reconfig", "Create", "Delete", "Destroy", "Power", "Set", "Update", "Add", "Remove"];
    // Views and filters exist only in the session.
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
