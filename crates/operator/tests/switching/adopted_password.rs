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

/// A cluster with the adopted cloud controller. A node without a VM, whose kubelet is down, holds up the rollout of
/// VDO's configuration.
struct AdoptedController {
    testbed: Testbed,
    operator: Process,
    /// The name of the pod on the node that is down.
    unreachable: String,
}

impl AdoptedController {
    async fn start(update_strategy: Value) -> Self {
        let testbed = Testbed::with_nodes(2).await;
        let _configs = testbed.use_catalog().await;
        let mut objects = chart(&testbed);
        objects.last_mut().unwrap()["spec"]["updateStrategy"] = update_strategy;
        testbed.create("helm", objects).await;
        testbed.create("vdo", [record()]).await;
        let roles = operator::install::objects_with(&BTreeSet::from([CLOUD.to_owned()]));
        let roles = roles.into_iter().filter(|object| object.namespace() == CLOUD);
        testbed.create("vdoctl", roles.map(|object| object.0)).await;
        let uuid = "42100000-dead-dead-dead-000000000001";
        let dead = Node::named("dead").system_uuid(uuid).provider_id(&format!("vsphere://{uuid}"));
        let nodes = testbed.nodes.as_ref().unwrap();
        nodes.add(dead).await;
        let sets = Api::<DaemonSet>::namespaced(testbed.client(), CLOUD);
        eventually("all pods run", 60, async || {
            let status = sets.get("vsphere-cpi").await.unwrap().status.unwrap_or_default();
            if status.number_available == Some(4) { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
        nodes.stop_kubelet("dead").await;
        eventually("the pod of the node that is down is unavailable", 60, async || {
            let status = sets.get("vsphere-cpi").await.unwrap().status.unwrap();
            if status.number_unavailable == Some(1) { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
        let pods = pods_of_set(&testbed).await;
        let unreachable = pods.into_iter().find(|(node, ..)| node == "dead").unwrap().1;
        let operator = testbed.operator_with(&["--driver-namespace=cloud"]);
        testbed.configure(json!({"cloudProvider": {"vsphereCloudConfigs": ["vc"]}})).await;
        testbed
            .status("the rollout waits for the node", 60, |status| {
                serde_json::to_string(&status.plan).unwrap().contains("dead")
            })
            .await;
        Self { testbed, operator, unreachable }
    }

    /// Changes the password, and waits until the Secret and the pod template of the driver have it.
    async fn rotate(&self) {
        let Self { testbed, operator, .. } = self;
        let new = "a new password";
        testbed.vcenter.set_user(&VcenterUser::new(testbed.vcenter.user(), new)).await;
        testbed.write_secret(new).await;
        eventually("the driver restarts with the new password", 60, async || {
            assert!(operator.ended().is_none(), "{}", operator.tail());
            let password = testbed.secret(CLOUD, LOGIN, "127.0.0.1.password").await;
            let restarted = self.time_of_change().await.is_some();
            if password == new && restarted { Ok(()) } else { Err(operator.tail()) }
        })
        .await;
    }

    /// The time of the logins in the pod template.
    async fn time_of_change(&self) -> Option<String> {
        let sets = Api::<DaemonSet>::namespaced(self.testbed.client(), CLOUD);
        let set = sets.get("vsphere-cpi").await.unwrap();
        let template = set.spec.unwrap().template.metadata.unwrap().annotations;
        template.unwrap_or_default().remove(plan::names::CREDENTIALS_CHANGED)
    }

    /// The pods with an old password on nodes that are up.
    async fn old_pods(&self) -> Vec<(String, String, String)> {
        let changed = self.time_of_change().await.unwrap_or_default();
        let pods = pods_of_set(&self.testbed).await.into_iter();
        pods.filter(|(node, _, time)| node != "dead" && *time != changed).collect()
    }

    async fn assert_unreachable_pod_remains(&self) {
        let pods = pods_of_set(&self.testbed).await;
        let remains = pods.iter().any(|(_, name, _)| *name == self.unreachable);
        assert!(remains, "nobody can end the pod of the node that is down: {pods:?}");
    }
}

#[tokio::test]
async fn an_adopted_cloud_controller_restarts_with_a_new_password_in_its_own_secret() {
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
    let adopted = AdoptedController::start(rolling).await;
    adopted.rotate().await;
    let AdoptedController { testbed, operator, .. } = &adopted;
    let sets = Api::<DaemonSet>::namespaced(testbed.client(), CLOUD);
    // The node that is down keeps its pod. All other pods restart, and the limit is then the chart's again.
    eventually("all pods that can run have the new password", 60, async || {
        let set = sets.get("vsphere-cpi").await.unwrap();
        let (pods, old) = (pods_of_set(testbed).await, adopted.old_pods().await);
        let rolling = set.spec.as_ref().unwrap().update_strategy.clone().unwrap();
        let most = rolling.rolling_update.unwrap().max_unavailable.unwrap();
        let raised = set.annotations().contains_key(plan::names::FORMER_LIMIT);
        if pods.len() >= 4 && old.is_empty() && most == IntOrString::Int(1) && !raised {
            Ok(())
        } else {
            Err(format!("{pods:?}, limit {most:?}, raised {raised}\n{}", operator.tail()))
        }
    })
    .await;
    adopted.assert_unreachable_pod_remains().await;
    let secrets = Api::<Secret>::namespaced(testbed.client(), CLOUD);
    let secret = secrets.get(LOGIN).await.unwrap();
    assert_eq!(secret.labels().len(), 1, "VDO does not claim the Secret: {:?}", secret.labels());
    assert_eq!(secret.data.unwrap().len(), 2);

    // VDO rolls out its own configuration as soon as it can, and nothing of the chart's is left in the pods.
    let nodes = Api::<KubeNode>::all(testbed.client());
    nodes.delete("dead", &DeleteParams::default()).await.unwrap();
    let pods = Api::<Pod>::namespaced(testbed.client(), CLOUD);
    let force = DeleteParams::default().grace_period(0);
    pods.delete(&adopted.unreachable, &force).await.unwrap();
    testbed.ready(operator, 120).await;
    let set = sets.get("vsphere-cpi").await.unwrap();
    let pods = set.spec.unwrap().template.spec.unwrap();
    assert_eq!(pods.containers.len(), 1, "the chart's container is replaced: {pods:?}");
    assert!(secrets.get_opt(LOGIN).await.unwrap().is_some(), "VDO does not prune the Secret");
    assert_eq!(testbed.deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn the_command_in_the_finding_replaces_the_pods_of_a_driver_that_restarts_on_delete() {
    let adopted = AdoptedController::start(json!({"type": "OnDelete"})).await;
    adopted.rotate().await;
    let AdoptedController { testbed, operator, .. } = &adopted;
    let finding = testbed.finding_about("VDO-1316", 60, &["OnDelete", "vsphere-cpi"]).await;
    assert_eq!(adopted.old_pods().await.len(), 3, "Kubernetes replaces no pod by itself");

    let seen = finding.seen.unwrap();
    let (_, command) = seen.split_once("until you run: ").unwrap();
    let run = tokio::time::timeout(Duration::from_mins(1), testbed.run(command)).await;
    run.expect("the command does not wait for the pod of the node that is down");
    eventually("all pods that can run have the new password", 60, async || {
        let (pods, old) = (pods_of_set(testbed).await, adopted.old_pods().await);
        if pods.len() >= 4 && old.is_empty() { Ok(()) } else { Err(format!("{pods:?}")) }
    })
    .await;
    testbed
        .status("the finding is resolved", 60, |status| {
            !status.findings.iter().any(|finding| finding.code == "VDO-1316")
        })
        .await;
    adopted.assert_unreachable_pod_remains().await;
    assert!(operator.ended().is_none(), "{}", operator.tail());
    assert_eq!(testbed.deletions(), Vec::<String>::new());
    assert_eq!(testbed.denied_requests(), Vec::<String>::new());
}
