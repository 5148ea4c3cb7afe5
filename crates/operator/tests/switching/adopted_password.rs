//! A cloud controller that VDO adopted and cannot roll out yet reads its own Secret, and gets new passwords there.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Node as KubeNode, Pod, Secret},
    apimachinery::pkg::util::intstr::IntOrString,
};
use plan::{
    ObjectId,
    record::{Named, Names, Record},
};
use testkit::{Node, VcenterUser};

use super::*;

const CLOUD: &str = "cloud";
const LOGIN: &str = "vsphere-cpi-creds";

/// The record as VDO writes it when it adopts the cloud controller of [`chart_cpi`].
fn record() -> Value {
    let labels = BTreeMap::from([("app".to_owned(), "vsphere-cpi".to_owned())]);
    let named = Named { name: "vsphere-cpi".into(), selector: labels };
    let workload = ObjectId {
        api_version: "apps/v1".into(),
        kind: "DaemonSet".into(),
        namespace: CLOUD.into(),
        name: "vsphere-cpi".into(),
    };
    let record = Record {
        version: Some("1.36.0".into()),
        since: Some(Timestamp::now()),
        healthy: true,
        objects: BTreeSet::from([workload]),
        names: Some(Names {
            namespace: CLOUD.into(),
            settings: Some("vsphere-cloud-config".into()),
            workloads: BTreeMap::from([("vsphere-cloud-controller-manager".to_owned(), named)]),
        }),
        ..Record::default()
    };
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "vdo-record-cpi", "namespace": NAMESPACE},
        "data": {"record.json": serde_json::to_string(&record).unwrap()},
    })
}

/// The objects of the chart, with the credentials in a Secret.
fn chart(testbed: &Testbed) -> Vec<Value> {
    let conf = format!(
        "global:\n  insecureFlag: true\n  secretName: {LOGIN}\n  secretNamespace: {CLOUD}\nvcenter:\n  \
         127.0.0.1:\n    server: 127.0.0.1\n    port: {}\n    datacenters:\n      - DC0\n",
        testbed.vcenter.address().port()
    );
    let login = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": LOGIN, "namespace": CLOUD, "labels": {"chart": "vsphere-cpi"}},
        "stringData": {
            "127.0.0.1.username": testbed.vcenter.user(),
            "127.0.0.1.password": testbed.vcenter.password(),
        },
    });
    let [mut config, mut set] = chart_cpi();
    config["data"]["vsphere.conf"] = json!(conf);
    for object in [&mut config, &mut set] {
        object["metadata"]["namespace"] = json!(CLOUD);
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CLOUD}});
    vec![namespace, login, config, set]
}

/// The pods of the cloud controller: node, name and the time of the logins that they use.
async fn pods_of_set(testbed: &Testbed) -> Vec<(String, String, String)> {
    let pods = Api::<Pod>::namespaced(testbed.client(), CLOUD);
    let pods = pods.list(&ListParams::default().labels("app=vsphere-cpi")).await.unwrap();
    let known = pods.into_iter().map(|pod| {
        let name = pod.name_any();
        let changed = pod.annotations().get(plan::names::CREDENTIALS_CHANGED).cloned();
        let node = pod.spec.unwrap().node_name.unwrap_or_default();
        (node, name, changed.unwrap_or_default())
    });
    known.collect()
}

/// Keeps the pod of the node that is down, as if its kubelet did not answer. Returns its name.
async fn hold_pod_of_dead_node(testbed: &Testbed) -> String {
    let name = eventually("the node that is down has a pod", 60, async || {
        let pods = pods_of_set(testbed).await;
        let dead = pods.iter().find(|(node, ..)| node == "dead");
        dead.map(|(_, name, _)| name.clone()).ok_or_else(|| format!("{pods:?}"))
    })
    .await;
    set_finalizers(testbed, &name, json!(["test.example.com/kubelet"])).await;
    name
}

/// Kubernetes replaces pods that are not ready first, and then waits for the kubelet of the node that is down.
async fn lose_pod(testbed: &Testbed, name: &str) {
    let pods = Api::<Pod>::namespaced(testbed.client(), CLOUD);
    let condition = json!({"type": "Ready", "status": "False", "reason": "NodeNotReady"});
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), CLOUD);
    eventually("the pod of the node that is down is unavailable", 60, async || {
        let status = sets.get("vsphere-cpi").await.unwrap().status.unwrap();
        if status.number_unavailable == Some(1) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

async fn release_pod(testbed: &Testbed, name: &str) {
    set_finalizers(testbed, name, json!(null)).await;
}

async fn set_finalizers(testbed: &Testbed, name: &str, finalizers: Value) {
    let pods = Api::<Pod>::namespaced(testbed.client(), CLOUD);
    let patch = json!({"metadata": {"finalizers": finalizers}});
    pods.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

#[tokio::test]
async fn an_adopted_cloud_controller_restarts_with_a_new_password_in_its_own_secret() {
    let testbed = Testbed::with_nodes(2).await;
    let _configs = testbed.use_catalog().await;
    testbed.create("helm", chart(&testbed)).await;
    testbed.create("vdo", [record()]).await;
    let roles = operator::install::objects_with(&BTreeSet::from([CLOUD.to_owned()])).into_iter();
    let roles = roles.filter(|object| object.namespace() == CLOUD).map(|object| object.0);
    testbed.create("vdoctl", roles).await;
    // The node without a VM holds up the rollout of VDO's configuration.
    let uuid = "42100000-dead-dead-dead-000000000001";
    let dead = Node::named("dead").system_uuid(uuid).provider_id(&format!("vsphere://{uuid}"));
    let nodes = testbed.nodes.as_ref().unwrap();
    nodes.add(dead).await;
    let held = hold_pod_of_dead_node(&testbed).await;
    nodes.set_ready("dead", false).await;
    let operator = testbed.operator_with(&["--driver-namespace=cloud"]);
    testbed.configure(json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"]}})).await;
    testbed
        .status("the rollout waits for the node", 60, |status| {
            serde_json::to_string(&status.plan).unwrap().contains("dead")
        })
        .await;

    lose_pod(&testbed, &held).await;
    let new = "a new password";
    testbed.vcenter.set_user(&VcenterUser::new(testbed.vcenter.user(), new)).await;
    testbed.write_secret(new).await;
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), CLOUD);
    eventually("the driver restarts with the new password", 60, async || {
        assert!(operator.ended().is_none(), "{}", operator.tail());
        let password = testbed.secret(CLOUD, LOGIN, "127.0.0.1.password").await;
        let set = sets.get("vsphere-cpi").await.unwrap();
        let template = set.spec.unwrap().template.metadata.unwrap().annotations.unwrap_or_default();
        let restarted = template.contains_key(plan::names::CREDENTIALS_CHANGED);
        if password == new && restarted { Ok(()) } else { Err(operator.tail()) }
    })
    .await;
    // The node that is down keeps its pod. All other pods restart, and the limit is then the chart's again.
    eventually("all pods that can run have the new password", 60, async || {
        let set = sets.get("vsphere-cpi").await.unwrap();
        let template = set.spec.as_ref().unwrap().template.metadata.clone().unwrap();
        let changed = &template.annotations.unwrap()[plan::names::CREDENTIALS_CHANGED];
        let pods = pods_of_set(&testbed).await;
        let old = pods.iter().filter(|(node, _, time)| node != "dead" && time != changed).count();
        let rolling = set.spec.as_ref().unwrap().update_strategy.clone().unwrap();
        let most = rolling.rolling_update.unwrap().max_unavailable.unwrap();
        let raised = set.annotations().contains_key(plan::names::FORMER_LIMIT);
        if pods.len() >= 3 && old == 0 && most == IntOrString::Int(1) && !raised {
            Ok(())
        } else {
            Err(format!("{pods:?}, limit {most:?}, raised {raised}\n{}", operator.tail()))
        }
    })
    .await;
    let still_there = pods_of_set(&testbed).await.into_iter().any(|(_, name, _)| name == held);
    assert!(still_there, "nobody can end the pod of the node that is down");
    release_pod(&testbed, &held).await;
    let secrets = Api::<Secret>::namespaced(testbed.client(), CLOUD);
    let secret = secrets.get(LOGIN).await.unwrap();
    assert_eq!(secret.labels().len(), 1, "VDO does not claim the Secret: {:?}", secret.labels());
    assert_eq!(secret.data.unwrap().len(), 2);

    // VDO rolls out its own configuration as soon as it can, and nothing of the chart's is left in the pods.
    let nodes = Api::<KubeNode>::all(testbed.client());
    nodes.delete("dead", &DeleteParams::default()).await.unwrap();
    testbed.ready(&operator, 120).await;
    let set = sets.get("vsphere-cpi").await.unwrap();
    let pods = set.spec.unwrap().template.spec.unwrap();
    assert_eq!(pods.containers.len(), 1, "the chart's container is replaced: {pods:?}");
    assert!(secrets.get_opt(LOGIN).await.unwrap().is_some(), "VDO does not prune the Secret");
    assert_eq!(testbed.deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}
