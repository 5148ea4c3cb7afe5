//! A StatefulSet: each replica has a volume of its own.

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use testkit::eventually;

use super::workload::{DATA, pause_container, script_container};
use crate::cluster::Cluster;

/// The first start writes the name of the pod to the volume; each start reports what the volume has.
const SCRIPT: &str = r#"[ -e /data/name ] && found=kept || { echo "$POD" >/data/name; found=new; }
read name </data/name; report $found $name"#;

pub(super) async fn each_replica_keeps_its_volume(cluster: &Cluster) {
    let sets = Api::<StatefulSet>::default_namespaced(cluster.plane.client());
    sets.create(&PostParams::default(), &stateful_set()).await.unwrap();
    for name in ["db-0", "db-1", "db-2"] {
        assert_eq!(cluster.answer(name).await, format!("new {name}"));
    }
    let uid = cluster.pods_api().get("db-1").await.unwrap().metadata.uid;
    cluster.pods_api().delete("db-1", &DeleteParams::default()).await.unwrap();
    eventually("the pod is replaced", 60, async || {
        match cluster.pods_api().get_opt("db-1").await.unwrap() {
            Some(pod) if pod.metadata.uid != uid => Ok(()),
            other => Err(format!("{:?}", other.and_then(|pod| pod.status))),
        }
    })
    .await;
    assert_eq!(cluster.answer("db-1").await, "kept db-1");

    sets.delete("db", &DeleteParams::default()).await.unwrap();
    eventually("the pods are gone", 60, async || {
        let of_set = ListParams::default().labels("app=db");
        let left = cluster.pods_api().list(&of_set).await.unwrap().items;
        if left.is_empty() { Ok(()) } else { Err(left.len()) }
    })
    .await;
    cluster.delete_claims(&["data-db-0", "data-db-1", "data-db-2"]).await;
}

fn stateful_set() -> StatefulSet {
    let volumes = json!({"volumeMounts": [{"name": "data", "mountPath": DATA}]});
    let mut script = script_container(SCRIPT, &volumes);
    script["env"] =
        json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    let set = json!({
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 3, "serviceName": "db", "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "db"}},
                    }],
                    "securityContext": {"runAsUser": 0},
                    "initContainers": [script],
                    "containers": [pause_container(&volumes)],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {
                    "storageClassName": "ext4", "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }],
        },
    });
    serde_json::from_value(set).unwrap()
}
