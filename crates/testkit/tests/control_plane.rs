//! The control plane is real: RBAC denies requests, controllers act, a killed API server comes back.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;
use testkit::{ControlPlane, Fate, Node, Nodes, User, eventually};

#[tokio::test]
async fn a_user_has_only_the_permissions_that_rbac_grants() {
    let plane = ControlPlane::builder().with_audit().start().await;
    let nobody = User::named("somebody").in_group("nobodies");
    let maps = Api::<ConfigMap>::namespaced(plane.client_as(&nobody), "default");

    let refused = maps.list(&ListParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains("\"somebody\" cannot list"), "{refused}");

    grant_reading_to_group(&plane, "nobodies").await;
    eventually("the group has permission to read", 10, async || {
        maps.list(&ListParams::default()).await
    })
    .await;

    eventually("the audit log has the denied request", 10, async || {
        let refused = plane.audit().into_iter().any(|event| {
            event["responseStatus"]["code"] == 403
                && event["impersonatedUser"]["username"] == "somebody"
        });
        if refused { Ok(()) } else { Err("no such event") }
    })
    .await;
}

async fn grant_reading_to_group(plane: &ControlPlane, group: &str) {
    use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
    let role: Role = serde_json::from_value(json!({
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"}],
    }))
    .unwrap();
    let create = PostParams::default();
    Api::namespaced(plane.client(), "default").create(&create, &role).await.unwrap();
    Api::namespaced(plane.client(), "default").create(&create, &binding).await.unwrap();
}

#[tokio::test]
async fn objects_survive_a_killed_api_server() {
    let plane = ControlPlane::start().await;
    let namespaces = Api::<Namespace>::all(plane.client());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "kept"}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();

    plane.kill_api_server();
    assert!(namespaces.get("kept").await.is_err(), "the API server must not answer");
    plane.restart_api_server().await;

    namespaces.get("kept").await.unwrap();
}

#[tokio::test]
async fn pods_of_a_daemon_set_run_on_every_node_and_fail_on_demand() {
    let plane = ControlPlane::builder().with_controllers().start().await;
    let nodes = Nodes::start(&plane).await;
    let client = plane.client();
    for number in 1..=2 {
        let name = format!("worker-{number}");
        nodes.add(Node::named(&name).system_uuid(&format!("uuid-{number}"))).await;
    }
    nodes.add(Node::named("fresh").uninitialized()).await;

    let daemons =
        Api::<k8s_openapi::api::apps::v1::DaemonSet>::namespaced(client.clone(), "default");
    daemons.create(&PostParams::default(), &csi_node_daemon_set()).await.unwrap();

    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    let ready = async |wanted: usize| {
        let all = pods.list(&ListParams::default()).await.map_err(|e| e.to_string())?.items;
        let ready: Vec<_> = all.iter().filter(|pod| is_ready(pod)).collect();
        if ready.len() == wanted {
            Ok(())
        } else {
            Err(format!("{} of {} ready", ready.len(), all.len()))
        }
    };
    eventually("a pod runs on both initialised nodes and not on the fresh one", 60, async || {
        ready(2).await
    })
    .await;
    eventually("the driver is registered as by a kubelet", 20, async || {
        registered(&client, "worker-1").await
    })
    .await;

    nodes.pods("csi-node", Fate::Crashes);
    eventually("the pods crash", 20, async || ready(0).await).await;
    nodes.pods("csi-node", Fate::ImagePullFails);
    eventually("their image cannot be pulled", 20, async || {
        let all = pods.list(&ListParams::default()).await.map_err(|e| e.to_string())?.items;
        let stuck = all.iter().filter(|pod| waits_for(pod).as_deref() == Some("ImagePullBackOff"));
        if stuck.count() == 2 { Ok(()) } else { Err("not both") }.map_err(str::to_owned)
    })
    .await;
    nodes.pods("csi-node", Fate::Ready);
    eventually("the pods recover", 20, async || ready(2).await).await;
}

fn waits_for(pod: &Pod) -> Option<String> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers.first()?.state.as_ref()?.waiting.as_ref()?.reason.clone()
}

fn csi_node_daemon_set() -> k8s_openapi::api::apps::v1::DaemonSet {
    serde_json::from_value(json!({
        "metadata": {"name": "csi-node"},
        "spec": {
            "selector": {"matchLabels": {"app": "csi-node"}},
            "template": {
                "metadata": {"labels": {"app": "csi-node"}},
                "spec": {"containers": [{
                    "name": "node-driver-registrar",
                    "image": "registry.example/registrar:v1",
                    "args": ["--kubelet-registration-path=/var/lib/kubelet/plugins/csi.example.com/csi.sock"],
                }]},
            },
        },
    }))
    .unwrap()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

async fn registered(client: &kube::Client, node: &str) -> Result<(), String> {
    use k8s_openapi::api::storage::v1::CSINode;
    let csi_node =
        Api::<CSINode>::all(client.clone()).get(node).await.map_err(|e| e.to_string())?;
    match &csi_node.spec.drivers[..] {
        [driver] if driver.name == "csi.example.com" && driver.node_id == "uuid-1" => Ok(()),
        other => Err(format!("{other:?}")),
    }
}
